package bucket

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Amounts are numbers of concurrent requests, of requests and of tokens, in this order.
type Amounts [3]int64

func amountsOf(l Limit) Amounts { return Amounts{l.Concurrent, l.Requests, l.Tokens} }

// Key identifies a limit of a route: of the whole route, or of one tenant.
type Key struct {
	Tenant uint64 // a hash; 0 if Whole
	Whole  bool
}

// Use is what this process reports to control about one limit. Division is the number of the
// division by demand that this process follows; 0 if it uses an equal part.
type Use struct {
	Key
	Division                                     uint64
	Limit, Want, Unit, Held, Seen, Spent, Refill Amounts
}

// Lent is what control lends this process of a limit that it divides by demand.
type Lent struct {
	Key
	Division uint64
	// Released means that the process uses an equal part again.
	Released bool
	// Lent is the sum of what control has lent on this stream. The process returns what it holds
	// above Target. Left is what is left of the limit for all processes together.
	Lent, Target, Left Amounts
}

const (
	// window is half of the time over which demand is counted.
	window = time.Second
	// maxWanted is the maximum number of limits of a route that are reported before control divides
	// them.
	maxWanted = 256
)

// demand counts the requests in the current window and in the one before.
type demand struct {
	since       time.Duration
	now, before Amounts // of concurrent requests, those that were refused
	peak        [2]int64
	unit        [2]int64 // the largest number of tokens of a request
}

func (d *demand) turn(now time.Duration) {
	switch passed := now - d.since; {
	case passed >= 2*window || passed < 0:
		*d = demand{since: now}
	case passed >= window:
		*d = demand{since: d.since + window, before: d.now, peak: [2]int64{0, d.peak[0]}, unit: [2]int64{0, d.unit[0]}}
	}
}

// count counts a request.
func (d *demand) count(tokens, inFlight int64, what What, now time.Duration) {
	d.turn(now)
	if what == Concurrent {
		d.now[0]++
	}
	d.now[1]++
	d.now[2] += tokens
	d.peak[0], d.unit[0] = max(d.peak[0], inFlight), max(d.unit[0], tokens)
}

// want returns what the process needs for the next seconds: for rates, twice what requests have
// recently asked for. Unit is the largest recent request.
func (d *demand) want(inFlight int64, now time.Duration) (want, unit Amounts) {
	d.turn(now)
	for i := range want {
		want[i] = 2 * (d.now[i] + d.before[i])
	}
	if want[1] == 0 && inFlight == 0 {
		return Amounts{}, Amounts{}
	}
	peak := max(inFlight, d.peak[0], d.peak[1])
	want[0] = peak + d.now[0] + d.before[0]
	if want[1] > 0 {
		want[0] += (peak + 3) / 4
	}
	return want, Amounts{1, 1, max(d.unit[0], d.unit[1])}
}

// loan is what this process may use of a limit that control divides by demand. Until control
// divides the limit, the loan only counts demand.
type loan struct {
	demand
	division                                uint64
	held, seen, spent, target, left, refill Amounts
	fraction                                [3]float64
	at, heard                               time.Duration
	told                                    Use // the last use that was reported on this stream
}

// advance refills what this process holds for the time from lease to now, in which it cannot rely
// on control.
func (l *loan) advance(lease, now time.Duration) {
	passed := (now - max(l.at, lease)).Minutes()
	l.at = max(l.at, now)
	if passed <= 0 || l.division == 0 {
		return
	}
	for i := 1; i < 3; i++ {
		whole, fraction := math.Modf(l.fraction[i] + float64(l.refill[i])*passed)
		l.fraction[i] = fraction
		l.held[i] += max(0, min(int64(whole), l.refill[i]-l.held[i]))
	}
}

func (l *loan) begin(of Limit, tokens int64) {
	if of.Requests > 0 {
		l.held[1]--
		l.spent[1]++
	}
	l.settle(of, tokens)
}

// settle uses more tokens, or less if more is negative.
func (l *loan) settle(of Limit, more int64) {
	if of.Tokens > 0 {
		l.held[2] -= more
		l.spent[2] += more
	}
}

