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
	// leastEnded is the least number of requests that ended in an interval that gives a row of prompts. A row of so many, plus ended, counts half.
	leastEnded, ended = 4, 16
	// lately is after how many requests what is known of how many share a step counts 1/e.
	lately = 64
	// mostBusy is the largest share of an interval that steps with prompts can have taken.
	mostBusy = 0.9
	// mostly is the share of steps with prompts from which on they are not told from others.
	mostly = 0.5
	// plain is how many tokens a sequence gets in a step, at most, for steps with prompts to be told by their tokens: speculative decoding makes more.
	plain = 1.2
	// whole is what share of the sequences that decode a step has, at least, where steps are counted of the whole engine and not of each of its ranks.
	whole = 0.7
	// apart is how many times as many tokens as sequences a prompt has in the mean, at least, for steps with prompts to be told by their tokens.
	apart = 2
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
	// shared is the number of requests in the latest rows of prompts, and of steps that computed their prompts; see lately.
	shared struct{ requests, steps float64 }
	prompt float64 // how long one took, in the mean of the latest interval with any, in seconds
}

// Factor is how many times as long it takes as others of its kind: 1/8 to 8.
func (e *Engine) Factor() float64 { return math.Exp(e.factor) }

// look is what a look has found.
type look struct {
	tokens, between   float64     // tokens after the first ones, and seconds between them
	prompt, cached    float64     // tokens
	requests          float64     // whose first token is out
	ended, prefilled  float64     // requests, and seconds
	queued, computed  float64     // seconds of the same, and tokens
	steps, generated  float64     // generated tokens are the first ones too
	upTo              [15]float64 // as engine.Steps
	held              float64     // tokens in the KV cache; shared ones count once
	sent, context     float64     // requests known to be in flight there, and their tokens
	running, waiting  float64
	adapters, prompts bool // an adapter is active; it is known how long prompts take
	counts, sizes     bool // it is known how many tokens of them were computed; and how many steps there were
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
	l.queued = t.Queue.Seconds.Or(0)
	l.computed, l.counts = t.PrefillTokens.Get()
	l.steps, l.sizes = t.Steps.Count.Get()
	l.generated = t.GeneratedTokens.Or(0)
	l.upTo = t.Steps.UpTo
	l.adapters = len(load.Active) > 0
	return l, ok
}

// interval is what happened between looks.
type interval struct {
	seconds          float64
	tokens, between  float64
	prompt, cached   float64
	requests         float64
	ended, prefilled float64
	queued, computed float64
	steps, generated float64
	upTo             [15]float64
	most             float64 // requests that ran in a look
	held, running    float64 // times seconds
	sent, context    float64 // times seconds
	adapters         bool
	counts, sizes    bool // as of look
}

// add adds what happened between two looks, and reports false where it cannot have.
func (i *interval) add(from, to *look, seconds float64) bool {
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
		e.prompt = min(l.prompts(i)*l.now[prefill]/i.requests+l.unit*l.now[with], longest/2/edges) // so that there are intervals at all
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

// step is the row of an interval's decode steps.
func (l *Learner) step(i *interval) (r row, ok bool) {
	s := l.stepsOf(i)
	if seen := i.running / i.seconds; s.sequences > astray*seen+few || seen > astray*s.sequences+few {
		return row{}, false
	}
	r.seconds = i.between / i.tokens
	r.weight = s.sequences / (s.sequences + crowd)
	l.decode(&r, 1, s.batch, i)
	// A prompt holds up all that decode beside it: in the mean all but the requests whose prompts are in the step.
	held := min(1, max(0, min(s.sequences, i.most-s.each))/s.batch)
	r.terms[prefill] = l.prompts(i) / s.all * held
	r.terms[with] = s.prompts / s.all * held * l.unit
	// What a step with a prompt takes longer is not seen where none is without. But most of a step is not taken away: what was said is wrong then.
	if longer := r.terms[with] * l.now[with]; s.prompts > mostly*s.all && longer < r.seconds/2 {
		r.seconds -= longer
		r.terms[with] = 0
	}
	return r, r.seconds > 0
}

// steps is what is known of the steps of an interval.
type steps struct {
	sequences float64 // that decoded, in the mean of time
	batch     float64 // and of steps
	all       float64 // how many steps decoded
	prompts   float64 // how many computed prompts
	each      float64 // how many prompts these had, in the mean
}

// stepsOf finds how many steps there were in an interval, and in how many of them prompts were computed. An engine that counts steps by their
// tokens tells that, if prompts are longer than a step of sequences alone. Else requests tell it: those that come by chance while a step runs are
// computed in the next one, and half as long as that step they wait.
func (l *Learner) stepsOf(i *interval) (s steps) {
	s.sequences = i.between / i.seconds
	s.batch = max(1, s.sequences)
	s.all = i.tokens / s.sequences // if there was always one; if not, so much rarer are prompts beside
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
		come := 0.0 // while a step runs
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

// prompt is the row of how long the steps took that computed prompts, in the mean of requests.
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
	each := l.prompts(i) / i.requests // seconds of each, as it was said
	own := each                       // of those that ended
	tokens := i.uncached() / i.requests
	if i.counts && tokens > 0 {
		own *= i.computed / i.ended / tokens
	}
	// Few requests of one interval do not tell how many share a step.
	keep := math.Exp(-i.requests / lately)
	e.shared.requests, e.shared.steps = keep*e.shared.requests+i.requests, keep*e.shared.steps+s.prompts
	among := max(1, e.shared.requests/e.shared.steps)
	parts := max(1, tokens*among/float64(l.prior.Limits.MaxBatchedTokens))
	beside := 0.0 // how likely it is that anybody decodes beside
	if i.most > 1 {
		beside = 1 - math.Exp(-s.sequences) // if they know nothing of each other
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

// uncached is how many tokens of prompts were computed: a count of cached ones may be ahead.
func (i *interval) uncached() float64 { return max(0, i.prompt-i.cached) }

// prompts is how long the prompts of an interval were said to take, without what a step takes beside.
func (l *Learner) prompts(i *interval) float64 {
	computed, p := i.uncached(), &l.prior.Prefill
	seconds := computed * p.PerToken
	if i.requests > 0 {
		seconds += computed * p.PerTokenSquared * (computed + 2*i.cached) / i.requests
	}
	return seconds
}
