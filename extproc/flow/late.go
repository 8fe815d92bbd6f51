package flow

import (
	"math"
	"slices"
	"time"

	"github.com/headgate/headgate/extproc/flow/queue"
)

// This file predicts which requests would wait too long, and when their clients should retry. It is
// pure: time and randomness are arguments.

const (
	// maxRetry is the longest Retry-After.
	maxRetry = 60 * time.Second
	// grace is how long after its time a promise holds. It covers the rounding of Retry-After to
	// whole seconds, and the client's way.
	grace = 10 * time.Second
	// maxPromises limits how many promises of a pool are remembered, in about 10 MB, and for how
	// many flows, in about 15 MB. Beyond it, clients that return count as new.
	maxPromises = 65536
	// promised is the part of a flow's rate that is promised to clients that were rejected. The
	// rest makes up for errors of prediction, and for the rounding of Retry-After.
	promised = 0.9
	// leastBackoff is the least time after which a client that ignores Retry-After sends a request
	// again. OpenAI's client waits half a second.
	leastBackoff = 500 * time.Millisecond
	// maxAlike limits the promises to requests with the same identity.
	maxAlike = 1024
)

// lateness predicts the waits in the queue of one pool. It remembers which clients were told to
// come back, and when, so that it tells later ones later times, and admits those that return before
// newcomers. Make one with newLateness. It is not safe for concurrent use.
type lateness struct {
	waiting int   // number of requests in the queue that wait for room
	drain   drain // of those
	// flows are those with waiting requests or promises.
	flows map[rivals]*stream
	// clients were told when to return, by the identity of their requests. The times at which
	// promises are forgotten are in order.
	clients map[uint64]*clients
	order   []forgotten
	swept   time.Time // when flows was last searched for promises that have passed
	expires bool      // a timer will remove this lateness from Flow.lates
}

// rivals identifies the requests of a flow that wait for the same thing: for room at engines, or
// for a model whose copies are at their concurrency limit. Each group is served at its own rate.
type rivals struct {
	queue.Path
	limited string // name of the line of such a model; empty: for room
}

// stream is the state of one flow.
type stream struct {
	waiting int
	service float64 // of the waiting requests
	// drain is measured while requests of the flow wait. It includes what all other flows take.
	drain drain
	until time.Time // when all promises are kept
}

// clients sent requests with the same identity: one client, or several with equal requests.
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

// another reports whether a request that returns too early is that of another client: it came so
// soon after the last one that a client would not have tried again.
func (c *clients) another(now time.Time) bool {
	return now.Sub(c.told) < leastBackoff && len(c.promises) < maxAlike
}

func newLateness() *lateness {
	return &lateness{flows: make(map[rivals]*stream), clients: make(map[uint64]*clients)}
}

// joined counts a request that joins the queue, with the service that [lateness.left] will get.
func (l *lateness) joined(of rivals, service float64, now time.Time) {
	f := l.flow(of)
	f.waiting++
	f.service += service
	f.drain.wait(true, now)
	if of.limited == "" {
		l.waiting++
		l.drain.wait(true, now)
	}
}

// left counts a request that leaves the queue.
func (l *lateness) left(of rivals, service float64, dispatched bool, now time.Time) {
	f := l.flow(of)
	if dispatched {
		f.drain.left(service, now)
		if of.limited == "" {
			l.drain.left(service, now)
		}
	}
	if f.waiting--; f.waiting > 0 {
		f.service -= service
	} else {
		f.service = 0 // no rounding errors remain
	}
	f.drain.wait(f.waiting > 0, now)
	if of.limited == "" {
		l.waiting--
		l.drain.wait(l.waiting > 0, now)
	}
	if f.waiting <= 0 && !f.until.After(now) {
		delete(l.flows, of)
	}
}

func (l *lateness) flow(of rivals) *stream {
	f := l.flows[of]
	if f == nil {
		f = &stream{}
		l.flows[of] = f
	}
	return f
}

// pace returns the rate of a flow, and the wait of a newcomer. They are measured if the flow has
// had waiting requests for long enough. Otherwise they are derived from the rate of the pool.
func (l *lateness) pace(a arrival, now time.Time) (rate float64, wait time.Duration, known bool) {
	if f := l.flows[a.rivals]; f != nil && f.waiting > 0 {
		if rate, known = f.drain.rate(now); known {
			return rate, seconds(f.service / rate), true
		}
	}
	if rate, known = l.drain.rate(now); !known || a.part <= 0 || a.limited != "" {
		return 0, 0, false
	}
	rate *= a.part
	return rate, seconds(a.ahead / rate), true
}

// idle reports whether nothing waits and nothing is promised.
func (l *lateness) idle() bool { return len(l.flows)+len(l.clients)+len(l.order) == 0 }

