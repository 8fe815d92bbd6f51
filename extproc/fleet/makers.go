package fleet

import (
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/headgate/headgate/internal/objects"
)

// Maker is the endpoint that made an answer, and its pool.
type Maker struct {
	Pool    objects.Name
	Address string
}

// maxAnswers bounds how many answers are remembered; some 200 bytes each. Engines keep them in memory too, and only until
// they restart.
const maxAnswers = 65536

// remembering returns a cache of at most so many, which is above 0.
func remembering[K comparable, V any](most int) *lru.Cache[K, V] {
	c, err := lru.New[K, V](most)
	if err != nil {
		panic(err) // the size is above 0
	}
	return c
}

// remembered is what is remembered of a key, which begins as nothing.
func remembered[K comparable, V any](c *lru.Cache[K, *V], k K) *V {
	v, ok := c.Get(k)
	if !ok {
		v = new(V)
		if was, there, _ := c.PeekOrAdd(k, v); there {
			v = was
		}
	}
	return v
}

// Made remembers who made an answer that clients may ask for again.
func (f *Fleet) Made(answer string, m Maker) { f.makers.Add(answer, m) }

// Maker returns who made an answer.
func (f *Fleet) Maker(answer string) (Maker, bool) { return f.makers.Get(answer) }
