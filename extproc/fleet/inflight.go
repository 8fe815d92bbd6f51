package fleet

import (
	"sync"
	"sync/atomic"

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

// gone tells control of a copy that is drained.
func (f *Fleet) gone(drained bool) {
	if drained {
		f.hurry()
	}
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
	all, adapters, of := f.state.Counts(address, i.model)
	if all == nil {
		return
	}
	to := counts{endpoint: all, model: of}
	if !i.base {
		to.adapters = adapters
	}
	to.add() // first: at no moment it is in flight nowhere
	f.gone(i.at.remove())
	i.at, i.address = to, address
}

// where is the address at which the request is counted.
func (i *InFlight) where() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.address
}
