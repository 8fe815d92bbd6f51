package fleet

import (
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/internal/objects"
)

// maxRequestStats bounds of how many models it is remembered what requests for them are like; some 100 bytes each.
const maxRequestStats = 65536

type requestStats = lru.Cache[objects.ModelKey, *endpointstate.RequestStats]

// Habit is what requests for a model are like, by a name that engines know it by; that of all of the pool where nothing is known of the model,
// and nil where nothing is known of either.
func (f *Fleet) RequestStats(k objects.ModelKey) *endpointstate.RequestStats {
	if h, ok := f.requestStats.Get(f.first(k)); ok {
		return h
	}
	h, _ := f.requestStats.Get(objects.ModelKey{Pool: k.Pool})
	return h
}

// learn learns of a model, and of its pool, from a request that ended.
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

// first is a model by the first of its names: engines know a base model by several, and requests name it by any.
func (f *Fleet) first(k objects.ModelKey) objects.ModelKey {
	if p := f.View().Snapshot.Pools[k.Pool.String()]; p != nil {
		if copies := p.Copies[k.ID]; len(copies) > 0 && copies[0].Base {
			k.ID = copies[0].Names[0]
		}
	}
	return k
}
