package pick

import (
	"math"

	"github.com/headgate/headgate/internal/profile"
)

// Demand is what a request asks of an engine, as far as it is known before it runs, and when that should be done: Latency predicts by it.
type Demand struct {
	// Prompt is the tokens of the prompt, Output those that an answer has in the mean.
	Prompt, Output int
	// Cached is how many leading blocks of the prompt each endpoint has in its prefix cache, by [Endpoint.Number]; those behind its end have
	// none. A block has so many tokens.
	Cached []int32
	Block  float64
	// FirstToken is within how many seconds the first token is to come, PerToken how many each further one may take; 0 is the default.
	FirstToken, PerToken float64
	// Stated says that PerToken is configured: an endpoint that may miss it costs the request up to one objective, see misses.
	Stated bool
	// ServiceTime is how long an engine takes for a tokenless request where it has no other, in nanoseconds; 0 where that is not known.
	ServiceTime int64
	// Now is the time, in nanoseconds since 1970.
	Now int64
}

// What a request is to keep that nobody states objectives for, in seconds.
const (
	DefaultFirstToken = 2
	DefaultPerToken   = 0.1
)

// filled returns d with what estimates need.
func (d Demand) filled() Demand {
	d.Prompt, d.Output = max(1, d.Prompt), max(1, d.Output)
	if d.FirstToken <= 0 {
		d.FirstToken = DefaultFirstToken
	}
	if d.PerToken <= 0 {
		d.PerToken = DefaultPerToken
	}
	return d
}

// cached is how many tokens of the prompt an endpoint has. At least one is computed.
func (f *forecast) cached(e *Endpoint) float64 {
	if e.Number >= len(f.Cached) {
		return 0
	}
	cached := float64(f.Cached[e.Number]) * f.Block
	if cached >= f.prompt {
		return f.prompt - 1
	}
	return cached
}

// Estimate is what Latency expects of a request at an endpoint. Times are in seconds.
type Estimate struct {
	// Intake is until it is in the engine's queue, Queue until the prompts are computed of the requests before it, Room until there is room for it, in the batch, in the KV cache
	// and in an adapter slot, Load is of its adapter, and Prefill of what its endpoint has not cached of its own prompt.
	Intake, Queue, Room, Load, Prefill float64
	// Delay is for how much longer the engine has something to do because of the prompt: Prefill, less its part of steps that others have too.
	Delay float64
	// Step is what each step takes once it runs, and Longer by how much that is longer for it.
	Step, Longer float64
	// Own is its time to first token as a share of the objective, plus the probability that its further tokens miss theirs. Others is its cost to
	// other requests, as shares of their objectives.
	Own, Others float64
	// Adapter is where its adapter was; the model itself is as if in a slot.
	Adapter Place
}

// FirstToken is when the first token is expected, in seconds from now.
func (e *Estimate) FirstToken() float64 { return e.Intake + e.Queue + e.Room + e.Load + e.Prefill }

// Cost is what Latency compares: 1 is one objective missed by nothing, whoever's.
func (e *Estimate) Cost() float64 { return e.Own + e.Others }

// Tells says whether the time of the first token will tell how long the intake and the load of an adapter take: no more is before it than the step
// that runs. What others have before it is known less well.
func (d *Decision) Tells() bool {
	is := &d.Estimate
	return is.Step > 0 && is.Room == 0 && is.Queue <= is.Step
}

// forecast is how Latency predicts a request at endpoints, one after the other. It keeps what is the same for all, and for those of one
// profile, and divides nowhere else: that would be most of what a prediction takes.
type forecast struct {
	Demand
	prompt        float64 // tokens
	perFirstToken float64 // 1 / objective
	perOutput     float64 // 1 / tokens
	perStep       float64 // 1 / the objective of each further token; 0 if none is stated

	profile  *profile.Profile
	floor    float64 // what a step with prompts takes at least, in seconds
	perChunk float64 // 1 / tokens of a step
	chunk    float64 // as chunk returns it
	longer   float64 // a step for the request, in seconds
}

func newForecast(d Demand) forecast {
	d = d.filled()
	f := forecast{Demand: d, prompt: float64(d.Prompt), perFirstToken: 1 / d.FirstToken, perOutput: 1 / float64(d.Output)}
	if d.Stated {
		f.perStep = 1 / d.PerToken
	}
	return f
}

