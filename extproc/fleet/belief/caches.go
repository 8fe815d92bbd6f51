package belief

import (
	"slices"

	"github.com/headgate/headgate/extproc/prefix"
	"github.com/headgate/headgate/internal/engine"
)

// Cache is what became known of the KV cache of an endpoint.
type Cache struct {
	// Number is the endpoint's.
	Number int
	// Tokens is how many tokens the cache holds.
	Tokens engine.Value
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
		blocks = int(min(tokens, maxTokens)) / prefix.BlockTokens
	}
	w.Resize(c.Number, blocks)
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

func (c *caches) tell(news Cache) { c.news = append(c.news, news) }

// TakeCaches returns what became known of caches since it was last called, in order.
func (s *State) TakeCaches() []Cache {
	news := s.caches.news
	s.caches.news = nil
	return news
}
