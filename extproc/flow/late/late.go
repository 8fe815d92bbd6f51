// Package late predicts which requests would wait too long in the queue of a pool, and when their
// clients should retry. It is pure: time and randomness are arguments.
package late

import (
	"math"
	"slices"
	"time"

	"github.com/headgate/headgate/extproc/flow/queue"
)

const (
	// MaxRetry is the longest Retry-After.
	MaxRetry = 60 * time.Second
	// Grace is how long a promise is valid after its time. It covers the rounding of Retry-After to
	// whole seconds, and the delay of the network.
	Grace = 10 * time.Second
	// maxPromises limits the promises of a pool, which take about 10 MB, and the flows with
	// promises, which take about 15 MB. Beyond it, clients that return count as newcomers.
	maxPromises = 65536
	// promised is the share of a flow's rate that promises use. The rest covers errors of
	// prediction: while a flood fills the engines of a pool, the rate of the pool falls by about a
	// fifth. The rest is not lost, because newcomers use it. See the part retry of bench flow.
	promised = 0.8
	// leastBackoff is the least time after which a client that ignores Retry-After sends a request
	// again. OpenAI's client waits half a second.
	leastBackoff = 500 * time.Millisecond
	// maxAlike limits the promises to requests with the same identity.
	maxAlike = 1024
)

// Predictor predicts the waits in the queue of one pool. It promises each rejected client a time
// for its retry, and later clients a later time. A client that returns at its time goes before
// newcomers. Make one with [New]. It is not safe for concurrent use.
type Predictor struct {
	waiting int   // number of requests in the queue that wait for room
	drain   drain // of those
	// flows are those with waiting requests or promises.
	flows map[Group]*stream
	// clients are those with promises, by the identity of their requests. order has the times at
	// which promises are forgotten, earliest first.
	clients map[uint64]*clients
	order   []forgotten
	swept   time.Time // when flows was last searched for promises that have passed
}

// Group identifies the requests of a flow that wait for the same thing: for room at engines, or
// for a model whose copies are at their concurrency limit. Each group is served at its own rate.
type Group struct {
	queue.Path
	Limited string // name of the line of such a model; empty: for room
}

// stream is the state of one flow.
type stream struct {
	waiting int
	service float64 // of the waiting requests
	// drain is measured while requests of the flow wait. It includes what all other flows take.
	drain drain
	until time.Time // when all promises are kept
}

// clients sent requests with the same Identity: one client, or several with equal requests.
type clients struct {
	promises []promise // sorted by time; not empty
	told     time.Time // when one of them was last rejected
}

// promise is a time at which this many requests may return and go before newcomers.
type promise struct {
	due     time.Time
	returns int
}

type forgotten struct {
	identity uint64
	at       time.Time
}

// another reports whether a request before its promised time comes from another client: it arrives
// so soon after the last rejection that no client would have retried yet.
func (c *clients) another(now time.Time) bool {
	return now.Sub(c.told) < leastBackoff && len(c.promises) < maxAlike
}

// New returns a Predictor of a pool in whose queue no request has waited.
func New() *Predictor {
	return &Predictor{flows: make(map[Group]*stream), clients: make(map[uint64]*clients)}
}

// Joined counts a request that joins the queue, with the service that [Predictor.Left] will get.
func (p *Predictor) Joined(of Group, service float64, now time.Time) {
	f := p.flow(of)
	f.waiting++
	f.service += service
	f.drain.wait(true, now)
	if of.Limited == "" {
		p.waiting++
		p.drain.wait(true, now)
	}
}

// Left counts a request that leaves the queue.
func (p *Predictor) Left(of Group, service float64, dispatched bool, now time.Time) {
	f := p.flow(of)
	if dispatched {
		f.drain.left(service, now)
		if of.Limited == "" {
			p.drain.left(service, now)
		}
	}
	if f.waiting--; f.waiting > 0 {
		f.service -= service
	} else {
		f.service = 0 // no rounding errors remain
	}
	f.drain.wait(f.waiting > 0, now)
	if of.Limited == "" {
		p.waiting--
		p.drain.wait(p.waiting > 0, now)
	}
	if f.waiting <= 0 && !f.until.After(now) {
		delete(p.flows, of)
	}
}

