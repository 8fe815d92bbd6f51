package pick_test

import (
	"math"
	"sync"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/profile"
)

// Requests without predictions, and requests without tokens, do not change the step that later
// prompts join.
func TestClaimsWithoutPromptsOpenNoStep(t *testing.T) {
	f := newFleet()
	f.profile(t, []string{"prefill=0.01,0.001", "decode=0.04,0.001,0"})
	f.endpoint(t, "a", []string{"lists=m"})
	room := make([]pick.Decision, 1)
	if _, err := pick.Pick(pick.Policy{Rule: pick.Latency}, f.snapshot(), pick.Request{
		Pool: thePool, Model: "m", Tokenless: true, Demand: pick.Demand{ServiceTime: 1e9, Now: now},
	}, room); err != nil {
		t.Fatal(err)
	}
	b := f.pool.Endpoints[0].Backlog
	b.Begin(claimed(t, f, 100).Claim, now)
	queue, starts := b.Queue.Load(), b.Starts.Load()
	b.Begin(room[0].Claim, now+1e6)
	b.Begin(pick.Claim{}, now+1e6)
	if b.Queue.Load() != queue || b.Starts.Load() != starts {
		t.Errorf("the queue ends %d ns later, and its last step starts %d ns later", b.Queue.Load()-queue, b.Starts.Load()-starts)
	}
}

// The steps of a prompt are those of the endpoint that gets it, also if engines of other endpoints
// compute more tokens in a step. Cached tokens need no step.
func TestStepsAreThoseOfTheEndpoint(t *testing.T) {
	for _, c := range []struct {
		cached int32   // blocks of 64 tokens
		last   float64 // when the last step starts
	}{
		{0, 0.75 * (4*0.01 + 0.4)},
		{4, 0.5 * (2*0.01 + 0.144)},
		{5, 0},
	} {
		f := newFleet()
		f.profile(t, []string{"prefill=0.01,0.001", "decode=0.04,0.001,0", "chunk=100"})
		f.endpoint(t, "a", []string{"lists=m"})
		f.profile(t, []string{"prefill=0.01,0.001", "decode=0.04,0.001,0", "chunk=10000"})
		f.endpoint(t, "b", []string{"lists=m", "queue=1"})
		room := make([]pick.Decision, 1)
		if _, err := pick.Pick(pick.Policy{Rule: pick.Latency}, f.snapshot(), pick.Request{
			Pool: thePool, Model: "m", Demand: pick.Demand{Prompt: 400, Cached: []int32{c.cached, c.cached}, Block: 64, Now: now},
		}, room); err != nil {
			t.Fatal(err)
		}
		b := f.pool.Endpoints[0].Backlog
		b.Begin(room[0].Claim, now)
		if got := float64(b.Starts.Load()-now) / 1e9; math.Abs(got-c.last) > 1e-6 {
			t.Errorf("with %d cached blocks, the prompt's last step starts after %g s, want %g s", c.cached, got, c.last)
		}
	}
}

// A prompt that joins a step needs its share of further steps if the prompts there fill that step.
// A step with prompts takes at least the floor of prefill.
func TestPromptsThatFillAStep(t *testing.T) {
	for _, c := range []struct {
		floor, queue string
		prefill      float64
	}{
		{"0", "1.06", 0.1},
		{"0", "1.08", 0.1 + 0.1*0.07},
		{"0.1", "1.08", 0.1},
		{"0.1", "1.11", 0.1 + 0.1*0.07},
	} {
		f := newFleet()
		f.profile(t, []string{"prefill=0.07,0.001,0," + c.floor, "decode=0.01,0.001,0", "chunk=1000"})
		f.endpoint(t, "a", []string{"lists=m", "queue=" + c.queue})
		f.pool.Endpoints[0].Backlog.Starts.Store(now + 1)
		f.pool.Endpoints[0].Backlog.Lately.Store(0) // no later prompts are expected
		if got := claimed(t, f, 100).Estimate.Prefill; math.Abs(got-c.prefill) > 1e-6 {
			t.Errorf("with a floor of %s s and %s s of prompts, prefill takes %g s, want %g s", c.floor, c.queue, got, c.prefill)
		}
	}
}

// Prompts that arrive before the request's step starts delay its first token. Those that arrive
// while earlier prompts of this step are computed get a later step, and delay nothing.
func TestLaterPromptsOfTheSameStep(t *testing.T) {
	for _, c := range []struct {
		starts, prefill float64 // in seconds
	}{
		{0, 0.1 + 0.01 + 0.5}, // the step has started, so the prompt waits for the next one, at the end of the queue
		{0.2, 0.1 + 0.2},
		{0.5, 0.1 + 0.5},
		{0.7, 0.1 + 0.5},
	} {
		f := newFleet()
		f.profile(t, []string{"prefill=0.01,0.001", "decode=0.04,0.001,0"})
		f.endpoint(t, "a", []string{"lists=m", "queue=0.5"})
		b := f.pool.Endpoints[0].Backlog
		b.Starts.Store(now + int64(c.starts*1e9))
		b.Lately.Store(now) // all recent time was spent on prompts
		if got := claimed(t, f, 100).Estimate.Prefill; math.Abs(got-c.prefill) > 1e-6 {
			t.Errorf("if the step starts after %g s, prefill takes %g s, want %g s", c.starts, got, c.prefill)
		}
	}
}

