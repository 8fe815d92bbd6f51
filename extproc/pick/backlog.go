package pick

import (
	"math"
	"sync/atomic"
)

// Backlog is the work that unfinished requests still cause at an endpoint. All snapshots share it,
// and it is safe for concurrent use. Every field but the times is a sum over those requests. Times
// are nanoseconds since 1970 of a clock that is never set back.
type Backlog struct {
	// Through is the predicted end of the prefill of this process's requests if the engine had no
	// others. See [Estimate].
	Through atomic.Int64
	// Queue is the same with the requests that other processes report.
	Queue atomic.Int64
	// Lately is the time that the endpoint spent on prompts recently, including the prompts that
	// other processes report. It decays by a factor of e per memory. See prompting.
	Lately atomic.Int64
	// Beside is the time that the requests add to each decode step, in picoseconds.
	Beside atomic.Int64
	// Urgency is the sum of 1/objective for time per output token, in thousandths of 1/s.
	Urgency atomic.Int64
	// Tokens is the KV cache in use, in tokens: prompts without their shared prefixes, plus half a
	// mean answer each.
	Tokens atomic.Int64
	// ServiceTimes is the sum of the known service times of tokenless requests, in nanoseconds.
	// Timed is the number of those requests.
	ServiceTimes, Timed atomic.Int64

	// contexts holds two numbers, so that both are read atomically: the number of requests with
	// tokens times contextUnit, plus the tokens of their prompts and of half a mean answer each.
	contexts atomic.Int64
}

// contextUnit exceeds the tokens of all requests at an endpoint.
const contextUnit = 1 << 40

// Contexts returns the number of requests with tokens that this process has at an endpoint, and
// their tokens: each whole prompt, shared or not, and half a mean answer.
func (b *Backlog) Contexts() (requests, tokens int64) {
	is := b.contexts.Load()
	return is / contextUnit, is % contextUnit
}

// Peers is the work that other processes report for an endpoint. Its Queue, Lately and ServiceTimes
// stay 0. It is safe for concurrent use.
type Peers struct {
	Backlog
	// Requests is the number of their requests. It includes requests without predictions.
	Requests atomic.Int64
}

const (
	besideUnit  = 1e-12 // seconds
	urgencyUnit = 1e-3  // 1/s
)

// Claim is what one request adds to a Backlog.
type Claim struct{ prefill, beside, urgency, tokens, serviceTime, timed, context int64 }

// claim returns the claim of the request at an endpoint. It is zero without a prediction.
func (f *forecast) claim(e *Endpoint, is *Estimate) Claim {
	return Claim{
		prefill: int64((is.Load + is.Delay) * 1e9), beside: int64(is.Longer / besideUnit), urgency: int64(1 / f.PerToken / urgencyUnit),
		tokens: int64(f.takes(e)), context: contextUnit + int64(f.Prompt+f.Output/2),
	}
}

// Begin adds a claim at time now, in nanoseconds since 1970.
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

// Others adds prefill time of other processes, in nanoseconds, reported at time now. It may be
// negative.
func (b *Backlog) Others(more, now int64) {
	extend(&b.Queue, more, now)
	b.spend(more, now)
}

// memory is the time constant of Lately's decay, in nanoseconds: about a hundred tokens of an
// answer. docs/decisions/0023-pick-by-predicted-time.md compares other values.
const memory = 4e9

// prompting returns the share of recent time that the endpoint spent on prompts. It exceeds 1 right
// after a burst.
func (b *Backlog) prompting(now int64) float64 {
	return math.Exp(float64(b.Lately.Load()-now) / memory)
}

// spend adds nanoseconds that prompts take. It may be negative.
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

// extend moves the end of a queue by so many nanoseconds. A queue that ended before now starts at
// now.
func extend(end *atomic.Int64, by, now int64) {
	for by != 0 {
		was := end.Load()
		if end.CompareAndSwap(was, max(was, now)+by) {
			return
		}
	}
}

// left returns the nanoseconds of prefill that remain at time now. It is 0 or less if none remain.
func (b *Backlog) left(now int64) int64 { return b.Queue.Load() - now }

// Idle records that the endpoint has no requests of any process, so that no prefill remains.
func (b *Backlog) Idle() { b.Queue.Store(0) }

// End removes a claim. last means that no other request of this process remains at the endpoint.
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
