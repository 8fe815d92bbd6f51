package endpointstate_test

import (
	"math"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
)

// batch scrapes endpoint a, and returns the learned limit of its batch.
func (w *windowRig) batch(at time.Duration, load engine.Load) int64 {
	w.now, load.Kind = start.Add(at), engine.VLLM
	w.ScrapeSucceeded(w.Scrape(a, w.now), load)
	v, _ := w.View(w.now)
	return v.Snapshot.Pools[thePool.String()].Endpoints[0].Batch.Load()
}

func TestBatch(t *testing.T) {
	type step struct {
		at               time.Duration
		running, waiting float64
		kv               float64
		want             int64
	}
	const second = time.Second
	for name, steps := range map[string][]step{
		"requests wait for long": {
			{0, 4, 41, 0, 0}, {second, 3, 41, 0, 0}, {2 * second, 4, 41, 0, 4}, {3 * second, 4, 41, 0, 4},
		},
		"prompts wait for a moment": {
			{0, 40, 9, 0, 0}, {second, 40, 1, 0, 0}, {3 * second / 2, 40, 0, 0, 0}, {2 * second, 40, 9, 0, 0}, {3 * second, 40, 9, 0, 0},
		},
		"ever more run": {
			{0, 20, 9, 0, 0},
			{second, 30, 9, 0, 0},
			{2 * second, 40, 9, 0, 0},
			{3 * second, 50, 9, 0, 0},
			{4 * second, 52, 9, 0, 0},
			{5 * second, 51, 9, 0, 0},
			{6 * second, 51, 9, 0, 52},
		},
		"slowly more run": {
			{0, 31, 2, 0, 0},
			{second / 2, 33, 2, 0, 0},
			{second, 33, 2, 0, 0},
			{3 * second / 2, 34, 2, 0, 0},
			{2 * second, 36, 2, 0, 0},
			{3 * second, 36, 2, 0, 0},
			{4 * second, 36, 2, 0, 36},
		},
		"far fewer run": {{0, 40, 9, 0, 0}, {second, 20, 9, 0, 0}, {2 * second, 20, 9, 0, 0}, {3 * second, 20, 9, 0, 20}},
		"one waits":     {{0, 64, 1, 0, 0}, {second, 64, 1, 0, 0}, {2 * second, 63, 1, 0, 64}},
		"the KV cache is full": {
			{0, 4, 41, 0.95, 0}, {2 * second, 4, 41, 0.95, 0}, {3 * second, 4, 41, 0.5, 0}, {5 * second, 4, 41, 0.5, 4},
		},
		"nothing runs": {{0, 0, 41, 0, 0}, {2 * second, 0, 41, 0, 0}, {3 * second, 8, 33, 0, 0}, {5 * second, 8, 33, 0, 8}},
		"it holds, and then grows while the batch is full": {
			{0, 8, 41, 0, 0},
			{2 * second, 8, 41, 0, 8},
			{16 * second, 8, 0, 0, 8},
			{17 * second, 8, 1, 0, 8},
			{18 * second, 6, 0, 0, 8},
			{19 * second, 8, 0, 0, 9},
		},
		"it grows faster each time": {
			{0, 8, 41, 0, 0},
			{2 * second, 8, 41, 0, 8},
			{17 * second, 8, 0, 0, 9},
			{18 * second, 9, 0, 0, 9},
			{19 * second, 9, 0, 0, 10},
			{21 * second, 10, 0, 0, 12},
			{23 * second, 12, 0, 0, 18},
			{25 * second, 18, 0, 0, 36},
		},
		"it falls again": {{0, 8, 41, 0, 0}, {2 * second, 8, 41, 0, 8}, {3 * second, 4, 45, 0, 8}, {5 * second, 4, 45, 0, 4}},
		"it holds for twice the time if the engine confirms it": {
			{0, 8, 41, 0, 0},
			{2 * second, 8, 41, 0, 8},
			{17 * second, 8, 0, 0, 9},
			{18 * second, 8, 1, 0, 9},
			{19 * second, 8, 1, 0, 8},
			{48 * second, 8, 0, 0, 8},
			{49 * second, 8, 0, 0, 9},
		},
		"it grows further only if more run than before": {
			{0, 32, 41, 0, 0},
			{2 * second, 32, 41, 0, 32},
			{17 * second, 32, 0, 0, 35},
			{19 * second, 32, 0, 0, 35},
			{59 * second, 31, 0, 0, 35},
			{60 * second, 33, 0, 0, 39},
			{62 * second, 35, 0, 0, 39},
			{63 * second, 36, 0, 0, 48},
		},
		"it falls back sooner if no more run than before": {
			{0, 32, 41, 0, 0},
			{2 * second, 32, 41, 0, 32},
			{17 * second, 32, 0, 0, 35},
			{18 * second, 31, 2, 0, 35},
			{19 * second, 31, 2, 0, 32},
			{48 * second, 32, 0, 0, 32},
			{49 * second, 32, 0, 0, 35},
		},
		"few requests do not show that no more run": {
			{0, 32, 41, 0, 0},
			{2 * second, 32, 41, 0, 32},
			{17 * second, 32, 0, 0, 35},
			{18 * second, 31, 1, 0, 35},
			{19 * second, 31, 1, 0, 35},
			{20 * second, 31, 1, 0, 31},
		},
		"more run than before, and requests wait": {
			{0, 32, 41, 0, 0},
			{2 * second, 32, 41, 0, 32},
			{17 * second, 32, 0, 0, 35},
			{18 * second, 34, 2, 0, 35},
			{19 * second, 33, 2, 0, 35},
			{20 * second, 34, 2, 0, 34},
		},
		"far fewer run than before, and requests wait": {
			{0, 32, 41, 0, 0},
			{2 * second, 32, 41, 0, 32},
			{17 * second, 32, 0, 0, 35},
			{18 * second, 28, 20, 0, 35},
			{19 * second, 28, 20, 0, 35},
			{20 * second, 28, 20, 0, 28},
		},
		"nothing runs any more": {
			{0, 8, 41, 0, 0}, {2 * second, 8, 41, 0, 8}, {3 * second, 0, 41, 0, 8}, {5 * second, 0, 41, 0, 8}, {7 * second, 0, 41, 0, 8},
		},
		"a few fewer run": {{0, 64, 1, 0, 0}, {second, 59, 1, 0, 0}, {2 * second, 62, 1, 0, 64}},
		"more run than the limit": {
			{0, 32, 41, 0, 0},
			{2 * second, 32, 41, 0, 32},
			{3 * second, 32, 41, 0, 32},
			{4 * second, 40, 33, 0, 40},
			{6 * second, 64, 9, 0, 64},
			{8 * second, 64, 9, 0, 64},
			{10 * second, 63, 9, 0, 64},
			{17 * second, 64, 0, 0, 69},
		},
		"most scrapes fail": {
			{0, 40, 9, 0, 0}, {5 * second, 40, 9, 0, 0}, {10 * second, 40, 9, 0, 0}, {12 * second, 40, 9, 0, 40},
		},
		"the clock is set back": {
			{0, 4, 41, 0, 0},
			{-time.Hour, 4, 41, 0, 0},
			{2*second - time.Hour, 4, 41, 0, 4},
			{second - 2*time.Hour, 4, 0, 0, 4},
			{16*second - 2*time.Hour, 4, 0, 0, 5},
		},
		"NaN, infinite, negative and huge numbers": {
			{0, 4, math.NaN(), 0, 0},
			{2 * second, math.Inf(1), 9, 0, 0},
			{4 * second, -1, 9, 0, 0},
			{6 * second, 1e300, 9, 0, 0},
			{8 * second, 1, 1e300, 0, 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := &windowRig{rig: started()}
			for i, s := range steps {
				load := engine.Load{Running: engine.Known(s.running), Waiting: engine.Known(s.waiting), KVUsage: engine.Known(s.kv)}
				if got := w.batch(s.at, load); got != s.want {
					t.Fatalf("step %d: the limit is %d, want %d", i, got, s.want)
				}
			}
		})
	}
}

