package pick

import (
	"math"
	"sync/atomic"
)

// Backlog is the remaining work of one endpoint's unfinished requests. All snapshots share it, and
// it is safe for concurrent use. Through, Queue, Starts, Lately and Computing are times; all other
// fields are sums over those requests. Times are nanoseconds since 1970 of a clock that is never
// set back.
type Backlog struct {
	// Through is when the prompts of this process's requests would be computed if the engine had no
	// other requests.
	Through atomic.Int64
	// Queue is when the prompts of all processes' requests will be computed.
	Queue atomic.Int64
	// Starts is when the last step with queued prompts starts. A prompt that arrives before joins
	// this step. A later one needs a further step, which reads the weights once more.
	Starts atomic.Int64
	// Lately is the time that the endpoint recently spent on prompts of all processes. It decays by
	// a factor of e in each period of the constant memory. See prompting.
	Lately atomic.Int64
	// Computing is like Lately, but of the time to compute prompts alone. Lately also contains time
	// of steps in which decoding requests got tokens.
	Computing atomic.Int64
	// Beside is the time that these requests add to each decode step, in picoseconds.
	Beside atomic.Int64
	// Urgency is the sum of 1/objective over these requests, in thousandths of 1/s. The objective
	// is that for time per output token.
	Urgency atomic.Int64
	// Tokens is the KV cache that these requests use, in tokens: for each one the part of its
	// prompt that is not shared, plus half a mean answer.
	Tokens atomic.Int64
	// ServiceTimes is the sum of the known service times of tokenless requests, in nanoseconds.
	// Timed is the number of those requests.
	ServiceTimes, Timed atomic.Int64
	// Withdrawn is the time that [Backlog.Withdraw] has taken from Queue since the process started.
	Withdrawn atomic.Int64
	// Objectives counts the requests that state an objective for time per output token.
	Objectives Objectives

	// contexts packs two numbers into one, so that both are read atomically: the number of requests
	// that have tokens, times contextUnit, plus their tokens. A request's tokens are its whole
	// prompt and half a mean answer.
	contexts atomic.Int64
}

// contextUnit is larger than any sum of tokens at an endpoint.
const contextUnit = 1 << 40

// Contexts returns how many requests with tokens this process has at the endpoint, and the sum of
// their tokens. A request's tokens are its whole prompt and half a mean answer.
func (b *Backlog) Contexts() (requests, tokens int64) {
	is := b.contexts.Load()
	return is / contextUnit, is % contextUnit
}

// Peers is the work of other processes' requests at an endpoint, as these processes report it. Its
// Queue, Lately and ServiceTimes stay 0. It is safe for concurrent use.
type Peers struct {
	Backlog
	// Requests is the number of other processes' requests, with and without predictions.
	Requests atomic.Int64
}

const (
	besideUnit  = 1e-12 // unit of Beside, in seconds
	urgencyUnit = 1e-3  // unit of Urgency, in 1/s
)

// Claim is what one request adds to a Backlog.
type Claim struct {
	prefill, beside, urgency, tokens, serviceTime, timed, context int64
	computing                                                     int64  // part of prefill, as in Computing
	objective                                                     uint64 // key in Objectives; 0 for none
	// opens reports that the prompt needs a further step. Queue is then how much later
	// [Backlog.Queue] is because of that, and starts is from the former end of the queue to the
	// start of the prompt's last step.
	opens         bool
	queue, starts int64
}

// longestPrompt limits the time that one prompt adds to a Backlog, in seconds. It keeps sums within
// their type if a profile has huge times.
const longestPrompt = 3600

// prompts converts a time for prompts from seconds to nanoseconds, at most longestPrompt. NaN
// becomes 0.
func prompts(seconds float64) int64 {
	if !(seconds > 0) {
		return 0
	}
	return int64(min(seconds, longestPrompt) * 1e9)
}

// claim returns the claim of the request at an endpoint. It is zero if nothing was predicted.
func (f *forecast) claim(e *Endpoint, is *Estimate, g *Gate) Claim {
	c := Claim{
		prefill: prompts(is.Load + is.Delay), beside: int64(is.Longer / besideUnit), urgency: int64(1 / f.PerToken / urgencyUnit),
		tokens: int64(f.takes(e)), context: contextUnit + int64(f.Prompt+f.Output/2), opens: !f.joins(e),
	}
	if c.opens {
		// The current step ends first. Other requests may have lengthened the queue since the
		// prediction.
		before := is.Load + max(0, is.Queue-float64(max(0, e.Backlog.left(f.Now)))*1e-9)
		chunks := math.Ceil((f.prompt - f.cached(e)) / float64(e.Profile.Limits.MaxBatchedTokens))
		c.queue, c.starts = prompts(before+is.Prefill), prompts(before+is.Prefill*(chunks-1)/chunks)
	}
	if g.On {
		c.computing = prompts(is.Load + f.computing(e))
		if f.Stated {
			c.objective = keyOf(g.Band, f.PerToken)
		}
	}
	return c
}

// Queued is the place of a request's prompt in a Backlog.
type Queued struct {
	// through and queue are the times of the Backlog with this prompt as the last one. adds is how
	// much later queue is because of the prompt. withdrawn is [Backlog.Withdrawn] at that time.
	through, queue, adds, withdrawn int64
}