func (p *Predictor) flow(of Group) *stream {
	f := p.flows[of]
	if f == nil {
		f = &stream{}
		p.flows[of] = f
	}
	return f
}

// Pace returns the rate of a flow in service per second, and the predicted wait of a newcomer. If
// the flow has had waiting requests for long enough, its rate is measured. Otherwise Pace derives
// it from the rate of the pool.
func (p *Predictor) Pace(a Arrival, now time.Time) (rate float64, wait time.Duration, known bool) {
	if f := p.flows[a.Group]; f != nil && f.waiting > 0 {
		if rate, known = f.drain.rate(now); known {
			return rate, seconds(f.service / rate), true
		}
	}
	if rate, known = p.drain.rate(now); !known || a.Part <= 0 || a.Limited != "" {
		return 0, 0, false
	}
	rate *= a.Part
	return rate, seconds(a.Ahead / rate), true
}

// Queued returns the service of the waiting requests of a group.
func (p *Predictor) Queued(of Group) float64 {
	if f := p.flows[of]; f != nil {
		return f.service
	}
	return 0
}

// Idle reports whether the Predictor has neither waiting requests nor promises.
func (p *Predictor) Idle() bool { return len(p.flows)+len(p.clients)+len(p.order) == 0 }

// Arrival is a request that would have to wait.
type Arrival struct {
	Group
	// Service is the request's own service, and Ahead the service that is queued before it in its
	// flow. Part is the part of the pool's rate that the flow gets. See [queue.Queue.Ahead].
	Service, Ahead, Part float64
	// Longest is the longest wait after which the request is still in time; 0 if there is no limit.
	Longest time.Duration
	// Identity is a hash that the request has again when its client retries; 0 if it has none.
	Identity uint64
}

// Check reports whether the request would be late, and if so, after what time its client should
// retry. Random is a uniformly random number in [0, 1). While the pool's rate is unknown, no
// request is late.
//
// A promise admits one request with its identity from its time on, unless the request would still
// be late. An earlier request with this identity counts as a newcomer. If it is late, it gets the
// same time again, and the promise admits one more request: the Predictor cannot distinguish a
// client that returns early from another client with an equal request. A request that arrives too
// soon to be a retry gets a promise of its own.
func (p *Predictor) Check(a Arrival, now time.Time, random float64) (retry time.Duration, late bool) {
	p.Forget(now)
	if a.Longest <= 0 {
		return 0, false
	}
	rate, wait, known := p.Pace(a, now)
	if !known {
		return 0, false
	}
	var until time.Time
	if f := p.flows[a.Group]; f != nil {
		until = f.until
	}
	switch due, returns := p.due(a.Identity); {
	case returns && !now.Before(due):
		p.keep(a.Identity)
		if wait <= a.Longest {
			return 0, false
		}
	case wait+min(max(0, until.Sub(now)), a.Longest) <= a.Longest:
		return 0, false
	case returns && !p.clients[a.Identity].another(now):
		c := p.clients[a.Identity]
		c.promises[0].returns++
		c.told = now
		return atMost(due.Sub(now)), true
	}
	if first := now.Add(wait); until.Before(first) {
		until = first
	}
	until = until.Add(seconds(a.Service / (rate * promised)))
	if last := now.Add(MaxRetry); until.After(last) {
		until = last
	}
	if p.flows[a.Group] != nil || len(p.flows) < maxPromises {
		p.flow(a.Group).until = until
	}
	retry = until.Sub(now)
	retry = atMost(retry + time.Duration(random*float64(min(time.Second, retry/10))))
	p.promise(a.Identity, now, retry)
	return retry, true
}

