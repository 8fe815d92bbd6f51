// Package bucket counts the requests and tokens of one route and of its tenants against their
// limits. It is pure: time is an argument, as the time since a fixed moment.
//
// A rate of N per minute is a token bucket that holds N and is refilled with N per minute. So
// within any time t, at most N + N·t/min are admitted: no burst is larger than N, and no average
// over a long time is above N per minute. Requests count when they are admitted. Tokens are
// reserved when their request is admitted; the difference to the real number counts when that is
// known. If the estimate was too low, the bucket gets a debt, which it must refill first.
package bucket

import (
	"math"
	"time"
)

// Limit limits requests. A number that is 0 limits nothing.
type Limit struct {
	// Concurrent is the number of requests at a time.
	Concurrent int64
	// Requests and Tokens are rates per minute.
	Requests, Tokens int64
}

// Limits are the limits of a route.
type Limits struct {
	// Route is for all requests of the route together, and Tenant for those of each tenant.
	Route, Tenant Limit
}

// Part is the part of every limit that one process may use: the interval [From, To) of [0, 1).
// Processes with disjoint intervals do not exceed a limit together.
type Part struct{ From, To float64 }

// Whole is the Part of a process that is alone.
func Whole() Part { return Part{0, 1} }

// Equal returns the Part of process number i of n.
func Equal(i, n int) Part { return Part{float64(i) / float64(n), float64(i+1) / float64(n)} }

func (p Part) width() float64 { return max(0, p.To-p.From) }

// of returns the part of a limit in whole units. The parts of processes whose intervals cover
// [0, 1) add up to the limit. Offset, in [0, 1), decides which process gets the units that cannot
// be divided: it differs between tenants, so that small limits do not all end up at one process.
func (p Part) of(limit int64, offset float64) float64 {
	return math.Floor(float64(limit)*p.To+offset) - math.Floor(float64(limit)*p.From+offset)
}

// offsetOf returns the offset of a hash.
func offsetOf(hash uint64) float64 { return float64(hash>>11) / (1 << 53) }

// level is how much of a bucket is used. The zero level is that of a full bucket.
type level struct {
	used float64 // may exceed what the bucket holds: a debt
	at   time.Duration
}

// minute is the time in which an empty bucket is refilled.
const minute = time.Minute

// advance refills a bucket that holds size. A clock that jumps back refills nothing.
func (l *level) advance(size float64, now time.Duration) {
	if now > l.at {
		l.used = max(0, l.used-size*float64(now-l.at)/float64(minute))
		l.at = now
	}
}

// slack covers rounding errors, so that a client that retries exactly after Retry-After is
// admitted.
const slack = 1e-6

// wait returns how long it takes until a bucket that holds size has n; 0 if it has n now. A request
// for more than the bucket ever holds is admitted when it is full, and leaves a debt. Never is true
// for a bucket that holds nothing. The caller has advanced l.
func (l *level) wait(size, n float64) (d time.Duration, never bool) {
	if size <= 0 {
		return 0, true
	}
	missing := l.used + min(n, size) - size
	if missing <= slack {
		return 0, false
	}
	return time.Duration(math.Ceil(missing / size * float64(minute))), false
}

// full returns when a bucket that holds size is full again.
func (l *level) full(size float64) time.Duration {
	if l.used <= 0 || size <= 0 {
		return l.at
	}
	return l.at + time.Duration(l.used/size*float64(minute))
}

// rescale changes a level after the size of its bucket has changed with the process's part. If the
// part became smaller, so does what is left in the bucket, since another process gets the rest. If
// it became larger, what is left stays the same, since nothing is known of what others have used.
// The caller has advanced l.
func (l *level) rescale(from, to, ratio float64) {
	left := (from - l.used) * min(1, ratio)
	if left < 0 {
		left = from - l.used // a debt stays
	}
	l.used = max(0, to-left)
}

// counters are the counts of a route, or of a tenant.
type counters struct {
	inFlight         int64
	requests, tokens level
	loan             *loan // nil if control has not divided the limit
}