// Begin adds a claim at time now, in nanoseconds since 1970, and returns the place of its prompt.
// If another prompt has opened a step since the decision, this prompt joins that step.
func (b *Backlog) Begin(c Claim, now int64) Queued {
	b.Beside.Add(c.beside)
	b.Urgency.Add(c.urgency)
	b.Tokens.Add(c.tokens)
	b.contexts.Add(c.context)
	b.Objectives.add(c.objective, 1)
	if c.timed != 0 {
		b.ServiceTimes.Add(c.serviceTime)
		b.Timed.Add(c.timed)
	}
	queue := c.prefill
	if c.opens && b.open(c.starts, now) {
		queue = c.queue
	}
	spend(&b.Lately, c.prefill, now)
	spend(&b.Computing, c.computing, now)
	withdrawn := b.Withdrawn.Load()
	return Queued{through: extend(&b.Through, c.prefill, now), queue: extend(&b.Queue, queue, now), adds: queue, withdrawn: withdrawn}
}

// Withdraw removes the part of a prompt that is not computed at time now, because its request has
// ended: the client has cancelled it, or the prompt took less time than predicted. Otherwise a long
// cancelled prompt would keep requests away until the endpoint is idle. Parts of other prompts that
// were withdrawn since count as if they were ahead of this one, so that Withdraw removes too little
// rather than too much.
func (b *Backlog) Withdraw(c Claim, q Queued, now int64) {
	gone := b.Withdrawn.Load() - q.withdrawn
	left := min(q.queue-gone-now, q.adds)
	if left <= 0 {
		return
	}
	b.Withdrawn.Add(left)
	b.shorten(left, now)
	spend(&b.Lately, -min(left, c.prefill), now)
	spend(&b.Computing, -min(left, c.computing), now)
	if left = min(q.through-gone-now, c.prefill); left > 0 {
		extend(&b.Through, -left, now)
	}
}

// shorten removes the time of prompts that are ahead of the last step from Queue.
func (b *Backlog) shorten(by, now int64) {
	extend(&b.Queue, -by, now)
	if b.Starts.Load() > b.Queue.Load() {
		b.Starts.Add(-by)
	}
}

// Others adds prefill time that other processes report at time now, in nanoseconds. The time may be
// negative. Step is the time of a step that decodes for the endpoint's requests. If the prompts
// need a further step, they wait for that, too.
func (b *Backlog) Others(more, step, now int64) {
	queue := more
	if more >= leastReported && b.open(0, now) {
		queue += step
	}
	if more < 0 {
		b.shorten(-more, now)
	} else {
		extend(&b.Queue, queue, now)
	}
	spend(&b.Lately, more, now)
	spend(&b.Computing, more, now)
}

// leastReported is the shortest time of newly reported prompts, in nanoseconds. The delay of
// reports varies, so shorter times may come from earlier prompts.
const leastReported = 1e6

// open sets Starts to a further step, which starts this long after the end of the queue. It returns
// false if queued prompts already wait for a step that has not started at time now.
func (b *Backlog) open(after, now int64) bool {
	started := b.Starts.Load()
	return started <= now && b.Starts.CompareAndSwap(started, max(b.Queue.Load(), now)+after)
}

// memory is the time constant of Lately's decay, in nanoseconds. A request gets about a hundred
// output tokens in that time. docs/decisions/0023-pick-by-predicted-time.md compares other values.
const memory = 4e9

// prompting returns the share of recent time that the endpoint spent on prompts. It exceeds 1 right
// after a burst.
func (b *Backlog) prompting(now int64) float64 { return lately(&b.Lately, now) }

// lately returns the share of recent time that a decaying sum has.
func lately(sum *atomic.Int64, now int64) float64 {
	return math.Exp(float64(sum.Load()-now) / memory)
}

// spend adds time to a decaying sum, in nanoseconds. The time may be negative.
func spend(sum *atomic.Int64, by, now int64) {
	for by != 0 {
		was := sum.Load()
		share, until := math.Exp(float64(was-now)/memory)+float64(by)/memory, int64(0)
		if share > 0 {
			until = now + int64(memory*math.Log(share))
		}
		if sum.CompareAndSwap(was, until) {
			return
		}
	}
}

// extend moves the end of a queue by this many nanoseconds, and returns it. If the end is already
// past, it first becomes now.
func extend(end *atomic.Int64, by, now int64) (until int64) {
	for {
		was := end.Load()
		if by == 0 {
			return was
		}
		if until = max(was, now) + by; end.CompareAndSwap(was, until) {
			return until
		}
	}
}

// left returns the nanoseconds of prefill that remain at time now. It is 0 or less if none remain.
func (b *Backlog) left(now int64) int64 { return b.Queue.Load() - now }

// Idle records that no process has requests at the endpoint, so that no prefill remains.
func (b *Backlog) Idle() {
	b.Queue.Store(0)
	b.Starts.Store(0)
}

// End removes a request's claim. The argument last reports that this process has no other request
// at the endpoint.
func (b *Backlog) End(c Claim, last bool) {
	b.Beside.Add(-c.beside)
	b.Urgency.Add(-c.urgency)
	b.Tokens.Add(-c.tokens)
	b.contexts.Add(-c.context)
	b.Objectives.add(c.objective, -1)
	if c.timed != 0 {
		b.ServiceTimes.Add(-c.serviceTime)
		b.Timed.Add(-c.timed)
	}
	if last {
		b.Through.Store(0)
	}
}