// take has f predict by a profile.
func (f *forecast) take(p *profile.Profile) {
	if f.profile == nil || p.Limits.MaxBatchedTokens != f.profile.Limits.MaxBatchedTokens {
		f.perChunk = 1 / float64(p.Limits.MaxBatchedTokens)
	}
	f.profile = p
	f.floor = max(p.Prefill.Floor, p.LaunchOverhead)
	f.chunk = chunk(p)
	f.longer = p.Decode.PerSequence + p.Decode.PerKVToken*float64(f.Prompt+f.Output/2)
}

// chunk returns what the tokens of a step take that is full of prompts, in seconds.
func chunk(p *profile.Profile) float64 {
	return float64(p.Limits.MaxBatchedTokens) * p.Prefill.PerToken
}

// at predicts the request at an endpoint where there is room for it, and no adapter to be loaded, in seconds: the fields of [Estimate]. It is
// asked of each candidate of each request.
func (f *forecast) at(e *Endpoint) (queue, prefill, delay, step, longer float64) {
	if e.Profile != f.profile {
		f.take(e.Profile)
	}
	p := f.profile
	// A step reads the weights once, and then works for each sequence.
	weights, longer := p.Decode.Base, f.longer
	if p.Decode.AdapterSlowdown > 1 && (e.Adapters.Load() > 0 || len(e.Listed) > 0) {
		weights, longer = weights*p.Decode.AdapterSlowdown, longer*p.Decode.AdapterSlowdown
	}
	ours, peers := e.Backlog, e.Peers
	beside := float64(ours.Beside.Load()+peers.Beside.Load())*besideUnit + e.OthersBeside
	step = weights + beside + longer
	overhead, anyway, running := p.Prefill.Base, 0.0, 0.0 // of a step with prompts, and without; what is left of the step that runs
	if beside > 0 {
		if overhead < weights {
			overhead = weights
		}
		overhead += p.MixedBatchOverhead
		overhead, anyway, running = overhead+beside, weights+beside, step*0.5
	}

	cached := f.cached(e)
	own := f.prompt - cached
	prefill = own*p.Prefill.PerToken + own*(own+2*cached)*p.Prefill.PerTokenSquared
	queue = float64(max(0, ours.left(f.Now))) * 1e-9
	if whole := max(overhead, f.floor); queue > step && queue >= whole {
		// A step with others' prompts has not begun. If all of these fill steps, it pays its share of them; if not, there is room for it.
		delay = prefill + own*f.perChunk*overhead
		if queue > whole+f.chunk {
			prefill = delay
		}
		return queue, prefill, delay, step, longer
	}
	if queue < running {
		queue = running
	}
	chunks := math.Ceil(own * f.perChunk)
	if prefill += chunks * overhead; prefill < f.floor {
		prefill = f.floor
	}
	// Those who decode get a token in each of its steps. Steps that are not full have room for prompts that come later.
	return queue, prefill, max(0, prefill-(chunks-own*f.perChunk)*anyway), step, longer
}

// others is what a prefill and longer steps cost those who decode at an endpoint, as shares of their objectives: each waits while the request is
// prefilled, and then a little longer for each token. See rest.
func (f *forecast) others(e *Endpoint, delay, longer float64) float64 {
	const others = 1 / DefaultPerToken // of each of which nobody tells
	urgency := float64(e.Backlog.Urgency.Load()+e.Peers.Urgency.Load())*urgencyUnit + float64(e.Others)*others
	return urgency * (delay*f.perOutput + longer)
}

// rest is what share of the latest seconds prompts left to those who decode at an endpoint. Only that is theirs, and a delay weighs as much more:
// a second prompt soon after a first makes answers miss that have few tokens yet.
func (f *forecast) rest(e *Endpoint) float64 { return max(leastLeft, 1-e.Backlog.prompting(f.Now)) }

// leastLeft is the least share of its time that an engine is taken to have left for decoding.
const leastLeft = 0.1

// beyond reports whether the request for c has a score above a limit at an endpoint whatever that is short of: it first looks at what takes the
// fewest reads.
func (f *forecast) beyond(e *Endpoint, c *Copy, limit score) bool {
	load := 0.0
	if !c.Base {
		load = e.load(c.InFlight)
	}
	intake := e.Profile.FrontendOverhead
	alone := (intake + load + (f.prompt-f.cached(e))*e.Profile.Prefill.PerToken) * f.perFirstToken
	if limit.less(scoreOf(alone)) {
		return true
	}
	queue, prefill, delay, step, longer := f.at(e)
	own, others := (intake+queue+prefill+load)*f.perFirstToken+f.misses(step), f.others(e, delay+load, longer)
	return limit.less(scoreOf(own+others)) || others > 0 && limit.less(scoreOf(own+others/f.rest(e)))
}

