package endpointstate_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
)

// windowRig is a rig whose endpoint a has a number of this process's requests in flight.
type windowRig struct {
	*rig
	counts []endpointstate.Counts
}

// have changes the number of requests in flight.
func (w *windowRig) have(n int) {
	for len(w.counts) > n {
		w.counts[len(w.counts)-1].End(w.now)
		w.counts = w.counts[:len(w.counts)-1]
	}
	for len(w.counts) < n {
		v, _ := w.View(w.now)
		pool := v.Snapshot.Pools[thePool.String()]
		w.begin(pool, &pool.Base[0])
	}
}

// begin counts a request at a copy.
func (w *windowRig) begin(pool *pick.Pool, c *pick.Copy) {
	counts := endpointstate.CountsOf(pick.Decision{Endpoint: pool.Endpoints[c.Endpoint], Copy: c})
	counts.Begin(w.now)
	w.counts = append(w.counts, counts)
}

// scrape scrapes endpoint a.
func (w *windowRig) scrape(running, waiting float64) int64 {
	w.now = w.now.Add(200 * time.Millisecond)
	w.ScrapeSucceeded(w.Scrape(a, w.now), engine.Load{Kind: engine.VLLM, Running: engine.Known(running), Waiting: engine.Known(waiting)})
	return w.Window(a)
}

// The window of each case begins at 32. Each step is a scrape with this process's requests in
// flight, or a rejection.
func TestWindow(t *testing.T) {
	type step struct {
		inFlight         int
		running, waiting float64
		want             int64
	}
	const rejected = -1 // as running
	for name, steps := range map[string][]step{
		"it doubles while it is full and nobody waits": {{32, 32, 0, 64}, {60, 60, 0, 128}, {128, 128, 0, 256}},
		"it stays while it is not full":                {{10, 10, 0, 32}, {0, 0, 0, 32}},
		"it stays while a few wait":                    {{32, 31, 1, 32}, {32, 28, 2, 32}, {32, 32, 0, 64}},
		"it falls to what the engine runs":             {{32, 24, 8, 32}, {32, 24, 8, 24}, {24, 24, 0, 25}},
		"then it grows slowly while a few wait again": {
			{32, 24, 8, 32}, {32, 24, 8, 24}, {24, 24, 0, 25}, {25, 24, 1, 25}, {25, 25, 0, 26},
		},
		"then it grows faster and faster": {
			{32, 16, 16, 32}, {32, 16, 16, 16}, {16, 16, 0, 17}, {17, 17, 0, 19}, {19, 19, 0, 23}, {23, 23, 0, 34}, {34, 34, 0, 68},
		},
		"others wait too: it falls to its part": {{32, 30, 30, 32}, {32, 30, 30, 16}, {32, 30, 30, 16}},
		"it falls at most to the half":          {{32, 4, 28, 32}, {32, 4, 28, 16}, {30, 4, 26, 8}, {20, 4, 16, 4}, {4, 4, 0, 5}},
		"nothing runs yet: it recovers": {
			{32, 0, 32, 32}, {32, 0, 32, 16}, {16, 16, 0, 17}, {17, 17, 0, 19}, {19, 19, 0, 23}, {23, 23, 0, 34},
		},
		"a few arrive together":                     {{8, 0, 8, 32}, {8, 8, 0, 32}, {8, 0, 8, 32}, {0, 0, 0, 32}},
		"prompts that arrive together are computed": {{32, 0, 32, 32}, {32, 16, 16, 32}, {32, 28, 4, 32}, {32, 32, 0, 64}},
		"all answers end at once, and prompts follow": {
			{32, 32, 0, 64},
			{64, 64, 0, 128},
			{128, 128, 0, 256},
			{128, 16, 112, 256},
			{128, 16, 112, 128},
			{128, 32, 96, 128},
			{128, 128, 0, 136},
		},
		"an engine runs fewer than before": {
			{32, 32, 0, 64}, {64, 24, 40, 64}, {64, 24, 40, 32}, {32, 24, 8, 30}, {30, 24, 6, 30}, {30, 24, 6, 29},
		},
		"some wait for long although it is not full":  {{20, 8, 12, 32}, {20, 8, 12, 16}, {20, 8, 12, 8}, {20, 8, 12, 8}},
		"it falls when the engine rejects":            {{32, rejected, 0, 28}, {28, 28, 0, 29}},
		"rejections leave room for one":               {{1, rejected, 0, 1}, {0, rejected, 0, 1}},
		"a huge number":                               {{32, 32, math.MaxFloat64, 32}, {32, 32, 1e18, 32}, {32, 32, 0, 64}},
		"NaN, infinite and negative numbers":          {{32, 32, math.NaN(), 32}, {32, 32, math.Inf(1), 32}, {32, 32, -1, 32}},
		"nobody waits for ever while the engine runs": {{32, 20, 0, 64}, {64, 20, 0, 64}, {64, 20, 0, 64}},
		"nobody runs and nobody waits for ever":       {{32, 0, 0, 32}, {32, 0, 0, 32}},
		"it is 1: it recovers within a few scrapes": {
			{32, 0, 32, 32},
			{32, 0, 32, 16},
			{32, 0, 32, 8},
			{32, 0, 32, 4},
			{32, 0, 32, 2},
			{32, 0, 32, 1},
			{32, 0, 32, 1},
			{1, 1, 0, 2},
			{2, 2, 0, 3},
			{3, 3, 0, 4},
			{4, 4, 0, 6},
			{6, 6, 0, 12},
			{12, 12, 0, 24},
			{24, 24, 0, 48},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := &windowRig{rig: started()}
			if got := w.scrape(0, 0); got != 32 {
				t.Fatalf("it begins at %d", got)
			}
			for i, s := range steps {
				w.have(s.inFlight)
				got := int64(0)
				if s.running == rejected {
					w.Full(a, w.now)
					got = w.Window(a)
				} else {
					got = w.scrape(s.running, s.waiting)
				}
				if got != s.want {
					t.Fatalf("step %d: it is %d, want %d", i, got, s.want)
				}
			}
		})
	}
}

