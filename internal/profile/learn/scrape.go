package learn

import (
	"math"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/profile"
)

// Conditions for a row.
const (
	// shortest, leastSteps and leastTokens are limits of an interval. It lasts at least shortest
	// seconds, and has at least leastSteps decode steps and leastTokens tokens.
	shortest, leastSteps, leastTokens = 1, 10, 32
	// edges is a limit of an interval. It is at least edges times as long as a prompt, which may be
	// counted in the interval after the one in which it delayed others.
	edges = 8
	// longest limits an interval in seconds, and farApart the seconds between two scrapes; beyond
	// them it starts again.
	longest, farApart = 60, 10
	// concurrency is the number of sequences at which a row of steps has half its weight: with few
	// sequences it is random which of them prompts delay.
	concurrency = 2
	// leastEnded and ended weigh rows of prompts. A row needs leastEnded ended requests. With ended
	// of them it has half its weight.
	leastEnded, ended = 4, 16
	// lately sets how fast requests are forgotten. The weight of requests in the estimate of
	// prompts per step falls to 1/e after lately requests.
	lately = 64
	// mostBusy is the largest share of an interval that steps with prompts can take.
	mostBusy = 0.9
	// mostly is a limit of the share of steps with prompts. Above it, they cannot be separated from
	// others.
	mostly = 0.5
	// plain is the most tokens per sequence and step at which steps with prompts are recognized by
	// their tokens: speculative decoding makes more.
	plain = 1.2
	// whole is the smallest share of the decoding sequences in a step at which steps are counted
	// per engine and not per rank.
	whole = 0.7
	// apart is how many times as many tokens as sequences a mean prompt needs for steps with
	// prompts to be recognized by their tokens.
	apart = 2
	// astray is the factor by which the computed number of sequences may differ from the scraped
	// one; beyond it a clock has jumped.
	astray, few = 4, 4
)

// Engine is the state of one engine. The zero Engine has not been scraped.
type Engine struct {
	factor  float64 // log factor relative to its kind
	counted bool    // among a Learner's engines

	at     float64 // time of the last scrape, in seconds
	latest scrape
	known  bool // it has been scraped

	steps, prompts interval
	// shared is the number of requests in the latest rows of prompts, and of steps that computed
	// their prompts; see lately.
	shared struct{ requests, steps float64 }
	prompt float64 // mean prefill time in the last interval with prompts, in seconds
}

// Factor returns how much slower the engine is than its kind: 1/8 to 8.
func (e *Engine) Factor() float64 { return math.Exp(e.factor) }

// scrape is the result of a scrape.
type scrape struct {
	tokens, between   float64     // tokens after the first ones, and seconds between them
	prompt, cached    float64     // tokens
	requests          float64     // requests with a first token
	ended, prefilled  float64     // requests, and seconds
	queued, computed  float64     // seconds of the same, and tokens
	steps, generated  float64     // generated includes first tokens
	upTo              [15]float64 // as engine.Steps
	held              float64     // tokens in the KV cache; shared ones count once
	sent, context     float64     // requests in flight as counted by senders, and their tokens
	running, waiting  float64
	adapters, prompts bool // whether an adapter is active, and whether prefill times are known
	counts, sizes     bool // whether computed prompt tokens are known, and the number of steps
}

// Sent is the number of requests at an engine, as counted by their senders, and their tokens: each
// request's whole prompt and half of its answer.
type Sent struct{ Requests, Tokens float64 }

// scrapeOf converts a scrape, and returns false if it lacks required values.
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

// interval is what happened between scrapes.
type interval struct {
	seconds          float64
	tokens, between  float64
	prompt, cached   float64
	requests         float64
	ended, prefilled float64
	queued, computed float64
	steps, generated float64
	upTo             [15]float64
	most             float64 // most running requests in a scrape
	held, running    float64 // integrated over time
	sent, context    float64 // integrated over time
	adapters         bool
	counts, sizes    bool // as in scrape
}

// add adds what happened between two scrapes, and returns false if it is impossible.
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

// Saw learns from a scrape of an engine at a time, in seconds, and from the requests in flight
// there. It reports whether anything was learned.
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
	if follows && since == 0 { // no time has passed
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
		e.prompt = min(l.prompts(i)*l.now[prefill]/i.requests+l.unit*l.now[with], longest/2/edges) // so that intervals can end
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
	case i.ended >= leastEnded && i.seconds >= max(shortest, edges*e.prompt):
		if r, ok := l.prompt(e, i); ok {
			l.learn(e, at, r)
		}
		e.prompts = interval{}
	}
	return l.rows > rows
}

