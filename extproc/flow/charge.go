package flow

import (
	"time"

	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/extproc/flow/turns"
)

// Service is the predicted service of a request: engine time in seconds, or tokens while times
// cannot be predicted. A pool may have requests of both kinds, see unit.
type Service struct {
	// Fixed is the service before the first output token: the load of the adapter and the uncached
	// part of the prompt.
	Fixed float64
	// PerToken is the service of an output token. Tokens is the expected number of output tokens.
	PerToken, Tokens float64
	// FirstToken is the predicted time until the first output token, and Step the time of each
	// output token. Step is 0 if it cannot be predicted.
	FirstToken, Step time.Duration
	// InTokens means that the unit is a token, and not a second. Then PerToken is Generated.
	InTokens bool
	// Prompt is the number of tokens of the prompt if the unit is a second; 0 for requests without
	// tokens.
	Prompt float64
}

// turns returns an amount of service in the unit of s.
func (s *Service) turns(amount float64) turns.Service {
	if s.InTokens {
		return turns.Service{Tokens: amount}
	}
	return turns.Service{Seconds: amount}
}

// expected returns the service that is charged at the dispatch.
func (s *Service) expected() float64 { return s.of(s.Tokens) }

// of returns the service of a request with this number of output tokens.
func (s *Service) of(tokens float64) float64 { return s.Fixed + s.PerToken*tokens }

// soFar predicts the number of output tokens of a request after a time; -1 if it cannot.
func (s *Service) soFar(after time.Duration) float64 {
	if s.Step <= 0 {
		return -1
	}
	return max(0, float64(after-s.FirstToken)/float64(s.Step))
}

// Charge is the service of a request that was dispatched while others waited. It ends with Ended.
type Charge struct {
	pool    *pool
	service Service
	scale   float64 // tokens that a unit of the service is worth
	began   time.Time
	band    int32

	// The fields below are guarded by Flow.mu.
	account *queue.Account[*Ticket] // nil after it was settled
	// number is the key in Flow.expected while the outcome of the request is expected; 0 if it is
	// not. The request ended at the time over; zero while it runs. The timer limit settles the
	// charge after outcomeLimit.
	number uint64
	over   time.Time
	limit  *time.Timer
}

// outcomeLimit is how long after its end the outcome of a request is expected. Envoy writes its
// records within seconds.
const outcomeLimit = 10 * time.Second

// Dispatch records that a called request was sent to its endpoint: it leaves the queue, and its
// flow is charged for the service. The flow then calls the next request. Dispatch returns nil if
// the request was not in the queue any more.
func (t *Ticket) Dispatch(s Service, now time.Time) *Charge {
	f, p := t.flow, t.pool
	f.mu.Lock()
	defer f.mu.Unlock()
	if t.out {
		return nil
	}
	scale := p.unit.scale(&s)
	p.queue.SetService(t.place, scale*s.expected())
	band := t.place.Band()
	c := &Charge{pool: p, service: s, scale: scale, began: now, account: p.queue.Dispatch(t.place), band: band}
	t.sent, t.line.tried = true, time.Time{} // there may be room for the next request of the line
	p.left(t)
	p.running[c] = true
	f.Turns.serve(p.name, c.band, s.turns(s.expected()))
	p.call()
	f.tidy(p)
	return c
}

// raise charges more for a request that runs longer than expected. The caller holds Flow.mu.
func (c *Charge) raise(now time.Time) {
	if !c.over.IsZero() {
		return
	}
	c.account.Charge(c.scale * c.service.of(max(c.service.Tokens, c.service.soFar(now.Sub(c.began)))))
}

// Expect states that [Flow.Answered] will report the outcome of the request under this number,
// above 0. If Ended gets no number of output tokens, the charge stays open until then, but at most
// for outcomeLimit. A nil Charge is allowed.
func (c *Charge) Expect(number uint64) {
	if c == nil {
		return
	}
	f := c.pool.flow
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.account != nil {
		c.number, f.expected[number] = number, c
		f.expecting.Add(1)
	}
}

// Ended corrects the charge when the request has ended. Completion is the number of output tokens,
// or -1 if it is unknown. Only the first call has an effect. A nil Charge is allowed.
func (c *Charge) Ended(completion int64, now time.Time) {
	if c == nil {
		return
	}
	f := c.pool.flow
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case c.account == nil || !c.over.IsZero():
	case completion < 0 && c.number != 0:
		c.over = now
		c.limit = time.AfterFunc(outcomeLimit, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			c.settle(-1, now)
		})
	default:
		c.settle(float64(completion), now)
	}
}

// outcome settles the charge of the request with this number, if its outcome is expected. Tokens
// below 0 are unknown. It is fast if no outcome is expected.
func (f *Flow) outcome(number uint64, tokens float64) {
	if f.expecting.Load() == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.expected[number]; c != nil {
		at := c.over
		if at.IsZero() {
			at = time.Now()
		}
		c.settle(tokens, at)
	}
}

// settle corrects the charge of a request that ended at a time, and closes it. Tokens below 0 are
// unknown. Only the first call has an effect. The caller holds Flow.mu.
func (c *Charge) settle(tokens float64, ended time.Time) {
	if c.account == nil {
		return
	}
	f := c.pool.flow
	if tokens < 0 {
		tokens = c.service.soFar(ended.Sub(c.began))
	}
	if tokens < 0 {
		tokens = c.service.Tokens
	}
	c.account.Settle(c.scale * c.service.of(tokens))
	f.Turns.serve(c.pool.name, c.band, c.service.turns(c.service.of(tokens)-c.service.expected()))
	c.account = nil
	delete(c.pool.running, c)
	if c.number != 0 {
		delete(f.expected, c.number)
		f.expecting.Add(-1)
	}
	if c.limit != nil {
		c.limit.Stop()
	}
	f.tidy(c.pool)
}
