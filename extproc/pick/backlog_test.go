package pick_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
)

// claimed returns the decision of policy Latency for a prompt of this many tokens.
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

// Prompts at an endpoint are computed one after the other, and the queue drains as time passes.
func TestPromptsQueue(t *testing.T) {
	f := newFleet()
	f.profile(t, []string{"prefill=0,0.001", "decode=0.01,0.001,0.00001"})
	f.endpoint(t, "a", []string{"lists=m"})
	b := f.pool.Endpoints[0].Backlog
	first, second := claimed(t, f, 100), claimed(t, f, 200)
	b.Begin(first.Claim, now)
	b.Begin(second.Claim, now)
	if got := b.Through.Load() - now; got != 300e6 {
		t.Errorf("the prefill of both ends after %d ns, want 300 ms", got)
	}
	// Beside is 6 ms: 1 ms for each of 2 sequences, and 0.01 ms for each of 400 tokens (both
	// prompts and half of each answer). Urgency is 1/(0.1 s) for each sequence.
	if b.Beside.Load() != 6e9 || b.Urgency.Load() != 20_000 || b.Tokens.Load() != 400 {
		t.Errorf("beside %d ps, urgency %d, tokens %d", b.Beside.Load(), b.Urgency.Load(), b.Tokens.Load())
	}
	b.Begin(first.Claim, now+1e9) // both prompts have been computed by now
	if got := b.Through.Load() - now; got != 1.1e9 {
		t.Errorf("the prefill of a third, which comes after 1 s, ends after %d ns, want 1.1 s", got)
	}
	b.End(first.Claim, false)
	b.End(second.Claim, false)
	if got := b.Through.Load() - now; got != 1.1e9 {
		t.Errorf("while one is left, the prefill ends after %d ns, want 1.1 s", got)
	}
	b.Others(5e8, 0, now+1e9)
	if through, queue := b.Through.Load()-now, b.Queue.Load()-now; through != 1.1e9 || queue != 1.6e9 {
		t.Errorf("with half a second of peers, our prefill ends after %d ns and all prefill after %d, want 1.1 and 1.6 s", through, queue)
	}
	b.Others(-2e8, 0, now+15e8)
	if queue := b.Queue.Load() - now; queue != 1.4e9 {
		t.Errorf("with 0.2 s of peers less, all prefill ends after %d ns, want 1.4 s", queue)
	}
	b.Begin(second.Claim, now+2e9)
	b.Begin(second.Claim, now+2e9)
	if through, queue := b.Through.Load()-now, b.Queue.Load()-now; through != 2.4e9 || queue != 2.4e9 {
		t.Errorf("after an idle time, the prefill of two ends after %d and %d ns, want 2.4 s", through, queue)
	}
	b.End(second.Claim, false)
	b.End(second.Claim, false)
	b.End(first.Claim, true)
	b.Idle()
	left := [...]int64{b.Queue.Load(), b.Starts.Load(), b.Through.Load(), b.Beside.Load(), b.Urgency.Load(), b.Tokens.Load()}
	if left != [6]int64{} {
		t.Errorf("at the end the backlog is %v", left)
	}
}

// Prompts that arrive before a step starts share it. A prompt that arrives later needs a further
// step, and that step also decodes for the other requests.
func TestPromptsShareSteps(t *testing.T) {
	f := newFleet()
	f.profile(t, []string{"prefill=0.01,0.001", "decode=0.04,0.001,0"})
	f.endpoint(t, "a", []string{"lists=m", "ours=m:10", "beside=0.01"})
	b := f.pool.Endpoints[0].Backlog
	const step, own, part = 0.05, 0.1, 100 / 2048. // of the decoding requests; of a prompt; share of a full step
	end := 0.0
	for i, c := range []struct {
		at   float64
		adds float64 // to the end of the queue; each earlier request adds 1 ms to each step
	}{
		{0, (step+0.001)/2 + step + own},         // half a decode step is left
		{0.01, own + part*(step+0.001)},          // joins the step of the first
		{0.1, step + 0.002 + own},                // during that step
		{0.2, own + part*(step+0.003)},           // joins the step of the third
		{1, (step+0.005)/2 + step + 0.004 + own}, // nobody else waits
	} {
		at := now + int64(c.at*1e9)
		room := make([]pick.Decision, 1)
		if _, err := pick.Pick(pick.Policy{Rule: pick.Latency}, f.snapshot(), pick.Request{
			Pool: thePool, Model: "m", Demand: pick.Demand{Prompt: 100, Output: 100, PerToken: 0.1, Now: at},
		}, room); err != nil {
			t.Fatal(err)
		}
		b.Begin(room[0].Claim, at)
		end = max(end, c.at) + c.adds
		if got := float64(b.Queue.Load()-now) / 1e9; math.Abs(got-end) > 1e-6 {
			t.Errorf("with prompt %d all are computed after %g s, want %g s", i, got, end)
		}
	}
}

