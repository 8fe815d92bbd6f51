package endpointstate

import (
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/extproc/pick"
)

// Counts are the counters of this process's requests in flight for one model at one endpoint. They
// are safe for concurrent use.
type Counts struct {
	endpoint *atomic.Int64
	model    *pick.Count
	adapters *atomic.Int64  // number of adapters with requests; nil for a model that needs no slot
	backlog  *pick.Backlog  // backlog of the whole endpoint
	peers    *pick.Peers    // work of other processes at the endpoint
	claim    pick.Claim     // the request's part of the backlog
	queued   pick.Queued    // place of the request's prompt in the backlog; zero before the request is counted
	resident *pick.Resident // state of the endpoint's adapter slots; nil for a model that needs no slot
}

// CountsOf returns the counters of the destination of a decision.
func CountsOf(d pick.Decision) Counts {
	c := Counts{endpoint: d.Endpoint.InFlight, model: d.Copy.InFlight, backlog: d.Endpoint.Backlog, peers: d.Endpoint.Peers, claim: d.Claim}
	if !d.Copy.Base {
		c.adapters, c.resident = d.Endpoint.Adapters, d.Endpoint.Resident
	}
	return c
}

// Moved returns the counters for a request that was sent to one endpoint and is served by another.
// Base reports that its model needs no slot. It returns false for an unknown endpoint.
func (s *State) Moved(from Counts, address, model string, base bool) (Counts, bool) {
	e := s.endpoints[address]
	if e == nil {
		return Counts{}, false
	}
	c := Counts{endpoint: &e.inFlight, model: e.count(model), backlog: &e.backlog, peers: &e.peers, claim: from.claim}
	if !base {
		c.adapters, c.resident = &e.adapters, &e.resident
	}
	return c, true
}

// Begin counts a request. If the copy is closed or at its limit, it returns false and counts
// nothing; drained is then the result of [Counts.End].
func (c *Counts) Begin(now time.Time) (begun, drained bool) {
	n, entered := c.model.Enter()
	if !entered {
		return false, false
	}
	c.add(n, now)
	if c.model.Closed.Load() {
		return false, c.End(now)
	}
	c.model.Began.Add(1)
	return true, false
}

// Add counts a request that is already at the endpoint, whatever the limit of the copy.
func (c *Counts) Add(now time.Time) { c.add(c.model.Add(1), now) }

// add counts a request that is the nth of its model at the endpoint.
func (c *Counts) add(n int64, now time.Time) {
	c.endpoint.Add(1)
	if n == 1 && c.adapters != nil {
		c.adapters.Add(1)
	}
	c.model.Last.Store(now.UnixNano())
	c.queued = c.backlog.Begin(c.claim, now.UnixNano())
	c.resident.Use(c.model)
}

// End ends the count of a request. Drained reports that it was the last one of a closed copy.
func (c *Counts) End(now time.Time) (drained bool) {
	last := c.model.Add(-1) == 0
	if last && c.adapters != nil {
		c.adapters.Add(-1)
	}
	left := c.endpoint.Add(-1)
	c.backlog.Withdraw(c.claim, c.queued, now.UnixNano())
	c.backlog.End(c.claim, left == 0)
	if left == 0 && c.peers.Requests.Load() == 0 {
		c.backlog.Idle()
	}
	return last && c.model.Closed.Load()
}
