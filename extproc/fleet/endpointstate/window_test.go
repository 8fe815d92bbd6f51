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
		w.counts[len(w.counts)-1].End()
		w.counts = w.counts[:len(w.counts)-1]
	}
	for len(w.counts) < n {
		v, _ := w.View(w.now)
		pool := v.Snapshot.Pools[thePool.String()]
		c := &pool.Base[0]
		counts := endpointstate.CountsOf(pick.Decision{Endpoint: &pool.Endpoints[c.Endpoint], Copy: c})
		counts.Begin(w.now)
		w.counts = append(w.counts, counts)
	}
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
		"it stays while a few wait":                    {{32, 31, 1, 32}, {32, 28, 2, 32}},
		"it falls to what the engine runs":             {{32, 16, 16, 16}, {16, 16, 0, 18}, {18, 18, 0, 20}},
		"others wait too: it falls to its part":        {{32, 30, 30, 16}, {32, 30, 30, 16}},
		"it does not fall again for the same requests": {{32, 8, 24, 8}, {30, 8, 22, 8}, {20, 8, 12, 8}, {8, 8, 0, 9}},
		"nothing runs":                       {{32, 0, 32, 1}, {1, 0, 500, 1}, {1, 1, 0, 2}, {2, 2, 0, 3}},
		"it falls when the engine rejects":   {{32, rejected, 0, 28}, {28, 28, 0, 30}},
		"rejections leave room for one":      {{1, rejected, 0, 1}, {0, rejected, 0, 1}},
		"a huge number":                      {{32, 32, math.MaxFloat64, 1}},
		"NaN, infinite and negative numbers": {{32, 32, math.NaN(), 32}, {32, 32, math.Inf(1), 32}, {32, 32, -1, 32}},
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
	if got := w.scrape(0, 32); got != 1 {
		t.Fatalf("it falls to %d", got)
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
