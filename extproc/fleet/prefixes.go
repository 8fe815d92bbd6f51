package fleet

import (
	"sync"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/prefix"
)

// prefixes is the index of the prompts in the caches of endpoints. It is safe for concurrent use.
type prefixes struct {
	mu    sync.Mutex // guards the fields below; locked last, after Fleet.mu
	index *prefix.Index
}

// Cached returns how many leading blocks of a request's prompt each endpoint probably has cached,
// see [endpointstate.Cached].
func (f *Fleet) Cached(r *pick.Request, blocks []uint64, dst []int32) []int32 {
	of := f.View().Snapshot.Pools[r.Pool]
	p := &f.prefixes
	p.mu.Lock()
	defer p.mu.Unlock()
	return endpointstate.Cached(p.index, of, r, blocks, dst)
}

// Sent records a prompt that was sent to the endpoint with this number.
func (f *Fleet) Sent(endpoint int, blocks []uint64) {
	p := &f.prefixes
	p.mu.Lock()
	defer p.mu.Unlock()
	p.index.Sent(endpoint, blocks)
}

// apply applies changes of the caches of endpoints.
func (p *prefixes) apply(news []endpointstate.Cache) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range news {
		c.ApplyTo(p.index)
	}
}
