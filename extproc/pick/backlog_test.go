package pick_test

import (
	"math"
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
	// A sequence each, 100 and 200 tokens, and half of an answer: 2 + 1.5 + 2.5 ms. 10 a second
	// each. 400 tokens.
	if b.Beside.Load() != 6e9 || b.Urgency.Load() != 20_000 || b.Tokens.Load() != 400 {
		t.Errorf("beside %d ps, urgency %d, tokens %d", b.Beside.Load(), b.Urgency.Load(), b.Tokens.Load())
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
	b.Others(5e8, now+1e9)
	if through, queue := b.Through.Load()-now, b.Queue.Load()-now; through != 1.1e9 || queue != 1.6e9 {
		t.Errorf("with half a second of others', ours are through after %d ns and all after %d, want 1.1 and 1.6 s", through, queue)
	}
	b.Others(-2e8, now+15e8)
	if queue := b.Queue.Load() - now; queue != 1.4e9 {
		t.Errorf("with 0.2 s of others' less, all are through after %d ns, want 1.4 s", queue)
	}
	b.Begin(second.Claim, now+2e9)
	b.Begin(second.Claim, now+2e9)
	if through, queue := b.Through.Load()-now, b.Queue.Load()-now; through != 2.4e9 || queue != 2.4e9 {
		t.Errorf("after all were idle, two are through after %d and %d ns, want 2.4 s", through, queue)
	}
	b.End(second.Claim, false)
	b.End(second.Claim, false)
	b.End(first.Claim, true)
	b.Idle()
	if got := [...]int64{b.Queue.Load(), b.Through.Load(), b.Beside.Load(), b.Urgency.Load(), b.Tokens.Load()}; got != [5]int64{} {
		t.Errorf("of nothing is left %v", got)
	}
}

// The load of an adapter holds up who comes next, as its prompt does; what is cached of that takes
// no more of the KV cache.
func TestWhatARequestClaims(t *testing.T) {
	f := newFleet()
	f.profile(t, []string{"prefill=0,0.001", "decode=0.01,0.001,0.00001", "load=0.3", "slot=0.02"})
	f.endpoint(t, "a", []string{"lists=m", "slots=2", "room=2,2"})
	room := make([]pick.Decision, 1)
	if _, err := pick.Pick(pick.Policy{Rule: pick.Latency}, f.snapshot(), pick.Request{
		Pool: thePool, Model: "m", Demand: pick.Demand{Prompt: 100, Output: 100, Cached: []int32{1}, Block: 64, Now: now},
	}, room); err != nil {
		t.Fatal(err)
	}
	b := f.pool.Endpoints[0].Backlog
	b.Begin(room[0].Claim, now)
	if through, tokens := b.Through.Load()-now, b.Tokens.Load(); through != 356e6 || tokens != 36+50 {
		t.Errorf("the next one waits for %d ns, and it takes %d tokens; want 320 ms of the load and 36 of the prompt, and 86",
			through, tokens)
	}
}

// First tokens tell of loads and of what is before the engine's queue, of requests before which
// there is no more than the step that runs.
func TestWhatTells(t *testing.T) {
	base, adapter := &pick.Copy{Base: true}, &pick.Copy{}
	for _, c := range []struct {
		of   pick.Decision
		want bool
	}{
		{pick.Decision{Copy: adapter, Estimate: pick.Estimate{Queue: 0.02, Step: 0.02, Prefill: 1, Load: 1}}, true},
		{pick.Decision{Copy: base, Estimate: pick.Estimate{Step: 0.02, Queue: 0.02}}, true},
		{pick.Decision{Copy: adapter, Estimate: pick.Estimate{Queue: 0.03, Step: 0.02}}, false},
		{pick.Decision{Copy: adapter, Estimate: pick.Estimate{Room: 0.01, Step: 0.02}}, false},
		{pick.Decision{Copy: adapter}, false}, // nothing was predicted
	} {
		if got := c.of.Tells(); got != c.want {
			t.Errorf("%+v tells of loads: %v", c.of.Estimate, got)
		}
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
	if got := [...]int64{b.Beside.Load(), b.Urgency.Load(), b.Tokens.Load()}; got != [3]int64{} {
		t.Errorf("of nothing is left %v", got)
	}
}

// Prompts of the latest seconds leave the less time for decoding: what others wait weighs as much
// more. The oracle adds up each prompt anew.
func TestPromptsOfTheLatestSecondsWeigh(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	highest := 0.0
	for range 200 {
		f := newFleet()
		f.profile(t, []string{"prefill=0,0.001", "decode=0.01,0.001,0"})
		f.endpoint(t, "a", []string{"lists=m", "ours=m:1", "urgent=0.1"})
		b := f.pool.Endpoints[0].Backlog
		alone := others(t, f, now)
		type spent struct {
			seconds float64
			at      int64
		}
		var all []spent
		at := int64(now)
		for range 1 + random.IntN(20) {
			at += random.Int64N(2e9)
			s := spent{random.Float64(), at}
			switch random.IntN(3) {
			case 0: // of this process
				d := claimed(t, f, 1+random.IntN(500))
				s.seconds = d.Estimate.Delay
				b.Begin(d.Claim, at)
				b.End(d.Claim, false) // an end takes back no time
			case 1: // what others told of, and will not do
				s.seconds /= -20
				b.Others(int64(s.seconds*1e9), at)
			default:
				s.seconds *= 3
				b.Others(int64(s.seconds*1e9), at)
			}
			all = append(all, s)
			share := 0.0
			for _, s := range all {
				share += s.seconds / 4 * math.Exp(float64(s.at-at)/4e9)
			}
			if share < 0 { // there is no such thing, and nothing to remember
				all, share = nil, 0
			}
			highest = max(highest, share)
			if got, want := others(t, f, at)/alone, 1/max(0.1, 1-share); math.Abs(got-want) > 1e-6*want {
				t.Fatalf("with a share of %g of the latest seconds, what others wait weighs %g times as much, want %g: %+v", share, got,
					want, all)
			}
		}
	}
	if highest < 0.95 {
		t.Errorf("the busiest spent %g of its time on prompts, too little to try the bound", highest)
	}
}

// others is what a prompt costs others at the only endpoint, at a time.
func others(t *testing.T, f *fleet, at int64) float64 {
	t.Helper()
	room := make([]pick.Decision, 1)
	if _, err := pick.Pick(pick.Policy{Rule: pick.Latency}, f.snapshot(), pick.Request{
		Pool: thePool, Model: "m", Demand: pick.Demand{Prompt: 1, Output: 100, Now: at},
	}, room); err != nil {
		t.Fatal(err)
	}
	return room[0].Estimate.Others
}
