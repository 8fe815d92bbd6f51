// Package pick decides which endpoint serves a request. A decision depends only on the policy, the
// snapshot, the request and a random number. The package does no I/O, reads no clock, takes no lock
// and allocates no memory.
//
// The package defines the types of its inputs; package fleet fills them. The scenarios in testdata
// show each policy at work.
package pick

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/headgate/headgate/internal/hash"
)

// Reasons why no endpoint can serve a request. Each one is temporary and means 503.
var (
	ErrNoPool         = errors.New("the pool does not exist")
	ErrNotAddressable = errors.New("no endpoint of the pool lists the model")
	ErrNoneReady      = errors.New("no endpoint that lists the model is ready")
	ErrSubset         = errors.New("no endpoint that the data plane allows can serve the request")
	// ErrFull means that every copy is at its concurrency limit. A copy has room again when one of
	// its requests ends.
	ErrFull = errors.New("every copy of the model is at its concurrency limit")
)

// ErrUnlisted means 404: no route admits the model, and no endpoint lists it.
var ErrUnlisted = errors.New("no endpoint of the pool lists the model, and no route admits it")

// Request describes a request, as far as a decision depends on it.
type Request struct {
	// Pool is the pool's "namespace/name".
	Pool string
	// Model is the adapter's name. If Base is set, it is the client's name for the base model. If
	// Model is empty, any endpoint will do.
	Model string
	// Base reports that the request is for the engine's base model, under any of its names.
	Base bool
	// Open reports that no route admits the model. It is then admitted if an endpoint lists it.
	Open bool
	// Only is the set of endpoints that the data plane allows; nil allows all.
	Only *Subset
	// Near is the address of the one endpoint that stores the state that the request refers to;
	// empty if there is no such state.
	Near string
	// Session is a hash of the request's session, or 0 without a session.
	Session uint64
	// Turn is the number of this request in a running count, for RoundRobin.
	Turn uint64
	// Random is a uniformly random number.
	Random uint64
	// Demand is what policy Latency predicts from.
	Demand Demand
	// Tokenless reports that the request's tokens do not exist or are unknown. Proposal then
	// compares numbers of requests, and Latency compares service times. See [Demand.ServiceTime].
	Tokenless bool
	// FailClose reports that no lost endpoint may serve the request. Without it, lost endpoints
	// serve while all others are out.
	FailClose bool
	// Gate limits the request to endpoints with room.
	Gate Gate
}

// Decision is the destination of a request.
type Decision struct {
	Endpoint *Endpoint
	Copy     *Copy
	// Model is the name that the engine expects.
	Model string
	// Reason states in a few words why the policy chose this endpoint.
	Reason string
	// Estimate is the prediction for the request. Claim is what the request adds to the endpoint's
	// Backlog. Policy Latency sets both, even while Proposal decides in its place. Other policies
	// leave them zero.
	Estimate Estimate
	Claim    Claim
	// Among is the number of requests at the endpoint, including this one. It is set only for a
	// tokenless request under Proposal or Latency; otherwise it is 0.
	Among int64

	rank rank
}

// Rule is how a policy scores candidates.
type Rule uint8

const (
	// Proposal is the rule of the LLM Instance Gateway proposal: it sends requests for an adapter
	// to endpoints that already have requests for it.
	Proposal Rule = iota
	// LeastRequest picks the endpoint with the fewest pending requests.
	LeastRequest
	// RoundRobin picks the endpoints one after the other.
	RoundRobin
	// Random picks an endpoint at random.
	Random
	// Latency picks the endpoint with the least predicted cost to this request and to other
	// requests, in shares of their objectives. While predictions are not trusted, Proposal decides.
	// Tokenless requests go to the endpoint with the least service time, even if that spreads a
	// model's requests.
	Latency
	// least replaces Proposal and Latency for tokenless requests. It cannot be configured.
	least
)

var ruleNames = [...]string{
	Proposal: "proposal", LeastRequest: "leastRequest", RoundRobin: "roundRobin", Random: "random",
	Latency: "latency",
}

func (r Rule) String() string { return ruleNames[r] }

// ParseRule returns the rule with this name.
func ParseRule(name string) (Rule, error) {
	for i, n := range ruleNames {
		if n == name {
			return Rule(i), nil
		}
	}
	return 0, fmt.Errorf("unknown policy %q: use one of %s", name, strings.Join(ruleNames[:], ", "))
}

// DefaultThreshold is the default of Policy.Threshold. vLLM runs 256 requests at once by default,
// and the adapters in its slots share these places. Eight adapters with 32 requests each fill them.
// With fewer requests, packing delays none. With more, requests would queue while another endpoint
// may be idle.
const DefaultThreshold = 32