// A request waits for a place in a batch of the learned size.
func TestRoomInALearnedBatch(t *testing.T) {
	f := newFleet()
	f.profile(t, []string{"prefill=0,0.001", "decode=0.01,0,0"})
	f.endpoint(t, "a", []string{"lists=m", "ours=m:4", "batch=4"})
	if got, want := claimed(t, f, 100).Estimate.Room, (0.1+100*0.01)/4; math.Abs(got-want) > 1e-6 {
		t.Errorf("it waits %g s, want %g s", got, want)
	}
}

// Decisions that were made at the same time may expect a step of their own each. All but the first
// join that of the first, since it has not started.
func TestSimultaneousPromptsShareAStep(t *testing.T) {
	f := newFleet()
	f.profile(t, []string{"prefill=0.01,0.001", "decode=0.04,0.001,0"})
	f.endpoint(t, "a", []string{"lists=m", "ours=m:10", "beside=0.01"})
	b := f.pool.Endpoints[0].Backlog
	const prompts = 20
	var claims [prompts]pick.Claim
	for i := range claims {
		claims[i] = claimed(t, f, 100).Claim
	}
	var all sync.WaitGroup
	for _, c := range claims {
		all.Go(func() { b.Begin(c, now) })
	}
	all.Wait()
	const step, own, part = 0.05, 0.1, 100 / 2048. // of the decoding requests; of a prompt; share of a full step
	const first = (step+0.001)/2 + step + own
	want := first + (prompts-1)*(own+part*step)
	if got := float64(b.Queue.Load()-now) / 1e9; math.Abs(got-want) > 1e-6 {
		t.Errorf("the prompts are computed after %g s, want %g s", got, want)
	}
	starts := b.Starts.Load()
	if starts < now+25e6 {
		t.Errorf("their step starts after %d ns, before the current one ends", starts-now)
	}
	b.Begin(claimed(t, f, 100).Claim, starts)
	if got := b.Starts.Load(); got != starts {
		t.Errorf("another prompt, which was to join that step, starts another %d ns later", got-starts)
	}
}

// A prompt of another request may lengthen the queue between a prediction and its claim. The claim
// then does not shorten the queue.
func TestClaimAfterLongerQueue(t *testing.T) {
	f := newFleet()
	f.profile(t, []string{"prefill=0.01,0.001", "decode=0.04,0.001,0"})
	f.endpoint(t, "a", []string{"lists=m", "queue=10"})
	e := f.pool.Endpoints[0]
	e.Backlog.Starts.Store(0) // the queued step has started
	is := pick.Estimate{Queue: 0.02, Prefill: 0.11, Delay: 0.11}
	before := e.Backlog.Queue.Load()
	e.Backlog.Begin(pick.ClaimOf(pick.Demand{Prompt: 100, Now: now}, e, is), now)
	if got := e.Backlog.Queue.Load() - before; got != 110e6 {
		t.Errorf("the queue becomes %d ns longer, want 110 ms", got)
	}
}

// If another process's prompts ended early, or if that process ended, its time leaves the queue.
// The last step then starts sooner, too. Otherwise later prompts would seem to share a step that
// never comes.
func TestStepsAfterWithdrawnPrompts(t *testing.T) {
	f := newFleet()
	f.profile(t, []string{"prefill=0.01,0.001", "decode=0.04,0.001,0"})
	f.endpoint(t, "a", []string{"lists=m"})
	b := f.pool.Endpoints[0].Backlog
	const hour, second = 3600e9, 1e9
	ends := func(when string, at, queue, starts int64) {
		t.Helper()
		if gotQueue, gotStarts := b.Queue.Load()-at, b.Starts.Load()-at; gotQueue != queue || gotStarts != starts {
			t.Errorf("%s: the queue takes %d ns, and its last step starts after %d ns, want %d and %d ns", when, gotQueue, gotStarts, queue,
				starts)
		}
	}
	const step = 40e6
	b.Others(hour, step, now)
	ends("a peer's prompt", now, hour+step, 0)
	b.Others(0, step, now)
	b.Others(-1e6, step, now)
	ends("no other prompt", now, hour+step-1e6, 0)
	b.Others(0.9e6, step, now)
	b.Others(-0.9e6, step, now)
	ends("a report came later than expected", now, hour+step-1e6, 0)
	b.Others(1e6, 0, now-1)
	ends("another one joins the step", now, hour+step, 0)
	b.Begin(claimed(t, f, 100).Claim, now)
	ends("and ours", now, hour+step+110e6, hour+step)
	b.Others(-1e6, step, now)
	ends("a report came sooner than expected", now, hour+step+109e6, hour+step)
	b.Others(1e6-hour, step, now)
	ends("the peer's prompt ended", now, step+110e6, step+1e6)
	b.Others(-second, step, now+hour)
	if got := b.Starts.Load(); got > now+hour {
		t.Errorf("in an idle endpoint the last step starts after %d ns", got-now-hour)
	}
}

