package pick

import "sync/atomic"

// Backlog is what requests that were sent to an endpoint, and that have not ended, still ask of it. It lives on from snapshot to snapshot,
// and is safe for concurrent use. All but Through and Latest are sums over those requests.
type Backlog struct {
	// Through is when the prompts of all of them are computed, as far as predicted, in nanoseconds since 1970.
	Through atomic.Int64
	// Latest is when the latest of them began, in nanoseconds since 1970: the clock was set back where it is later than now.
	Latest atomic.Int64
	// Beside is what they add to each decode step, in picoseconds.
	Beside atomic.Int64
	// Urgency is 1/objective for each further token, in thousandths of 1/s.
	Urgency atomic.Int64
	// Held are the tokens that they take of the KV cache: what they do not share with an earlier request, and half of what answers have in
	// the mean.
	Held atomic.Int64
}

// Peers is what other processes have at an endpoint, as far as they tell. It is safe for concurrent use.
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
type Claim struct{ prefill, beside, urgency, held int64 }

// claim is that of the request where something is expected of it.
func (f *forecast) claim(e *Endpoint, is *Estimate) Claim {
	return Claim{
		prefill: int64((is.Load + is.Prefill) * 1e9), beside: int64(is.Longer / besideUnit), urgency: int64(1 / f.PerToken / urgencyUnit),
		held: int64(f.held(e)),
	}
}

// Begin adds a claim at a time, in nanoseconds since 1970.
func (b *Backlog) Begin(c Claim, now int64) {
	b.Beside.Add(c.beside)
	b.Urgency.Add(c.urgency)
	b.Held.Add(c.held)
	setBack := max(0, b.Latest.Swap(now)-now)
	for c.prefill > 0 {
		was := b.Through.Load()
		if b.Through.CompareAndSwap(was, max(was-setBack, now)+c.prefill) {
			return
		}
	}
}

// left is for how long prompts are still computed, at a time: both in nanoseconds. It is not positive where none are.
func (b *Backlog) left(now int64) int64 { return b.Through.Load() - max(now, b.Latest.Load()) }

// End takes a claim away. Last says that no request is left there: no prompt is left to be computed either.
func (b *Backlog) End(c Claim, last bool) {
	b.Beside.Add(-c.beside)
	b.Urgency.Add(-c.urgency)
	b.Held.Add(-c.held)
	if last {
		b.Through.Store(0)
	}
}
