package flow

import (
	"container/list"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow/fair"
	"github.com/headgate/headgate/internal/objects"
)

// Reason is what a request waits for.
type Reason uint8

const (
	// Turn means that other requests precede it.
	Turn Reason = iota
	// Endpoint means that no endpoint of the pool may get requests.
	Endpoint
	// Copy means that the model is not loaded, or that all copies are at their concurrency limit.
	Copy
	// Room means that no engine could start the request at once.
	Room
)

// pool contains the waiting requests of one pool. Flow.mu guards it.
type pool struct {
	flow    *Flow
	name    objects.Name
	queue   *fair.Queue[*Ticket]
	lines   map[string]*line
	called  *Ticket // the request that is choosing its endpoint; nil if there is none
	running map[*Charge]bool
	timer   *time.Timer // makes lines ready again; nil while no line waits for a time
}

// line contains the waiting requests that can be served at the same endpoints, in order of arrival.
type line struct {
	name    string
	key     objects.ModelKey
	placed  bool
	tickets list.List // elements are *Ticket
	ready   bool      // whether the line's next request may try to find an endpoint
	why     Reason    // what the line waits for if it is not ready
	events  uint64    // number of events that may have made room
	band    int32     // highest band of a request that found no room since the line was ready
	due     time.Time // when the line may have room without another event; zero if unknown
}

// join adds a request to the queue. It reports whether it is the first one in its line.
func (p *pool) join(t *Ticket, is verdict) (first bool) {
	name := t.request.line()
	l := p.lines[name]
	if first = l == nil; first {
		l = &line{name: name, key: t.request.Key, placed: t.request.Placed, ready: true}
		p.lines[name] = l
	}
	t.line = l
	t.at = l.tickets.PushBack(t)
	t.place = p.queue.Join(t, fair.Request{Path: t.request.Path, Model: name, Bytes: t.request.Bytes, Since: t.since})
	p.flow.bytes += t.request.Bytes
	switch {
	case first && is == waits:
		p.wait(l, Copy)
	case !l.ready && l.why == Room && t.request.Path.Band > l.band:
		p.open(l)
	}
	return first
}

// remove takes a request out of the queue. The caller calls the next request.
func (p *pool) remove(t *Ticket) {
	if t.out {
		return
	}
	p.queue.Leave(t.place)
	p.left(t)
}

// left forgets a request that has left the fair queue.
func (p *pool) left(t *Ticket) {
	t.out = true
	if p.called == t {
		p.called, t.called = nil, false
	}
	f, l := p.flow, t.line
	l.tickets.Remove(t.at)
	f.bytes -= t.request.Bytes
	f.queued.Add(-1)
	if l.tickets.Len() == 0 {
		delete(p.lines, l.name)
	}
	f.Changed(t.urgent && l.tickets.Len() == 0)
}

// open makes a line ready.
func (p *pool) open(l *line) {
	l.events++
	if !l.ready {
		l.ready, l.why, l.due = true, Turn, time.Time{}
		p.queue.SetReady(l.name, true)
	}
}

// wait makes a line wait for an event.
func (p *pool) wait(l *line, why Reason) {
	l.ready, l.why = false, why
	p.queue.SetReady(l.name, false)
}

// call calls the next request, unless one is called already.
func (p *pool) call() {
	if p.called != nil {
		return
	}
	if next := p.queue.Next(); next != nil {
		t := next.Waiter
		p.called, t.called, t.events = t, true, t.line.events
		t.turn <- nil
	}
}

// show applies a view to the requests that wait.
func (p *pool) show(v *endpointstate.View) {
	for _, l := range p.lines {
		switch p.flow.verdict(v, l.key, l.placed) {
		case failed:
			err := p.flow.failure(v, l.key)
			for e := l.tickets.Front(); e != nil; {
				t := e.Value.(*Ticket)
				if e = e.Next(); !t.called {
					t.fail(err)
				}
			}
		case ready:
			p.open(l)
		case waits:
			l.events++
			p.wait(l, Copy)
		}
	}
	p.call()
	p.flow.tidy(p)
}

// freed makes lines ready after a request for a model has ended at an endpoint.
func (p *pool) freed(v *endpointstate.View, _, model string) {
	for _, l := range p.lines {
		if l.key.ID == model && p.flow.verdict(v, l.key, l.placed) == ready {
			p.open(l)
		}
	}
	p.call()
}

// stop stops the timer.
func (p *pool) stop() {
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}
