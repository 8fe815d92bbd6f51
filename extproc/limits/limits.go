// Package limits enforces the limits of LLMRoutes: concurrent requests, requests per minute and
// tokens per minute, for a route and for each tenant. Package bucket has the arithmetic. This
// package locks it, and connects requests with their outcomes.
package limits

import (
	"net/http"
	"sync"
	"time"

	"github.com/headgate/headgate/extproc/limits/bucket"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/internal/objects"
)

// Book has the state of all limited routes. It is safe for concurrent use. No other mutex is locked
// while its mutex is held.
type Book struct {
	clock func() time.Time
	began time.Time

	mu     sync.Mutex // guards the fields below, and the fields of tickets
	part   bucket.Part
	shares shares
	world  *objects.World // nil before SetWorld
	routes map[objects.Name]*bucket.Route
	// sent are the tickets of requests whose outcome a data plane will report, by decision id.
	sent map[string]*Ticket
	// ended are those in sent that have ended, in that order.
	ended []*Ticket
}

// New returns a Book without routes. This process may use all of each limit until SetPart is
// called.
func New() *Book { return NewAt(time.Now) }

// NewAt is New with a clock, which must be safe for concurrent use.
func NewAt(clock func() time.Time) *Book {
	return &Book{
		clock: clock, began: clock(), part: bucket.Whole(),
		routes: make(map[objects.Name]*bucket.Route), sent: make(map[string]*Ticket),
	}
}

// now returns the time since the Book was made.
func (b *Book) now() time.Duration { return b.clock().Sub(b.began) }

// Limited reports whether a route has limits.
func Limited(s *objects.Sharing) bool {
	return s != nil && (s.PerRoute != objects.Limit{} || s.PerTenant != objects.Limit{})
}

// CountsTokens reports whether a route limits tokens.
func CountsTokens(s *objects.Sharing) bool {
	return s != nil && s.PerRoute.TokensPerMinute+s.PerTenant.TokensPerMinute > 0
}

func limitsOf(s *objects.Sharing) bucket.Limits {
	of := func(l objects.Limit) bucket.Limit {
		return bucket.Limit{
			Concurrent: int64(l.Concurrent), Requests: int64(l.RequestsPerMinute), Tokens: int64(l.TokensPerMinute),
		}
	}
	return bucket.Limits{Route: of(s.PerRoute), Tenant: of(s.PerTenant)}
}

// SetWorld applies the limits of the routes in w. It keeps what requests have used, and drops the
// state of routes without limits.
func (b *Book) SetWorld(w *objects.World) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.world = w
	for name, r := range b.routes {
		switch s := w.SharingOf(name); {
		case Limited(s):
			r.Set(limitsOf(s), now)
		case r.Loans() > 0: // until control releases them
			r.Set(bucket.Limits{}, now)
		default:
			delete(b.routes, name)
		}
	}
}

// SetPart sets the part of every limit that this process may use. Other processes use the rest.
func (b *Book) SetPart(p bucket.Part) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setPart(p, b.now())
}

// setPart is SetPart at a time. The caller holds mu.
func (b *Book) setPart(p bucket.Part, now time.Duration) {
	b.shares.changed(b.part, now)
	b.part = p
	for _, r := range b.routes {
		r.SetPart(p, now)
	}
}

// Admit counts a request of a tenant against the limits of its route. Tokens is the estimated
// number of tokens of its prompt and answer. If a limit stops the request, the Ticket is nil.
func (b *Book) Admit(route objects.Name, s *objects.Sharing, tenant uint64, tokens int64) (*Ticket, bucket.Answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settle()
	r := b.routes[route]
	if r == nil {
		r = b.newRoute(route, limitsOf(s), b.now())
	}
	if !r.Limited() { // control heard of its limits first
		r.Set(limitsOf(s), b.now())
	}
	request, answer := r.Admit(tenant, tokens, b.now())
	if request == nil {
		return nil, answer
	}
	return &Ticket{book: b, request: request}, answer
}

// Ticket is one admitted request. A nil Ticket is allowed: all its methods do nothing. A Ticket is
// safe for concurrent use.
type Ticket struct {
	book    *Book
	request *bucket.Request
	id      string // in Book.sent; empty if it is not there
	ended   time.Duration
	over    bool
	most    func() int64 // see Bound; may be nil
	holds   int          // calls of Hold that have not been released
	due     bool         // it ends when the last of them is released
}

