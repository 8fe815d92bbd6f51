package bucket

import (
	"cmp"
	"container/heap"
	"time"
)

// MaxIdle is the maximum number of tenants of a route that are remembered although they have no
// request in flight. They take about 2 MB. Route also remembers tenants with requests in flight,
// and forgets idle tenants whose buckets are full.
const MaxIdle = 16384

// Route is the state of the limits of one route. It is not safe for concurrent use.
//
// If there are more than MaxIdle tenants, Route forgets the one whose buckets will be full first.
// From then on, new tenants begin with what that tenant had left. So no tenant gains anything by
// being forgotten, whatever it calls itself when it returns.
type Route struct {
	limits  Limits
	part    Part
	offset  float64 // of the route's own limit, see [Part.of]
	maxIdle int

	own     counters
	tenants map[uint64]*tenant
	idle    idle     // the tenants without requests in flight
	floor   counters // the levels with which a new tenant begins

	loans  map[Key]*loan // the limits that control divides by demand, and those with demand to report
	wanted int           // the number of the latter
	lease  time.Duration // until then control refills what it lent
}

// tenant is the state of one tenant.
type tenant struct {
	counters
	hash uint64
	at   int           // index in idle; -1 if it has requests in flight
	full time.Duration // when its buckets are full; valid while it is idle
}

// New returns the state of a route without requests. Seed is a hash of the route's name.
func New(l Limits, p Part, seed uint64) *Route {
	return &Route{
		limits: l, part: p, offset: offsetOf(seed), maxIdle: MaxIdle, tenants: make(map[uint64]*tenant), loans: make(map[Key]*loan),
	}
}

// Request is an admitted request.
type Request struct {
	route  *Route
	tenant *tenant // nil if tenants are not limited
	tokens float64
	ended  bool
}

func (r *Route) ownSizes() sizes { return r.part.sizes(r.limits.Route, r.offset) }

func (r *Route) sizesOf(hash uint64) sizes { return r.part.sizes(r.limits.Tenant, offsetOf(hash)) }

// floorSizes are the sizes by which floor is refilled: the smallest that a tenant with tokens or
// requests can have.
func (r *Route) floorSizes() sizes {
	l, w := r.limits.Tenant, r.part.width()
	return sizes{requests: max(1, float64(int64(float64(l.Requests)*w))), tokens: max(1, float64(int64(float64(l.Tokens)*w)))}
}

// Admit counts a request of a tenant, if no limit stops it. Hash identifies the tenant. Tokens is
// the estimated number of tokens of prompt and answer. A refused request counts nowhere; the
// Request is then nil.
func (r *Route) Admit(hash uint64, tokens int64, now time.Duration) (*Request, Answer) {
	r.forgetFull(now, 2)
	n := float64(max(0, tokens))
	var a Answer
	own := r.ownSizes()
	own.lends = now < r.lease && r.part != Whole()
	r.own.advance(own, now)
	r.divided(Key{Whole: true}, now)
	r.own.check(own, n, &a)
	var t *tenant
	var of sizes
	if r.limits.Tenant != (Limit{}) {
		of = r.sizesOf(hash)
		if t = r.tenants[hash]; t == nil {
			t = r.newcomer(hash, now)
		}
		of.lends = own.lends
		t.advance(of, now)
		r.divided(Key{Tenant: hash}, now)
		t.check(of, n, &a)
	}
	if a.Refused == Nothing {
		r.own.begin(own.Limit, n)
		if t != nil {
			r.tenants[hash] = t
			r.busy(t)
			t.begin(of.Limit, n)
		}
	}
	if r.limits.Route != (Limit{}) {
		r.note(Key{Whole: true}, &r.own, own, tokens, a.Refused, now)
	}
	if t != nil {
		r.note(Key{Tenant: hash}, &t.counters, of, tokens, a.Refused, now)
	}
	r.own.describe(own, &a)
	if t != nil {
		t.describe(of, &a)
	}
	if a.Refused != Nothing {
		return nil, a
	}
	return &Request{route: r, tenant: t, tokens: n}, a
}

func (c *counters) begin(of Limit, tokens float64) {
	c.inFlight++
	if c.loan != nil {
		c.loan.begin(of, int64(tokens))
		return
	}
	c.requests.used++
	c.tokens.used += tokens
}

// newcomer returns a tenant that the route does not remember, and does not add it to the tenants.
func (r *Route) newcomer(hash uint64, now time.Duration) *tenant {
	r.floor.advance(r.floorSizes(), now)
	is := counters{requests: r.floor.requests, tokens: r.floor.tokens, loan: r.divided(Key{Tenant: hash}, now)}
	return &tenant{counters: is, hash: hash, at: -1}
}

// End releases what the request has of the limits of concurrent requests. It may be called more
// than once.
func (q *Request) End(now time.Duration) {
	if q.ended {
		return
	}
	q.ended = true
	r := q.route
	r.own.inFlight--
	if t := q.tenant; t != nil && r.tenants[t.hash] == t {
		if t.inFlight--; t.inFlight == 0 {
			t.advance(r.sizesOf(t.hash), now)
			r.rest(t, now)
		}
	}
}

