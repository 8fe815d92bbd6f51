package flow

import (
	"container/list"
	"time"

	"github.com/headgate/headgate/extproc/flow/fair"
)

// Ticket is a waiting request. One goroutine owns it, and must always call Leave at the end.
type Ticket struct {
	flow    *Flow
	request Request
	since   time.Time
	// urgent reports that the model had no copy when the wait began.
	urgent bool
	turn   chan error // what Turn returns; capacity 1

	// The fields below are guarded by Flow.mu.
	pool   *pool
	line   *line
	at     *list.Element // in line.tickets
	place  *fair.Place[*Ticket]
	called bool   // the request is choosing its endpoint
	events uint64 // line.events when the request was called
	out    bool   // the request has left the queue
}

// Request returns the request that waits.
func (t *Ticket) Request() *Request { return &t.request }

// Turn returns a channel that receives nil when the request may choose its endpoint. It receives
// [Failed], [ErrUnknown] or [ErrControlLost] when the model cannot be loaded, and [ErrFull] when
// another request has taken its place.
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

// Back keeps a request in the queue that was called but found no endpoint, for the reason why. It
// is called again after the next event.
func (t *Ticket) Back(why Reason) {
	f, p, l := t.flow, t.pool, t.line
	f.mu.Lock()
	defer f.mu.Unlock()
	if t.out {
		return
	}
	p.called, t.called = nil, false
	if l.events == t.events {
		l.band = t.request.Path.Band
		p.wait(l, why)
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

// fail ends the wait of a request that is not called. The caller holds Flow.mu.
func (t *Ticket) fail(err error) {
	t.pool.remove(t)
	t.turn <- err
}