// fill sends requests with a gate to endpoint a until it has no room.
func (w *windowRig) fill(t *testing.T, gate pick.Gate) {
	t.Helper()
	for {
		v, _ := w.View(w.now)
		r := pick.Request{Pool: thePool.String(), Model: "llama", Base: true, Only: pick.ParseSubset([]string{a}), Gate: gate}
		d, err := pick.Pick(pick.Policy{}, v.Snapshot, r, make([]pick.Decision, 1))
		if errors.Is(err, pick.ErrNoRoom) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		counts := endpointstate.CountsOf(d[0])
		counts.Begin(w.now)
		w.counts = append(w.counts, counts)
	}
}

// A window of any size grows while requests of a flow with a backlog fill it, although these
// requests leave headroom. So a single scrape in which nothing runs yet does not limit an engine
// for good.
func TestWindowGrowsWhileRequestsLeaveHeadroom(t *testing.T) {
	w := &windowRig{rig: started()}
	w.scrape(0, 0)
	w.have(32)
	for w.scrape(0, 32) > 1 {
	}
	w.have(0)
	for before := int64(1); before < 256; {
		w.fill(t, pick.Gate{On: true, Headroom: pick.DefaultHeadroom})
		got := w.scrape(float64(len(w.counts)), 0)
		if got <= before {
			t.Fatalf("it stays at %d with %d requests in flight", got, len(w.counts))
		}
		before = got
	}
}

// An engine that reports no waiting requests has no window.
func TestNoWindowWithoutReports(t *testing.T) {
	w := &windowRig{rig: started()}
	w.have(5)
	w.Full(a, w.now)
	if got := w.scrape(3, math.NaN()); got != 0 {
		t.Errorf("the window is %d", got)
	}
}

