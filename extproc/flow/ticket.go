package flow

import (
	"container/list"
	"slices"
	"time"

	"github.com/headgate/headgate/extproc/flow/late"
	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// Ticket is a waiting request. One goroutine owns it, and must always call Leave at the end.
type Ticket struct {
	flow    *Flow
	request Request
	service float64 // expected on arrival, in the unit of the pool
	since   time.Time
	// urgent reports that the model had no copy when the wait began.
	urgent bool
	turn   chan error // what Turn returns; capacity 1

	// The fields below are guarded by Flow.mu.
	pool      *pool
	line      *line
	at        *list.Element // in line.tickets
	place     *queue.Place[*Ticket]
	called    bool   // the request is choosing its endpoint
	events    uint64 // line.events when the request was called
	first     bool   // the first request that was called after an event
	out       bool   // the request has left the queue
	sent      bool   // the request was sent to an endpoint
	counts    bool   // the request is counted in pool.late, in group and with the service predicted
	group     late.Group
	predicted float64
	// noRoom is when the request was first in order and found no room; zero if it never was. holder
	// identifies its reservation; 0 if it has none.
	noRoom time.Time
	holder uint64
}

// Request returns the request that waits.
func (t *Ticket) Request() *Request { return &t.request }

// Turn returns a channel that receives nil when the request may choose its endpoint. It receives
// [Failed], [ErrUnknown] or [ErrControlLost] when the model cannot be loaded. It receives [ErrFull]
// when another request has taken its place, and [ErrChanged] when the request must be decided
// again.
func (t *Ticket) Turn() <-chan error { return t.turn }

// Reason returns what the request waits for.
func (t *Ticket) Reason() Reason {
	t.flow.mu.Lock()
	defer t.flow.mu.Unlock()
	if t.line.ready {
		return Turn
	}
	return t.line.why
}

// Empty returns when requests that can be served at the same endpoints last waited for an endpoint,
// with a precision of a second; the zero time if they never did.
func (t *Ticket) Empty() time.Time {
	t.flow.mu.Lock()
	defer t.flow.mu.Unlock()
	return t.line.empty
}

// Standing is what a called request must know to find room.
type Standing struct {
	// Reserved are the reservations of waiting requests, and Holder identifies the request among
	// their holders; 0 if it has no reservation and is not overdue.
	Reserved []pick.Reservation
	Holder   uint64
	// Overdue means that the request has been first in order without room for so long that it must
	// reserve some, see [Ticket.Back].
	Overdue bool
	// Headroom is the part of the headroom, from 0 to 1, that the request must leave at engines for
	// other tenants: more with each other waiting request of its tenant, and all of it after a long
	// wait. A request with a reservation leaves none.
	Headroom float64
}

// Standing returns what a called request must know to find room.
func (t *Ticket) Standing() Standing {
	f := t.flow
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	is := Standing{Reserved: t.pool.reserved, Holder: t.holder, Headroom: t.headroom(now)}
	if t.first && t.holder == 0 && !t.noRoom.IsZero() && now.Sub(t.noRoom) >= patience {
		is.Holder, is.Overdue = f.holder+1, true
	}
	return is
}

// Reserved returns the reservations of the requests that wait in a pool. The result is not changed
// afterwards.
func (f *Flow) Reserved(pool objects.Name) []pick.Reservation {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.pools[pool]; p != nil {
		return p.reserved
	}
	return nil
}

// headroom returns the part of the headroom that the request must leave.
func (t *Ticket) headroom(now time.Time) float64 {
	switch {
	case t.holder != 0:
		return 0
	case now.Sub(t.since) >= patience:
		return 1
	}
	return pick.HeadroomPart(t.place.Others())
}

// Back returns a called request that found no endpoint to the queue, with the reason why. The flow
// calls the request again after the next event, or at the time due if due is not zero. Reserve is
// the room that the request reserves; nil if it reserves none.
func (t *Ticket) Back(why Reason, due time.Time, reserve *pick.Reservation) {
	f, p, l := t.flow, t.pool, t.line
	f.mu.Lock()
	defer f.mu.Unlock()
	if t.out {
		return
	}
	p.called, t.called = nil, false
	now := time.Now()
	l.tried = now
	if why == Endpoint {
		l.empty = now
	}
	if reserve != nil && t.holder == 0 {
		f.holder++
		t.holder, reserve.Holder = f.holder, f.holder
		p.reserved = append(slices.Clip(p.reserved), *reserve)
	}
	if t.first && why == Room && t.noRoom.IsZero() {
		t.noRoom = now
	}
	if l.freed {
		p.tries--
	}
	if l.events == t.events {
		l.band, l.headroom = t.request.Path.Band, t.headroom(now)
		p.wait(l, why)
		if !due.IsZero() {
			p.due(l, maxTime(due, now.Add(soonest)))
		}
		if !t.noRoom.IsZero() && t.holder == 0 {
			p.due(l, maxTime(now.Add(again), t.noRoom.Add(patience)))
		}
	}
	p.call()
}

// Leave removes the request from the queue if it was not dispatched, and lets the next request
// choose its endpoint. It may be called more than once.
func (t *Ticket) Leave() {
	f, p := t.flow, t.pool
	f.mu.Lock()
	defer f.mu.Unlock()
	p.remove(t)
	p.call()
	f.tidy(p)
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// fail ends the wait of a request that is not called. The caller holds Flow.mu.
func (t *Ticket) fail(err error) {
	t.pool.remove(t)
	t.turn <- err
}