// Loading an adapter delays the next request, and so does computing a prompt. Only the part of a
// prompt that is not cached uses additional KV cache.
func TestWorkOfARequest(t *testing.T) {
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
	if queue, starts := b.Queue.Load()-now, b.Starts.Load()-now; queue != 356e6 || starts != 320e6 {
		t.Errorf("the queue takes %d ns, and the step of the prompt starts after %d ns, want 356 and 320 ms", queue, starts)
	}
	if through, tokens := b.Through.Load()-now, b.Tokens.Load(); through != 356e6 || tokens != 36+50 {
		t.Errorf("the next request waits %d ns, and this one takes %d tokens; want 320 ms for the load and 36 ms for the prompt, and 86 tokens",
			through, tokens)
	}
}

// The time to first token shows load times and frontend overhead only if the engine has nothing
// else to do first, except to finish the current step.
func TestInformativeFirstTokens(t *testing.T) {
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
		if got := c.of.ShowsOverhead(); got != c.want {
			t.Errorf("%+v shows load times: %v", c.of.Estimate, got)
		}
	}
}

// When all requests have ended, in any order, the backlog is empty.
func TestBacklogBecomesEmpty(t *testing.T) {
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
		t.Errorf("at the end the backlog is %v", got)
	}
}

// The more time an endpoint spent on recent prompts, the less was left for decoding, and the more a
// further delay costs its decoding requests. The oracle sums up all prompts each time.
func TestRecentPromptsCount(t *testing.T) {
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
			case 0: // a prompt of this process
				d := claimed(t, f, 1+random.IntN(500))
				s.seconds = d.Estimate.Delay
				b.Begin(d.Claim, at)
				b.End(d.Claim, false) // the end of a request does not reduce the recent time
			case 1: // another process withdraws a prompt
				s.seconds /= -20
				b.Others(int64(s.seconds*1e9), 0, at)
			default:
				s.seconds *= 3
				b.Others(int64(s.seconds*1e9), 0, at)
			}
			all = append(all, s)
			share := 0.0
			for _, s := range all {
				share += s.seconds / 4 * math.Exp(float64(s.at-at)/4e9)
			}
			if share < 0 { // a negative share is treated as 0
				all, share = nil, 0
			}
			highest = max(highest, share)
			if got, want := others(t, f, at)/alone, 1/max(0.1, 1-share); math.Abs(got-want) > 1e-6*want {
				t.Fatalf("with a recent share of %g for prompts, the cost to others is %g times that without, want %g: %+v", share, got,
					want, all)
			}
		}
	}
	if highest < 0.95 {
		t.Errorf("the highest share of prompts was %g, too little to test the bound", highest)
	}
}

// others returns how much a prompt at a given time costs the other requests of the only endpoint.
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

// When requests end before their prompts are computed, the queue loses the rest of these prompts:
// the same as if the engine computed the prompts that remain one after the other.
func TestCancelledPromptsLeaveTheQueue(t *testing.T) {
	f := newFleet()
	f.profile(t, []string{"prefill=0,0.001", "decode=0.01,0,0"})
	f.endpoint(t, "a", []string{"lists=m"})
	b := f.pool.Endpoints[0].Backlog
	begin := func(tokens int, at float64) func(at float64) {
		c := claimed(t, f, tokens).Claim
		queued := b.Begin(c, now+int64(at*1e9))
		return func(at float64) {
			b.Withdraw(c, queued, now+int64(at*1e9))
			b.End(c, false)
		}
	}
	want := func(when string, ends float64) {
		t.Helper()
		if queue, through := float64(b.Queue.Load()-now)/1e9, float64(b.Through.Load()-now)/1e9; math.Abs(queue-ends) > 1e-6 ||
			math.Abs(through-ends) > 1e-6 {
			t.Errorf("%s: all prompts are computed after %g s, and ours after %g s, want %g s", when, queue, through, ends)
		}
	}
	long, short, last := begin(10_000, 0), begin(1_000, 0), begin(2_000, 0)
	recent := b.Lately.Load()
	want("three", 13)
	long(1)
	want("nine seconds of the first are left when it is cancelled", 4)
	if b.Lately.Load() >= recent {
		t.Error("the time for prompts that are not computed counts as recent time for prompts")
	}
	short(3)
	want("the second has been computed", 4)
	next := begin(1_000, 3)
	want("another comes", 5)
	next(3)
	want("and is cancelled at once", 4)
	last(10)
	want("the last ends after its answer", 4)

	begin(5_000, 20)(21)
	want("one alone, a second after its begin", 21)
}
