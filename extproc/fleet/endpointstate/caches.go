package endpointstate

import (
	"cmp"
	"slices"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/prefix"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// Cache is what became known of the KV cache of an endpoint.
type Cache struct {
	// Number is the endpoint's.
	Number int
	// Tokens is how many tokens the cache holds, and BytesPerToken how many bytes of a prompt make one; 0 is the usual number.
	Tokens        engine.Value
	BytesPerToken float64
	// Forgets says that nothing of a prompt stays in it for the next one.
	Forgets bool
	// Empty says that nothing of what was sent there is in it: the engine began anew, or the number is that of another endpoint now.
	Empty bool
}

// Tell tells who remembers what endpoints have of prompts.
func (c Cache) Tell(w prefix.Writer) {
	if c.Empty {
		w.Forget(c.Number)
	}
	blocks := prefix.DefaultBlocks
	if tokens, known := c.Tokens.Get(); known {
		blocks = int(min(tokens, maxTokens) * cmp.Or(c.BytesPerToken, usualBytes) / prefix.BlockBytes)
	}
	if c.Forgets {
		blocks = 0
	}
	w.Resize(c.Number, blocks)
}

// Cached returns how many leading blocks of the prompt of a request each endpoint of a pool probably has in its cache, by its number, as
// [pick.Demand] wants them: what is remembered of what was sent there, and where that is nothing, what other processes may have sent. What it
// returns is in dst, where that is large enough. Pool may be nil.
func Cached(remembered *prefix.Index, pool *pick.Pool, r *pick.Request, blocks []uint64, dst []int32) []int32 {
	dst = remembered.Cached(blocks, dst)
	hash, beginning := prefix.Beginning(blocks)
	return pool.Expect(*r, hash, beginning, remembered.Familiar(), dst)
}

// maxTokens bounds what an engine may say that its cache holds.
const maxTokens = 1 << 40

// caches are the numbers of endpoints, and what is to be told of their caches.
type caches struct {
	taken []bool // by number
	news  []Cache
}

// take gives a new endpoint the smallest number that is free.
func (c *caches) take() int {
	n := slices.Index(c.taken, false)
	if n < 0 {
		n = len(c.taken)
		c.taken = append(c.taken, false)
	}
	c.taken[n] = true
	return n
}

// leave frees the number of an endpoint that is gone.
func (c *caches) leave(number int) { c.taken[number] = false }

// Number is that of an endpoint, by its address, and whether it is known.
func (s *State) Number(address string) (number int, known bool) {
	e := s.endpoints[address]
	if e == nil {
		return 0, false
	}
	return e.number, true
}

func (c *caches) tell(news Cache) { c.news = append(c.news, news) }

// Dense notes how many bytes of a prompt make a token in a pool: the more, the more of prompts a cache holds.
func (s *State) Dense(pool objects.Name, bytesPerToken float64) {
	s.density[pool] = bytesPerToken
	p := s.world.Pools[pool]
	if p == nil {
		return
	}
	for _, declared := range p.Endpoints {
		if e := s.endpoints[declared.Address]; e.load.KVTokens != (engine.Value{}) {
			s.caches.tell(s.cacheOf(declared.Address, e))
		}
	}
}

// cacheOf is what is known of the cache of an endpoint.
func (s *State) cacheOf(address string, e *endpoint) Cache {
	c := Cache{Number: e.number, Tokens: e.load.KVTokens, Forgets: e.load.Forgets}
	for _, pool := range s.pools[address] {
		c.BytesPerToken = max(c.BytesPerToken, s.density[pool])
	}
	return c
}

// TakeCaches returns what became known of caches since it was last called, in order.
func (s *State) TakeCaches() []Cache {
	news := s.caches.news
	s.caches.news = nil
	return news
}
