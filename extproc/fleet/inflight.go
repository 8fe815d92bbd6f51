package fleet

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/extproc/pick"
)

// InFlight is one request on its way to an endpoint, counted there until it ends. It is safe for concurrent use.
type InFlight struct {
	fleet *Fleet

	mu    sync.Mutex // guards the following
	at    counts
	ended bool
	// address is where the request is counted.
	address, model string
	base           bool
}

// counts are the counters of one model at one endpoint.
type counts struct {
	endpoint *atomic.Int64
	model    *pick.Count
	adapters *atomic.Int64 // nil for a model that needs no slot
}

func (c counts) add() {
	c.endpoint.Add(1)
	if c.model.Add(1) == 1 && c.adapters != nil {
		c.adapters.Add(1)
	}
}

// remove returns whether it was the last of a copy to which no more come.
func (c counts) remove() (drained bool) {
	last := c.model.Add(-1) == 0
	if last && c.adapters != nil {
		c.adapters.Add(-1)
	}
	c.endpoint.Add(-1)
	return last && c.model.Closed.Load()
}

// Begin counts a request where a decision sends it. It returns nil where no request may begin any more: a newer view than
// that of the decision is in force, and says so.
func (f *Fleet) Begin(d pick.Decision) *InFlight {
	at := counts{endpoint: d.Endpoint.InFlight, model: d.Copy.InFlight}
	if !d.Copy.Base {
		at.adapters = d.Endpoint.Adapters
	}
	at.add()
	if at.model.Closed.Load() {
		f.gone(at.remove())
		return nil
	}
	at.model.Began.Add(1)
	at.model.Last.Store(f.Now().UnixNano())
	return &InFlight{fleet: f, at: at, address: d.Endpoint.Address, model: d.Copy.Model, base: d.Copy.Base}
}

// End counts the request as gone. Only the first call counts; a nil InFlight has none.
func (i *InFlight) End() {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.ended {
		i.ended = true
		i.fleet.gone(i.at.remove())
	}
}

// Moved counts a request where it turned out to be: at an endpoint other than the one that was picked, because that one
// turned it away. A nil InFlight, one that ended, and an endpoint that is not known change nothing.
func (f *Fleet) Moved(i *InFlight, address string) {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended || i.address == address {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.endpoints[address]
	if e == nil {
		return
	}
	to := counts{endpoint: &e.inFlight, model: e.count(i.model)}
	if !i.base {
		to.adapters = &e.adapters
	}
	to.add() // first: at no moment it is in flight nowhere
	f.gone(i.at.remove())
	i.at, i.address = to, address
}

// leases are the requests in flight whose end will be reported, if at all, apart from the stream that began them.
type leases struct {
	mu       sync.Mutex // guards held
	held     map[string]lease
	inferred atomic.Int64
	expired  atomic.Int64
}

type lease struct {
	request *InFlight
	began   time.Time
	until   time.Time
}

// seen is how many requests the last look saw at an endpoint.
type seen struct {
	at       time.Time // when the look began
	known    bool
	requests int
}

// transit is how long a request may be on its way to an engine before a look must see it there.
const transit = time.Second

// Lease counts a request as in flight until [Fleet.Release] of its id, until a look shows that it must have ended, or for
// at most a time.
func (f *Fleet) Lease(id string, i *InFlight, most time.Duration) {
	now := f.Now()
	f.leases.mu.Lock()
	defer f.leases.mu.Unlock()
	f.leases.held[id] = lease{i, now, now.Add(most)}
}

// Release ends the request of a lease, wherever it is counted. An id that is not known, or no longer, changes nothing.
func (f *Fleet) Release(id string) {
	f.leases.mu.Lock()
	l, ok := f.leases.held[id]
	delete(f.leases.held, id)
	f.leases.mu.Unlock()
	if ok {
		l.request.End()
	}
}

// endLeases ends the requests whose leases ran out, and of those that are long at an endpoint the oldest that are more
// than the last look saw there: a data plane that shows only the beginning of answers reports no end.
func (f *Fleet) endLeases() {
	looks := f.looks()
	now := f.Now()
	var late, gone []*InFlight
	f.leases.mu.Lock()
	at := make(map[string][]string) // ids of old leases by address
	for id, l := range f.leases.held {
		address := l.request.where()
		switch look, ok := looks[address]; {
		case l.until.Before(now):
			delete(f.leases.held, id)
			late = append(late, l.request)
		case ok && l.began.Add(transit).Before(look.at):
			at[address] = append(at[address], id)
		}
	}
	for address, ids := range at {
		excess := len(ids) - looks[address].requests
		if excess <= 0 {
			continue
		}
		slices.SortFunc(ids, func(a, b string) int { return f.leases.held[a].began.Compare(f.leases.held[b].began) })
		for _, id := range ids[:excess] {
			gone = append(gone, f.leases.held[id].request)
			delete(f.leases.held, id)
		}
	}
	f.leases.mu.Unlock()
	for _, request := range append(late, gone...) {
		request.End()
	}
	f.leases.expired.Add(int64(len(late)))
	f.leases.inferred.Add(int64(len(gone)))
}

// looks returns what the last look saw at each endpoint where that is known.
func (f *Fleet) looks() map[string]seen {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make(map[string]seen, len(f.endpoints))
	for address, e := range f.endpoints {
		if e.seen.known {
			all[address] = e.seen
		}
	}
	return all
}

// where is the address at which the request is counted.
func (i *InFlight) where() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.address
}

// Leases is how many leases there are, and how many ended so far without a report: because a look showed that the request
// must have ended, and because they ran out.
type Leases struct {
	Held              int
	Inferred, Expired int64
}

// Leases returns what is known of leases.
func (f *Fleet) Leases() Leases {
	f.leases.mu.Lock()
	defer f.leases.mu.Unlock()
	return Leases{len(f.leases.held), f.leases.inferred.Load(), f.leases.expired.Load()}
}
