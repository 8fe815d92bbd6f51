package belief_test

import (
	"math"
	"testing"

	"github.com/headgate/headgate/extproc/fleet/belief"
)

func TestHabits(t *testing.T) {
	var none *belief.Habit
	if none.BytesPerToken() != 4 || none.Output() != 200 {
		t.Errorf("nothing is known: %g bytes, %g tokens", none.BytesPerToken(), none.Output())
	}
	var h belief.Habit
	want := func(when string, bytes, output float64) {
		t.Helper()
		if math.Abs(h.BytesPerToken()-bytes) > 0.01 || math.Abs(h.Output()-output) > 0.01 {
			t.Errorf("%s: %g bytes a token, answers of %g, want %g and %g", when, h.BytesPerToken(), h.Output(), bytes, output)
		}
	}
	want("nothing yet", 4, 200)
	h.Learn(0, 10, 0)
	h.Learn(300, 0, 0)
	want("nothing that tells", 4, 200)
	h.Learn(300, 100, 50)
	want("the first", 3, 50)
	h.Learn(500, 100, 150)
	want("the mean of two", 4, 100)
	h.Learn(0, 0, 400)
	want("an answer of an unknown prompt", 4, 200)
	for range 1000 {
		h.Learn(200, 100, 10)
	}
	want("what was once is forgotten", 2, 10)
	h.Learn(200, 100, 650)
	want("one of 64", 2, 20)
	for range 2000 {
		h.Learn(1, 1e9, 1e18)
	}
	want("what cannot be is bounded", 0.5, 1<<20)
}
