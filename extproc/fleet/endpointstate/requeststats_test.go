package endpointstate_test

import (
	"math"
	"slices"
	"testing"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
)

func TestHabits(t *testing.T) {
	var none *endpointstate.RequestStats
	if none.BytesPerToken() != 4 || none.Output() != 200 {
		t.Errorf("by default: %g bytes, %g tokens", none.BytesPerToken(), none.Output())
	}
	var h endpointstate.RequestStats
	want := func(when string, bytes, output float64) {
		t.Helper()
		if math.Abs(h.BytesPerToken()-bytes) > 0.01 || math.Abs(h.Output()-output) > 0.01 {
			t.Errorf("%s: %g bytes per token, %g output tokens, want %g and %g", when, h.BytesPerToken(), h.Output(), bytes, output)
		}
	}
	want("nothing yet", 4, 200)
	h.Learn(0, 10, 0)
	h.Learn(300, 0, 0)
	want("requests without counts", 4, 200)
	h.Learn(300, 100, 50)
	want("the first", 3, 50)
	h.Learn(500, 100, 150)
	want("the mean of two", 4, 100)
	h.Learn(0, 0, 400)
	want("an answer of an unknown prompt", 4, 200)
	for range 1000 {
		h.Learn(200, 100, 10)
	}
	want("old values are forgotten", 2, 10)
	h.Learn(200, 100, 650)
	want("one of 64", 2, 20)
	for range 2000 {
		h.Learn(1, 1e9, 1e18)
	}
	want("impossible values are bounded", 0.5, 1<<20)
}

// Denser reports a change of the bytes per token once, if it is larger than an eighth of the value
// that it last reported.
func TestDenser(t *testing.T) {
	for _, c := range []struct {
		bytes []int // prompt bytes of requests with 100 tokens each
		want  []float64
	}{
		{[]int{400, 440, 360}, nil},
		{[]int{100, 100}, []float64{1}},
		{[]int{350, 350, 350}, []float64{3.5}},
		{[]int{800, 400, 400}, []float64{8, 6}},
	} {
		var h endpointstate.RequestStats
		var got []float64
		for _, bytes := range c.bytes {
			h.Learn(bytes, 100, 1)
			if is, news := h.Denser(); news {
				got = append(got, math.Round(100*is)/100)
			}
			if _, again := h.Denser(); again {
				t.Errorf("%v: it is reported twice", c.bytes)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: reported %v, want %v", c.bytes, got, c.want)
		}
	}
}
