package decide

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// An engine may have more adapters registered than its memories hold. As many as its GPU has slots
// are served at once, and requests for another one wait until one of these has no request at all:
// two adapters that always have some starve a third on two slots (vLLM 0.32, max_loras). What host
// memory does not hold is read from storage again before it is served (max_cpu_loras). So adapters
// that are in use are kept apart: what has the choice goes where slots are free, and at a tick one
// leaves where more are in use than there are slots for.

// demand is how much of its engine's memories the adapters ask for that are used at an endpoint.
type demand struct {
	// gpu is how many have requests in flight, in the mean of some seconds.
	gpu float64
	// host is how many are in use.
	host int
}

// freeSlot is how much of a slot of the GPU has to be free, in the mean, for any other adapter to
// get its turn there.
const freeSlot = 0.5

// slotsOff is by how much of a slot what is in use may be off, for it is a mean.
const slotsOff = 0.05

// starves says whether requests would wait for a slot of the GPU for long if an adapter that has
// requests for this share of the time were there, and so many were registered, it among them.
func (e *endpoint) starves(registered int, presence float64) bool {
	return e.GPUAdapters > 0 && registered > e.GPUAdapters && e.demand.gpu+max(presence, freeSlot) > float64(e.GPUAdapters)+slotsOff
}

// rereads says whether an adapter that is put there has one that is in use be read from storage
// again.
func (e *endpoint) rereads() bool { return e.HostAdapters > 0 && e.demand.host >= e.HostAdapters }

// presence is the share of the time in which a copy of the model has requests, of the mean copy.
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

// measureDemands finds what is asked of the memories of all endpoints, as of a tick.
func measureDemands(s *State, now time.Time) {
	for _, e := range s.endpoints {
		if e.demand = (demand{}); !e.holdsFew() {
			continue
		}
		for _, c := range e.copies {
			if c.asks() && !slices.ContainsFunc(e.twins(c), func(o *Copy) bool { return o.asks() && o.asksBefore(c) }) {
				e.ask(c, now)
			}
		}
	}
}

// holdsFew says whether anybody knows how many adapters the memories of an endpoint's engine hold.
func (e *endpoint) holdsFew() bool { return e.GPUAdapters > 0 || e.HostAdapters > 0 }

// twins are the copies that other pools of an endpoint have of the same model there: the engine has
// it once, for all of them.
func (e *endpoint) twins(c *Copy) (all []*Copy) {
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

// asks says whether a copy asks for the memories of its engine, and goes on doing so.
func (c *Copy) asks() bool { return c.remains() && !c.followed() }

// asksBefore orders copies of several pools of what their engine has once: the one that is more
// present asks for all.
func (c *Copy) asksBefore(o *Copy) bool {
	return cmp.Or(cmp.Compare(o.presence, c.presence), c.Compare(o.CopyKey)) < 0
}

// ask adds to an endpoint what a copy asks of its memories, where anybody knows how much they hold.
func (e *endpoint) ask(c *Copy, now time.Time) {
	if !e.holdsFew() {
		return
	}
	e.demand.gpu += c.presence
	if now.Sub(c.model.lastUsed) < inUse {
		e.demand.host++
	}
}

// followed says whether another copy is on its way that takes this one's place.
func (c *Copy) followed() bool {
	for _, o := range c.model.copies {
		if o.claim.from == c.Endpoint && o.State < Loaded && o.remains() {
			return true
		}
	}
	return false
}

// spreadAdapters has adapters leave endpoints at which more have requests all the time than the GPU
// has slots, for others where they have one: one of an endpoint, and of few endpoints at one tick.
func spreadAdapters(s *State, now time.Time) (todo []Action) {
	moves := max(1, int(movesAtOnce*float64(len(s.endpoints))))
	for _, address := range slices.Sorted(maps.Keys(s.endpoints)) {
		e := s.endpoints[address]
		excess := e.demand.gpu - float64(e.GPUAdapters)
		if moves == 0 || e.GPUAdapters == 0 || excess <= slotsOff || !e.useful() {
			continue
		}
		for _, c := range crowding(e, excess) {
			if c.followed() {
				continue
			}
			if o := relievingEndpoint(c); o != nil {
				o.demand.gpu += c.presence
				drainCopy(s, c, now)
				moves--
				break
			}
			by := claim{purpose: ForSlots, below: c.model.worth, spares: true, idle: true, from: e.Address}
			if best, _ := choosePlace(s, c.model, by); best.e != nil {
				todo = append(todo, putCopy(s, c.model, best.e, by, now)...)
				moves--
				break
			}
		}
	}
	return todo
}

// crowding are the copies that may leave an endpoint where more are in use than there are slots, in
// order. First those that are present enough to end that excess alone: of these the one whose
// requests end soonest, for its slot is free soonest, and requests of one that starves do not end.
// Then the others, the most present first.
func crowding(e *endpoint, excess float64) (all []*Copy) {
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
			return cmp.Or(cmp.Compare(a.model.stay(), b.model.stay()), a.Key.Compare(b.Key))
		}
		return cmp.Or(cmp.Compare(b.presence, a.presence), a.Key.Compare(b.Key))
	})
	return all
}

// stay is how long a request is at its engine, in seconds, in the mean of minutes.
func (l *load) stay() float64 {
	if l.slowRate == 0 {
		return math.Inf(1)
	}
	return l.slowFlight / l.slowRate
}

// relievingEndpoint is another endpoint that has what a copy has and where its requests get a slot,
// if the model can spare the copy.
func relievingEndpoint(c *Copy) *endpoint {
	m := c.model
	if !isSpared(c) {
		return nil
	}
	for _, o := range m.copies {
		if e := o.endpoint; o != c && o.State == Loaded && !o.misplaced() && e.useful() && !e.starves(e.tally().remain.models, c.presence) {
			return e
		}
	}
	return nil
}

// isSpared says whether a copy may leave though nothing else needs its room: others are there, and
// as many as there are to be.
func isSpared(c *Copy) bool {
	return c.State == Loaded && remaining(c.model) > max(c.model.needs(), c.model.aim) && !c.model.starved(c)
}

// releasePredecessor lets the copy go whose place one takes that is loaded now, if nobody needs
// both.
func releasePredecessor(s *State, c *Copy, now time.Time) {
	if old := c.model.at(c.claim.from); old != nil && isSpared(old) {
		drainCopy(s, old, now)
	}
}
