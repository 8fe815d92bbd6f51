package fleet

import (
	"maps"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/headgate/headgate/internal/objects"
)

// Maker is the endpoint that created a stored response, and the endpoint's pool.
type Maker struct {
	Pool    objects.Name
	Address string
}

// maxAnswers bounds the number of responses whose makers are remembered, about 200 bytes each.
// Engines, too, keep responses only in memory, until they restart.
const maxAnswers = 65536

// remembering returns an LRU cache of a size, which must be positive.
func remembering[K comparable, V any](most int) *lru.Cache[K, V] {
	c, err := lru.New[K, V](most)
	if err != nil {
		panic(err) // cannot happen: the size is positive
	}
	return c
}

// remembered is the value of a key in the cache; it adds a zero value if there is none.
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

// Made records the maker of a stored response and queues it to be shared with the other extprocs.
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

// Maker returns the maker of a stored response, and false if it is unknown.
func (f *Fleet) Maker(answer string) (Maker, bool) { return f.makers.Get(answer) }

// makerAt returns the maker at an endpoint: with this pool if the endpoint is in it, otherwise with
// the first pool that has the endpoint.
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
	// nowhereFor is how long a response is treated as missing at all endpoints. maxNowhere bounds
	// the number of such responses.
	nowhereFor = 10 * time.Second
	maxNowhere = 16384
)

// Nowhere reports whether all endpoints that may have a stored response have recently answered that
// they do not have it.
func (f *Fleet) Nowhere(answer string) bool {
	at, ok := f.nowhere.Get(answer)
	return ok && f.Now().Sub(at) < nowhereFor
}

// made is a queue of stored responses whose makers are not yet shared with other extprocs, the
// newest last. It is safe for concurrent use; the zero value is ready.
type made struct {
	mu  sync.Mutex // guards ids
	ids []string
}

// maxMade bounds this queue. The oldest responses beyond it are not shared: the newest are the most
// likely to be requested next.
const maxMade = 16384

func (m *made) add(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ids = append(m.ids, id); len(m.ids) > maxMade {
		m.ids[0] = ""
		m.ids = m.ids[1:]
	}
}

// TakeMade removes the newest responses from the queue and returns them by maker; most is their
// maximum number. If more remain, it sends a value to the channel that Moves returns.
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

// ReportMakers queues all known makers, since a new peer knows none of them.
func (f *Fleet) ReportMakers() {
	known := f.makers.Keys() // keys from the oldest to the newest
	f.made.mu.Lock()
	defer f.made.mu.Unlock()
	f.made.ids = slices.Clone(known[max(0, len(known)-maxMade):])
}
