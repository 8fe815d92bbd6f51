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
)

// Request is what a decision depends on.
type Request struct {
	// Pool is "namespace/name".
	Pool string
	// Model is the adapter to ask for, or with Base the name that the client used.
	Model string
	// Base says that the request is for the engine's base model, under whatever name it has.
	Base bool
	// Turn counts requests, for RoundRobin.
	Turn uint64
	// Random is uniformly random.
	Random uint64
}

// Decision is where a request goes.
type Decision struct {
	Endpoint *Endpoint
	Copy     *Copy
	// Model is the name to ask the engine for.
	Model string
	// Reason says in a few words why the policy took this endpoint.
	Reason string
}

// Rule is how a policy scores.
type Rule uint8

const (
	// Proposal is the rule of the LLM Instance Gateway proposal: pack the requests for an adapter where it is held.
	Proposal Rule = iota
	// LeastRequest takes the endpoint with the least pending requests.
	LeastRequest
	// RoundRobin takes one endpoint after the other.
	RoundRobin
	// Random takes any.
	Random
)

var ruleNames = [...]string{Proposal: "proposal", LeastRequest: "leastRequest", RoundRobin: "roundRobin", Random: "random"}

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

// Pick decides. The decision points into the snapshot.
func Pick(p Policy, s *Snapshot, r Request) (Decision, error) {
	// Admit: the endpoints that answer to the model.
	pool := s.Pools[r.Pool]
	if pool == nil {
		return Decision{}, ErrNoPool
	}
	copies := pool.Copies[r.Model]
	if r.Base {
		copies = pool.Base
	}
	if len(copies) == 0 {
		return Decision{}, ErrNotAddressable
	}

	// Filter: those in the best state that any is in.
	state, candidates := Out, uint64(0)
	for i := range copies {
		switch st := pool.Endpoints[copies[i].Endpoint].State; {
		case st < state:
			state, candidates = st, 1
		case st == state:
			candidates++
		}
	}
	if state == Out {
		return Decision{}, ErrNoneReady
	}

	// Score and choose: the best, ties by lot, each of n equals with the chance 1/n.
	var (
		best     Decision
		lowest   score
		ties     uint64
		position uint64
		random   = r.Random
	)
	for i := range copies {
		c := &copies[i]
		e := &pool.Endpoints[c.Endpoint]
		if e.State != state {
			continue
		}
		sc, reason := p.score(c, e)
		if p.Rule == RoundRobin {
			sc.first = int64((position + candidates - r.Turn%candidates) % candidates) // 0 for the one whose turn it is
			position++
		}
		switch {
		case best.Copy == nil || sc.less(lowest):
			best, lowest, ties = Decision{e, c, c.Model, reason}, sc, 1
		case sc == lowest:
			ties++
			if random = next(random); random%ties == 0 {
				best = Decision{e, c, c.Model, reason}
			}
		}
	}
	if r.Base && slices.Contains(best.Copy.Names, r.Model) {
		best.Model = r.Model // the engine knows its base model by the client's name too
	}
	return best, nil
}

// score is what p thinks of the copy c on the endpoint e, and why it would take it.
func (p Policy) score(c *Copy, e *Endpoint) (score, string) {
	switch p.Rule {
	case LeastRequest:
		return score{first: e.Pending()}, "least pending"
	case RoundRobin:
		return score{}, "round robin"
	case Random:
		return score{}, "random"
	}
	if c.Base {
		return score{first: e.Pending()}, "least pending"
	}
	// An endpoint holds an adapter while it has requests for it: ours in flight, or those that the engine reports. That
	// it is registered there says nothing about its weights.
	ours := c.InFlight.Load()
	holds := ours > 0 || e.lists(c)
	active := e.ActiveAdapters()
	switch {
	case holds && ours < p.Threshold:
		// The most pending first: packing leaves the slots of the others alone.
		return score{0, -ours, e.Pending()}, "holds the adapter"
	case holds || e.Slots == 0 || active < e.Slots:
		return score{1, active, e.Pending()}, "least active adapters"
	}
	// Every slot has an adapter with requests: the request would wait until one of them has nothing running at all.
	return score{2, active, e.Pending()}, "least active adapters, no slot free"
}

// next is the generator SplitMix64 (Steele, Lea, Flood 2014), enough for lots among equals.
func next(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
