package pick

import (
	"math"
	"sync/atomic"
)

// Backlog is what requests that were sent to an endpoint, and that have not ended, still ask of it. It lives on from snapshot to snapshot,
// and is safe for concurrent use. All but times are sums over those requests. Times are those of a clock that nobody sets, in nanoseconds since
// 1970.
type Backlog struct {
	// Through is the end of the work that their prompts add to the engine, see [Estimate], as far as predicted, where it computes nobody else's. The
	// last of them may be computed later, by the steps that it shares with those who decode.
	Through atomic.Int64
	// Queue is the same with those of other processes too, as far as they tell.
	Queue atomic.Int64
	// Lately says how much of the latest seconds the endpoint spent on prompts, those of other processes too, as far as they tell: all of them
	// at this time, and by a factor of e less each memory later. See prompting.
	Lately atomic.Int64
	// Beside is what they add to each decode step, in picoseconds.
	Beside atomic.Int64
	// Urgency is 1/objective for each further token, in thousandths of 1/s.
	Urgency atomic.Int64
	// Tokens are the tokens that they take of the KV cache: what they do not share with an earlier request, and half of what answers have in
	// the mean.
	Tokens atomic.Int64
	// ServiceTimes is the sum of the serviceTimes of those that are tokenless and whose serviceTime was known, in nanoseconds, and Timed how many these are.
	ServiceTimes, Timed atomic.Int64

	// contexts is the number of requests with tokens, times contextUnit, plus the tokens of their prompts and of half a mean answer each: one
	// number, so that both are read atomically.
	contexts atomic.Int64
}

// contextUnit exceeds the tokens of all requests at an endpoint.
const contextUnit = 1 << 40

// Contexts returns how many requests with tokens this process has at an endpoint, and how many tokens: of each its whole prompt, shared or not, and
// half a mean answer.
func (b *Backlog) Contexts() (requests, tokens int64) {
	is := b.contexts.Load()
	return is / contextUnit, is % contextUnit
}

// Peers is what other processes have at an endpoint, as far as they tell. It has no Queue, no Lately and no ServiceTimes. It is safe for concurrent use.
type Peers struct {
	Backlog
	// Requests is how many they are. Of those that predict nothing only this is told.
	Requests atomic.Int64
}

const (
	besideUnit  = 1e-12 // seconds
	urgencyUnit = 1e-3  // 1/s
)

// Claim is what one request adds to a Backlog.
type Claim struct{ prefill, beside, urgency, tokens, serviceTime, timed, context int64 }

// claim is that of the request where something is expected of it.
func (f *forecast) claim(e *Endpoint, is *Estimate) Claim {
	return Claim{
		prefill: int64((is.Load + is.Delay) * 1e9), beside: int64(is.Longer / besideUnit), urgency: int64(1 / f.PerToken / urgencyUnit),
		tokens: int64(f.takes(e)), context: contextUnit + int64(f.Prompt+f.Output/2),
	}
}

// Begin adds a claim at a time, in nanoseconds since 1970.
func (b *Backlog) Begin(c Claim, now int64) {
	b.Beside.Add(c.beside)
	b.Urgency.Add(c.urgency)
	b.Tokens.Add(c.tokens)
	b.contexts.Add(c.context)
	if c.timed != 0 {
		b.ServiceTimes.Add(c.serviceTime)
		b.Timed.Add(c.timed)
	}
	extend(&b.Through, c.prefill, now)
	b.Others(c.prefill, now)
}

// Others notes that it became known, at a time, that prompts of other processes take so many nanoseconds more, or less.
func (b *Backlog) Others(more, now int64) {
	extend(&b.Queue, more, now)
	b.spend(more, now)
}

// memory is how long it takes until what was spent on prompts counts for 1/e of what it did, in nanoseconds: some hundred tokens of an answer.
// docs/decisions/0023-pick-by-predicted-time.md has what other values do.
const memory = 4e9

// prompting is what share of the latest seconds, at a time, was spent on prompts. It may be above 1 where more than that came at once.
func (b *Backlog) prompting(now int64) float64 {
	return math.Exp(float64(b.Lately.Load()-now) / memory)
}

// spend notes that prompts take so many nanoseconds more, or less.
func (b *Backlog) spend(by, now int64) {
	for by != 0 {
		was := b.Lately.Load()
		share, until := math.Exp(float64(was-now)/memory)+float64(by)/memory, int64(0)
		if share > 0 {
			until = now + int64(memory*math.Log(share))
		}
		if b.Lately.CompareAndSwap(was, until) {
			return
		}
	}
}

// extend has a queue, which ends at a time or has ended before now, end so many nanoseconds later, or earlier.
func extend(end *atomic.Int64, by, now int64) {
	for by != 0 {
		was := end.Load()
		if end.CompareAndSwap(was, max(was, now)+by) {
			return
		}
	}
}

// left is for how long prompts are still computed, at a time: both in nanoseconds. It is not positive where none are.
func (b *Backlog) left(now int64) int64 { return b.Queue.Load() - now }

// Idle notes that the endpoint has no request, of whomever: no prompt is left to be computed.
func (b *Backlog) Idle() { b.Queue.Store(0) }

// End takes a claim away. Last says that no request of this process is left there.
func (b *Backlog) End(c Claim, last bool) {
	b.Beside.Add(-c.beside)
	b.Urgency.Add(-c.urgency)
	b.Tokens.Add(-c.tokens)
	b.contexts.Add(-c.context)
	if c.timed != 0 {
		b.ServiceTimes.Add(-c.serviceTime)
		b.Timed.Add(-c.timed)
	}
	if last {
		b.Through.Store(0)
	}
}
