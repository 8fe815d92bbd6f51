package fleet

import (
	"maps"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/headgate/headgate/internal/objects"
)

// Maker is the endpoint that made a stored response, and its pool.
type Maker struct {
	Pool    objects.Name
	Address string
}

// maxAnswers bounds the remembered responses, about 200 bytes each. Engines keep them in memory
// too, until they restart.
const maxAnswers = 65536

// remembering returns an LRU cache of this size, which must be above 0.
func remembering[K comparable, V any](most int) *lru.Cache[K, V] {
	c, err := lru.New[K, V](most)
	if err != nil {
		panic(err) // the size is above 0
	}
	return c
}

// remembered returns the value of a key, and adds a zero value if there is none.
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

// Made records the maker of a stored response and shares it with the other extprocs.
func (f *Fleet) Made(answer string, m Maker) {
	if was, known := f.makers.Get(answer); known && was == m {
		return
	}
	f.makers.Add(answer, m)
	f.nowhere.Remove(answer)
	if f.Placed {
		f.made.add(answer)
		f.move()
	}
}

// RememberMaker records the maker of a stored response that another extproc shared.
func (f *Fleet) RememberMaker(answer string, m Maker) {
	f.makers.Add(answer, m)
	f.nowhere.Remove(answer)
}

// Maker returns the maker of a stored response.
func (f *Fleet) Maker(answer string) (Maker, bool) { return f.makers.Get(answer) }

// makerAt returns the maker at an endpoint: with this pool if it has the endpoint, else with the
// first pool that does.
func (f *Fleet) makerAt(pool objects.Name, address string) Maker {
	w := f.View().World
	has := func(name objects.Name) bool { return w.Pools[name].Has(address) }
	if has(pool) {
		return Maker{pool, address}
	}
	names := slices.SortedFunc(maps.Keys(w.Pools), objects.Name.Compare)
	if at := slices.IndexFunc(names, has); at >= 0 {
		return Maker{names[at], address}
	}
	return Maker{pool, address}
}

const (
	// nowhereFor is how long a response counts as missing at all endpoints. maxNowhere bounds their
	// number.
	nowhereFor = 10 * time.Second
	maxNowhere = 16384
)

// Nowhere reports whether all endpoints that might have a response recently answered that they do
// not.
func (f *Fleet) Nowhere(answer string) bool {
	at, ok := f.nowhere.Get(answer)
	return ok && f.Now().Sub(at) < nowhereFor
}

// made is the queue of responses whose makers are still to be shared with other extprocs, the
// newest last. It is safe for concurrent use; the zero value is ready.
type made struct {
	mu  sync.Mutex // guards ids
	ids []string
}

// maxMade bounds this queue. Beyond it the oldest are not shared: the newest are the likeliest to
// be requested next.
const maxMade = 16384

func (m *made) add(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ids = append(m.ids, id); len(m.ids) > maxMade {
		m.ids[0] = ""
		m.ids = m.ids[1:]
	}
}

// TakeMade removes up to most responses from the queue, the newest ones, and returns them by maker.
// If more remain, it sends to Moves.
func (f *Fleet) TakeMade(most int) map[Maker][]string {
	ids, more := f.made.take(most)
	if more {
		f.move()
	}
	if len(ids) == 0 {
		return nil
	}
	by := make(map[Maker][]string)
	for _, id := range ids {
		if is, ok := f.makers.Peek(id); ok {
			by[is] = append(by[is], id)
		}
	}
	return by
}

func (m *made) take(most int) (ids []string, more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	rest := max(0, len(m.ids)-most)
	ids = slices.Clone(m.ids[rest:])
	clear(m.ids[rest:])
	if m.ids = m.ids[:rest]; rest == 0 {
		m.ids = nil
	}
	return ids, rest > 0
}

// ReportMakers queues all known makers, since a new peer has none of them.
func (f *Fleet) ReportMakers() {
	known := f.makers.Keys() // the oldest first
	f.made.mu.Lock()
	defer f.made.mu.Unlock()
	f.made.ids = slices.Clone(known[max(0, len(known)-maxMade):])
}