// Profiles with huge, infinite or missing times neither shorten the queue nor make it overflow.
func TestQueueWithImpossibleTimes(t *testing.T) {
	const day = 24 * 3600e9
	for name, p := range map[string]profile.Profile{
		"nothing":         {},
		"no tokens":       {Prefill: profile.Prefill{Base: 0.01, PerToken: 0.001}, Decode: profile.Decode{Base: 0.01}},
		"huge":            {Prefill: profile.Prefill{Base: 1e300, PerToken: 1e300}, Limits: profile.Limits{MaxBatchedTokens: 1}},
		"long":            {Prefill: profile.Prefill{Base: 9e9}, Limits: profile.Limits{MaxBatchedTokens: 1000}},
		"infinite":        {Prefill: profile.Prefill{Base: math.Inf(1)}, Limits: profile.Limits{MaxBatchedTokens: 1000}},
		"NaN":             {Prefill: profile.Prefill{PerToken: math.NaN()}, Limits: profile.Limits{MaxBatchedTokens: 1000}},
		"infinite decode": {Decode: profile.Decode{Base: math.Inf(1)}, Limits: profile.Limits{MaxBatchedTokens: 1000}},
	} {
		f := newFleet()
		f.profile(t, []string{"prefill=0"})
		f.time = &p
		f.endpoint(t, "a", []string{"lists=m", "ours=m:1", "beside=0.01"})
		b := f.pool.Endpoints[0].Backlog
		for range 5 {
			queue, starts, through := b.Queue.Load(), b.Starts.Load(), b.Through.Load()
			b.Begin(claimed(t, f, 4000).Claim, now)
			if b.Queue.Load() < queue || b.Starts.Load() < starts || b.Through.Load() < through {
				t.Errorf("%s: the queue becomes %d ns shorter, and its last step starts %d ns sooner", name, queue-b.Queue.Load(),
					starts-b.Starts.Load())
			}
		}
		if queue, starts := b.Queue.Load()-now, b.Starts.Load()-now; queue > day || starts > max(0, queue) {
			t.Errorf("%s: the queue takes %d ns, and its last step starts after %d ns", name, queue, starts)
		}
	}
}

// A gate that the prompt closes admits no later prompts to its step. Only predictions that decide
// close a gate by the time of prompts. The time to load an adapter counts.
func TestLaterPromptsJoin(t *testing.T) {
	for _, c := range []struct {
		name      string
		gate      pick.Gate
		load      string
		untrusted bool
		want      float64 // prefill in seconds
	}{
		{"no gate", pick.Gate{}, "0", false, 0.11},
		{"a gate that stays open", pick.Gate{On: true, Queue: 0.13, PerToken: 1}, "0", false, 0.11},
		{"a gate that it closes", pick.Gate{On: true, Queue: 0.11, PerToken: 1}, "0", false, 0.1},
		{"a gate that its load closes", pick.Gate{On: true, Queue: 0.13, PerToken: 1}, "0.02", false, 0.1},
		{"a gate without trusted predictions", pick.Gate{On: true, Queue: 0.01}, "0", true, 0.11},
	} {
		f := newFleet()
		f.profile(t, []string{"prefill=0,0.001", "decode=0.01,0.001,0", "load=" + c.load})
		f.endpoint(t, "a", []string{"lists=m", "ours=x:1", "queue=0.02"})
		e := f.pool.Endpoints[0]
		e.Backlog.Queue.Store(now + 20e6)
		e.Backlog.Starts.Store(0)
		e.Backlog.Lately.Store(now - 2.772588722e9) // half of the time
		f.pool.Predictable = !c.untrusted
		room := make([]pick.Decision, 1)
		if _, err := pick.Pick(pick.Policy{Rule: pick.Latency}, f.snapshot(), pick.Request{
			Pool: thePool, Model: "m", Gate: c.gate, Demand: pick.Demand{Prompt: 100, Output: 100, Now: now},
		}, room); err != nil {
			t.Fatal(err)
		}
		if got := room[0].Estimate.Prefill; math.Abs(got-c.want) > 1e-6 {
			t.Errorf("%s: prefill takes %g s, want %g s", c.name, got, c.want)
		}
	}
}
