package decide

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// An engine may have more adapters registered than fit into its memory. It serves only as many at
// the same time as its GPU has slots (vLLM 0.32, max_loras). Requests for another adapter wait
// until one of the served adapters has no requests: on two slots, two adapters that always have
// requests starve a third one. An adapter that is not in host memory (max_cpu_loras) is read from
// storage again before it is served. So adapters in use are spread: a new copy goes to an endpoint
// with free slots, and at a tick, an adapter is moved away from an endpoint that has more adapters
// in use than slots.

// demand is how much of an engine's GPU slots and host memory the adapters at an endpoint use.
type demand struct {
	// gpu is the mean number of adapters with requests in flight, over some seconds.
	gpu float64
	// host is the number of adapters in use.
	host int
}

// freeSlot is the share of a GPU slot that must be free on average for another adapter to be
// served.
const freeSlot = 0.5

// slotTolerance is how far the mean use of slots may exceed their number before adapters are moved.
const slotTolerance = 0.05

// starves reports whether requests for an adapter would wait a long time for a GPU slot at this
// endpoint. presence is the share of time in which the adapter has requests. registered is the
// number of registered adapters, including this one.
func (e *endpoint) starves(registered int, presence float64) bool {
	return e.GPUAdapters > 0 && registered > e.GPUAdapters && e.demand.gpu+max(presence, freeSlot) > float64(e.GPUAdapters)+slotTolerance
}

// rereads reports whether one more adapter would displace an adapter in use from host memory, so
// that the displaced adapter would have to be read from storage again.
func (e *endpoint) rereads() bool { return e.HostAdapters > 0 && e.demand.host >= e.HostAdapters }

// presence returns the share of time in which a copy of the model has requests, as the mean of its
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

// hasSlotLimits reports whether the number of adapters that fit into the engine's GPU or host
// memory is known.
func (e *endpoint) hasSlotLimits() bool { return e.GPUAdapters > 0 || e.HostAdapters > 0 }

// duplicates returns the copies of the same model for other pools of the endpoint. The engine has
// the model only once for all of these copies.
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

// usesMemory reports whether a copy uses its engine's GPU or host memory, and is to stay.
func (c *Copy) usesMemory() bool { return c.remains() && !c.isReplaced() }

// countsBefore orders the copies of one model for several pools of an endpoint. The copy with the
// largest presence comes first; it alone is included in the demand.
func (c *Copy) countsBefore(o *Copy) bool {
	return cmp.Or(cmp.Compare(o.presence, c.presence), c.Compare(o.CopyKey)) < 0
}

// addDemand adds a copy to the demand of its endpoint, if the number of adapters that fit into the
// engine's memory is known.
func (e *endpoint) addDemand(c *Copy, now time.Time) {
	if !e.hasSlotLimits() {
		return
	}
	e.demand.gpu += c.presence
	if now.Sub(c.model.lastUsed) < inUse {
		e.demand.host++
	}
}

// isReplaced reports whether another copy that is being loaded, or will be, is to replace this one.
func (c *Copy) isReplaced() bool {
	for _, o := range c.model.copies {
		if o.claim.from == c.Endpoint && o.State < Loaded && o.remains() {
			return true
		}
	}
	return false
}

// spreadAdapters moves adapters from endpoints with more adapters in constant use than GPU slots to
// endpoints with a free slot. At one tick, it moves at most one adapter from each endpoint, and
// only from a few endpoints.
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

// overcommitted returns the copies that may be moved away from an endpoint with more adapters in
// use than slots, the best to move first. First are the copies whose presence alone is at least the
// excess. Of these, the copy with the shortest requests is first, since its slot is free soonest.
// The others follow, the largest presence first.
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

// meanRequestTime returns how long a request is at its engine, in seconds, as a mean over some
// minutes.
func (l *load) meanRequestTime() float64 {
	if l.slowRate == 0 {
		return math.Inf(1)
	}
	return l.slowFlight / l.slowRate
}

// endpointWithFreeSlot returns another endpoint that has a copy of the same model and a free slot;
// nil if there is none, or if the copy c is needed.
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

// isRedundant reports whether a loaded copy may be removed even if nothing needs its room: enough
// other copies of its model exist.
func isRedundant(c *Copy) bool {
	return c.State == Loaded && remaining(c.model) > max(c.model.needs(), c.model.aim) && !c.model.starved(c)
}

// releasePredecessor drains the copy that the newly loaded copy c replaces, unless both are needed.
func releasePredecessor(s *State, c *Copy, now time.Time) {
	if old := c.model.at(c.claim.from); old != nil && isRedundant(old) {
		drainCopy(s, old, now)
	}
}
