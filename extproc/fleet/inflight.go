package fleet

import (
	"slices"
	"sync"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/prefix"
)

// InFlight is one request on its way to an endpoint, counted there until it ends. It is safe for concurrent use.
type InFlight struct {
	fleet *Fleet

	mu    sync.Mutex // guards the following; locked after leases.mu, before Fleet.mu and, by Freed, flow.Flow's mu
	at    endpointstate.Counts
	ended bool
	// address is where the request is counted.
	address, model string
	base           bool
	prompt         []uint64 // blocks of its beginning, where it may turn out to be elsewhere
}

// gone tells control of a copy that is drained.
func (f *Fleet) gone(drained bool) {
	if drained {
		f.hurry()
	}
}

// freed tells who waits for a copy that it takes another request.
func (f *Fleet) freed(at endpointstate.Counts, model string) {
	if at.Limited() {
		f.Freed(model)
	}
}

// Begin counts a request where a decision sends it. It returns nil where none may begin: a newer view than that of the decision is in force and
// says so, or others have filled the copy since.
func (f *Fleet) Begin(d pick.Decision) *InFlight {
	at := endpointstate.CountsOf(d)
	begun, drained := at.Begin(Steady(f.Now()))
	if !begun {
		f.gone(drained)
		f.freed(at, d.Copy.Model) // it may have been counted for a moment
		return nil
	}
	f.move()
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
		i.fleet.gone(i.at.End())
		i.fleet.freed(i.at, i.model)
		i.fleet.move()
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
	to, known := f.state.Moved(i.at, address, i.model, i.base)
	if !known {
		return
	}
	to.Add(Steady(f.Now())) // first: at no moment it is in flight nowhere
	f.gone(i.at.End())
	f.freed(i.at, i.model)
	i.at, i.address = to, address
	f.move()
	if number, known := f.state.Number(address); known && len(i.prompt) > 0 {
		f.Sent(number, i.prompt)
	}
}

// Asks notes the blocks of the request's prompt: where it turns out to be, if that is not where it was sent, the endpoint has its beginning. It
// keeps none of blocks.
func (i *InFlight) Asks(blocks []uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	_, beginning := prefix.Beginning(blocks)
	i.prompt = slices.Clone(blocks[:beginning])
}

// where is the address at which the request is counted.
func (i *InFlight) where() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.address
}
