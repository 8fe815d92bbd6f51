package learn

import (
	"math"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/profile"
)

// What makes a row.
const (
	// shortest is how many seconds an interval is at least, and in how many steps that were as long as tokens are apart; with so many tokens.
	shortest, leastSteps, leastTokens = 1, 10, 32
	// edges is how many times as long as a prompt an interval of steps is at least: a prompt counts when it is computed, which may be in the
	// interval behind that in which it held up others.
	edges = 8
	// longest is how many seconds an interval is at most, and farApart how many two looks are apart: else it begins anew.
	longest, farApart = 60, 10
	// crowd is how many sequences make a row of steps that counts half: with few, it is by chance which of them prompts hold up.
	crowd = 2
	// leastEnded is how many requests have ended in an interval that says how long prompts took, and light how much of the time prompts may
	// take in it, and how many sequences run: with more, requests wait for each other's prompts within a step, or two.
	leastEnded      = 32
	light, lightRun = 0.3, 4
	// astray is how many times as many sequences as looks have seen, or as few, are too many to be true: somebody's clock jumps.
	astray, few = 4, 4
)

// Engine is what is remembered of one engine. The zero Engine is one that nobody has looked at.
type Engine struct {
	factor  float64 // logarithm of how many times as long it takes as its kind
	counted bool    // among the engines of a Learner

	at     float64 // of the latest look, in seconds
	latest look
	known  bool // there is one

	steps, prompts interval
	prompt         float64 // how long one took, in the mean of the latest interval with any, in seconds
}

// Factor is how many times as long it takes as others of its kind: 1/8 to 8.
func (e *Engine) Factor() float64 { return math.Exp(e.factor) }

// look is what a look has found.
type look struct {
	tokens, between   float64 // tokens after the first ones, and seconds between them
	prompt, cached    float64 // tokens
	requests          float64 // whose first token is out
	ended, prefilled  float64 // requests, and seconds
	held              float64 // tokens in the KV cache; shared ones count once
	sent, context     float64 // requests known to be in flight there, and their tokens
	running, waiting  float64
	adapters, prompts bool // an adapter is active; it is known how long prompts take
}

// Sent is the requests at an engine, as counted by their senders: how many, and their tokens, of each its whole prompt and half of an answer.
type Sent struct{ Requests, Tokens float64 }

// lookOf reads a look, and reports false where it does not tell enough.
func lookOf(load *engine.Load, sent Sent, limits *profile.Limits) (l look, ok bool) {
	ok = true
	l.sent, l.context = sent.Requests, sent.Tokens
	get := func(v engine.Value) float64 {
		n, known := v.Get()
		ok = ok && known
		return n
	}
	t := &load.Totals
	l.tokens, l.between, l.prompt = get(t.InterToken.Count), get(t.InterToken.Seconds), get(t.PromptTokens)
	l.held = get(load.KVUsage) * load.KVTokens.Or(float64(limits.KVBlocks*limits.BlockSize))
	l.running = get(load.Running)
	l.cached, l.requests, l.waiting = t.CachedTokens.Or(0), t.FirstToken.Count.Or(0), load.Waiting.Or(0)
	ended, known := t.Prefill.Count.Get()
	prefilled, timed := t.Prefill.Seconds.Get()
	l.ended, l.prefilled, l.prompts = ended, prefilled, known && timed
	l.adapters = len(load.Active) > 0
	return l, ok
}

// interval is what happened between looks.
type interval struct {
	seconds, began   float64 // began is how many requests ran in the beginning
	tokens, between  float64
	prompt, cached   float64
	requests         float64
	ended, prefilled float64
	held, running    float64 // times seconds
	sent, context    float64 // times seconds
	adapters         bool
}

// add adds what happened between two looks, and reports false where it cannot have.
func (i *interval) add(from, to *look, seconds float64) bool {
	if i.seconds == 0 {
		i.began = from.running
	}
	i.seconds += seconds
	for _, of := range []struct {
		sum      *float64
		from, to float64
	}{
		{&i.tokens, from.tokens, to.tokens},
		{&i.between, from.between, to.between},
		{&i.prompt, from.prompt, to.prompt},
		{&i.cached, from.cached, to.cached},
		{&i.requests, from.requests, to.requests},
		{&i.ended, from.ended, to.ended},
		{&i.prefilled, from.prefilled, to.prefilled},
	} {
		d := of.to - of.from
		if !(d >= 0) || d > 1e12 {
			return false
		}
		*of.sum += d
	}
	i.held += (from.held + to.held) / 2 * seconds
	i.running += (from.running + to.running) / 2 * seconds
	i.sent += (from.sent + to.sent) / 2 * seconds
	i.context += (from.context + to.context) / 2 * seconds
	i.adapters = i.adapters || from.adapters || to.adapters
	return true
}

