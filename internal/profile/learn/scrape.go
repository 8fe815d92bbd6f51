package learn

import (
	"math"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/profile"
)

// Conditions and weights of rows.
const (
	// shortest, leastSteps and leastTokens are the minimum size of an interval: its length in
	// seconds, its number of decode steps, and its number of tokens.
	shortest, leastSteps, leastTokens = 1, 10, 32
	// edges is how many times longer than a prompt an interval must be. In shorter intervals, a
	// prompt would often be counted in a later interval than the one in which it delayed other
	// requests.
	edges = 8
	// longest is the maximum length of an interval in seconds. farApart is the maximum time between
	// two scrapes in seconds. If either is exceeded, a new interval begins.
	longest, farApart = 60, 10
	// concurrency is the number of sequences at which a row of steps has half of its full weight.
	// With few sequences, it depends on chance whether a prompt delays a sequence.
	concurrency = 2
	// leastEnded is the minimum number of ended requests for a row of prompts. One is enough if the
	// engine counts the computed tokens of ended requests, and never runs two requests: no other
	// request then lengthens the prefill. The mean of several would hide how it depends on the
	// length of the prompt. The constant ended is the number of ended requests with which a row has
	// half of its full weight.
	leastEnded, ended = 4, 16
	// lately is the number of further requests after which the weight of a request has fallen to
	// 1/e, in the estimate of prompts per step.
	lately = 64
	// mostBusy is the largest share of an interval that steps with prompts can take.
	mostBusy = 0.9
	// mostly is the largest share of steps with prompts. Above it, the time of steps with prompts
	// cannot be separated from that of other steps.
	mostly = 0.5
	// plain limits the tokens per sequence and step. Above it, as with speculative decoding, steps
	// with prompts cannot be recognized by their number of tokens.
	plain = 1.2
	// whole is the minimum ratio of tokens per counted step to decoding sequences. Below it, the
	// steps were counted per rank and not per engine.
	whole = 0.7
	// apart is the minimum ratio of the mean prompt length, in tokens, to the number of sequences.
	// Below it, the number of tokens of a step does not show whether the step contains a prompt.
	apart = 2
	// astray and few limit the difference between the computed and the scraped number of sequences:
	// one may be at most astray times the other, plus few. A larger difference means that a clock
	// jumped.
	astray, few = 4, 4
)

// Engine is what a Learner stores about one engine. The zero Engine has not been scraped.
type Engine struct {
	factor  float64 // logarithm of how much slower it is than its kind
	counted bool    // included in the Learner's sums over engines

	at     float64 // time of the last scrape, in seconds
	latest scrape
	known  bool // at and latest are valid

	steps, prompts interval
	// shared contains the number of requests in recent rows of prompts, and the number of steps
	// that computed their prompts. Older ones have less weight; see lately.
	shared struct{ requests, steps float64 }
	prompt float64 // mean prefill time in seconds, in the last interval with prompts
}

// Factor returns how many times slower the engine is than its kind, from 1/8 to 8.
func (e *Engine) Factor() float64 { return math.Exp(e.factor) }

// scrape contains the values of one scrape of an engine.
type scrape struct {
	tokens, between   float64     // number of tokens after first tokens; sum of the times between tokens, in seconds
	prompt, cached    float64     // prompt tokens; those of them that were cached
	requests          float64     // number of requests with a first token
	ended, prefilled  float64     // number of ended requests; their prefill time in seconds
	queued, computed  float64     // queue time of ended requests in seconds; their computed prompt tokens
	steps, generated  float64     // number of steps; generated tokens, including first tokens
	upTo              [15]float64 // histogram of steps by their tokens, see engine.Steps
	held              float64     // tokens in the KV cache; shared blocks are counted once
	sent, context     float64     // number of requests in flight as counted by their senders; their tokens
	running, waiting  float64
	adapters, prompts bool // whether an adapter is active; whether prefill times are known
	counts, sizes     bool // whether computed prompt tokens are known; whether the number of steps is known
}

// Sent contains the number of requests in flight at an engine, as counted by their senders, and
// their tokens. The tokens are those of the whole prompts and of half of the outputs.
type Sent struct{ Requests, Tokens float64 }

// scrapeOf converts a scrape. It returns false if a required value is missing.
func scrapeOf(load *engine.Load, sent Sent, limits *profile.Limits) (l scrape, ok bool) {
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
	l.queued = t.Queue.Seconds.Or(0)
	l.computed, l.counts = t.PrefillTokens.Get()
	l.steps, l.sizes = t.Steps.Count.Get()
	l.generated = t.GeneratedTokens.Or(0)
	l.upTo = t.Steps.UpTo
	l.adapters = len(load.Active) > 0
	return l, ok
}