// sizes are the parts of a Limit, with false for numbers that are not limited.
type sizes struct {
	concurrent, requests, tokens float64
	Limit
	lends bool // control will lend more
}

func (p Part) sizes(l Limit, offset float64) sizes {
	return sizes{p.of(l.Concurrent, offset), p.of(l.Requests, offset), p.of(l.Tokens, offset), l, false}
}

func (c *counters) advance(s sizes, now time.Duration) {
	c.requests.advance(s.requests, now)
	c.tokens.advance(s.tokens, now)
}

// full returns when both buckets are full.
func (c *counters) full(s sizes) time.Duration {
	return max(c.requests.full(s.requests), c.tokens.full(s.tokens))
}

// check adds to a, which describes a request with these tokens, what stops it. The caller has
// advanced c.
func (c *counters) check(s sizes, tokens float64, a *Answer) {
	if c.loan != nil {
		c.loan.check(s.Limit, c.inFlight, int64(tokens), a)
		return
	}
	if s.Concurrent > 0 && float64(c.inFlight) >= s.concurrent {
		a.refuse(Concurrent, 0)
	}
	if s.Requests > 0 {
		wait, never := c.requests.wait(s.requests, 1)
		if never { // another process has the limit
			wait = max(1, minute/time.Duration(s.Requests))
		}
		if wait > 0 {
			a.refuse(Requests, s.retry(wait))
		}
	}
	if s.Tokens > 0 {
		wait, never := c.tokens.wait(s.tokens, tokens)
		switch {
		case tokens > float64(s.Tokens):
			a.refuse(Tokens, 0)
			a.Never = true
		case never && tokens > 0:
			a.refuse(Tokens, s.retry(max(1, minute/time.Duration(s.Tokens))))
		case wait > 0 && !never, tokens > s.tokens && !never:
			a.refuse(Tokens, s.retry(wait))
		}
	}
}

// retry returns the time after which a request that has to wait should be sent again. If control
// lends more, it does so until then.
func (s *sizes) retry(wait time.Duration) time.Duration {
	if s.lends {
		return time.Second
	}
	return wait
}

// describe sets the counts that a shows to those of c if c has less left.
func (c *counters) describe(s sizes, a *Answer) {
	if c.loan != nil {
		c.loan.describe(s.Limit, a)
		return
	}
	a.Requests.narrow(s.Requests, s.requests, c.requests)
	a.Tokens.narrow(s.Tokens, s.tokens, c.tokens)
}

// What is what a limit counts.
type What uint8

// The values of What. A request that several limits stop is refused for the last of them.
const (
	Nothing What = iota
	Concurrent
	Requests
	Tokens
)

// Answer reports whether a request is admitted.
type Answer struct {
	// Refused is the kind of limit that the request exceeds; Nothing if it is admitted.
	Refused What
	// Retry is the time after which the request would be admitted if no other came. It is 0 if the
	// end of another request decides that.
	Retry time.Duration
	// Never means that the request alone exceeds a limit.
	Never bool
	// Requests and Tokens are the state of the limits, after the request if it is admitted. Of the
	// limits of the route and of the tenant, each is the one with less left.
	Requests, Tokens Status
}

func (a *Answer) refuse(what What, retry time.Duration) {
	a.Refused, a.Retry = max(a.Refused, what), max(a.Retry, retry)
}

// Status is the state of a limit per minute. It is zero if there is none.
type Status struct {
	// Limit is the whole limit, and Left how much of it this process has left.
	Limit, Left int64
	// Reset is the time until the whole limit is available again if no other request comes.
	Reset time.Duration
}

func (s *Status) narrow(limit int64, size float64, l level) {
	left := int64(max(0, math.Floor(size-l.used+slack)))
	if limit > 0 && (s.Limit == 0 || left < s.Left) {
		*s = Status{limit, left, l.full(size) - l.at}
	}
}
