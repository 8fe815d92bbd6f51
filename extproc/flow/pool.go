package flow

import (
	"container/list"
	"slices"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/extproc/pick"
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
	queue   *queue.Queue[*Ticket]
	lines   map[string]*line
	called  *Ticket // the request that is choosing its endpoint; nil if there is none
	running map[*Charge]bool
	late    *lateness
	unit    unit
	opened  bool // lines were opened since a request was called
	tries   int  // how many more lines may try again soon because a request has ended
	// reserved are the reservations of waiting requests. The slice is replaced when it changes.
	reserved []pick.Reservation
	timer    *time.Timer // runs tick at the time at; nil while nobody waits
	at       time.Time
}

// line contains the waiting requests that can be served at the same endpoints, in order of arrival.
type line struct {
	name    string
	key     objects.ModelKey
	placed  bool
	holds   bool
	tickets list.List // elements are *Ticket
	ready   bool      // whether the line's next request may try to find an endpoint
	why     Reason    // what the line waits for if it is not ready
	events  uint64    // number of events that may have made room
	band    int32     // highest band of a request that found no room since the line was ready
	due     time.Time // when the line may have room without another event; zero if unknown
	tried   time.Time // when a request of the line last found no room
	empty   time.Time // when a request of the line last found no endpoint
	freed   bool      // the line is ready only because requests have ended
	// headroom is the part of the headroom that the last request without room had to leave.
	headroom float64
	// cold means that the line last waited for a load or an endpoint, and limited that it waited
	// for a copy at its concurrency limit.
	cold, limited bool
}

const (
	// sweep is the interval in which a pool's waiting requests try again without any event, and in
	// which the charges of running requests are raised.
	sweep = time.Second
	// again is the least time between two attempts of a line because of new views of the fleet. A
	// new view rarely makes room, and with hundreds of endpoints there are hundreds a second. The
	// time is longer for many lines: againPerLine for each, but at most mostAgain.
	again        = 20 * time.Millisecond
	againPerLine = 500 * time.Microsecond
	mostAgain    = 200 * time.Millisecond
	// soonest is the least time after which a request that found no room tries again without any
	// event. It bounds the cost of a wrong prediction of that time.
	soonest = time.Millisecond
	// triesPerEnd is how many lines may try again before that time when a request ends, in fair
	// order. The end makes room for about one request.
	triesPerEnd = 4
	// patience is how long a request that is first in order waits for room before it reserves some.
	patience = 5 * time.Second
)

// join adds a request to the queue. It reports whether it is the first one in its line.
func (p *pool) join(t *Ticket, is verdict) (first bool) {
	name := t.request.line()
	l := p.lines[name]
	if first = l == nil; first {
		l = &line{name: name, key: t.request.Key, placed: t.request.Placed, holds: t.request.Holds, ready: true}
		p.lines[name] = l
	}
	t.line = l
	t.at = l.tickets.PushBack(t)
	t.place = p.queue.Join(t, queue.Request{
		Path: t.request.Path, Model: name, Service: t.service, Bytes: t.request.Bytes, Since: t.since,
	})
	p.flow.bytes += t.request.Bytes
	switch {
	case first && is == waits:
		p.wait(l, Copy)
	case first && is == empty:
		p.wait(l, Endpoint)
	case (l.freed || !l.ready && l.why == Room) && (t.request.Path.Band > l.band || t.headroom(t.since) < l.headroom):
		p.open(l)
	}
	p.count(t, t.since)
	p.arm(t.since.Add(sweep))
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
	if t.counts {
		p.late.Left(t.group, t.predicted, t.sent, time.Now())
	}
	l.tickets.Remove(t.at)
	f.bytes -= t.request.Bytes
	if f.queued.Add(-1) == 0 {
		f.world = nil
	}
	if l.tickets.Len() == 0 {
		delete(p.lines, l.name)
	}
	if t.holder != 0 {
		p.unreserve(func(r pick.Reservation) bool { return r.Holder == t.holder })
	}
	f.Changed(t.urgent && l.tickets.Len() == 0)
}

// unreserve removes reservations, if there are any for which the function returns true.
func (p *pool) unreserve(gone func(pick.Reservation) bool) {
	if slices.ContainsFunc(p.reserved, gone) {
		p.reserved = slices.DeleteFunc(slices.Clone(p.reserved), gone)
		p.openWaiting(Room)
	}
}

// unreserveLost removes the reservations at endpoints where their holders cannot be served any
// more. The holders may reserve other room at once.
func (p *pool) unreserveLost(is *pick.Pool) {
	if len(p.reserved) == 0 {
		return
	}
	kept := make(map[uint64]bool, len(p.reserved)) // by holder
	for _, l := range p.lines {
		for e := l.tickets.Front(); e != nil; e = e.Next() {
			t := e.Value.(*Ticket)
			if t.holder == 0 {
				continue
			}
			at := slices.IndexFunc(p.reserved, func(r pick.Reservation) bool { return r.Holder == t.holder })
			if at >= 0 && is != nil && l.usable(is, p.reserved[at].Endpoint) {
				kept[t.holder] = true
			} else {
				t.holder = 0
			}
		}
	}
	p.unreserve(func(r pick.Reservation) bool { return !kept[r.Holder] })
}

// usable reports whether the endpoint with this number gets requests, and may serve those of the
// line.
func (l *line) usable(is *pick.Pool, number int) bool {
	at := slices.IndexFunc(is.Endpoints, func(e *pick.Endpoint) bool { return e.Number == number && e.State != pick.Out })
	return at >= 0 && l.servedAt(is, at) && (!l.placed || len(is.Copies[l.key.ID]) > 0)
}

