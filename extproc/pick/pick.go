// Package pick decides which endpoint answers a request. It is the pure core of Headgate: the decision is a function of
// the policy, the snapshot, the request and a random number, with no I/O, no clock, no lock and no allocation.
//
// The package owns the types that it decides over; package fleet builds them. Its scenarios, under testdata, show each
// policy at work.
package pick

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Why no endpoint can answer. Each means 503: the next moment may be another.
var (
	ErrNoPool         = errors.New("the pool does not exist")
	ErrNotAddressable = errors.New("no endpoint of the pool lists the model")
	ErrNoneReady      = errors.New("no endpoint that lists the model is ready")
	ErrSubset         = errors.New("none of the endpoints that the data plane allows can answer")
	// ErrFull passes as soon as one of the requests there ends.
	ErrFull = errors.New("every copy of the model has as many requests as it takes at once")
)

// ErrUnlisted says that a pool without routes has no endpoint that lists the model: 404, for nothing promises it.
var ErrUnlisted = errors.New("no endpoint of the pool lists the model, and no route admits it")

// Request is what a decision depends on.
type Request struct {
	// Pool is "namespace/name".
	Pool string
	// Model is the adapter to ask for, or with Base the name that the client used. Empty is a request for no model: any
	// endpoint will do.
	Model string
	// Base says that the request is for the engine's base model, under whatever name it has.
	Base bool
	// Open says that no route admits the model: it is known if an endpoint lists it.
	Open bool
	// Only is the endpoints that the data plane allows, nil if it allows all.
	Only *Subset
	// Near is the address of the endpoint that alone may know what the request is about, empty if there is none.
	Near string
	// Session is a hash of the session that the request belongs to, 0 if it belongs to none.
	Session uint64
	// Turn counts requests, for RoundRobin.
	Turn uint64
	// Random is uniformly random.
	Random uint64
	// Demand is what Latency predicts by.
	Demand Demand
	// Tokenless says that the request has no tokens. Neither Proposal nor Latency is for those: see [Demand.ServiceTime].
	Tokenless bool
}

// Decision is where a request goes.
type Decision struct {
	Endpoint *Endpoint
	Copy     *Copy
	// Model is the name to ask the engine for.
	Model string
	// Reason says in a few words why the policy took this endpoint.
	Reason string
	// Estimate is what Latency predicts for the request there, and Claim what it adds to the endpoint's Backlog, also if Proposal decides instead.
	// They are zero with other policies.
	Estimate Estimate
	Claim    Claim
	// Among is how many requests the endpoint has with this one, if it is tokenless: at least 1. It is 0 of any other request, and by other policies
	// than Proposal and Latency.
	Among int64

	rank rank
}

// Rule is how a policy scores.
type Rule uint8

const (
	// Proposal is the rule of the LLM Instance Gateway proposal: pack the requests for an adapter where it is in use.
	Proposal Rule = iota
	// LeastRequest takes the endpoint with the least pending requests.
	LeastRequest
	// RoundRobin takes one endpoint after the other.
	RoundRobin
	// Random takes any.
	Random
	// Latency takes the one where the request is predicted to cost itself and others the least, in shares of their objectives. Where no
	// prediction is to be trusted it is Proposal. Requests without tokens are compared by the serviceTimes of their models, and packed by neither.
	Latency
	// least is in the place of Proposal and Latency where a request is tokenless. Nobody can ask for it.
	least
)

var ruleNames = [...]string{Proposal: "proposal", LeastRequest: "leastRequest", RoundRobin: "roundRobin", Random: "random", Latency: "latency"}

func (r Rule) String() string { return ruleNames[r] }

// ParseRule returns the rule of a name.
func ParseRule(name string) (Rule, error) {
	for i, n := range ruleNames {
		if n == name {
			return Rule(i), nil
		}
	}
	return 0, fmt.Errorf("there is no policy %q: use one of %s", name, strings.Join(ruleNames[:], ", "))
}

// DefaultThreshold is the default of Policy.Threshold. An engine's batch is shared by the adapters in its slots: vLLM
// runs 256 requests at once by default, so with eight adapters, more than most GPUs are given, 32 requests each fill the
// batch. Up to there packing keeps nobody waiting; above it the requests would queue while another endpoint may be idle.
const DefaultThreshold = 32

// Policy is a rule with its settings.
type Policy struct {
	Rule Rule
	// Threshold is the number of requests for one adapter at one endpoint from which on Proposal looks for another.
	Threshold int64
}

// Predicts says whether the policy looks at [Request.Demand]. For any other, prompts need not be read.
func (p Policy) Predicts() bool { return p.Rule == Latency }

// score is what a rule thinks of a candidate, compared field by field: less is better. (Fields and no array: the compiler
// keeps them in registers, which makes a decision among 1,000 endpoints two to three times as fast.)
type score struct{ first, second, third int64 }