// Sent records that a data plane will report the outcome of the request under a decision id.
func (t *Ticket) Sent(id string) {
	if t == nil || id == "" {
		return
	}
	t.book.mu.Lock()
	defer t.book.mu.Unlock()
	t.book.forget(t)
	t.id = id
	t.book.sent[id] = t
	if t.over { // it ended before
		t.book.ended = append(t.book.ended, t)
	}
}

// End releases the request's place in the limits of concurrent requests. It may be called more than
// once.
func (t *Ticket) End() {
	if t == nil {
		return
	}
	b := t.book
	b.mu.Lock()
	defer b.mu.Unlock()
	if t.due = t.holds > 0; !t.due {
		b.end(t, b.now())
	}
}

// Cancel ends a request that no engine got, and gives its tokens back. It may be called more than
// once.
func (t *Ticket) Cancel() {
	if t == nil {
		return
	}
	b := t.book
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.forget(t)
	t.request.Settle(0, now)
	b.end(t, now)
}

// Settle replaces the estimated number of tokens by the real one. It may be called before or after
// End.
func (t *Ticket) Settle(tokens int64) {
	if t == nil {
		return
	}
	tokens = t.bounded(tokens)
	b := t.book
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget(t)
	t.request.Settle(tokens, b.now())
}

// Observe settles the request that has ended with an outcome. Without a number of tokens, the
// estimate stays.
func (b *Book) Observe(o outcome.Outcome) {
	if o.ID != "" {
		tokens, known := TokensOf(o)
		b.Settle(o.ID, tokens, known)
	}
}

// TokensOf returns the number of tokens of prompt and answer that count against limits. An answer
// that is an error took none. Known is false if the engine did not report the tokens of the answer,
// as in a stream without usage, or in one that ended before its usage.
func TokensOf(o outcome.Outcome) (tokens int64, known bool) {
	prompt, hasPrompt := o.Prompt.Get()
	completion, hasCompletion := o.Completion.Get()
	switch {
	case hasCompletion, hasPrompt && o.Failure == outcome.None && !o.Stream:
		return int64(prompt + completion), true
	case o.Status >= http.StatusBadRequest, o.Endpoint == "", o.Call != outcome.NoCall && o.Call != outcome.OK:
		return 0, true
	}
	return 0, false
}

// Settle is [Ticket.Settle] for the request with a decision id. If known is false, the estimate
// stays. It ignores an unknown id.
func (b *Book) Settle(id string, tokens int64, known bool) {
	b.mu.Lock()
	t := b.sent[id]
	if t != nil {
		b.forget(t)
	}
	b.mu.Unlock()
	if known {
		t.Settle(tokens)
	}
}

// end ends a request. The caller holds mu.
func (b *Book) end(t *Ticket, now time.Duration) {
	b.expire(now)
	if t.over {
		return
	}
	t.over, t.ended = true, now
	t.request.End(now)
	if t.id != "" {
		b.ended = append(b.ended, t)
	}
}

// forget removes a ticket from those whose outcome is expected. The caller holds mu.
func (b *Book) forget(t *Ticket) {
	if t.id != "" {
		delete(b.sent, t.id)
		t.id = ""
	}
}

// reportLimit is how long after its end the outcome of a request is expected. Envoy writes the
// record within seconds. Without an outcome, the estimate stays.
const reportLimit = time.Minute

// expire forgets tickets whose outcome is overdue, and those at the front that are settled. The
// caller holds mu.
func (b *Book) expire(now time.Duration) {
	n := 0
	for n < len(b.ended) && (b.ended[n].id == "" || now-b.ended[n].ended > reportLimit) {
		b.forget(b.ended[n])
		b.ended[n] = nil
		n++
	}
	if b.ended = b.ended[n:]; len(b.ended) == 0 {
		b.ended = nil
	}
}

// State is what a Book remembers, for tests of leaks.
type State struct {
	// Routes are limited routes that had a request, Tenants those of all routes that are
	// remembered, and InFlight admitted requests that have not ended. Loans are limits that control
	// divides by demand, or for which this process reports demand.
	Routes, Tenants, InFlight, Loans int
	// Expected are requests whose outcome is expected.
	Expected int
}

// Sweep forgets all that is not needed any more, and returns what is left.
func (b *Book) Sweep() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.expire(now)
	is := State{Routes: len(b.routes), Expected: len(b.sent)}
	for _, r := range b.routes {
		r.Sweep(now)
		is.Tenants += r.Tenants()
		is.InFlight += int(r.InFlight())
		is.Loans += r.Loans()
	}
	return is
}
