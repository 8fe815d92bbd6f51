package fleet

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/extproc/pick"
)

// InFlight is one request on its way to an endpoint, counted there until it ends. It is safe for concurrent use.
type InFlight struct {
	mu    sync.Mutex // guards the following
	at    counts
	ended bool
	// address is where the request is counted.
	address, model string
	base           bool
}

// counts are the counters of one model at one endpoint.
type counts struct {
	endpoint, model *atomic.Int64
	adapters        *atomic.Int64 // nil for a model that needs no slot
}

func (c counts) add() {
	c.endpoint.Add(1)
	if c.model.Add(1) == 1 && c.adapters != nil {
		c.adapters.Add(1)
	}
}

func (c counts) remove() {
	if c.model.Add(-1) == 0 && c.adapters != nil {
		c.adapters.Add(-1)
	}
	c.endpoint.Add(-1)
}

// Begin counts a request where a decision sends it.
func Begin(d pick.Decision) *InFlight {
	at := counts{endpoint: d.Endpoint.InFlight, model: d.Copy.InFlight}
	if !d.Copy.Base {
		at.adapters = d.Endpoint.Adapters
	}
	at.add()
	return &InFlight{at: at, address: d.Endpoint.Address, model: d.Copy.Model, base: d.Copy.Base}
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
		i.at.remove()
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
	i.at.remove()
	to.add()
	i.at, i.address = to, address
}

// leases are the requests in flight whose end will be reported, if at all, apart from the stream that began them.
type leases struct {
	mu      sync.Mutex // guards held
	held    map[string]lease
	expired atomic.Int64
}

type lease struct {
	request *InFlight
	until   time.Time
}

// Lease counts a request as in flight until [Fleet.Release] of its id, or for at most a time.
func (f *Fleet) Lease(id string, i *InFlight, most time.Duration) {
	f.leases.mu.Lock()
	defer f.leases.mu.Unlock()
	f.leases.held[id] = lease{i, f.Now().Add(most)}
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

// endLeases ends the requests whose leases ran out.
func (f *Fleet) endLeases() {
	now := f.Now()
	var late []*InFlight
	f.leases.mu.Lock()
	for id, l := range f.leases.held {
		if l.until.Before(now) {
			delete(f.leases.held, id)
			late = append(late, l.request)
		}
	}
	f.leases.mu.Unlock()
	for _, request := range late {
		request.End()
	}
	f.leases.expired.Add(int64(len(late)))
}

// Leases returns how many leases there are, and how many ran out so far: requests whose end nothing reported.
func (f *Fleet) Leases() (held int, expired int64) {
	f.leases.mu.Lock()
	defer f.leases.mu.Unlock()
	return len(f.leases.held), f.leases.expired.Load()
}
