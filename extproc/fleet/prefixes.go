package fleet

import (
	"sync"

	"github.com/headgate/headgate/extproc/fleet/belief"
	"github.com/headgate/headgate/extproc/prefix"
)

// prefixes are what endpoints have of prompts that were sent there. It is safe for concurrent use.
type prefixes struct {
	mu    sync.Mutex // guards the following
	index *prefix.Index
}

// Cached returns how many leading blocks of a prompt each endpoint probably has in its cache, by its number, as [pick.Demand] wants them.
// What it returns is in dst, where that is large enough.
func (f *Fleet) Cached(blocks []uint64, dst []int32) []int32 {
	p := &f.prefixes
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.index.Cached(blocks, dst)
}

// Expected is [Fleet.Cached] with what other processes may have sent to the endpoints of a pool, as [pick.Pool.Expect].
func (f *Fleet) Expected(pool string, blocks []uint64, dst []int32) []int32 {
	p := &f.prefixes
	p.mu.Lock()
	dst = p.index.Cached(blocks, dst)
	familiar := p.index.Familiar()
	p.mu.Unlock()
	hash, beginning := prefix.Beginning(blocks)
	return f.View().Snapshot.Pools[pool].Expect(hash, beginning, familiar, dst)
}

// Sent says that a prompt goes to the endpoint of a number.
func (f *Fleet) Sent(endpoint int, blocks []uint64) {
	p := &f.prefixes
	p.mu.Lock()
	defer p.mu.Unlock()
	p.index.Sent(endpoint, blocks)
}

// hear puts in force what became known of caches.
func (p *prefixes) hear(news []belief.Cache) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range news {
		c.Tell(p.index)
	}
}
