package fleet

import (
	"iter"
	"math"
)

// Client is who sends a request.
type Client struct {
	Route, Tenant, Program string // empty for none
	// Band is the priority of the route; higher ones go first.
	Band int32
}

// Holder is a Picker that may hold requests. Run calls Hold instead of Pick. It calls Next when a
// request arrives or ends, after each scrape and exchange, and at the time that Wake returned.
type Holder interface {
	Picker
	// Hold adds a request to those that are held. It returns the requests that are refused: the
	// new one, or others in its favour.
	Hold(now float64, r *Request) []Refusal
	// Next returns the next request that may go now, and its endpoint. The request is no longer
	// held, and counts as in flight. Next returns nil if no request may go.
	Next(now float64) (r *Request, endpoint int)
	// Wake returns the earliest time at which a request may go without another event; +Inf if
	// there is none. It is called after Next returned nil.
	Wake(now float64) float64
}

// Refusal is a request that is refused, with the Retry-After in seconds.
type Refusal struct {
	*Request
	RetryAfter float64
}

// Closed is a number of clients that send one request after the other.
type Closed struct {
	// Clients is the number of clients. Each sends its first request at From, and no request at
	// Until or later. Times are in seconds.
	Clients     int
	From, Until float64
	// Requests are the requests of all clients together. Their times At are ignored. The loop ends
	// after the last one.
	Requests iter.Seq[Request]
}

// holding is the state of a run for pickers that hold requests.
type holding struct {
	held       map[*Request]held
	bands      map[int32]bool // bands of all requests so far
	wakes      []float64      // by picker: when Next is to be called again; +Inf for never
	inversions int
	closed     map[int]*closed // by number of a request in flight
}

// held is a request that a picker holds.
type held struct {
	number, by int
	since      float64
}

type closed struct {
	Closed
	next func() (Request, bool)
	stop func()
}

// hold prepares the state.
func (r *run) hold() {
	r.holding = holding{held: make(map[*Request]held), bands: make(map[int32]bool), closed: make(map[int]*closed)}
	for range r.pickers {
		r.holding.wakes = append(r.holding.wakes, math.Inf(1))
	}
}

// join hands a request to a picker that may hold it.
func (r *run) join(number, by int, is *Request) {
	r.holding.bands[is.Client.Band] = true
	r.holding.held[is] = held{number, by, r.loop.Now()}
	r.results[number].Held = r.loop.Now()
	for _, no := range r.pickers[by].(Holder).Hold(r.loop.Now(), is) {
		r.refuse(no)
	}
	r.pump(by)
}

// refuse answers a request with 429. Its client returns or gives up.
func (r *run) refuse(no Refusal) {
	of := r.holding.held[no.Request]
	delete(r.holding.held, no.Request)
	is := &r.results[of.number]
	is.Refusals++
	if no.Returns {
		r.loop.At(r.loop.Now()+no.RetryAfter, func() { r.join(of.number, r.picker(no.Request), no.Request) })
		return
	}
	is.Refused, is.FirstToken, is.LastToken = true, math.Inf(1), math.Inf(1)
	r.ended(of.number)
}

// pump sends every request that a picker may send now. Other pickers hold nothing.
func (r *run) pump(by int) {
	p, ok := r.pickers[by].(Holder)
	if !ok {
		return
	}
	for {
		is, to := p.Next(r.loop.Now())
		if is == nil {
			break
		}
		of := r.holding.held[is]
		delete(r.holding.held, is)
		r.holding.inversions += r.inverted(by, is.Client.Band)
		r.moved(by)
		r.forward(of.number, by, to, is)
	}
	r.measureUnused(by)
	at := p.Wake(r.loop.Now())
	if at >= r.holding.wakes[by] {
		return
	}
	r.holding.wakes[by] = at
	r.loop.At(at, func() {
		if r.holding.wakes[by] == at {
			r.holding.wakes[by] = math.Inf(1)
			r.pump(by)
		}
	})
}

// bandDelay is how long a request of a higher band waits at another picker before requests of
// lower bands are inversions, in seconds: pickers need the time of an exchange to learn of it.
const bandDelay = 0.1

// inverted returns 1 if a request of a higher band is held while one of this band is sent.
func (r *run) inverted(by int, band int32) int {
	if len(r.holding.bands) < 2 {
		return 0
	}
	for is, of := range r.holding.held {
		if is.Client.Band > band && (of.by == by || r.loop.Now()-of.since > bandDelay) {
			return 1
		}
	}
	return 0
}

// startClosed schedules the first requests of closed loops. A loop counts as a request until then,
// so that the run goes on.
func (r *run) startClosed() {
	for _, c := range r.Closed {
		of := &closed{Closed: c}
		of.next, of.stop = iter.Pull(c.Requests)
		r.left++
		r.loop.At(c.From, func() {
			for range c.Clients {
				r.sendClosed(of)
			}
			r.left--
		})
	}
}

// sendClosed sends the next request of a closed loop, unless it is over.
func (r *run) sendClosed(of *closed) {
	if r.loop.Now() >= of.Until {
		of.stop()
		return
	}
	is, ok := of.next()
	if !ok {
		return
	}
	is.At = r.loop.Now()
	r.holding.closed[len(r.results)] = of
	r.send(&is)
}

// closedEnded lets the client of a closed loop send its next request.
func (r *run) closedEnded(number int) {
	if of := r.holding.closed[number]; of != nil {
		delete(r.holding.closed, number)
		r.left++
		r.loop.At(r.loop.Now(), func() {
			r.left--
			r.sendClosed(of)
		})
	}
}