// takes is how many tokens the request takes of the KV cache of an endpoint.
func (f *forecast) takes(e *Endpoint) int { return f.Prompt - int(f.cached(e)) + f.Output/2 }

// estimate is all that is expected of the request for c at an endpoint.
func (f *forecast) estimate(e *Endpoint, c *Copy) (is Estimate) {
	is.Queue, is.Prefill, is.Delay, is.Step, is.Longer = f.at(e)
	p, there := f.profile, e.Pending()
	is.Intake, is.Adapter = p.FrontendOverhead, InSlot
	if slower := p.Decode.AdapterSlowdown; !c.Base && slower > 1 && e.Adapters.Load() == 0 && len(e.Listed) == 0 {
		is.Step, is.Longer = is.Step*slower, is.Longer+is.Step*(slower-1) // it is the first adapter there
	}
	life := is.Prefill + float64(f.Output)*is.Step // of a request, in the mean
	if over := there + 1 - int64(p.Limits.MaxSequences); over > 0 {
		is.Room = float64(over) / float64(p.Limits.MaxSequences) * life
	}
	// Room in the KV cache comes as requests end, all that it holds in one life.
	if over := e.OthersTokens + e.Backlog.Tokens.Load() + e.Peers.Tokens.Load() + int64(f.takes(e)) - e.KVTokens; over > 0 && e.KVTokens > 0 {
		is.Room = max(is.Room, float64(over)/float64(e.KVTokens)*life)
	}
	var price float64
	if !c.Base {
		is.Adapter = c.InFlight.Place()
		is.Load = e.load(c.InFlight)
		if e.Slots > 0 && c.InFlight.Load()+c.InFlight.Others.Load() == 0 {
			var wait float64
			wait, price = e.slot(life)
			is.Room += wait
		}
	}
	is.Own = is.FirstToken()*f.perFirstToken + f.misses(is.Step)
	if is.Others = f.others(e, is.Delay+is.Load, is.Longer); is.Others > 0 {
		is.Others /= f.rest(e)
	}
	is.Others += (price + leaves*is.Load) * f.perFirstToken
	return is
}

// join adds to an estimate the prompts that come while the request waits: they are computed in its step, and its first token comes with theirs. That
// is a cost of those, and none of this endpoint.
func (f *forecast) join(e *Endpoint, is *Estimate) {
	if is.Queue > 0 && is.Queue < chunk(e.Profile) {
		is.Prefill += is.Queue * min(1, e.Backlog.prompting(f.Now))
	}
}

// misses returns the probability that an answer with predicted steps of this length misses a stated objective for further tokens: 0 for much shorter
// steps, 1 for much longer ones. Predictions are off by some tenths. A hard limit would move sessions away from their caches for a step that is
// barely too long.
func (f *forecast) misses(step float64) float64 {
	return min(max(0, (step*f.perStep-surelyKept)*(1/(surelyMissed-surelyKept))), 1)
}

// surelyKept and surelyMissed are ratios of a predicted step to its objective: up to surelyKept the answer counts as keeping it, from surelyMissed
// on as missing it. docs/decisions/0023-pick-by-predicted-time.md has results for other values.
const surelyKept, surelyMissed = 0.8, 1.2

// scoreOf orders by cost.
func scoreOf(cost float64) score {
	return score{second: int64(math.Float64bits(cost))} //nolint:gosec // of floats that are not negative, the greater has the greater bits
}

// leaves is how likely the adapter that makes place for another will be wanted again as soon as adapters usually are before they leave:
// where requests come by chance, 1 - 1/e.
const leaves = 0.63

// load is how long an adapter takes into a slot.
func (e *Endpoint) load(c *Count) float64 {
	switch c.Place() {
	case InSlot:
		return 0
	case InHost:
		return e.Profile.AdapterActivation.Mean
	}
	return e.Profile.AdapterLoad.Mean + e.Profile.AdapterActivation.Mean
}

// slot is for how long one more adapter waits for a slot, and what it costs the next one to come that this one has its slot. Life is how long
// a request runs.
//
// A slot is free again when its adapter has no request left. Of an adapter with n requests, whose ends know nothing of each other, the last
// ends after life * (1 + 1/2 + ... + 1/n) in the mean; the one with the fewest is free first.
func (e *Endpoint) slot(life float64) (wait, price float64) {
	active := e.ActiveAdapters()
	turn := life / float64(e.Slots) // a slot becomes free each so often, if each adapter has one request
	if active < e.Slots {
		return 0, turn * e.Resident.Blocks(int(active))
	}
	each := float64(e.Pending()) / float64(active)
	return float64(active-e.Slots+1) * turn * (1 + math.Log(max(1, each))), 0
}
