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
	account *queue.Account[*Ticket] // nil after the end; guarded by Flow.mu
}

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
	c.account.Charge(c.scale * c.service.of(max(c.service.Tokens, c.service.soFar(now.Sub(c.began)))))
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
	if c.account == nil {
		return
	}
	tokens := float64(completion)
	if tokens < 0 {
		tokens = c.service.soFar(now.Sub(c.began))
	}
	if tokens < 0 {
		tokens = c.service.Tokens
	}
	c.account.Settle(c.scale * c.service.of(tokens))
	f.Turns.serve(c.pool.name, c.band, c.service.turns(c.service.of(tokens)-c.service.expected()))
	c.account = nil
	delete(c.pool.running, c)
	f.tidy(c.pool)
}
