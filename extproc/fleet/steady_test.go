package fleet_test

import (
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
)

// While the wall clock is not adjusted, Steady returns the same time, with and without a monotonic
// reading.
func TestSteady(t *testing.T) {
	now := time.Now()
	for _, at := range []time.Time{now, now.Add(time.Hour), now.Round(0), time.Unix(1e9, 7), now.AddDate(100, 0, 0)} {
		if got := fleet.Steady(at); got.Sub(at).Abs() > time.Second {
			t.Errorf("%v becomes %v", at, got)
		}
	}
	if got := fleet.Steady(now.Add(5)).UnixNano() - fleet.Steady(now).UnixNano(); got != 5 {
		t.Errorf("5 ns become %d", got)
	}
}