// Whatever an engine reports, its gate opens: an endpoint without requests has room for one, and
// the window stays between 1 and its maximum.
func TestNoReportClosesTheGateForGood(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test's
	strange := []float64{0, 1, -1, 0.5, 1e18, 1e300, math.MaxFloat64, math.Inf(1), math.Inf(-1), math.NaN()}
	some := func() engine.Value { return engine.Known(strange[random.IntN(len(strange))]) }
	w := &windowRig{rig: started()}
	for range 200 {
		w.now = w.now.Add(time.Duration(random.IntN(1000)-300) * time.Millisecond) // the clock jumps
		w.have(random.IntN(20))
		if random.IntN(5) == 0 {
			w.Full(a, w.now)
		}
		w.ScrapeSucceeded(w.Scrape(a, w.now), engine.Load{
			Kind: engine.VLLM, Running: some(), Waiting: some(), KVUsage: some(), KVTokens: some(), MaxAdapters: some(),
		})
		if n := w.Window(a); n < 0 || n > 1<<16 {
			t.Fatalf("the window is %d", n)
		}
		w.have(0)
		v, _ := w.View(w.now)
		r := pick.Request{
			Pool: thePool.String(), Model: "llama", Base: true, Only: pick.ParseSubset([]string{a}),
			Gate:   pick.Gate{On: true, Queue: pick.DefaultGateQueue, PerToken: pick.DefaultGatePerToken, Window: 1, Headroom: 1},
			Demand: pick.Demand{Prompt: 1000, Output: 100, Now: w.now.UnixNano()},
		}
		for _, trusted := range []bool{false, true} {
			p := *v.Snapshot.Pools[thePool.String()]
			p.Predictable = trusted && p.Endpoints[0].Profile != nil
			if _, err := pick.Pick(pick.Policy{Rule: pick.Latency}, &pick.Snapshot{Pools: map[string]*pick.Pool{thePool.String(): &p}}, r,
				make([]pick.Decision, 1)); err != nil {
				t.Fatalf("trusted: %v: %v at %+v", p.Predictable, err, p.Endpoints[0])
			}
		}
	}
}

// Triton reports requests that wait, but not those that run. They are the other ones in flight.
func TestWindowWithoutRunningRequests(t *testing.T) {
	w := &windowRig{rig: started()}
	for i := range 20 {
		w.have(20)
		w.now = w.now.Add(200 * time.Millisecond)
		pending := 0.0
		if i%4 == 1 {
			pending = 4 // a batch forms
		}
		w.ScrapeSucceeded(w.Scrape(a, w.now), engine.Load{Kind: engine.Triton, Waiting: engine.Known(pending)})
	}
	if got := w.Window(a); got < 16 {
		t.Errorf("4 of 20 requests wait in every fourth scrape, and the window is %d", got)
	}
}

// busy simulates an engine that always has requests waiting for it: it runs this many at once, each
// for 2 s on average. It returns the mean numbers of requests that run and that wait in the engine,
// in the last half of the scrapes.
func (w *windowRig) busy(runs, scrapes int, random *rand.Rand) (running, waiting float64) {
	for i := range scrapes {
		n := len(w.counts)
		for range min(runs, n) {
			if random.Float64() < 0.1 {
				n--
			}
		}
		n = max(n, int(w.Window(a)))
		w.have(n)
		w.scrape(float64(min(runs, n)), float64(max(0, n-runs)))
		if i >= scrapes/2 {
			running += float64(min(runs, n)) / float64(scrapes-scrapes/2)
			waiting += float64(max(0, n-runs)) / float64(scrapes-scrapes/2)
		}
	}
	return running, waiting
}

// The window follows what an engine can run: within 4 to 6 s most of it is used, and few requests
// wait in the engine.
func TestWindowFollowsTheEngine(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // a test's
	w := &windowRig{rig: started()}
	w.scrape(0, 0)
	for _, c := range []struct{ runs, scrapes int }{{100, 40}, {10, 200}, {100, 40}, {3, 800}, {256, 60}} {
		running, waiting := w.busy(c.runs, c.scrapes, random)
		t.Logf("of %d requests that the engine can run it runs %.1f, and %.1f wait", c.runs, running, waiting)
		if running < 0.9*float64(c.runs) || waiting > 0.1*float64(c.runs)+1 {
			t.Errorf("of %d requests that the engine can run it runs %.1f, and %.1f wait", c.runs, running, waiting)
		}
	}
}
