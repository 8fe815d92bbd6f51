package pick_test

import (
	"math/rand/v2"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
)

// claimed is a decision of Latency for a prompt of so many tokens.
func claimed(t *testing.T, f *fleet, prompt int) pick.Decision {
	t.Helper()
	room := make([]pick.Decision, 1)
	_, err := pick.Pick(pick.Policy{Rule: pick.Latency}, f.snapshot(), pick.Request{
		Pool: thePool, Model: "m", Demand: pick.Demand{Prompt: prompt, Output: 100, PerToken: 0.1, Now: now},
	}, room)
	if err != nil {
		t.Fatal(err)
	}
	return room[0]
}

// Prompts are computed one after the other, and time passes.
func TestPromptsQueue(t *testing.T) {
	f := newFleet()
	f.profile(t, []string{"prefill=0,0.001", "decode=0.01,0.001,0.00001"})
	f.endpoint(t, "a", []string{"lists=m"})
	b := f.pool.Endpoints[0].Backlog
	first, second := claimed(t, f, 100), claimed(t, f, 200)
	b.Begin(first.Claim, now)
	b.Begin(second.Claim, now)
	if got := b.Through.Load() - now; got != 300e6 {
		t.Errorf("both are through after %d ns, want 300 ms", got)
	}
	// A sequence each, 100 and 200 tokens, and half of an answer: 2 + 1.5 + 2.5 ms. 10 a second each. 400 tokens held.
	if b.Beside.Load() != 6e9 || b.Urgency.Load() != 20_000 || b.Held.Load() != 400 {
		t.Errorf("beside %d ps, urgency %d, held %d", b.Beside.Load(), b.Urgency.Load(), b.Held.Load())
	}
	b.Begin(first.Claim, now+1e9) // when nothing is left to compute
	if got := b.Through.Load() - now; got != 1.1e9 {
		t.Errorf("a third that comes after 1 s is through after %d ns, want 1.1 s", got)
	}
	b.End(first.Claim, false)
	b.End(second.Claim, false)
	if got := b.Through.Load() - now; got != 1.1e9 {
		t.Errorf("while one is left, all are through after %d ns, want 1.1 s", got)
	}
	b.End(first.Claim, true)
	if got := [...]int64{b.Through.Load(), b.Beside.Load(), b.Urgency.Load(), b.Held.Load()}; got != [4]int64{} {
		t.Errorf("of nothing is left %v", got)
	}
}

// Where the clock was set back, prompts wait for what others before them take, and no longer.
func TestTheClockIsSetBack(t *testing.T) {
	f := newFleet()
	f.profile(t, []string{"prefill=0,0.001", "decode=0.01,0.001,0.00001"})
	f.endpoint(t, "a", []string{"lists=m"})
	b, first := f.pool.Endpoints[0].Backlog, claimed(t, f, 100)
	b.Begin(first.Claim, now+3600e9)
	if got := claimed(t, f, 200).Estimate.Queue; got < 0.099 || got > 0.101 {
		t.Errorf("a second request waits for %g s, want 0.1", got)
	}
	b.Begin(first.Claim, now)
	if got := b.Through.Load() - now; got != 200e6 {
		t.Errorf("both are through after %d ns, want 200 ms", got)
	}
}

// Whatever comes and goes, in whatever order: nothing is left of it.
func TestABacklogEnds(t *testing.T) {
	f := newFleet()
	f.profile(t, []string{"prefill=0.01,0.0001", "decode=0.0123,0.000456,0.0000000789"})
	f.endpoint(t, "a", []string{"lists=m"})
	b, random := f.pool.Endpoints[0].Backlog, rand.New(rand.NewPCG(1, 1))
	var there []pick.Claim
	for n := range 1000 {
		if n < 900 && (len(there) == 0 || random.IntN(2) == 0) {
			d := claimed(t, f, 1+random.IntN(5000))
			b.Begin(d.Claim, now)
			there = append(there, d.Claim)
		} else if len(there) > 0 {
			i := random.IntN(len(there))
			c := there[i]
			there = append(there[:i], there[i+1:]...)
			b.End(c, len(there) == 0)
		}
	}
	for _, c := range there {
		b.End(c, false)
	}
	if got := [...]int64{b.Beside.Load(), b.Urgency.Load(), b.Held.Load()}; got != [3]int64{} {
		t.Errorf("of nothing is left %v", got)
	}
}