// step returns the row of an interval's decode steps.
func (l *Learner) step(i *interval) (r row, ok bool) {
	s := l.stepsOf(i)
	if seen := i.running / i.seconds; s.sequences > astray*seen+few || seen > astray*s.sequences+few {
		return row{}, false
	}
	r.seconds = i.between / i.tokens
	r.weight = s.sequences / (s.sequences + concurrency)
	l.decode(&r, 1, s.batch, i)
	// A prompt delays all sequences that decode in the same step: on average, all but the requests
	// whose prompts are in it.
	held := min(1, max(0, min(s.sequences, i.most-s.each))/s.batch)
	r.terms[prefill] = l.prompts(i) / s.all * held
	r.terms[with] = s.prompts / s.all * held * l.unit
	// Without steps free of prompts, the extra time of a step with a prompt cannot be observed. But
	// most of a step is never subtracted: then the configured value is wrong.
	if longer := r.terms[with] * l.now[with]; s.prompts > mostly*s.all && longer < r.seconds/2 {
		r.seconds -= longer
		r.terms[with] = 0
	}
	return r, r.seconds > 0
}

// steps has what is known about the steps of an interval.
type steps struct {
	sequences float64 // decoding sequences, averaged over time
	batch     float64 // and averaged over steps
	all       float64 // number of decode steps
	prompts   float64 // number of steps with prompts
	each      float64 // mean prompts in these
}

// stepsOf estimates the number of steps in an interval and how many of them computed prompts. If
// the engine has a histogram of tokens per step, and prompts are longer than a step of sequences
// alone, these follow from it. Otherwise they follow from the requests: requests that arrive at
// random during a step are computed in the next one, after waiting for half a step on average.
func (l *Learner) stepsOf(i *interval) (s steps) {
	s.sequences = i.between / i.seconds
	s.batch = max(1, s.sequences)
	s.all = i.tokens / s.sequences // if some sequence always decoded; if not, prompts beside sequences are rarer by as much
	sizes := i.sizes && i.steps > 0 && i.tokens >= whole*s.sequences*i.steps && i.generated <= plain*(i.tokens+i.requests)
	if sizes {
		s.all = i.steps
		s.batch = max(1, i.tokens/i.steps)
	}
	s.each = 1
	if !(i.requests > 0) {
		return s
	}
	took := 0.0 // by each prompt
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
		come := 0.0 // arrivals during a step
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

// prompt returns the row of the mean time of the steps that computed requests' prompts.
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
	each := l.prompts(i) / i.requests // initial seconds of each
	own := each                       // of those that ended
	tokens := i.uncached() / i.requests
	if i.counts && tokens > 0 {
		own *= i.computed / i.ended / tokens
	}
	// The few requests of one interval do not determine the prompts per step.
	keep := math.Exp(-i.requests / lately)
	e.shared.requests, e.shared.steps = keep*e.shared.requests+i.requests, keep*e.shared.steps+s.prompts
	among := max(1, e.shared.requests/e.shared.steps)
	parts := max(1, tokens*among/float64(l.prior.Limits.MaxBatchedTokens))
	beside := 0.0 // probability that some sequence decodes in the same step
	if i.most > 1 {
		beside = 1 - math.Exp(-s.sequences) // if requests are independent
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

// decode adds the terms of decode steps with sequences to a row.
func (l *Learner) decode(r *row, steps, sequences float64, i *interval) {
	d := &l.prior.Decode
	if i.adapters && d.AdapterSlowdown > 1 {
		steps *= d.AdapterSlowdown
	}
	r.terms[base] = steps * d.Base
	r.terms[perSequence] = steps * d.PerSequence * sequences
	r.terms[perKVToken] = steps * d.PerKVToken * i.contexts(sequences)
}

// contexts is the number of tokens that sequences attend to in a step, estimated from the requests
// sent there. An engine counts a shared KV block once, but a step reads it for each sequence. So
// the engine's count is used only if others sent most of the requests.
func (i *interval) contexts(sequences float64) float64 {
	if i.sent > 0 && i.sent >= i.running/2 {
		return sequences * i.context / i.sent
	}
	return i.held / i.seconds
}

// uncached is the number of computed prompt tokens; the count of cached ones may be ahead.
func (i *interval) uncached() float64 { return max(0, i.prompt-i.cached) }

// prompts is the initial profile's time of an interval's prompts, without the rest of the steps.
func (l *Learner) prompts(i *interval) float64 {
	computed, p := i.uncached(), &l.prior.Prefill
	seconds := computed * p.PerToken
	if i.requests > 0 {
		seconds += computed * p.PerTokenSquared * (computed + 2*i.cached) / i.requests
	}
	return seconds
}