// open makes a line ready.
func (p *pool) open(l *line) {
	l.events++
	l.freed = false
	if !l.ready {
		l.ready, l.why, l.due, p.opened = true, Turn, time.Time{}, true
		p.queue.SetReady(l.name, true)
	}
}

// retry opens a line after an event that may have made room. If the line tried a moment ago, it
// tries again a bit later.
func (p *pool) retry(l *line, now time.Time) {
	if soon := l.tried.Add(p.again()); !l.ready && l.why == Room && now.Before(soon) {
		l.events++
		p.due(l, soon)
		return
	}
	p.open(l)
}

// openWaiting opens the lines that wait for a reason.
func (p *pool) openWaiting(why Reason) {
	for _, l := range p.lines {
		if l.ready || l.why == why {
			p.open(l)
		}
	}
}

// wait makes a line wait for an event.
func (p *pool) wait(l *line, why Reason) {
	l.ready, l.why, l.freed = false, why, false
	p.queue.SetReady(l.name, false)
	if l.mark(p.flow.View(), why) {
		now := time.Now()
		for e := l.tickets.Front(); e != nil; e = e.Next() {
			p.count(e.Value.(*Ticket), now)
		}
	}
}

// again returns the time after which a line that found no room tries again.
func (p *pool) again() time.Duration {
	return min(max(again, time.Duration(len(p.lines))*againPerLine), mostAgain)
}

// call calls the next request, unless one is called already.
func (p *pool) call() {
	for p.called == nil {
		next := p.queue.Next()
		if next == nil {
			return
		}
		t := next.Waiter
		l := t.line
		if soon := l.tried.Add(p.again()); l.freed && p.tries <= 0 && time.Now().Before(soon) {
			p.opened = false // this request is before the next one in order
			p.wait(l, Room)
			p.due(l, soon)
			continue
		}
		l.due = time.Time{}
		p.called, t.called, t.events = t, true, l.events
		t.first, p.opened = p.opened, false
		t.turn <- nil
	}
}

// edit applies edited objects to the requests that wait. Requests whose route leads elsewhere are
// decided again.
func (p *pool) edit(w *objects.World) {
	for _, l := range p.lines {
		for e := l.tickets.Front(); e != nil; {
			t := e.Value.(*Ticket)
			e = e.Next()
			switch route := t.request.Path.Route; {
			case route == (objects.Name{}):
			case t.request.Fallback, w.Leads(route, p.name, t.request.Adapter):
				p.queue.Reprioritize(route, w.PriorityOf(route), w.SharingOf(route).Or().Share)
			case !t.called:
				t.fail(ErrChanged)
			}
		}
	}
}

// show applies a view to the requests that wait.
func (p *pool) show(v *endpointstate.View) {
	now := time.Now()
	p.unreserveLost(v.Snapshot.Pools[p.name.String()])
	for _, l := range p.lines {
		switch p.flow.verdict(v, l.key, l.placed, l.holds) {
		case empty:
			l.events++
			p.wait(l, Endpoint)
		case failed:
			err := p.flow.failure(v, l.key)
			for e := l.tickets.Front(); e != nil; {
				t := e.Value.(*Ticket)
				if e = e.Next(); !t.called {
					t.fail(err)
				}
			}
		case ready:
			p.retry(l, now)
		case waits:
			l.events++
			p.wait(l, Copy)
		}
	}
	p.call()
	p.flow.tidy(p)
}

// freed makes lines ready after a request for a model has ended at an endpoint.
func (p *pool) freed(v *endpointstate.View, address, model string) {
	is := v.Snapshot.Pools[p.name.String()]
	if is == nil {
		return
	}
	at := slices.IndexFunc(is.Endpoints, func(e *pick.Endpoint) bool { return e.Address == address })
	for _, l := range p.lines {
		switch {
		case !l.ready && l.why == Copy:
			if l.key.ID == model && p.flow.verdict(v, l.key, l.placed, l.holds) == ready {
				p.open(l)
			}
		case at >= 0 && l.servedAt(is, at):
			p.tries = triesPerEnd
			freed, due := l.freed || !l.ready && l.why == Room, l.due
			if p.open(l); freed {
				l.freed, l.due = true, due
			}
		}
	}
	p.call()
}

// servedAt reports whether requests of the line may be served at the endpoint with this index.
func (l *line) servedAt(is *pick.Pool, index int) bool {
	copies := is.Copies[l.key.ID]
	return len(copies) == 0 || slices.ContainsFunc(copies, func(c pick.Copy) bool { return c.Endpoint == index })
}

// due lets a line try again at a time, unless it already does so earlier.
func (p *pool) due(l *line, at time.Time) {
	if l.due.IsZero() || at.Before(l.due) {
		l.due = at
	}
	p.arm(l.due)
}

// arm makes the timer run tick at a time, unless it already does so earlier.
func (p *pool) arm(at time.Time) {
	if p.timer != nil && !at.Before(p.at) {
		return
	}
	if p.timer != nil {
		p.timer.Stop()
	}
	p.at = at
	var timer *time.Timer
	timer = time.AfterFunc(time.Until(at), func() {
		p.flow.mu.Lock()
		defer p.flow.mu.Unlock()
		if p.timer == timer {
			p.timer = nil
			p.tick(time.Now())
		}
	})
	p.timer = timer
}

// tick opens the lines whose time has come, and raises the charges of requests that run longer than
// expected.
func (p *pool) tick(now time.Time) {
	p.arm(now.Add(sweep))
	for c := range p.running {
		c.raise(now)
	}
	for _, l := range p.lines {
		switch {
		case l.ready || l.why == Copy:
		case !l.due.IsZero() && !l.due.After(now), now.Sub(l.tried) >= sweep:
			p.open(l)
		case !l.due.IsZero():
			p.arm(l.due)
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
