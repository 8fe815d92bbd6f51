package fleet

import (
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/internal/objects"
)

// maxRequestStats bounds the number of models with request statistics, about 100 bytes each.
const maxRequestStats = 65536

type requestStats = lru.Cache[objects.ModelKey, *endpointstate.RequestStats]

// RequestStats returns the statistics of requests for a model, by any of the engine's names for it.
// If the model has no statistics, it returns those of the whole pool, which may be nil.
func (f *Fleet) RequestStats(k objects.ModelKey) *endpointstate.RequestStats {
	if h, ok := f.requestStats.Get(f.first(k)); ok {
		return h
	}
	h, _ := f.requestStats.Get(objects.ModelKey{Pool: k.Pool})
	return h
}

// learn adds a request that has ended to the statistics of its model and of its pool.
func (f *Fleet) learn(k objects.ModelKey, bytes int, prompt, completion float64) {
	for _, k := range [...]objects.ModelKey{f.first(k), {Pool: k.Pool}} {
		h := remembered(f.requestStats, k)
		h.Learn(bytes, prompt, completion)
		if k.ID != "" {
			continue
		}
		if dense, news := h.Denser(); news {
			f.Update(Later, func(s *endpointstate.State, _ time.Time) { s.Dense(k.Pool, dense) })
		}
	}
}

// first replaces the name of a base model by the first of the model's names, since requests may use
// any of them.
func (f *Fleet) first(k objects.ModelKey) objects.ModelKey {
	if p := f.View().Snapshot.Pools[k.Pool.String()]; p != nil {
		if copies := p.Copies[k.ID]; len(copies) > 0 && copies[0].Base {
			k.ID = copies[0].Names[0]
		}
	}
	return k
}
