package endpointstate

import (
	"cmp"
	"slices"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/prefix"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// Cache describes the KV cache of an endpoint.
type Cache struct {
	// Number is the number of the endpoint.
	Number int
	// Tokens is the size of the cache in tokens. BytesPerToken is the mean number of prompt bytes
	// per token; 0 means the default.
	Tokens        engine.Value
	BytesPerToken float64
	// Forgets reports that the engine has no prefix cache.
	Forgets bool
	// Empty reports that the cache lost its contents: the engine restarted, or another endpoint now
	// has the number.
	Empty bool
}

// ApplyTo applies the change to the index of the prompts in the caches of endpoints.
func (c Cache) ApplyTo(w prefix.Writer) {
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

// Cached returns, by endpoint number, how many leading blocks of a request's prompt each endpoint
// of a pool probably has cached, for [pick.Demand]. It uses the prompts that this process sent, and
// estimates which prompts other processes sent. The result is stored in dst if that is large
// enough. Pool may be nil.
func Cached(remembered *prefix.Index, pool *pick.Pool, r *pick.Request, blocks []uint64, dst []int32) []int32 {
	return expected(remembered, pool, r, blocks, remembered.Cached(blocks, dst))
}

// PeekCached is like Cached, but leaves no trace in the Index.
func PeekCached(remembered *prefix.Index, pool *pick.Pool, r *pick.Request, blocks []uint64, dst []int32) []int32 {
	return expected(remembered, pool, r, blocks, remembered.Peek(blocks, dst))
}

// expected adds to dst what other processes probably sent.
func expected(remembered *prefix.Index, pool *pick.Pool, r *pick.Request, blocks []uint64, dst []int32) []int32 {
	hash, beginning := prefix.Beginning(blocks)
	return pool.Expect(*r, hash, beginning, remembered.Familiar(), dst)
}

// maxTokens bounds the cache size that an engine may report.
const maxTokens = 1 << 40

// caches assigns the numbers of endpoints and collects changes of their caches.
type caches struct {
	taken []bool // whether a number is in use, by number
	news  []Cache
}

// take returns the smallest free number, for a new endpoint.
func (c *caches) take() int {
	n := slices.Index(c.taken, false)
	if n < 0 {
		n = len(c.taken)
		c.taken = append(c.taken, false)
	}
	c.taken[n] = true
	return n
}

// leave frees the number of a removed endpoint.
func (c *caches) leave(number int) { c.taken[number] = false }

// Number returns the number of an endpoint, and whether the endpoint is known.
func (s *State) Number(address string) (number int, known bool) {
	e := s.endpoints[address]
	if e == nil {
		return 0, false
	}
	return e.number, true
}

func (c *caches) add(news Cache) { c.news = append(c.news, news) }

// Dense records the mean number of prompt bytes per token in a pool. It determines how many bytes
// of prompts fit into a cache.
func (s *State) Dense(pool objects.Name, bytesPerToken float64) {
	s.density[pool] = bytesPerToken
	p := s.world.Pools[pool]
	if p == nil {
		return
	}
	for _, declared := range p.Endpoints {
		if e := s.endpoints[declared.Address]; e.load.KVTokens != (engine.Value{}) {
			s.caches.add(s.cacheOf(declared.Address, e))
		}
	}
}

// cacheOf returns the current Cache of an endpoint.
func (s *State) cacheOf(address string, e *endpoint) Cache {
	c := Cache{Number: e.number, Tokens: e.load.KVTokens, Forgets: e.load.Forgets}
	for _, pool := range s.pools[address] {
		c.BytesPerToken = max(c.BytesPerToken, s.density[pool])
	}
	return c
}

// TakeCaches returns the caches that changed since the previous call, in order.
func (s *State) TakeCaches() []Cache {
	news := s.caches.news
	s.caches.news = nil
	return news
}
