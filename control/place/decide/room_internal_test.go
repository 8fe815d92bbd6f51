package decide

import (
	"math"
	"testing"
)

// What is kept free lets loads begin while others leave, and costs no more than a tenth of the models that have room.
func TestWhatIsKeptFree(t *testing.T) {
	const mi = 1 << 20
	for _, c := range []struct {
		bytes, defaults int64
		loads           int
		want            int64
	}{
		// Half of what two loads take at once, a quarter of more; a hundredth to a tenth of all.
		{10000 * mi, 200 * mi, 2, 200 * mi},
		{10000 * mi, 200 * mi, 1, 100 * mi},
		{10000 * mi, 200 * mi, 8, 400 * mi},
		{10000 * mi, 200 * mi, 3, 150 * mi},
		{10000 * mi, 900 * mi, 8, 1000 * mi},
		{10000 * mi, 0, 8, 100 * mi},
		{10000 * mi, mi, 2, 100 * mi},
		// Ten have room: that of one is a tenth.
		{1000 * mi, 100 * mi, 2, 100 * mi},
		// Nine have: no more than they leave over.
		{1000 * mi, 101 * mi, 2, 91 * mi},
		{900 * mi, 100 * mi, 8, 0},
		{600 * mi, 100 * mi, 2, 0},
		{690 * mi, 100 * mi, 2, 69 * mi},
		{630 * mi, 100 * mi, 2, 30 * mi},
		{100 * mi, 100 * mi, 1, 0},
		// None has.
		{99 * mi, 100 * mi, 1, 99 * mi / 10},
		{math.MaxInt64, math.MaxInt64, math.MaxInt, 0},
	} {
		e := &endpoint{}
		e.Bytes, e.DefaultBytes, e.Loads = c.bytes, c.defaults, c.loads
		if got := e.reserve(); got != c.want {
			t.Errorf("of %d, %d by default, %d at once: %d is kept, want %d", c.bytes, c.defaults, c.loads, got, c.want)
		}
	}
}