// Requests that wait for an adapter slot do not show that the batch is full.
func TestBatchWithoutFreeSlots(t *testing.T) {
	w := &windowRig{rig: started()}
	v, _ := w.View(w.now)
	p := v.Snapshot.Pools[thePool.String()]
	for _, model := range []string{"sql", "chat"} {
		for i := range p.Copies[model] {
			if c := &p.Copies[model][i]; p.Endpoints[c.Endpoint].Address == a {
				w.begin(p, c)
			}
		}
	}
	load := engine.Load{Running: engine.Known(4), Waiting: engine.Known(9), MaxAdapters: engine.Known(1)}
	for i := range 4 {
		if got := w.batch(time.Duration(i)*time.Second, load); got != 0 {
			t.Fatalf("the limit is %d", got)
		}
	}
	w.have(0)
	load.Active = []string{"of", "others"}
	for i := range 4 {
		if got := w.batch(time.Duration(i)*time.Second, load); got != 0 {
			t.Fatalf("with adapters of other processes the limit is %d", got)
		}
	}
}

// Requests that wait while the engine computes the prompts of others do not show that the batch is
// full.
func TestBatchWhilePromptsAreQueued(t *testing.T) {
	w := &windowRig{rig: started()}
	load := engine.Load{Running: engine.Known(4), Waiting: engine.Known(9)}
	for i, want := range []int64{0, 0, 0, 0, 4} {
		v, _ := w.View(w.now)
		v.Snapshot.Pools[thePool.String()].Endpoints[0].Backlog.Queue.Store(start.Add(4500 * time.Millisecond).UnixNano())
		if got := w.batch(time.Duration(i)*1500*time.Millisecond, load); got != want {
			t.Errorf("%d: the limit is %d, want %d", i, got, want)
		}
	}
}

