package place

import (
	"math"
	"testing"

	"github.com/headgate/headgate/test/race"
)

// engined is a World in which endpoints are engines. Its only model may fill all memory.
func engined(rate float64) World {
	w := small()
	w.Warm, w.Warmup, w.Measured, w.Rate, w.Share = true, 0, 600, rate, 2
	setHot(&w)
	return w
}

// The first token comes from the engine: on an idle engine it takes the time of the prompt, and on
// a busy one it takes longer.
func TestFirstTokens(t *testing.T) {
	race.Skip(t)
	idle, err := Run(engined(0.02), 1, Known())
	if err != nil {
		t.Fatal(err)
	}
	longest := engined(0.02).Engine.PrefillTime(0, 4096)
	if idle.FirstToken99 <= 0 || idle.FirstToken99 > longest+2.1 { // 2.1: at most one load before the first token
		t.Errorf("an idle fleet's first tokens take %.2f s, a prompt at most %.2f s", idle.FirstToken99, longest)
	}
	busy, err := Run(engined(4), 1, Known())
	if err != nil || busy.FirstToken99 < 1.2*longest {
		t.Errorf("a busy fleet's first tokens take %.2f s, a prompt at most %.2f s (%v)", busy.FirstToken99, longest, err)
	}
}

// A request that has no first token at the end counts with an infinite time, unless it arrived in
// the last minute.
func TestFirstTokensThatNeverCome(t *testing.T) {
	f := &Fleet{
		first: []float32{0.5, 0, 0, 0}, waits: []float32{0, 0, 0, refused},
		Requests: []Request{{At: 1}, {At: 2}, {At: 95}, {At: 96}},
	}
	for number, want := range []float64{0.5, math.Inf(1), 5, math.Inf(1)} {
		if is := float64(f.firstToken(number, 100)); is != want {
			t.Errorf("the first token of request %d took %g s, want %g", number, is, want)
		}
	}
}

// Under the policy headgate, a hot model gets enough copies: times to first token are about those
// under the policy known, and no queue keeps growing.
func TestHot(t *testing.T) {
	race.Skip(t)
	w := World{Endpoints: 10, Models: 50, Share: 1.2, Zipf: 1, Rate: 10, Load: 2, AtOnce: 2, Warmup: 900, Measured: 300}
	setHot(&w)
	first := func(p Policy) float64 {
		is, err := Run(w, 1, p)
		if err != nil {
			t.Fatal(err)
		}
		return is.FirstToken99
	}
	if is, known := first(Headgate()), first(Known()); is > 1.5*known {
		t.Errorf("first tokens take %.2f s, with known loads %.2f s", is, known)
	}
}
