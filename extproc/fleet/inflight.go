package fleet

import (
	"slices"
	"sync"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/prefix"
)

// InFlight is one request in flight. It is counted at its endpoint until it ends. InFlight is safe
// for concurrent use.
type InFlight struct {
	fleet *Fleet

	mu    sync.Mutex // guards the fields below; locked after leases.mu, before Fleet.mu and, by Freed, flow.Flow's mu
	at    endpointstate.Counts
	ended bool
	// address is where the request is counted.
	address, model string
	base           bool
	prompt         []uint64 // first blocks of the prompt, in case another endpoint serves the request
	onEnd          func(completion int64)
	completion     int64 // number of output tokens; -1 if unknown
}

// reportDrained makes the fleet report a drained copy to control at once.
func (f *Fleet) reportDrained(drained bool) {
	if drained {
		f.hurry()
	}
}

// Begin counts a request at the destination of a decision. It returns nil if no request may begin
// there: a newer view forbids it, or other requests have filled the copy since the decision.
func (f *Fleet) Begin(d pick.Decision) *InFlight {
	at := endpointstate.CountsOf(d)
	begun, drained := at.Begin(Steady(f.Now()))
	if !begun {
		f.reportDrained(drained)
		f.Freed(d.Endpoint.Address, d.Copy.Model) // the request may have been counted for a moment
		return nil
	}
	f.move()
	f.Use.report(d.Endpoint.Address)
	return &InFlight{
		fleet: f, at: at, address: d.Endpoint.Address, model: d.Copy.Model, base: d.Copy.Base, completion: -1,
	}
}

// End ends the count of the request. Only the first call has an effect. A nil InFlight is allowed.
func (i *InFlight) End() {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.ended {
		i.ended = true
		i.fleet.reportDrained(i.at.End(Steady(i.fleet.Now())))
		if i.onEnd != nil {
			i.onEnd(i.completion)
		}
		i.fleet.Freed(i.address, i.model)
		i.fleet.move()
	}
}

// OnEnd makes End call the function with the number of output tokens; -1 if it is unknown. If the
// request has ended, OnEnd calls it at once. Functions of earlier calls are called first. They must
// not call the Fleet.
func (i *InFlight) OnEnd(call func(completion int64)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		call(i.completion)
		return
	}
	before := i.onEnd
	if i.onEnd = call; before != nil {
		i.onEnd = func(completion int64) {
			before(completion)
			call(completion)
		}
	}
}

// Completed records the number of output tokens. A nil InFlight is allowed.
func (i *InFlight) Completed(tokens int64) {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.completion = tokens
}

// Moved moves the count of a request to the endpoint that really serves it, after the first
// endpoint rejected it. It ignores a nil InFlight, one that has ended, and an unknown endpoint.
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
	now := Steady(f.Now())
	to.Add(now) // before the old count ends, so that the request is always counted somewhere
	f.reportDrained(i.at.End(now))
	f.Freed(i.address, i.model)
	i.at, i.address = to, address
	f.move()
	f.Use.report(address)
	if number, known := f.state.Number(address); known && len(i.prompt) > 0 {
		f.Sent(number, i.prompt)
	}
}

// Asks stores the first blocks of the request's prompt, so that Moved can add them to the cache of
// the other endpoint. It makes a copy of them.
func (i *InFlight) Asks(blocks []uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	_, beginning := prefix.Beginning(blocks)
	i.prompt = slices.Clone(blocks[:beginning])
}

// where returns the address of the endpoint at which the request is counted.
func (i *InFlight) where() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.address
}
