package pick

import (
	"math"

	"github.com/headgate/headgate/internal/profile"
)

// Demand is the work and the objectives of a request, as far as they are known in advance. Policy
// Latency predicts from it.
type Demand struct {
	// Prompt is the number of prompt tokens. Output is the mean number of output tokens.
	Prompt, Output int
	// Cached is the number of leading prompt blocks in each endpoint's prefix cache. Its index is
	// [Endpoint.Number]; endpoints beyond its length have 0 blocks. Block is the number of tokens
	// per block.
	Cached []int32
	Block  float64
	// FirstToken and PerToken are the objectives for time to first token and time per output token,
	// in seconds; 0 means the default.
	FirstToken, PerToken float64
	// Stated reports that PerToken is configured. The probability of missing it is then added to an
	// endpoint's cost; see misses.
	Stated bool
	// ServiceTime is the time of a tokenless request at an otherwise idle engine, in nanoseconds; 0
	// if unknown.
	ServiceTime int64
	// Now is the current time, in nanoseconds since 1970.
	Now int64
}

// Objectives of requests for which none are configured, in seconds.
const (
	DefaultFirstToken = 2
	DefaultPerToken   = 0.1
)

// filled returns d with defaults in place of missing values.
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

// cached returns how many of the prompt's tokens are in an endpoint's cache. The last token is
// never cached: the engine must compute it.
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

// Estimate is the prediction for a request at an endpoint. Times are in seconds.
type Estimate struct {
	// FrontendOverhead is the time until the request is in the engine's queue. Queue is the prefill
	// time of earlier requests. Room is the wait for a place in the batch, the KV cache and an
	// adapter slot. Load is the load time of the adapter. Prefill is the time to compute the
	// uncached part of the request's own prompt.
	FrontendOverhead, Queue, Room, Load, Prefill float64
	// Delay is how much longer the engine is busy because of the prompt. It is Prefill less the
	// time of steps that the other requests need anyway.
	Delay float64
	// Step is the time of each decode step once the request runs. Longer is the part of Step that
	// the request adds.
	Step, Longer float64
	// Own is the predicted time to first token divided by its objective, plus the probability of
	// missing the objective per output token. Others is the cost to other requests, as shares of
	// their objectives.
	Own, Others float64
	// Adapter is where the adapter's weights were. For a base model it is InSlot.
	Adapter Place
}

// FirstToken returns the predicted time to first token, in seconds from now.
func (e *Estimate) FirstToken() float64 {
	return e.FrontendOverhead + e.Queue + e.Room + e.Load + e.Prefill
}

// Cost is the sum that policy Latency minimizes. A cost of 1 is the whole objective of one request:
// of this request, or of others.
func (e *Estimate) Cost() float64 { return e.Own + e.Others }

// ShowsOverhead reports whether frontend overhead and adapter load time can be learned from the
// measured time to first token. They can if only the current step is ahead of the request. A queue
// would make the measurement less certain.
func (d *Decision) ShowsOverhead() bool {
	is := &d.Estimate
	return is.Step > 0 && is.Room == 0 && is.Queue <= is.Step
}

// forecast predicts one request at each candidate endpoint. It computes only once what is the same
// for all endpoints, or for all endpoints with the same profile. Without that, divisions would
// dominate the cost of a prediction.
type forecast struct {
	Demand
	prompt        float64 // prompt tokens
	perFirstToken float64 // 1 / objective for time to first token, in 1/s
	perOutput     float64 // 1 / output tokens
	perStep       float64 // 1 / objective for time per output token, in 1/s; 0 if not configured

	profile  *profile.Profile
	floor    float64 // minimum time of a step with prompts, in seconds
	perChunk float64 // 1 / maximum tokens of a step
	chunk    float64 // result of the function chunk, in seconds
	longer   float64 // step time that the request adds, in seconds
}

func newForecast(d Demand) forecast {
	d = d.filled()
	f := forecast{Demand: d, prompt: float64(d.Prompt), perFirstToken: 1 / d.FirstToken, perOutput: 1 / float64(d.Output)}
	if d.Stated {
		f.perStep = 1 / d.PerToken
	}
	return f
}