// Saw learns from a scrape of an engine at a time, in seconds, and from the requests in flight there. It reports whether anything was learned.
func (l *Learner) Saw(e *Engine, at float64, load *engine.Load, sent Sent) bool {
	if l.pinned {
		return false
	}
	now, ok := lookOf(load, sent, &l.prior.Limits)
	if !ok || math.IsNaN(at) {
		e.known = false
		return false
	}
	was, since, follows := e.latest, at-e.at, e.known
	if follows && since == 0 { // nothing can be told of no time
		return false
	}
	e.latest, e.at, e.known = now, at, true
	if !follows || since < 0 || since > farApart || !e.steps.add(&was, &now, since) || !e.prompts.add(&was, &now, since) {
		e.steps, e.prompts = interval{}, interval{}
		return false
	}
	rows := l.rows
	i := &e.steps
	if i.requests > 0 {
		e.prompt = min(l.prompts(i)*l.now[prefill]/i.requests, longest/2/edges) // so that there are intervals at all
	}
	if i.tokens >= leastTokens && i.seconds >= max(shortest, leastSteps*i.between/i.tokens, edges*e.prompt) {
		if r, ok := l.step(i); ok {
			l.learn(e, at, r)
		}
		e.steps = interval{}
	} else if i.seconds > longest {
		e.steps = interval{}
	}
	switch i := &e.prompts; {
	case !was.prompts || !now.prompts || was.waiting > 0 || now.waiting > 0 || now.running > lightRun || i.seconds > 10*longest:
		e.prompts = interval{}
	case i.ended >= leastEnded:
		if r, ok := l.prompt(i); ok {
			l.learn(e, at, r)
		}
		e.prompts = interval{}
	}
	return l.rows > rows
}

// step is the row of an interval's decode steps.
func (l *Learner) step(i *interval) (r row, ok bool) {
	sequences := i.between / i.seconds // that decoded, in the mean of time
	if seen := i.running / i.seconds; sequences > astray*seen+few || seen > astray*sequences+few {
		return row{}, false
	}
	steps := i.tokens / sequences // if there was always one; if not, so much rarer are prompts beside
	r.seconds = i.between / i.tokens
	r.weight = sequences / (sequences + crowd)
	l.decode(&r, 1, max(1, sequences), i)
	// A prompt holds up all that decode beside it: in the mean all but the request that it is of.
	others := max(0, 1-1/max(1, i.began+i.requests))
	r.terms[prefill] = l.prompts(i) / steps * others
	// A step with prompts reads the weights once: it takes what prompts do where that is longer.
	if more := l.prior.Prefill.Base * l.now[prefill]; more > r.terms[base]*l.now[base] {
		with := min(1, i.requests/steps*others)
		r.terms[base] *= 1 - with
		r.terms[prefill] += with * l.prior.Prefill.Base
	}
	return r, r.seconds > 0
}

// prompt is the row of how long prompts took in an interval in which the engine had little to do.
func (l *Learner) prompt(i *interval) (r row, ok bool) {
	if !(i.requests > 0) || !(i.seconds > 0) {
		return row{}, false
	}
	p := l.prior.Prefill
	all := l.prompts(i)
	if all*l.now[prefill] > light*i.seconds {
		return row{}, false
	}
	r.seconds, r.weight = i.prefilled/i.ended, 1
	steps := max(1, (i.prompt-i.cached)/i.requests/float64(l.prior.Limits.MaxBatchedTokens))
	sequences := i.between / i.seconds
	beside := 1 - math.Exp(-sequences) // that anybody decodes beside, if they know nothing of each other
	l.decode(&r, steps, sequences, i)
	r.terms[base] *= beside
	r.terms[prefill] = all / i.requests
	if p.Base*l.now[prefill] > l.prior.Decode.Base*l.now[base] {
		r.terms[base], beside = 0, 0
	}
	r.terms[prefill] += steps * (1 - beside) * p.Base
	return r, r.seconds > p.Floor*l.now[prefill]*1.2 // what is on the floor does not grow with prompts
}

// decode fills a row with so many decode steps of so many sequences.
func (l *Learner) decode(r *row, steps, sequences float64, i *interval) {
	d := &l.prior.Decode
	if i.adapters && d.Adapters > 1 {
		steps *= d.Adapters
	}
	r.terms[base] = steps * d.Base
	r.terms[perSequence] = steps * d.PerSequence * sequences
	r.terms[perKVToken] = steps * d.PerKVToken * i.contexts(sequences)
}

// contexts is how many tokens so many sequences attend to in a step: as many as those have that were sent there. An engine counts a block of its
// KV cache once that many share, and a step reads it for each of them. So what engines count tells only where others sent most of it.
func (i *interval) contexts(sequences float64) float64 {
	if i.sent > 0 && i.sent >= i.running/2 {
		return sequences * i.context / i.sent
	}
	return i.held / i.seconds
}

// prompts is how long the prompts of an interval were said to take, without what a step takes beside.
func (l *Learner) prompts(i *interval) float64 {
	computed, p := max(0, i.prompt-i.cached), &l.prior.Prefill
	seconds := computed * p.PerToken
	if i.requests > 0 {
		seconds += computed * p.PerTokenSquared * (computed + 2*i.cached) / i.requests
	}
	return seconds
}
