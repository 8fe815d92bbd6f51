package belief

import (
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/extproc/pick"
)

// Counts are the counters of our requests in flight for one model at one endpoint. They are safe for concurrent use.
type Counts struct {
	endpoint *atomic.Int64
	model    *pick.Count
	adapters *atomic.Int64 // those of the endpoint that have any; nil for a model that needs no slot
}

// CountsOf are those of where a decision sends a request.
func CountsOf(d pick.Decision) Counts {
	c := Counts{endpoint: d.Endpoint.InFlight, model: d.Copy.InFlight}
	if !d.Copy.Base {
		c.adapters = d.Endpoint.Adapters
	}
	return c
}

// Counts are those of a model at an endpoint, base if it needs no slot; false where the endpoint is not known.
func (s *State) Counts(address, model string, base bool) (Counts, bool) {
	e := s.endpoints[address]
	if e == nil {
		return Counts{}, false
	}
	c := Counts{endpoint: &e.inFlight, model: e.count(model)}
	if !base {
		c.adapters = &e.adapters
	}
	return c, true
}

// Begin counts a request that begins at a time. It reports false, and counts none, where no request may begin any more; drained says what
// [Counts.End] would.
func (c Counts) Begin(now time.Time) (begun, drained bool) {
	c.Add()
	if c.model.Closed.Load() {
		return false, c.End()
	}
	c.model.Began.Add(1)
	c.model.Last.Store(now.UnixNano())
	return true, false
}

// Add counts a request that is there.
func (c Counts) Add() {
	c.endpoint.Add(1)
	if c.model.Add(1) == 1 && c.adapters != nil {
		c.adapters.Add(1)
	}
}

// End counts a request as gone. Drained says that it was the last of a copy to which no more come.
func (c Counts) End() (drained bool) {
	last := c.model.Add(-1) == 0
	if last && c.adapters != nil {
		c.adapters.Add(-1)
	}
	c.endpoint.Add(-1)
	return last && c.model.Closed.Load()
}