// check is counters.check.
func (l *loan) check(of Limit, inFlight, tokens int64, a *Answer) {
	if of.Concurrent > 0 && inFlight >= min(l.held[0], l.target[0]) {
		a.refuse(Concurrent, 0)
	}
	if of.Requests > 0 && l.held[1] < 1 {
		a.refuse(Requests, l.wait(1, of.Requests, l.left[1]))
	}
	switch {
	case of.Tokens == 0:
	case tokens > of.Tokens:
		a.refuse(Tokens, 0)
		a.Never = true
	case l.held[2] < tokens:
		a.refuse(Tokens, l.wait(tokens, of.Tokens, l.left[2]))
	}
}

// wait returns after what time control may have lent n units: after one exchange if so many are
// left for all processes together.
func (l *loan) wait(n, limit, left int64) time.Duration {
	missing := float64(n-left)/float64(limit)*float64(minute) - float64(l.at-l.heard)
	return max(time.Second, time.Duration(math.Ceil(missing)))
}

func (l *loan) describe(of Limit, a *Answer) {
	narrow := func(s *Status, i int, limit int64) {
		left := max(0, min(l.held[i], limit))
		if limit > 0 && (s.Limit == 0 || left < s.Left) {
			*s = Status{limit, left, time.Duration(float64(limit-left) / float64(limit) * float64(minute))}
		}
	}
	narrow(&a.Requests, 1, of.Requests)
	narrow(&a.Tokens, 2, of.Tokens)
}

// repay gives up what is held above the target and not used, and what is no longer limited.
func (l *loan) repay(of Limit, inFlight int64) {
	l.held[0] = min(l.held[0], max(l.target[0], inFlight))
	l.held[1] = min(l.held[1], l.target[1])
	l.held[2] = min(l.held[2], l.target[2])
	for i, n := range amountsOf(of) {
		if n == 0 {
			l.held[i] = 0
		}
	}
}

func (r *Route) limitOf(k Key) Limit {
	if k.Whole {
		return r.limits.Route
	}
	return r.limits.Tenant
}

// countersOf returns the counters of a limit; nil for a tenant that the route does not remember.
func (r *Route) countersOf(k Key) *counters {
	if k.Whole {
		return &r.own
	}
	if t := r.tenants[k.Tenant]; t != nil {
		return &t.counters
	}
	return nil
}

func (r *Route) sizesOfKey(k Key) sizes {
	if k.Whole {
		return r.ownSizes()
	}
	return r.sizesOf(k.Tenant)
}

// divided returns the loan of a limit if control divides it.
func (r *Route) divided(k Key, now time.Duration) *loan {
	l := r.loans[k]
	if l == nil || l.division == 0 {
		return nil
	}
	l.advance(r.lease, now)
	return l
}

// want begins to count the demand for a limit.
func (r *Route) want(k Key, now time.Duration) *loan {
	l := &loan{demand: demand{since: now}, at: now}
	r.loans[k] = l
	r.wanted++
	return l
}

// note counts the demand for a limit if control divides it, or if this process has little left of
// its part.
func (r *Route) note(k Key, c *counters, of sizes, tokens int64, refused What, now time.Duration) {
	l := r.loans[k]
	if l == nil {
		if r.part == Whole() || r.wanted >= maxWanted || refused == Nothing && !c.scarce(of) {
			return
		}
		l = r.want(k, now)
	}
	l.count(tokens, c.inFlight, refused, now)
}

// scarce reports whether less than half of a part is left.
func (c *counters) scarce(s sizes) bool {
	return s.Concurrent > 0 && 2*float64(c.inFlight) > s.concurrent || s.Requests > 0 && 2*c.requests.used > s.requests ||
		s.Tokens > 0 && 2*c.tokens.used > s.tokens
}

// Lease sets the time until which control refills the limits that it divides. After it, this
// process refills its own part.
func (r *Route) Lease(until time.Duration) { r.lease = until }