// interval contains the increases of an engine's counters between two or more scrapes.
type interval struct {
	seconds          float64
	tokens, between  float64
	prompt, cached   float64
	requests         float64
	ended, prefilled float64
	queued, computed float64
	steps, generated float64
	upTo             [15]float64
	most             float64 // maximum number of running requests in a scrape
	held, running    float64 // integrals over time
	sent, context    float64 // integrals over time
	adapters         bool
	counts, sizes    bool // whether these are known in all scrapes of the interval
}

// add adds the increases between two scrapes to the interval. It returns false if they are
// impossible.
func (i *interval) add(from, to *scrape, seconds float64) bool {
	if i.seconds == 0 {
		i.most, i.counts, i.sizes = from.running, true, true
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
		{&i.queued, from.queued, to.queued},
		{&i.computed, from.computed, to.computed},
		{&i.steps, from.steps, to.steps},
		{&i.generated, from.generated, to.generated},
	} {
		d := of.to - of.from
		if !(d >= 0) || d > 1e12 {
			return false
		}
		*of.sum += d
	}
	for k := range i.upTo {
		i.upTo[k] += to.upTo[k] - from.upTo[k]
	}
	i.most = max(i.most, to.running)
	i.counts, i.sizes = i.counts && from.counts && to.counts, i.sizes && from.sizes && to.sizes
	i.held += (from.held + to.held) / 2 * seconds
	i.running += (from.running + to.running) / 2 * seconds
	i.sent += (from.sent + to.sent) / 2 * seconds
	i.context += (from.context + to.context) / 2 * seconds
	i.adapters = i.adapters || from.adapters || to.adapters
	return true
}

// Saw learns from a scrape of an engine. at is the time of the scrape in seconds, and sent are the
// requests in flight there. Saw reports whether it learned a row.
func (l *Learner) Saw(e *Engine, at float64, load *engine.Load, sent Sent) bool {
	if l.pinned {
		return false
	}
	now, ok := scrapeOf(load, sent, &l.prior.Limits)
	if !ok || math.IsNaN(at) {
		e.known = false
		return false
	}
	was, since, follows := e.latest, at-e.at, e.known
	if follows && since == 0 { // no time has passed since the last scrape
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
		// Limit the prefill time, so that an interval can become long enough.
		e.prompt = min(l.prompts(i)*l.now[prefill]/i.requests+l.unit*l.now[with], longest/2/edges)
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
	case !was.prompts || !now.prompts || i.seconds > 10*longest:
		e.prompts = interval{}
	case (i.ended >= leastEnded || i.alone() && i.ended > 0 && i.requests > 0) && i.seconds >= max(shortest, edges*e.prompt):
		if r, ok := l.prompt(e, i); ok {
			l.learn(e, at, r)
		}
		e.prompts = interval{}
	}
	return l.rows > rows
}

// alone reports whether no two requests ran at once, and the engine counts the computed tokens of
// those that ended.
func (i *interval) alone() bool { return i.counts && i.most <= 1 }

// step returns a row with the mean time of decode steps in an interval. ok is false if the interval
// cannot be used.
func (l *Learner) step(i *interval) (r row, ok bool) {
	s := l.stepsOf(i)
	if seen := i.running / i.seconds; s.sequences > astray*seen+few || seen > astray*s.sequences+few {
		return row{}, false
	}
	r.seconds = i.between / i.tokens
	r.weight = s.sequences / (s.sequences + concurrency)
	l.decode(&r, 1, s.batch, i)
	// A prompt delays all sequences that decode in the same step. On average these are all running
	// requests, except those whose prompts are computed in the step.
	held := min(1, max(0, min(s.sequences, i.most-s.each))/s.batch)
	r.terms[prefill] = l.prompts(i) / s.all * held
	r.terms[with] = s.prompts / s.all * held * l.unit
	// If most steps have prompts, the extra time of a step with prompts cannot be learned. So
	// subtract its current value, unless that is most of a step and therefore wrong.
	if longer := r.terms[with] * l.now[with]; s.prompts > mostly*s.all && longer < r.seconds/2 {
		r.seconds -= longer
		r.terms[with] = 0
	}
	return r, r.seconds > 0
}

// steps contains estimates about the steps of an interval.
type steps struct {
	sequences float64 // mean number of decoding sequences over time
	batch     float64 // mean number of decoding sequences per step
	all       float64 // number of decode steps
	prompts   float64 // number of steps with prompts
	each      float64 // mean number of prompts in a step with prompts
}