// atMost limits a Retry-After, which is above 0.
func atMost(d time.Duration) time.Duration { return min(max(d, time.Millisecond), MaxRetry) }

// due returns the earliest time that was promised to requests with this identity.
func (p *Predictor) due(identity uint64) (due time.Time, returns bool) {
	if c := p.clients[identity]; c != nil {
		return c.promises[0].due, true
	}
	return time.Time{}, false
}

// keep counts the return of a request at the earliest time that was promised.
func (p *Predictor) keep(identity uint64) {
	c := p.clients[identity]
	if c.promises[0].returns--; c.promises[0].returns <= 0 {
		c.promises = slices.Delete(c.promises, 0, 1)
	}
	if len(c.promises) == 0 {
		delete(p.clients, identity)
	}
}

// promise remembers that the client of a request may return.
func (p *Predictor) promise(identity uint64, now time.Time, retry time.Duration) {
	if identity == 0 || len(p.order) >= maxPromises {
		return
	}
	c := p.clients[identity]
	if c == nil {
		c = new(clients)
		p.clients[identity] = c
	}
	if len(c.promises) >= maxAlike {
		return
	}
	is := promise{now.Add(retry), 1}
	at, _ := slices.BinarySearchFunc(c.promises, is, func(a, b promise) int { return a.due.Compare(b.due) })
	c.promises, c.told = slices.Insert(c.promises, at, is), now
	p.order = append(p.order, forgotten{identity, now.Add(MaxRetry + Grace)})
}

// Forget drops expired promises, and flows without requests and promises.
func (p *Predictor) Forget(now time.Time) {
	n := 0
	for ; n < len(p.order) && now.After(p.order[n].at); n++ {
		id := p.order[n].identity
		c := p.clients[id]
		if c == nil {
			continue
		}
		c.promises = slices.DeleteFunc(c.promises, func(p promise) bool { return now.After(p.due.Add(Grace)) })
		if len(c.promises) == 0 {
			delete(p.clients, id)
		}
	}
	if p.order = p.order[n:]; len(p.order) == 0 {
		p.order = nil
	}
	if now.Sub(p.swept) < time.Second {
		return
	}
	p.swept = now
	for of, f := range p.flows {
		if f.waiting <= 0 && !f.until.After(now) {
			delete(p.flows, of)
		}
	}
}

// seconds returns a duration, at most an hour, of a number of seconds, which may be infinite.
func seconds(s float64) time.Duration {
	if !(s < 3600) {
		return time.Hour
	}
	return time.Duration(s * float64(time.Second))
}

// drain measures the rate at which requests leave a queue: service per second, in a window that
// decays. Time without waiting requests does not count.
type drain struct {
	work, time float64 // of the window; time is in seconds
	at         time.Time
	busy       bool
}

// window is the time constant of the average in seconds: after it, the weight of a measurement is
// 1/e. leastTime is the measured time, in seconds, after which a rate counts as known.
const (
	window    = 10.0
	leastTime = 1.0
)

// advance ages the window until now.
func (d *drain) advance(now time.Time) {
	if passed := now.Sub(d.at).Seconds(); d.busy && passed > 0 {
		keep := math.Exp(-passed / window)
		d.work *= keep
		d.time = d.time*keep + window*(1-keep)
	}
	d.at = now
}

// wait records whether requests wait from now on.
func (d *drain) wait(waits bool, now time.Time) {
	d.advance(now)
	d.busy = waits
}

// left counts the service of a request that had waited and was dispatched.
func (d *drain) left(service float64, now time.Time) {
	d.advance(now)
	if service > 0 && !math.IsInf(service, 0) {
		d.work += service
	}
}

// rate returns the service per second; known is false if too little was measured.
func (d *drain) rate(now time.Time) (rate float64, known bool) {
	d.advance(now)
	if d.time < leastTime || d.work <= 0 {
		return 0, false
	}
	return d.work / d.time, true
}