// Policy is a rule with its settings.
type Policy struct {
	Rule Rule
	// Threshold is a number of requests for one adapter at one endpoint. At or above this number,
	// Proposal prefers another endpoint.
	Threshold int64
}

// Predicts reports whether the policy uses [Request.Demand]. With any other policy, prompts need
// not be read.
func (p Policy) Predicts() bool { return p.Rule == Latency }

// score is the rating of a candidate: less is better. Its fields are compared in order. It is a
// struct and not an array because the compiler keeps the fields of a struct in registers. That
// makes a decision among 1,000 endpoints two to three times as fast.
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

// rank orders candidates: by tier, then by score, then at random, so that each of n equal
// candidates comes first with probability 1/n. Less is better.
type rank struct {
	tier  tier
	score score
	tie   uint64
}

// tier is 0 for the candidate that favourite chose. For any other candidate it is the state of its
// endpoint plus 1.
type tier uint8

// noRoom is added to the tier of a candidate without room. Such candidates are only for retries: a
// request that its first endpoint rejects must not fail because all others are busy.
const noRoom tier = 16

func (r rank) less(o rank) bool {
	switch {
	case r.tier != o.tier:
		return r.tier < o.tier
	case r.score != o.score:
		return r.score.less(o.score)
	}
	return r.tie < o.tie
}