// stepsOf estimates how many steps an interval has, and how many of them computed prompts.
//
// If the engine reports a histogram of tokens per step, and prompts have more tokens than a step
// without prompts, both numbers follow from the histogram. Otherwise they follow from the requests:
// requests that arrive at random during a step wait half a step on average, and the next step
// computes them.
func (l *Learner) stepsOf(i *interval) (s steps) {
	s.sequences = i.between / i.seconds
	s.batch = max(1, s.sequences)
	s.all = i.tokens / s.sequences // assumes that at least one sequence decodes at any time
	sizes := i.sizes && i.steps > 0 && i.tokens >= whole*s.sequences*i.steps && i.generated <= plain*(i.tokens+i.requests)
	if sizes {
		s.all = i.steps
		s.batch = max(1, i.tokens/i.steps)
	}
	s.each = 1
	if !(i.requests > 0) {
		return s
	}
	took := 0.0 // mean prefill time of a request
	if i.ended > 0 {
		took = i.prefilled / i.ended
	}
	computed := i.uncached()
	bin := 0
	for bin < len(i.upTo)-1 && float64(int(1)<<bin) < i.most {
		bin++
	}
	full := float64(l.prior.Limits.MaxBatchedTokens)
	if many := i.steps - i.upTo[bin]; sizes && many > 0 && computed/i.requests >= apart*float64(int(1)<<bin) {
		s.prompts = many
	} else {
		come := 0.0 // mean number of arrivals during a step
		if i.ended > 0 {
			come = i.requests / i.seconds * min(2*i.queued/i.ended, took)
		}
		s.prompts = i.requests
		if come > 0 {
			s.prompts *= -math.Expm1(-come) / come
		}
		if took > 0 {
			s.prompts = min(s.prompts, mostBusy*i.seconds/took*max(1, computed/i.requests/full))
		} else if s.all > 0 {
			s.prompts = min(s.prompts, s.all)
		}
	}
	s.prompts = max(s.prompts, computed/full)
	s.each = max(1, i.requests/s.prompts)
	return s
}

// prompt returns a row with the mean time of the steps that computed the prompts of ended requests.
func (l *Learner) prompt(e *Engine, i *interval) (r row, ok bool) {
	if !(i.requests > 0) || !(i.seconds > 0) {
		return row{}, false
	}
	s := l.stepsOf(i)
	if i.tokens > 0 && s.prompts > mostly*s.all {
		return row{}, false
	}
	r.kind, r.only, r.seconds = ofPrompts, i.tokens == 0, i.prefilled/i.ended
	r.weight = i.ended / (i.ended + ended)
	each := l.prompts(i) / i.requests // mean time of a prompt by the initial profile
	own := each                       // like each, but for the requests that ended
	tokens := i.uncached() / i.requests
	if i.counts && tokens > 0 {
		own *= i.computed / i.ended / tokens
	}
	// One interval has too few requests to estimate the prompts per step, so include earlier ones.
	keep := math.Exp(-i.requests / lately)
	e.shared.requests, e.shared.steps = keep*e.shared.requests+i.requests, keep*e.shared.steps+s.prompts
	among := max(1, e.shared.requests/e.shared.steps)
	parts := max(1, tokens*among/float64(l.prior.Limits.MaxBatchedTokens))
	beside := 0.0 // probability that a sequence decodes in the same step as the prompt
	if i.most > 1 {
		beside = 1 - math.Exp(-s.sequences) // assuming that requests are independent
	}
	l.decode(&r, parts, min(s.sequences, max(0, i.most-s.each)), i)
	r.terms[base] *= beside + (1-beside)*l.alone()
	r.terms[prefill] = own + each*(among-1)
	r.weight /= among * among
	r.terms[with] = parts * l.unit
	if ok = r.seconds > 0; ok {
		l.took(r.seconds)
	}
	return r, ok
}

// decode adds the terms of decode steps with the given number of sequences to a row.
func (l *Learner) decode(r *row, steps, sequences float64, i *interval) {
	d := &l.prior.Decode
	if i.adapters && d.AdapterSlowdown > 1 {
		steps *= d.AdapterSlowdown
	}
	r.terms[base] = steps * d.Base
	r.terms[perSequence] = steps * d.PerSequence * sequences
	r.terms[perKVToken] = steps * d.PerKVToken * i.contexts(sequences)
}

// contexts returns how many tokens the sequences attend to in a step. If the senders know at least
// half of the running requests, it uses the tokens of these requests. Otherwise it uses the
// engine's number of cached tokens. That number is less exact: it counts a shared KV block once,
// but a step reads the block for each sequence.
func (i *interval) contexts(sequences float64) float64 {
	if i.sent > 0 && i.sent >= i.running/2 {
		return sequences * i.context / i.sent
	}
	return i.held / i.seconds
}

// uncached returns the number of computed prompt tokens. It is at least 0, because an engine may
// report cached tokens early.
func (i *interval) uncached() float64 { return max(0, i.prompt-i.cached) }

// prompts returns the time of an interval's prompt tokens by the initial profile, without the base
// of steps.
func (l *Learner) prompts(i *interval) float64 {
	computed, p := i.uncached(), &l.prior.Prefill
	seconds := computed * p.PerToken
	if i.requests > 0 {
		seconds += computed * p.PerTokenSquared * (computed + 2*i.cached) / i.requests
	}
	return seconds
}