// If the wall clock has been set, queued prompts still explain why requests wait, and computed
// prompts do not.
func TestBatchAfterTheClockWasSet(t *testing.T) {
	for _, c := range []struct {
		set, prompts time.Duration
		want         int64
	}{{-time.Hour, time.Second, 4}, {-time.Hour, time.Minute, 0}, {time.Hour, time.Minute, 0}} {
		w := &windowRig{rig: started()}
		v, _ := w.View(w.now)
		v.Snapshot.Pools[thePool.String()].Endpoints[0].Backlog.Queue.Store(start.Add(c.prompts).UnixNano())
		for i := range 4 {
			w.now = start.Add(c.set + time.Duration(i)*time.Second)
			l := w.Scrape(a, w.now)
			l.Steady = w.now.Add(-c.set)
			w.ScrapeSucceeded(l, engine.Load{Kind: engine.VLLM, Running: engine.Known(4), Waiting: engine.Known(9)})
		}
		v, _ = w.View(w.now)
		if got := v.Snapshot.Pools[thePool.String()].Endpoints[0].Batch.Load(); got != c.want {
			t.Errorf("clock set by %v, prompts take %v: the limit is %d, want %d", c.set, c.prompts, got, c.want)
		}
	}
}

// Prompts of more than a second explain why requests wait after a probe.
func TestBatchProbedWhilePromptsAreQueued(t *testing.T) {
	w := &windowRig{rig: started()}
	for i, s := range []struct {
		at               time.Duration
		running, waiting float64
		prompts          time.Duration
		want             int64
	}{
		{0, 32, 9, 0, 0},
		{2 * time.Second, 32, 9, 0, 32},
		{17 * time.Second, 32, 0, 0, 35},
		{18 * time.Second, 32, 3, 1500 * time.Millisecond, 35},
		{19 * time.Second, 32, 3, 1500 * time.Millisecond, 35},
		{20 * time.Second, 32, 3, time.Second, 35},
		{21 * time.Second, 32, 3, time.Second, 32},
	} {
		v, _ := w.View(w.now)
		v.Snapshot.Pools[thePool.String()].Endpoints[0].Backlog.Queue.Store(start.Add(s.at + s.prompts).UnixNano())
		load := engine.Load{Running: engine.Known(s.running), Waiting: engine.Known(s.waiting)}
		if got := w.batch(s.at, load); got != s.want {
			t.Errorf("%d: the limit is %d, want %d", i, got, s.want)
		}
	}
}

// A false limit does not last, even if all requests leave headroom: whatever the limit is, its
// growth lets more requests run than before.
func TestBatchGrowsBeyondTheHeadroom(t *testing.T) {
	for limit := int64(1); limit <= 1024; limit++ {
		w := &windowRig{rig: started()}
		load := func(running, waiting int64) engine.Load {
			return engine.Load{Running: engine.Known(float64(running)), Waiting: engine.Known(float64(waiting))}
		}
		w.batch(0, load(limit, 9))
		at, is := 2*time.Second, w.batch(2*time.Second, load(limit, 9))
		if is != limit {
			t.Fatalf("the limit is %d, want %d", is, limit)
		}
		for range 40 { // the engine always runs as many as the gate admits
			at += time.Second
			is = w.batch(at, load(is-int64(pick.DefaultHeadroom*float64(is)), 0))
		}
		if is < min(2*limit, 2000) {
			t.Fatalf("from %d, the limit grew to %d only", limit, is)
		}
	}
}

// Requests that an engine defers do not show that the batch is full: they wait for an adapter slot,
// for example.
func TestBatchWithDeferredRequests(t *testing.T) {
	w := &windowRig{rig: started()}
	for i, s := range []struct {
		waiting, deferred float64
		want              int64
	}{{3, 3, 0}, {3, 3, 0}, {3, 3, 0}, {3, 2, 0}, {3, 2, 0}, {3, 2, 1}, {3, 3, 1}} {
		load := engine.Load{Running: engine.Known(1), Waiting: engine.Known(s.waiting), Deferred: engine.Known(s.deferred)}
		if got := w.batch(time.Duration(i)*time.Second, load); got != s.want {
			t.Errorf("%d: the limit is %d, want %d", i, got, s.want)
		}
	}
}

// A restarted engine may have another batch.
func TestBatchOfRestartedEngine(t *testing.T) {
	w := &windowRig{rig: started()}
	for i, s := range []struct {
		at               time.Duration
		running, waiting float64
		started          float64
		want             int64
	}{
		{0, 32, 9, 1, 0},
		{2 * time.Second, 32, 9, 1, 32},
		{17 * time.Second, 32, 0, 1, 35},
		{18 * time.Second, 32, 9, 2, 0},
		{19 * time.Second, 31, 9, 2, 0},
		{20 * time.Second, 31, 9, 2, 32},
	} {
		load := engine.Load{Running: engine.Known(s.running), Waiting: engine.Known(s.waiting), Started: engine.Known(s.started)}
		if got := w.batch(s.at, load); got != s.want {
			t.Errorf("%d: the limit is %d, want %d", i, got, s.want)
		}
	}
}