// arrival is a request that would have to wait.
type arrival struct {
	rivals
	// service is the request's own, and ahead what is queued before it in its flow. Part is the
	// part of the pool's rate that the flow gets. See [queue.Queue.Ahead].
	service, ahead, part float64
	// longest is the longest wait after which the request is still in time; 0 if there is no limit.
	longest time.Duration
	// identity is a hash that the request has again when its client retries; 0 if it has none.
	identity uint64
}

// check reports whether the request would be late, and if so, after what time its client should
// retry. Random is a uniformly random number in [0, 1). While the pool's rate is unknown, no
// request is late.
//
// A promise admits one request with its identity at its time. Before that time, such a request
// counts as a newcomer. If it is late, it gets the same time again, and one more request is
// admitted then: nothing shows whether it comes from the same client. Only if it comes from another
// one for sure, it gets a promise of its own.
func (l *lateness) check(a arrival, now time.Time, random float64) (retry time.Duration, late bool) {
	l.forget(now)
	if a.longest <= 0 {
		return 0, false
	}
	rate, wait, known := l.pace(a, now)
	if !known {
		return 0, false
	}
	var until time.Time
	if f := l.flows[a.rivals]; f != nil {
		until = f.until
	}
	switch due, returns := l.due(a.identity); {
	case returns && !now.Before(due):
		l.keep(a.identity)
		if wait <= a.longest {
			return 0, false
		}
	case wait+min(max(0, until.Sub(now)), a.longest) <= a.longest:
		return 0, false
	case returns && !l.clients[a.identity].another(now):
		c := l.clients[a.identity]
		c.promises[0].returns++
		c.told = now
		return atMost(due.Sub(now)), true
	}
	if first := now.Add(wait); until.Before(first) {
		until = first
	}
	until = until.Add(seconds(a.service / (rate * promised)))
	if last := now.Add(maxRetry); until.After(last) {
		until = last
	}
	if l.flows[a.rivals] != nil || len(l.flows) < maxPromises {
		l.flow(a.rivals).until = until
	}
	retry = until.Sub(now)
	retry = atMost(retry + time.Duration(random*float64(min(time.Second, retry/10))))
	l.promise(a.identity, now, retry)
	return retry, true
}

// atMost limits a Retry-After, which is above 0.
func atMost(d time.Duration) time.Duration { return min(max(d, time.Millisecond), maxRetry) }

// due returns the earliest time that was promised to requests with this identity.
func (l *lateness) due(identity uint64) (due time.Time, returns bool) {
	if c := l.clients[identity]; c != nil {
		return c.promises[0].due, true
	}
	return time.Time{}, false
}

// keep counts the return of a request at the earliest time that was promised.
func (l *lateness) keep(identity uint64) {
	c := l.clients[identity]
	if c.promises[0].returns--; c.promises[0].returns <= 0 {
		c.promises = slices.Delete(c.promises, 0, 1)
	}
	if len(c.promises) == 0 {
		delete(l.clients, identity)
	}
}

// promise remembers that the client of a request may return.
func (l *lateness) promise(identity uint64, now time.Time, retry time.Duration) {
	if identity == 0 || len(l.order) >= maxPromises {
		return
	}
	c := l.clients[identity]
	if c == nil {
		c = new(clients)
		l.clients[identity] = c
	}
	if len(c.promises) >= maxAlike {
		return
	}
	p := promise{now.Add(retry), 1}
	at, _ := slices.BinarySearchFunc(c.promises, p, func(a, b promise) int { return a.due.Compare(b.due) })
	c.promises, c.told = slices.Insert(c.promises, at, p), now
	l.order = append(l.order, forgotten{identity, now.Add(maxRetry + grace)})
}

// forget drops what has passed.
func (l *lateness) forget(now time.Time) {
	n := 0
	for ; n < len(l.order) && now.After(l.order[n].at); n++ {
		id := l.order[n].identity
		c := l.clients[id]
		if c == nil {
			continue
		}
		c.promises = slices.DeleteFunc(c.promises, func(p promise) bool { return now.After(p.due.Add(grace)) })
		if len(c.promises) == 0 {
			delete(l.clients, id)
		}
	}
	if l.order = l.order[n:]; len(l.order) == 0 {
		l.order = nil
	}
	if now.Sub(l.swept) < time.Second {
		return
	}
	l.swept = now
	for of, f := range l.flows {
		if f.waiting <= 0 && !f.until.After(now) {
			delete(l.flows, of)
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
// decays. Time in which no request could have left for want of requests does not count.
type drain struct {
	work, time float64 // of the window; time is in seconds
	at         time.Time
	busy       bool
}

// window is the time constant of the average in seconds: after it, the weight of a measurement is
// 1/e. leastTime is the measured time, in seconds, from which on a rate counts as known.
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
