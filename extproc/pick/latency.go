package pick

import (
	"math"

	"github.com/headgate/headgate/internal/profile"
)

// Demand is the work that a request needs, as far as it is known in advance, and its objectives.
// Latency predicts from it.
type Demand struct {
	// Prompt is the number of prompt tokens, Output the mean number of output tokens.
	Prompt, Output int
	// Cached is the number of leading prompt blocks in each endpoint's prefix cache, by
	// [Endpoint.Number]. Endpoints beyond its length have none. Block is the number of tokens per
	// block.
	Cached []int32
	Block  float64
	// FirstToken and PerToken are the objectives for time to first token and time per output token,
	// in seconds; 0 is the default.
	FirstToken, PerToken float64
	// Stated reports that PerToken is configured. An endpoint that may miss it costs the request up
	// to one objective; see misses.
	Stated bool
	// ServiceTime is the time of a tokenless request at an otherwise idle engine, in nanoseconds; 0
	// if unknown.
	ServiceTime int64
	// Now is the time, in nanoseconds since 1970.
	Now int64
}

// Default objectives of requests without configured ones, in seconds.
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

// cached returns how many prompt tokens an endpoint has cached. At least one token is left to
// compute.
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
	// of earlier requests. Room is the wait for a place in the batch, the KV cache and an adapter
	// slot. Load is the load of the adapter. Prefill is the uncached part of the request's own
	// prompt.
	FrontendOverhead, Queue, Room, Load, Prefill float64
	// Delay is how much longer the engine is busy because of the prompt: Prefill, less the part in
	// steps that other requests need too.
	Delay float64
	// Step is the time of each decode step once the request runs. Longer is the part of Step that
	// the request adds.
	Step, Longer float64
	// Own is the time to first token as a share of its objective, plus the probability that the
	// other tokens miss theirs. Others is the cost to other requests, as shares of their
	// objectives.
	Own, Others float64
	// Adapter is where the adapter's weights were. A base model counts as in a slot.
	Adapter Place
}

// FirstToken returns the predicted time to first token, in seconds from now.
func (e *Estimate) FirstToken() float64 {
	return e.FrontendOverhead + e.Queue + e.Room + e.Load + e.Prefill
}

// Cost is the sum that Latency minimizes. A cost of 1 is one full objective, of this request or of
// others.
func (e *Estimate) Cost() float64 { return e.Own + e.Others }

// ShowsOverhead reports whether the time to first token will show the frontend overhead and the
// adapter's load time: nothing but the current step is ahead of the request. With a queue ahead,
// the measurement would be less certain.
func (d *Decision) ShowsOverhead() bool {
	is := &d.Estimate
	return is.Step > 0 && is.Room == 0 && is.Queue <= is.Step
}