// Connect begins a stream to control, which has received nothing on it.
func (r *Route) Connect() {
	for _, l := range r.loans {
		l.seen, l.spent, l.told = Amounts{}, Amounts{}, Use{}
	}
}

// Hear applies what control lent. It reports whether control waits for a report: because the
// process has not yet reported what it holds, or because it gives up something.
func (r *Route) Hear(is Lent, now time.Duration) (urgent bool) {
	l := r.loans[is.Key]
	if is.Released {
		if l != nil && l.division == is.Division {
			r.release(is.Key)
		}
		return false
	}
	if l == nil {
		l = r.want(is.Key, now)
	}
	switch {
	case l.division == 0:
		r.enter(is.Key, l, now)
		fallthrough
	case l.division != is.Division:
		urgent = true
		l.division, l.seen, l.spent = is.Division, Amounts{}, Amounts{}
	}
	l.advance(r.lease, now)
	for i := range l.held {
		l.held[i] += is.Lent[i] - l.seen[i]
	}
	l.seen, l.target, l.left, l.heard = is.Lent, is.Target, is.Left, now
	held := l.held
	l.repay(r.limitOf(is.Key), r.inFlightOf(is.Key))
	return urgent || l.held != held
}

func (r *Route) inFlightOf(k Key) int64 {
	if c := r.countersOf(k); c != nil {
		return c.inFlight
	}
	return 0
}

// enter begins a division: the process holds what is left of its equal part.
func (r *Route) enter(k Key, l *loan, now time.Duration) {
	r.wanted--
	of := r.sizesOfKey(k)
	c := r.countersOf(k)
	if c == nil {
		c = &r.newcomer(k.Tenant, now).counters
	}
	c.advance(of, now)
	l.at = now
	l.refill = Amounts{int64(of.concurrent), int64(of.requests), int64(of.tokens)}
	l.held = Amounts{
		max(l.refill[0], c.inFlight), int64(math.Floor(of.requests - c.requests.used + slack)),
		int64(math.Floor(of.tokens - c.tokens.used + slack)),
	}
	c.requests.used, c.tokens.used, c.loan = 0, 0, l
	r.reorder()
}

// release returns to an equal part of a limit.
func (r *Route) release(k Key) {
	delete(r.loans, k)
	if c := r.countersOf(k); c != nil {
		c.loan = nil
		c.requests.used, c.tokens.used = 0, 0
	}
}

// Uses returns the changed use of limits that control divides, and the demand for other limits of
// which this process's part is scarce.
func (r *Route) Uses(now time.Duration) []Use {
	var all []Use
	for k, l := range r.loans {
		inFlight, limit := r.inFlightOf(k), amountsOf(r.limitOf(k))
		want, unit := l.want(inFlight, now)
		if l.division == 0 {
			if want == (Amounts{}) {
				delete(r.loans, k)
				r.wanted--
				continue
			}
			all = append(all, Use{Key: k, Limit: limit, Want: want, Unit: unit})
			continue
		}
		l.advance(r.lease, now)
		l.repay(r.limitOf(k), inFlight)
		is := Use{
			Key: k, Division: l.division, Limit: limit, Want: want, Unit: unit,
			Held: l.held, Seen: l.seen, Spent: l.spent, Refill: l.refill,
		}
		if is != l.told {
			l.told = is
			all = append(all, is)
		}
	}
	slices.SortFunc(all, func(a, b Use) int { return cmp.Compare(a.Tenant, b.Tenant) })
	return all
}

// Loans returns the number of limits that control divides, or for which this process reports
// demand.
func (r *Route) Loans() int { return len(r.loans) }

// Fill fills all buckets. It is for limits of which nothing was used before, and for a process that
// starts without control.
func (r *Route) Fill() {
	r.own.requests.used, r.own.tokens.used, r.floor.requests.used, r.floor.tokens.used = 0, 0, 0, 0
	for _, t := range r.tenants {
		t.requests.used, t.tokens.used = 0, 0
	}
	r.reorder()
}