// Pick chooses endpoints for a request. It fills picks with different endpoints, the best one
// first, and returns the filled part. The later ones are for retries. The slice picks must have
// room for at least one decision, and Pick makes at least one if it returns no error. Decisions
// point into the snapshot.
func Pick(p Policy, s *Snapshot, r Request, picks []Decision) ([]Decision, error) {
	// Admit: find the endpoints that serve the model.
	pool := s.Pools[r.Pool]
	if pool == nil {
		return nil, ErrNoPool
	}
	copies, err := pool.admit(r)
	if err != nil {
		return nil, err
	}
	favourite, why := pool.favourite(copies, r)
	var f forecast // for policy Latency
	var w wait     // for rule least
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
		worst rank  // the last of best; set when best is full
		busy  = Out // best state of an endpoint with a full copy
		shut  = Out // best state of an endpoint without room
		is    Estimate
	)
	for i := range copies {
		c := &copies[i]
		e := pool.Endpoints[c.Endpoint]
		full := len(best) == len(picks)
		// Filter: skip endpoints that are out, that are not allowed, whose copy is full, or whose
		// state is worse than that of enough other endpoints.
		cl := tier(e.State) + 1
		if i == favourite {
			cl = 0
		}
		if e.State == Out || full && cl > worst.tier || r.Only != nil && !r.Only.Has(e.Address) {
			continue
		}
		if c.full() {
			busy = min(busy, e.State)
			continue
		}
		// Score: the rule's rating, with a random number to break ties.
		var sc score
		var reason string
		switch p.Rule {
		case Latency:
			if full && cl == worst.tier && f.beyond(e, c, worst.score) {
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
		// Choose: insert the candidate into the best candidates so far.
		if full && cl == worst.tier && worst.score.less(sc) {
			continue
		}
		k := rank{cl, sc, mix(r.Random, uint64(i))}
		if full && !k.less(worst) {
			continue
		}
		if r.Gate.On && !f.admits(&r.Gate, e, c, p.Rule == Latency, &is) {
			if r.FailClose && e.State == Lost {
				continue
			}
			if shut = min(shut, e.State); r.Near == e.Address {
				return nil, ErrNoRoom // no other endpoint stores the state
			}
			if k.tier += noRoom; len(picks) == 1 || full && !k.less(worst) {
				continue
			}
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
	if r.FailClose {
		best, busy = failClosed(best, busy)
	}
	switch {
	case shut != Out && (len(best) == 0 || best[0].rank.tier >= noRoom ||
		best[0].rank.tier > 0 && waitsForRoom(best[0].Endpoint.State, shut)):
		return nil, ErrNoRoom
	case len(best) == 0 && r.Only != nil:
		return nil, ErrSubset
	case len(best) == 0 && busy != Out, len(best) > 0 && best[0].rank.tier > 0 && waits(best[0].Endpoint.State, busy):
		return nil, ErrFull
	case len(best) == 0:
		return nil, ErrNoneReady
	}
	for i := range best {
		switch d := &best[i]; {
		case foreseen && d.Endpoint.Profile != nil:
			if p.Rule != Latency { // Proposal decided; its outcomes also train the predictions
				d.Estimate = f.estimate(d.Endpoint, d.Copy)
			}
			d.Claim = f.claim(d.Endpoint, &d.Estimate, &r.Gate)
			f.join(&r.Gate, d.Endpoint, p.Rule == Latency, &d.Estimate)
		case p.Rule == least:
			d.Among, d.Claim = d.Endpoint.Pending()+1, w.claim()
		}
		if r.Base && slices.Contains(best[i].Copy.Names, r.Model) {
			best[i].Model = r.Model // the engine accepts the client's name for its base model
		}
	}
	return best, nil
}

// failClosed drops lost endpoints from the ranked candidates, and all that follow them. Only a
// request whose stored state is at a lost endpoint has such a candidate before others. Busy is the
// best state of an endpoint with a full copy.
func failClosed(ranked []Decision, busy State) ([]Decision, State) {
	for i := range ranked {
		if ranked[i].Endpoint.State == Lost {
			ranked = ranked[:i]
			break
		}
	}
	if busy == Lost {
		busy = Out
	}
	return ranked, busy
}

// admit returns the copies that can serve the request.
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
		return p.Any, nil // no endpoint lists its models, so any endpoint may serve this model
	case r.Open:
		return nil, ErrUnlisted
	}
	return nil, ErrNotAddressable
}

// favourite returns the index of the copy that precedes all others whatever their scores, and the
// reason for that. The index is -1 if there is no such copy.
func (p *Pool) favourite(copies []Copy, r Request) (index int, why string) {
	if r.Near != "" {
		for i := range copies {
			if p.Endpoints[copies[i].Endpoint].Address == r.Near {
				return i, "made the answer"
			}
		}
	}
	if r.Random>>32%trickle == 0 {
		// An idle suspect endpoint gets a request now and then. Without requests, nothing would
		// show that it has recovered.
		for n := range copies {
			i := (n + int(r.Random>>40)) % len(copies)
			if e := p.Endpoints[copies[i].Endpoint]; e.State == Suspect && e.InFlight.Load() == 0 && r.Only.Has(e.Address) {
				return i, "tried again"
			}
		}
	}
	if r.Session != 0 {
		return p.sticky(copies, r), "session's own"
	}
	return -1, ""
}

// trickle limits the requests to a suspect endpoint: it gets at most one in trickle.
const trickle = 16

// sticky returns the index of the session's own copy, which rendezvous hashing finds (Thaler,
// Ravishankar 1998). If an endpoint is added or removed, only its own sessions move. A copy is a
// candidate if its endpoint is in the best state, and has at most slack plus twice the pending
// requests of the least busy endpoint.
func (p *Pool) sticky(copies []Copy, r Request) int {
	state, least := Out, int64(0)
	for i := range copies {
		e := p.Endpoints[copies[i].Endpoint]
		if e.State > state || e.State == Out || !r.Only.Has(e.Address) {
			continue
		}
		if pending := e.Pending(); e.State < state || pending < least {
			state, least = e.State, pending
		}
	}
	own, highest := -1, uint64(0)
	for i := range copies {
		e := p.Endpoints[copies[i].Endpoint]
		if e.State != state || state == Out || e.Pending() > slack+2*least || !r.Only.Has(e.Address) {
			continue
		}
		if h := mix(r.Session^e.Hash, 0); own < 0 || h > highest {
			own, highest = i, h
		}
	}
	return own
}

// slack is how many pending requests a session's own endpoint may have beyond twice the minimum.
// Cached prompts are worth a short wait.
const slack = 4

// turns implements RoundRobin.
type turns struct {
	turn       uint64
	candidates [Out]uint64 // number of candidates in each state
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

// next returns the position of the next candidate in the rotation of its state: 0 for the endpoint
// that gets this request.
func (t *turns) next(state State) int64 {
	n := t.candidates[state]
	away := (t.passed[state] + n - t.turn%n) % n
	t.passed[state]++
	return int64(away)
}

// score returns p's rating of copy c on endpoint e, and the reason to choose it.
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
	// An adapter is in use at an endpoint that has requests for it: requests of this process,
	// requests of other processes, or requests that the engine reports. A registered adapter may be
	// unused, and its weights in storage.
	known := c.InFlight.Load() + c.InFlight.Others.Load()
	inUse := known > 0 || e.lists(c)
	active := e.ActiveAdapters()
	switch {
	case inUse && known < p.Threshold:
		// Prefer the most pending requests for the adapter: that leaves the slots of other adapters
		// alone.
		return score{0, -known, e.Pending()}, "adapter in use"
	case inUse || e.Slots == 0 || active < e.Slots:
		return score{1, active, e.Pending()}, "least active adapters"
	}
	// Every slot has an adapter with requests, so the request waits until one of those adapters is
	// idle.
	return score{2, active, e.Pending()}, "least active adapters, no slot free"
}

// mix returns the nth output of the generator SplitMix64 (Steele, Lea, Flood 2014), which is good
// enough to break ties.
func mix(seed, n uint64) uint64 {
	return hash.Mix(seed + (n+1)*hash.Gamma)
}