func (s score) less(t score) bool {
	switch {
	case s.first != t.first:
		return s.first < t.first
	case s.second != t.second:
		return s.second < t.second
	}
	return s.third < t.third
}

// rank is the place of a candidate among the others: its class first, then its score, then its lot, so that each of n
// equals comes first with the chance 1/n. Less is better.
type rank struct {
	class class
	score score
	tie   uint64
}

// class is 0 for the favourite, and one more than the state of its endpoint for any other candidate.
type class uint8

func (r rank) less(o rank) bool {
	switch {
	case r.class != o.class:
		return r.class < o.class
	case r.score != o.score:
		return r.score.less(o.score)
	}
	return r.tie < o.tie
}

// Pick decides: where the request goes, and where it goes next if it gets no answer there, best first. It fills picks,
// as far as there are candidates, each endpoint once, and returns what it filled. A nil error means at least one decision;
// picks must have room for one. The decisions point into the snapshot.
func Pick(p Policy, s *Snapshot, r Request, picks []Decision) ([]Decision, error) {
	// Admit: the endpoints that answer to the model.
	pool := s.Pools[r.Pool]
	if pool == nil {
		return nil, ErrNoPool
	}
	copies, err := pool.admit(r)
	if err != nil {
		return nil, err
	}
	favourite, why := pool.favourite(copies, r)
	var f forecast // for Latency
	var w wait     // for least
	foreseen := p.Rule == Latency && !r.Tokenless
	if foreseen {
		f = newForecast(r.Demand)
	}
	switch {
	case r.Tokenless && (p.Rule == Proposal || p.Rule == Latency):
		p.Rule, w = least, newWait(p.Rule, r.Demand)
	case p.Rule == Latency && !pool.Predictable:
		p.Rule = Proposal
	}
	var turns turns
	if p.Rule == RoundRobin {
		turns = newTurns(pool, copies, r.Turn)
	}

	var (
		best  = picks[:0]
		worst rank  // of best, once there is room for no more
		busy  = Out // the best state of copies that are full
		is    Estimate
	)
	for i := range copies {
		c := &copies[i]
		e := &pool.Endpoints[c.Endpoint]
		full := len(best) == len(picks)
		// Filter: not those that are out, nor those in a worse state than enough others are, nor those not allowed, nor those that are full.
		cl := class(e.State) + 1
		if i == favourite {
			cl = 0
		}
		if e.State == Out || full && cl > worst.class || r.Only != nil && !r.Only.Has(e.Address) {
			continue
		}
		if c.full() {
			busy = min(busy, e.State)
			continue
		}
		// Score: what the rule thinks of it, and a lot among equals.
		var sc score
		var reason string
		switch p.Rule {
		case Latency:
			if full && cl == worst.class && f.beyond(e, c, worst.score) {
				continue
			}
			is = f.estimate(e, c)
			sc, reason = scoreOf(is.Cost()), "least predicted cost"
		case least:
			sc, reason = w.score(e, c)
		case RoundRobin:
			sc, reason = score{first: turns.next(e.State)}, "round robin"
		default:
			sc, reason = p.score(c, e)
		}
		if i == favourite {
			reason = why
		}
		// Choose: it takes its place among the best so far.
		if full && cl == worst.class && worst.score.less(sc) {
			continue
		}
		k := rank{cl, sc, mix(r.Random, uint64(i))}
		if full && !k.less(worst) {
			continue
		}
		if !full {
			best = best[:len(best)+1]
		}
		at := len(best) - 1
		for ; at > 0 && k.less(best[at-1].rank); at-- {
			best[at] = best[at-1]
		}
		best[at] = Decision{Endpoint: e, Copy: c, Model: c.asked(r.Model), Reason: reason, Estimate: is, rank: k}
		worst = best[len(best)-1].rank
	}
	switch {
	case len(best) == 0 && r.Only != nil:
		return nil, ErrSubset
	case len(best) == 0 && busy != Out, len(best) > 0 && best[0].rank.class > 0 && waits(best[0].Endpoint.State, busy):
		return nil, ErrFull
	case len(best) == 0:
		return nil, ErrNoneReady
	}
	for i := range best {
		switch d := &best[i]; {
		case foreseen && d.Endpoint.Profile != nil:
			if p.Rule != Latency { // predictions teach long before they decide
				d.Estimate = f.estimate(d.Endpoint, d.Copy)
			}
			d.Claim = f.claim(d.Endpoint, &d.Estimate)
			f.join(d.Endpoint, &d.Estimate)
		case p.Rule == least:
			d.Among, d.Claim = d.Endpoint.Pending()+1, w.claim()
		}
		if r.Base && slices.Contains(best[i].Copy.Names, r.Model) {
			best[i].Model = r.Model // the engine knows its base model by the client's name too
		}
	}
	return best, nil
}