// take switches f to another profile.
func (f *forecast) take(p *profile.Profile) {
	if f.profile == nil || p.Limits.MaxBatchedTokens != f.profile.Limits.MaxBatchedTokens {
		f.perChunk = 1 / float64(p.Limits.MaxBatchedTokens)
	}
	f.profile = p
	f.floor = max(p.Prefill.Floor, p.LaunchOverhead)
	f.chunk = chunk(p)
	f.longer = p.Decode.PerSequence + p.Decode.PerKVToken*float64(f.Prompt+f.Output/2)
}

// chunk returns how long the tokens of a full prefill step take, in seconds.
func chunk(p *profile.Profile) float64 {
	return float64(p.Limits.MaxBatchedTokens) * p.Prefill.PerToken
}

// at predicts some fields of [Estimate], in seconds. It assumes that the endpoint has room and that
// no adapter must be loaded. It runs for each candidate of each request.
func (f *forecast) at(e *Endpoint) (queue, prefill, delay, step, longer float64) {
	if e.Profile != f.profile {
		f.take(e.Profile)
	}
	p := f.profile
	// A decode step reads the weights once, and then computes each sequence.
	weights, longer := p.Decode.Base, f.longer
	if p.Decode.AdapterSlowdown > 1 && (e.Adapters.Load() > 0 || len(e.Listed) > 0) {
		weights, longer = weights*p.Decode.AdapterSlowdown, longer*p.Decode.AdapterSlowdown
	}
	ours, peers := e.Backlog, e.Peers
	beside := float64(ours.Beside.Load()+peers.Beside.Load())*besideUnit + e.OthersBeside
	step = weights + beside + longer
	overhead, anyway, running := p.Prefill.Base, 0.0, 0.0 // time of a prefill step; of a decode step; left of the current step
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
	if f.joins(e) {
		// The step of other prompts has not started. If they fill it, this prompt needs its own
		// share of a step; otherwise it uses the room that is left in the step of the others.
		delay = prefill + own*f.perChunk*overhead
		if queue > max(overhead, f.floor)+f.chunk {
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
	// In each of these steps every decoding request gets a token, so that part of the time is no
	// delay. Later prompts can use the room left in the last step.
	return queue, prefill, max(0, prefill-(chunks-own*f.perChunk)*anyway), step, longer
}

// joins reports whether the prompt is computed in a step that other prompts wait for.
func (f *forecast) joins(e *Endpoint) bool { return f.Now < e.Backlog.Starts.Load() }

// others returns the cost to the requests that decode at an endpoint, as shares of their
// objectives. Each of them waits for the prefill, and then each of its tokens takes a little
// longer. The caller divides the cost by rest.
func (f *forecast) others(e *Endpoint, delay, longer float64) float64 {
	const others = 1 / DefaultPerToken // urgency of each request that no process reports
	urgency := float64(e.Backlog.Urgency.Load()+e.Peers.Urgency.Load())*urgencyUnit + float64(e.Others)*others
	return urgency * (delay*f.perOutput + longer)
}

// rest returns the share of recent time that prompts left for decoding. The smaller it is, the more
// a delay costs: if two prompts arrive in short succession, answers that have just begun miss their
// objectives.
func (f *forecast) rest(e *Endpoint) float64 { return max(leastLeft, 1-e.Backlog.prompting(f.Now)) }

// leastLeft is the smallest value that rest returns.
const leastLeft = 0.1

// beyond reports whether the score of c exceeds limit even before all terms are added. It adds the
// cheap terms first, so that most calls return early.
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

// takes returns how many tokens of the endpoint's KV cache the request needs.
func (f *forecast) takes(e *Endpoint) int { return f.Prompt - int(f.cached(e)) + f.Output/2 }

// estimate returns the complete prediction for the request at copy c of an endpoint.
func (f *forecast) estimate(e *Endpoint, c *Copy) (is Estimate) {
	is.Queue, is.Prefill, is.Delay, is.Step, is.Longer = f.at(e)
	p, there := f.profile, e.Pending()
	is.FrontendOverhead, is.Adapter = p.FrontendOverhead, InSlot
	if slower := p.Decode.AdapterSlowdown; !c.Base && slower > 1 && e.Adapters.Load() == 0 && len(e.Listed) == 0 {
		is.Step, is.Longer = is.Step*slower, is.Longer+is.Step*(slower-1) // no other adapter is active at the endpoint
	}
	life := is.Prefill + float64(f.Output)*is.Step // mean duration of a request, in seconds
	if most := e.sequences(); there >= most {
		is.Room = float64(there+1-most) / float64(most) * life
	}
	// Requests free KV cache as they end: the whole cache within the mean duration of a request.
	if over := e.OthersTokens + e.Backlog.Tokens.Load() + e.Peers.Tokens.Load() + int64(f.takes(e)) - e.KVTokens; over > 0 &&
		e.KVTokens > 0 {
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

// join adds the prompts that are expected to arrive before the request's prompt is computed. They
// run in the same step, so the request's first token is delayed until they are computed. This delay
// is not part of the endpoint's cost, because those requests pay for it. If a gate uses the
// predictions, and the queue with this prompt takes longer than its limit, the gate admits few
// prompts: none are expected. Unlike promptQueue, this queue contains the time that steps take
// anyway.
func (f *forecast) join(g *Gate, e *Endpoint, trusted bool, is *Estimate) {
	if g.On && trusted && is.Queue+is.Load+is.Prefill > g.Queue {
		return
	}
	if !(is.Queue > 0 && is.Queue < chunk(e.Profile)) {
		return
	}
	until := is.Queue // until the step of the request's prompt starts, in seconds
	if f.joins(e) {
		until = min(until, float64(e.Backlog.Starts.Load()-f.Now)*1e-9)
	}
	is.Prefill += until * min(1, e.Backlog.prompting(f.Now))
}

// misses returns the probability that an answer misses its configured time per output token, if its
// predicted step time is step. It rises from 0 for much shorter steps to 1 for much longer steps,
// because predictions are off by tens of percent. A hard limit would move sessions away from their
// prefix caches for a step that is barely too long.
func (f *forecast) misses(step float64) float64 {
	return min(max(0, (step*f.perStep-surelyKept)*(1/(surelyMissed-surelyKept))), 1)
}

// surelyKept and surelyMissed are ratios of the predicted step to the objective. Up to surelyKept,
// misses returns 0; above surelyMissed, it returns 1. docs/decisions/0023-pick-by-predicted-time.md
// compares other values.
const surelyKept, surelyMissed = 0.8, 1.2

// scoreOf returns the score of a cost: a lower cost has a lower score.
func scoreOf(cost float64) score {
	return score{second: int64(math.Float64bits(cost))} //nolint:gosec // of floats that are not negative, the greater has the greater bits
}

// leaves is the probability that an evicted adapter is requested again within the mean time that an
// adapter stays in its slot: 1 - 1/e for Poisson arrivals.
const leaves = 0.63

// load returns the seconds that it takes to bring an adapter into a slot.
func (e *Endpoint) load(c *Count) float64 {
	switch c.Place() {
	case InSlot:
		return 0
	case InHost:
		return e.Profile.AdapterActivation.Mean
	}
	return e.Profile.AdapterLoad.Mean + e.Profile.AdapterActivation.Mean
}

// slot returns how long another adapter waits for a slot, and the cost to later adapters because
// this one occupies a slot. Life is the mean duration of a request.
//
// A slot is free again when its adapter has no requests. The last of n independent requests ends
// after life * (1 + 1/2 + ... + 1/n) on average, so the adapter with the fewest requests frees its
// slot first.
func (e *Endpoint) slot(life float64) (wait, price float64) {
	active := e.ActiveAdapters()
	turn := life / float64(e.Slots) // mean time until a slot is free if each slot's adapter has one request
	if active < e.Slots {
		return 0, turn * e.Resident.Blocks(int(active))
	}
	each := float64(e.Pending()) / float64(active)
	return float64(active-e.Slots+1) * turn * (1 + math.Log(max(1, each))), 0
}