// forecast predicts a request at one endpoint after the other. It computes once what all endpoints,
// or all with one profile, share. Divisions would otherwise dominate the cost of a prediction.
type forecast struct {
	Demand
	prompt        float64 // tokens
	perFirstToken float64 // 1 / objective
	perOutput     float64 // 1 / tokens
	perStep       float64 // 1 / the objective of each further token; 0 if none is stated

	profile  *profile.Profile
	floor    float64 // least time of a step with prompts, in seconds
	perChunk float64 // 1 / tokens of a step
	chunk    float64 // result of the function chunk
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

// chunk returns the time that the tokens of a full prefill step take, in seconds.
func chunk(p *profile.Profile) float64 {
	return float64(p.Limits.MaxBatchedTokens) * p.Prefill.PerToken
}

// at predicts the fields of [Estimate], in seconds, for an endpoint that has room and needs no
// adapter load. It runs for each candidate of each request.
func (f *forecast) at(e *Endpoint) (queue, prefill, delay, step, longer float64) {
	if e.Profile != f.profile {
		f.take(e.Profile)
	}
	p := f.profile
	// A decode step reads the weights once, and then works for each sequence.
	weights, longer := p.Decode.Base, f.longer
	if p.Decode.AdapterSlowdown > 1 && (e.Adapters.Load() > 0 || len(e.Listed) > 0) {
		weights, longer = weights*p.Decode.AdapterSlowdown, longer*p.Decode.AdapterSlowdown
	}
	ours, peers := e.Backlog, e.Peers
	beside := float64(ours.Beside.Load()+peers.Beside.Load())*besideUnit + e.OthersBeside
	step = weights + beside + longer
	overhead, anyway, running := p.Prefill.Base, 0.0, 0.0 // of a step with prompts; of one without; rest of the running step
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
		// A step with other prompts has not begun. If those prompts fill their steps, this request
		// pays for its share; if not, it uses the room that is left.
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
	// Decoding requests get a token in each of these steps. Steps that are not full have room for
	// later prompts.
	return queue, prefill, max(0, prefill-(chunks-own*f.perChunk)*anyway), step, longer
}

// others returns the cost to the requests that decode at an endpoint, as shares of their
// objectives: each waits for the prefill, and then a little longer for each token. See rest.
func (f *forecast) others(e *Endpoint, delay, longer float64) float64 {
	const others = 1 / DefaultPerToken // for each request that no process reports
	urgency := float64(e.Backlog.Urgency.Load()+e.Peers.Urgency.Load())*urgencyUnit + float64(e.Others)*others
	return urgency * (delay*f.perOutput + longer)
}

// rest returns the share of recent time that prompts left for decoding. A delay costs more the
// smaller it is: with a second prompt soon after a first, answers with few tokens so far miss their
// objectives.
func (f *forecast) rest(e *Endpoint) float64 { return max(leastLeft, 1-e.Backlog.prompting(f.Now)) }

// leastLeft is the lower bound of rest.
const leastLeft = 0.1

// beyond reports whether the score for c already exceeds limit, whatever the endpoint lacks. It
// adds the cheap terms first, so that most calls stop early.
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

// takes returns how many tokens of an endpoint's KV cache the request needs.
func (f *forecast) takes(e *Endpoint) int { return f.Prompt - int(f.cached(e)) + f.Output/2 }

// estimate returns the complete prediction for the request at copy c of an endpoint.
func (f *forecast) estimate(e *Endpoint, c *Copy) (is Estimate) {
	is.Queue, is.Prefill, is.Delay, is.Step, is.Longer = f.at(e)
	p, there := f.profile, e.Pending()
	is.FrontendOverhead, is.Adapter = p.FrontendOverhead, InSlot
	if slower := p.Decode.AdapterSlowdown; !c.Base && slower > 1 && e.Adapters.Load() == 0 && len(e.Listed) == 0 {
		is.Step, is.Longer = is.Step*slower, is.Longer+is.Step*(slower-1) // it is the first adapter there
	}
	life := is.Prefill + float64(f.Output)*is.Step // mean time of a request
	if over := there + 1 - int64(p.Limits.MaxSequences); over > 0 {
		is.Room = float64(over) / float64(p.Limits.MaxSequences) * life
	}
	// Requests free KV cache as they end: the whole cache in one mean request time.
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

// join adds the prompts that are expected to arrive while the request waits. They run in its
// prefill step, so its first token comes with theirs. They pay for that cost, so that it does not
// count against this endpoint.
func (f *forecast) join(e *Endpoint, is *Estimate) {
	if is.Queue > 0 && is.Queue < chunk(e.Profile) {
		is.Prefill += is.Queue * min(1, e.Backlog.prompting(f.Now))
	}
}

// misses returns the probability that an answer with steps of this predicted length misses a
// configured time per output token: 0 for much shorter steps, 1 for much longer ones. Predictions
// are off by tens of percent. A hard limit would move sessions away from their prefix caches for a
// step that is barely too long.
func (f *forecast) misses(step float64) float64 {
	return min(max(0, (step*f.perStep-surelyKept)*(1/(surelyMissed-surelyKept))), 1)
}

// surelyKept and surelyMissed are ratios of predicted step to objective. At or below surelyKept,
// misses is 0; at or above surelyMissed, it is 1. docs/decisions/0023-pick-by-predicted-time.md
// compares other values.
const surelyKept, surelyMissed = 0.8, 1.2

// scoreOf orders by cost.
func scoreOf(cost float64) score {
	return score{second: int64(math.Float64bits(cost))} //nolint:gosec // of floats that are not negative, the greater has the greater bits
}

// leaves is the probability that an evicted adapter is requested again within the mean time that
// adapters stay in their slots: 1 - 1/e for Poisson arrivals.
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

// slot returns how long one more adapter waits for a slot, and the cost to the next adapter because
// this one occupies a slot. Life is the mean time of a request.
//
// A slot is free again when its adapter has no requests. The last of n independent requests ends
// after life * (1 + 1/2 + ... + 1/n) on average, so the adapter with the fewest requests frees its
// slot first.
func (e *Endpoint) slot(life float64) (wait, price float64) {
	active := e.ActiveAdapters()
	turn := life / float64(e.Slots) // mean time until a slot is free if each adapter has one request
	if active < e.Slots {
		return 0, turn * e.Resident.Blocks(int(active))
	}
	each := float64(e.Pending()) / float64(active)
	return float64(active-e.Slots+1) * turn * (1 + math.Log(max(1, each))), 0
}