// admit returns the copies that answer to what the request asks for.
func (p *Pool) admit(r Request) ([]Copy, error) {
	copies := p.Copies[r.Model]
	switch {
	case r.Model == "":
		copies = p.Any
	case r.Base:
		copies = p.Base
	}
	switch {
	case len(copies) > 0:
		return copies, nil
	case len(p.Any) == 0:
		return nil, ErrNoneReady
	case !p.Listed:
		return p.Any, nil // nobody says what it answers to, so that anyone may
	case r.Open:
		return nil, ErrUnlisted
	}
	return nil, ErrNotAddressable
}

// favourite is the index of the copy that comes before all others, whatever their scores, and why; -1 if there is none.
func (p *Pool) favourite(copies []Copy, r Request) (index int, why string) {
	if r.Near != "" {
		for i := range copies {
			if p.Endpoints[copies[i].Endpoint].Address == r.Near {
				return i, "made the answer"
			}
		}
	}
	if r.Random>>32%trickle == 0 {
		// A suspect that has nothing to do is tried again: else nothing would ever show that it is well.
		for n := range copies {
			i := (n + int(r.Random>>40)) % len(copies)
			if e := &p.Endpoints[copies[i].Endpoint]; e.State == Suspect && e.InFlight.Load() == 0 && r.Only.Has(e.Address) {
				return i, "tried again"
			}
		}
	}
	if r.Session != 0 {
		return p.sticky(copies, r), "session's own"
	}
	return -1, ""
}

// trickle is the share of requests that may go to a suspect: one in so many.
const trickle = 16

// sticky is the index of the session's own copy: by rendezvous hashing (Thaler, Ravishankar 1998), so that an endpoint
// that comes or goes moves only its own sessions, among those in the best state that have no more to do than slack and
// twice what the least busy of them has.
func (p *Pool) sticky(copies []Copy, r Request) int {
	state, least := Out, int64(0)
	for i := range copies {
		e := &p.Endpoints[copies[i].Endpoint]
		if e.State > state || e.State == Out || !r.Only.Has(e.Address) {
			continue
		}
		if pending := e.Pending(); e.State < state || pending < least {
			state, least = e.State, pending
		}
	}
	own, highest := -1, uint64(0)
	for i := range copies {
		e := &p.Endpoints[copies[i].Endpoint]
		if e.State != state || state == Out || e.Pending() > slack+2*least || !r.Only.Has(e.Address) {
			continue
		}
		if h := mix(r.Session^e.Hash, 0); own < 0 || h > highest {
			own, highest = i, h
		}
	}
	return own
}

// slack is how many pending requests more than twice the least pass a session's own endpoint over: a prefix in its cache
// is worth a short wait.
const slack = 4

// turns counts the candidates of each state, for RoundRobin.
type turns struct {
	turn       uint64
	candidates [Out]uint64 // by state
	passed     [Out]uint64
}

func newTurns(pool *Pool, copies []Copy, turn uint64) turns {
	t := turns{turn: turn}
	for i := range copies {
		if state := pool.Endpoints[copies[i].Endpoint].State; state != Out {
			t.candidates[state]++
		}
	}
	return t
}

// next is how many turns the next candidate in a state is away from its own: 0 for the one whose turn it is.
func (t *turns) next(state State) int64 {
	n := t.candidates[state]
	away := (t.passed[state] + n - t.turn%n) % n
	t.passed[state]++
	return int64(away)
}

// score is what p thinks of the copy c on the endpoint e, and why it would take it.
func (p Policy) score(c *Copy, e *Endpoint) (score, string) {
	switch p.Rule {
	case LeastRequest:
		return score{first: e.Pending()}, "least pending"
	case Random:
		return score{}, "random"
	}
	if c.Base {
		return score{first: e.Pending()}, "least pending"
	}
	// An adapter is in use at an endpoint while that has requests for it: in flight from here or from elsewhere, or those that the
	// engine reports. That it is registered there says nothing about its weights.
	known := c.InFlight.Load() + c.InFlight.Others.Load()
	inUse := known > 0 || e.lists(c)
	active := e.ActiveAdapters()
	switch {
	case inUse && known < p.Threshold:
		// The most pending first: packing leaves the slots of the others alone.
		return score{0, -known, e.Pending()}, "adapter in use"
	case inUse || e.Slots == 0 || active < e.Slots:
		return score{1, active, e.Pending()}, "least active adapters"
	}
	// Every slot has an adapter with requests: the request would wait until one of them has nothing running at all.
	return score{2, active, e.Pending()}, "least active adapters, no slot free"
}

// lot is the nth output of the generator SplitMix64 (Steele, Lea, Flood 2014), enough for lots among equals.
func mix(seed, n uint64) uint64 {
	x := seed + (n+1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
