package fleet

import (
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// Peek reads what a Fleet remembers of earlier requests, without leaving a trace: nothing that it
// reads counts as used, and nothing is learned. Its methods are otherwise those of [Fleet].
type Peek struct{ fleet *Fleet }

// Peek returns a Peek of the Fleet.
func (f *Fleet) Peek() Peek { return Peek{f} }

// Maker is like [Fleet.Maker].
func (p Peek) Maker(answer string) (Maker, bool) { return p.fleet.makers.Peek(answer) }

// Nowhere is like [Fleet.Nowhere].
func (p Peek) Nowhere(answer string) bool {
	at, ok := p.fleet.nowhere.Peek(answer)
	return ok && p.fleet.Now().Sub(at) < nowhereFor
}

// RequestStats is like [Fleet.RequestStats].
func (p Peek) RequestStats(k objects.ModelKey) *endpointstate.RequestStats {
	if h, ok := p.fleet.requestStats.Peek(p.fleet.first(k)); ok {
		return h
	}
	h, _ := p.fleet.requestStats.Peek(objects.ModelKey{Pool: k.Pool})
	return h
}

// ServiceTime is like [Fleet.ServiceTime].
func (p Peek) ServiceTime(k objects.ModelKey) int64 {
	if t, ok := p.fleet.serviceTimes.Peek(p.fleet.first(k)); ok {
		return t.Nanoseconds()
	}
	return 0
}

// Cached is like [Fleet.Cached].
func (p Peek) Cached(r *pick.Request, blocks []uint64, dst []int32) []int32 {
	of := p.fleet.View().Snapshot.Pools[r.Pool]
	all := &p.fleet.prefixes
	all.mu.Lock()
	defer all.mu.Unlock()
	return endpointstate.PeekCached(all.index, of, r, blocks, dst)
}
