package decide

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// An engine may have more adapters registered than fit into its memories. It serves at once as many
// as its GPU has slots (vLLM 0.32, max_loras). Requests for another adapter wait until one of these
// has no request at all: on two slots, two adapters that always have requests starve a third. An
// adapter that host memory does not have (max_cpu_loras) is read from storage again before it is
// served. So adapters in use are spread: a new copy goes to an endpoint with free slots, and at a
// tick, an adapter leaves an endpoint that has more adapters in use than slots.

// demand is the use of an engine's slots and host memory by the adapters at an endpoint.
type demand struct {
	// gpu is the mean number of adapters with requests in flight, over some seconds.
	gpu float64
	// host is the number of adapters in use.
	host int
}

// freeSlot is the mean share of a GPU slot that must be free for another adapter to be served.
const freeSlot = 0.5

// slotTolerance is the tolerance of the mean use of slots.
const slotTolerance = 0.05

// starves reports whether requests for an adapter would wait long for a GPU slot at this endpoint.
// presence is the share of time in which the adapter has requests, and registered is the number of
// registered adapters including this one.
func (e *endpoint) starves(registered int, presence float64) bool {
	return e.GPUAdapters > 0 && registered > e.GPUAdapters && e.demand.gpu+max(presence, freeSlot) > float64(e.GPUAdapters)+slotTolerance
}

// rereads reports whether one more adapter would push one in use out of host memory, so that it has
// to be read from storage again.
func (e *endpoint) rereads() bool { return e.HostAdapters > 0 && e.demand.host >= e.HostAdapters }

// presence returns the share of time in which a copy of the model has requests, averaged over its
// copies.
func (m *model) presence() float64 {
	if len(m.copies) == 0 {
		return 0
	}
	sum := 0.0
	for _, c := range m.copies {
		sum += c.presence
	}
	return sum / float64(len(m.copies))
}

// measureDemands computes the demand at all endpoints, at a tick.
func measureDemands(s *State, now time.Time) {
	for _, e := range s.endpoints {
		if e.demand = (demand{}); !e.hasSlotLimits() {
			continue
		}
		for _, c := range e.copies {
			if c.usesMemory() && !slices.ContainsFunc(e.duplicates(c), func(o *Copy) bool { return o.usesMemory() && o.countsBefore(c) }) {
				e.addDemand(c, now)
			}
		}
	}
}

// hasSlotLimits reports whether the number of adapters that fit into the engine's memories is
// known.
func (e *endpoint) hasSlotLimits() bool { return e.GPUAdapters > 0 || e.HostAdapters > 0 }

// duplicates returns the copies of the same model for other pools of the endpoint. The engine has
// it once for all of them.
func (e *endpoint) duplicates(c *Copy) (all []*Copy) {
	for _, p := range e.pools {
		if p == c.Pool {
			continue
		}
		if o := e.copies[Key{Pool: p, ID: c.ID}]; o != nil {
			all = append(all, o)
		}
	}
	return all
}

// usesMemory reports whether a copy uses the memories of its engine, and will continue to.
func (c *Copy) usesMemory() bool { return c.remains() && !c.isReplaced() }

// countsBefore orders the copies for several pools of one model at an engine. The one with the
// larger presence counts for all.
func (c *Copy) countsBefore(o *Copy) bool {
	return cmp.Or(cmp.Compare(o.presence, c.presence), c.Compare(o.CopyKey)) < 0
}

// addDemand adds the demand of a copy to its endpoint, if the capacity of the engine's memories is
// known.
func (e *endpoint) addDemand(c *Copy, now time.Time) {
	if !e.hasSlotLimits() {
		return
	}
	e.demand.gpu += c.presence
	if now.Sub(c.model.lastUsed) < inUse {
		e.demand.host++
	}
}

// isReplaced reports whether another copy on its way will replace this one.
func (c *Copy) isReplaced() bool {
	for _, o := range c.model.copies {
		if o.claim.from == c.Endpoint && o.State < Loaded && o.remains() {
			return true
		}
	}
	return false
}

// spreadAdapters moves adapters from endpoints with more adapters in constant use than GPU slots to
// endpoints with a free slot: at one tick, one per endpoint and only from a few endpoints.
func spreadAdapters(s *State, now time.Time) (todo []Action) {
	moves := max(1, int(maxMoveShare*float64(len(s.endpoints))))
	for _, address := range slices.Sorted(maps.Keys(s.endpoints)) {
		e := s.endpoints[address]
		excess := e.demand.gpu - float64(e.GPUAdapters)
		if moves == 0 || e.GPUAdapters == 0 || excess <= slotTolerance || !e.useful() {
			continue
		}
		for _, c := range overcommitted(e, excess) {
			if c.isReplaced() {
				continue
			}
			if o := endpointWithFreeSlot(c); o != nil {
				o.demand.gpu += c.presence
				drainCopy(s, c, now)
				moves--
				break
			}
			by := claim{purpose: ForSlots, below: c.model.value, takesSurplus: true, idle: true, from: e.Address}
			if best, _ := choosePlace(s, c.model, by); best.e != nil {
				todo = append(todo, putCopy(s, c.model, best.e, by, now)...)
				moves--
				break
			}
		}
	}
	return todo
}

// overcommitted returns the copies that may leave an endpoint with more adapters in use than slots,
// the best to move first. These are the copies whose presence alone exceeds the excess, ordered by
// the end of their requests, since their slots are free soonest; the requests of a starving adapter
// do not end. The others follow, the largest presence first.
func overcommitted(e *endpoint, excess float64) (all []*Copy) {
	for _, c := range e.copies {
		if m := c.model; c.State == Loaded && c.presence > 0 && !m.Pinned && !m.foreign {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *Copy) int {
		enough := a.presence >= excess
		switch {
		case enough != (b.presence >= excess):
			return truth(!enough) - truth(enough)
		case enough:
			return cmp.Or(cmp.Compare(a.model.meanRequestTime(), b.model.meanRequestTime()), a.ModelKey.Compare(b.ModelKey))
		}
		return cmp.Or(cmp.Compare(b.presence, a.presence), a.ModelKey.Compare(b.ModelKey))
	})
	return all
}

// meanRequestTime returns the mean time that a request is at its engine, in seconds, over some
// minutes.
func (l *load) meanRequestTime() float64 {
	if l.slowRate == 0 {
		return math.Inf(1)
	}
	return l.slowFlight / l.slowRate
}

// endpointWithFreeSlot returns another endpoint with a copy of the same model and a free slot, if
// the model can spare this copy; otherwise nil.
func endpointWithFreeSlot(c *Copy) *endpoint {
	m := c.model
	if !isRedundant(c) {
		return nil
	}
	for _, o := range m.copies {
		if e := o.endpoint; o != c && o.State == Loaded && !o.misplaced() && e.useful() && !e.starves(e.tally().remain.models, c.presence) {
			return e
		}
	}
	return nil
}

// isRedundant reports whether a copy may leave even if its room is not needed: enough other copies
// exist.
func isRedundant(c *Copy) bool {
	return c.State == Loaded && remaining(c.model) > max(c.model.needs(), c.model.aim) && !c.model.starved(c)
}

// releasePredecessor removes the copy that a newly loaded one replaces, unless both are needed.
func releasePredecessor(s *State, c *Copy, now time.Time) {
	if old := c.model.at(c.claim.from); old != nil && isRedundant(old) {
		drainCopy(s, old, now)
	}
}