// Settle replaces the estimated number of tokens by another one. The difference is given back, or
// charged. It may be called before or after End.
func (q *Request) Settle(tokens int64, now time.Duration) {
	more := float64(max(0, tokens)) - q.tokens
	q.tokens += more
	if more == 0 {
		return
	}
	r := q.route
	r.own.advance(r.ownSizes(), now)
	r.own.settle(r.limits.Route, more)
	if q.tenant == nil || r.limits.Tenant == (Limit{}) {
		return
	}
	if l := r.divided(Key{Tenant: q.tenant.hash}, now); l != nil {
		l.settle(r.limits.Tenant, int64(more))
		return
	}
	t := r.tenants[q.tenant.hash]
	switch {
	case t == nil && more < 0:
		return // its bucket was full, or its successors pay for it
	case t == nil:
		t = r.newcomer(q.tenant.hash, now)
		r.tenants[t.hash] = t
	}
	t.advance(r.sizesOf(t.hash), now)
	t.tokens.add(more)
	if t.inFlight == 0 {
		r.busy(t)
		r.rest(t, now)
	}
}

func (c *counters) settle(of Limit, more float64) {
	if c.loan != nil {
		c.loan.settle(of, int64(more))
		return
	}
	c.tokens.add(more)
}

// add uses more of a bucket, or less if n is negative. A full bucket stays full.
func (l *level) add(n float64) { l.used = max(0, l.used+n) }

// Limited reports whether the route has limits.
func (r *Route) Limited() bool { return r.limits != (Limits{}) }

// Set changes the limits. What was used before stays used.
func (r *Route) Set(l Limits, now time.Duration) {
	if l == r.limits {
		return
	}
	r.advance(now)
	r.limits = l
	r.own.drop(l.Route)
	r.floor.drop(l.Tenant)
	if l.Tenant == (Limit{}) {
		clear(r.tenants)
		r.idle = nil
	}
	for _, t := range r.tenants {
		t.drop(l.Tenant)
	}
	r.reorder()
}

// drop forgets what was used of rates that are not limited any more.
func (c *counters) drop(l Limit) {
	if l.Requests == 0 {
		c.requests.used = 0
	}
	if l.Tokens == 0 {
		c.tokens.used = 0
	}
}

// SetPart changes the part of the limits that this process may use. If it becomes smaller, so does
// what is left; if it becomes larger, what is left stays, and only refills faster. So processes
// that pass parts to each other do not exceed a limit together, if parts shrink before others grow.
func (r *Route) SetPart(p Part, now time.Duration) {
	if p == r.part {
		return
	}
	r.advance(now)
	was, ratio := *r, 1.0
	if w := r.part.width(); w > 0 {
		ratio = p.width() / w
	}
	r.part = p
	r.own.rescale(was.ownSizes(), r.ownSizes(), ratio)
	for hash, t := range r.tenants {
		t.rescale(was.sizesOf(hash), r.sizesOf(hash), ratio)
	}
	// Tenants that are not remembered had full buckets of the former size.
	if more := p.width() - was.part.width(); more > 0 {
		r.floor.requests.used = max(r.floor.requests.used, more*float64(r.limits.Tenant.Requests))
		r.floor.tokens.used = max(r.floor.tokens.used, more*float64(r.limits.Tenant.Tokens))
	}
	r.reorder()
}

func (c *counters) rescale(from, to sizes, ratio float64) {
	c.requests.rescale(from.requests, to.requests, ratio)
	c.tokens.rescale(from.tokens, to.tokens, ratio)
}

// advance refills all buckets by the current sizes.
func (r *Route) advance(now time.Duration) {
	r.own.advance(r.ownSizes(), now)
	r.floor.advance(r.floorSizes(), now)
	for hash, t := range r.tenants {
		t.advance(r.sizesOf(hash), now)
	}
}

// Sweep forgets all tenants without requests in flight whose buckets are full.
func (r *Route) Sweep(now time.Duration) { r.forgetFull(now, len(r.idle)) }

// Tenants returns the number of remembered tenants.
func (r *Route) Tenants() int { return len(r.tenants) }

// InFlight returns the number of admitted requests that have not ended.
func (r *Route) InFlight() int64 { return r.own.inFlight }

// busy removes a tenant from those without requests in flight.
func (r *Route) busy(t *tenant) {
	if t.at >= 0 {
		heap.Remove(&r.idle, t.at)
	}
}

// rest adds a tenant to those without requests in flight. If there are too many, it forgets one.
// The caller has advanced t.
func (r *Route) rest(t *tenant, now time.Duration) {
	t.full = t.counters.full(r.sizesOf(t.hash))
	heap.Push(&r.idle, t)
	if len(r.idle) <= r.maxIdle {
		return
	}
	first := heap.Pop(&r.idle).(*tenant)
	delete(r.tenants, first.hash)
	first.advance(r.sizesOf(first.hash), now)
	r.floor.advance(r.floorSizes(), now)
	r.floor.requests.used = max(r.floor.requests.used, first.requests.used)
	r.floor.tokens.used = max(r.floor.tokens.used, first.tokens.used)
}

// forgetFull forgets at most n tenants whose buckets are full.
func (r *Route) forgetFull(now time.Duration, n int) {
	for ; n > 0 && len(r.idle) > 0 && r.idle[0].full <= now; n-- {
		delete(r.tenants, heap.Pop(&r.idle).(*tenant).hash)
	}
}

// reorder sorts the idle tenants after their sizes have changed.
func (r *Route) reorder() {
	for _, t := range r.idle {
		t.full = t.counters.full(r.sizesOf(t.hash))
	}
	heap.Init(&r.idle)
}

// idle is a heap of tenants, of which the first will have full buckets first.
type idle []*tenant

func (h idle) Len() int           { return len(h) }
func (h idle) Less(i, j int) bool { return cmp.Compare(h[i].full, h[j].full) < 0 }

func (h idle) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *idle) Push(x any) {
	t := x.(*tenant)
	t.at = len(*h)
	*h = append(*h, t)
}

// Pop implements heap.Interface.
func (h *idle) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h, t.at = (*h)[:last], -1
	return t
}
