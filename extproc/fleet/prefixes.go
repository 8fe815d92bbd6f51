package fleet

import (
	"sync"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/prefix"
)

// prefixes are what endpoints have of prompts that were sent there. It is safe for concurrent use.
type prefixes struct {
	mu    sync.Mutex // guards the following; locked last, after Fleet.mu
	index *prefix.Index
}

// Cached returns how many leading blocks of the prompt of a request each endpoint probably has in its cache, as [endpointstate.Cached].
func (f *Fleet) Cached(r *pick.Request, blocks []uint64, dst []int32) []int32 {
	of := f.View().Snapshot.Pools[r.Pool]
	p := &f.prefixes
	p.mu.Lock()
	defer p.mu.Unlock()
	return endpointstate.Cached(p.index, of, r, blocks, dst)
}

// Sent says that a prompt goes to the endpoint of a number.
func (f *Fleet) Sent(endpoint int, blocks []uint64) {
	p := &f.prefixes
	p.mu.Lock()
	defer p.mu.Unlock()
	p.index.Sent(endpoint, blocks)
}

// hear puts in force what became known of caches.
func (p *prefixes) hear(news []endpointstate.Cache) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range news {
		c.Tell(p.index)
	}
}
