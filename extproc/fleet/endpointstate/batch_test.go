package endpointstate_test

import (
	"math"
	"testing"
	"time"

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
		"requests wait for a second": {
			{0, 4, 41, 0, 0}, {second / 2, 3, 41, 0, 0}, {second, 4, 41, 0, 4},
			{2 * second, 4, 41, 0, 4},
		},
		"prompts wait for a moment": {
			{0, 4, 41, 0, 0}, {second / 2, 40, 1, 0, 0}, {second, 10, 20, 0, 0},
			{3 * second / 2, 30, 0, 0, 0},
		},
		"a few wait": {{0, 4, 1, 0, 0}, {second, 4, 1, 0, 0}, {5 * second, 64, 5, 0, 0}},
		"the KV cache is full": {
			{0, 4, 41, 0.95, 0}, {second, 4, 41, 0.95, 0}, {2 * second, 4, 41, 0.5, 0},
			{3 * second, 4, 41, 0.5, 4},
		},
		"nothing runs": {{0, 0, 41, 0, 0}, {second, 0, 41, 0, 0}, {2 * second, 8, 33, 0, 8}},
		"it grows while the batch is full": {
			{0, 4, 41, 0, 0}, {second, 4, 41, 0, 4}, {2 * second, 4, 0, 0, 5},
			{3 * second, 4, 1, 0, 5}, {4 * second, 4, 0, 0, 5},
		},
		"it grows faster each time": {
			{0, 8, 41, 0, 0}, {second, 8, 41, 0, 8}, {2 * second, 8, 0, 0, 9},
			{3 * second, 9, 0, 0, 10}, {4 * second, 10, 0, 0, 12}, {5 * second, 12, 0, 0, 18},
		},
		"it falls again": {
			{0, 8, 41, 0, 0}, {second, 8, 41, 0, 8}, {2 * second, 4, 45, 0, 8},
			{3 * second, 4, 45, 0, 8}, {4 * second, 0, 0, 0, 8}, {5 * second, 4, 9, 0, 8},
			{6 * second, 4, 9, 0, 4},
		},
		"the clock is set back": {
			{0, 4, 41, 0, 0}, {-time.Hour, 4, 41, 0, 0}, {second - time.Hour, 4, 41, 0, 4},
		},
		"NaN, infinite, negative and huge numbers": {
			{0, 4, math.NaN(), 0, 0}, {second, math.Inf(1), 9, 0, 0}, {2 * second, -1, 9, 0, 0},
			{3 * second, 1e300, 9, 0, 0}, {4 * second, 1, 1e300, 0, 0},
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
}
