package decide

import (
	"cmp"
	"math"
	"slices"
)

// claim defines what may be evicted for a copy, and where the copy may go.
type claim struct {
	purpose Purpose
	// asked: requests wait for the model.
	asked bool
	// below: models with an eviction value lower than this may be evicted.
	below float64
	// takesSurplus: surplus copies may be evicted, too.
	takesSurplus bool
	// settled: queued copies are not evicted, except copies that the engine may already have.
	settled bool
	// idle: the endpoint must be able to start the load at once, and must have free GPU slots.
	// fills: with the copy, the share keepFree of its capacity must still be free. leastLoaded: the
	// copy goes to the least loaded endpoint with free GPU slots.
	idle, fills, leastLoaded bool
	// from is the endpoint whose copy is unloaded once the new copy is loaded; it may be empty.
	from string
}

// claimOf returns the claim of a model that needs one more copy, because requests wait for the
// model, its minimum demands it, a client asked for a copy, or one of its copies is at a migrating
// endpoint. In the first two cases any evictable copy may be evicted for it; otherwise only surplus
// copies and models with a lower eviction value.
func claimOf(m *model) claim {
	starved := m.starved(nil)
	if starved || remaining(m) < m.min() {
		by := claim{purpose: ForLeast, below: math.Inf(1), takesSurplus: true}
		if starved {
			by.purpose, by.asked = ForRequests, true
		}
		return by
	}
	by := claim{purpose: ForRequests, below: m.value, takesSurplus: true}
	if remaining(m) < m.migrationGoal {
		by.purpose = ForMigration
	}
	return by
}

// place describes an endpoint as a place for one copy of a model.
type place struct {
	e *endpoint
	// victims is the number of copies that must be evicted first.
	victims int
	// free is the share of the endpoint's scarcest resource that stays free.
	free float64
	// worst is the rank of the most valuable victim.
	worst rank
	lot   uint64
	// turns is the number of consecutive loads that must end before this load begins.
	turns int
	// load is the endpoint's load if the claim depends on it; otherwise 0.
	load float64
	// starves: requests at the endpoint would wait a long time for a GPU slot. rereads: its host
	// memory is full of adapters in use, so one of these would have to be read from storage again.
	starves, rereads bool
}

// compare orders places, the best first. The criteria, in order of priority: requests get a GPU
// slot; fewest loads; lowest load, if the claim depends on it; no eviction is needed; lowest rank
// of the victims; most room left free. Ties are broken at random.
func (p *place) compare(o *place) int {
	if c := cmp.Or(truth(p.starves)-truth(o.starves), p.loads()-o.loads(), cmp.Compare(p.load, o.load),
		min(p.victims, 1)-min(o.victims, 1)); c != 0 {
		return c
	}
	if p.victims > 0 {
		if c := p.worst.compare(o.worst); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(o.free, p.free), cmp.Compare(p.lot, o.lot))
}

// loads returns the number of loads that requests wait for: the loads earlier in the queue, and one
// more if something must be evicted, since a later request may need what was evicted.
func (p *place) loads() int { return p.turns + truth(p.victims > 0 || p.rereads) }

// recencyMargin is a number of seconds. A victim at a preferred endpoint may have been used that
// much more recently than a victim elsewhere (ModelMesh 0.12, CacheMissForwardingLB).
const recencyMargin = 120

// isNearlyAsGoodAs reports whether a place is about as good as the best one: it adds no wait for a
// GPU slot, no wait for loads and no eviction that the best place avoids, and its victims are not
// much more valuable.
func (p *place) isNearlyAsGoodAs(best *place, by claim) bool {
	switch {
	case p.starves && !best.starves, p.rereads && !best.rereads, by.asked && p.turns > best.turns:
		return false
	case p.victims == 0:
		return true
	}
	return best.victims > 0 && p.worst.busy == best.worst.busy && p.worst.surplus == best.worst.surplus &&
		p.worst.value <= best.worst.value+
			recencyMargin
}

// choosePlace finds a place for one more copy of a model. If there is no place it returns the
// reason; an empty reason means that a place will become free. An outgoing endpoint is chosen only
// if there is no other, or if waiting requests would have to wait for more loads elsewhere
// (ModelMesh 0.12, UpgradeTracker).
func choosePlace(s *State, m *model, by claim) (best place, why Reason) {
	if refused, why := isRefused(m); refused {
		return place{}, why
	}
	reorder(s, s.now)
	soon := false
	var preferred, outgoing place
	var reasons [len(reasonsOfPlaces)]bool
	for _, e := range s.pool(m.Pool).endpoints {
		if m.has(e) {
			soon = soon || e.pod.Unready && e.state != down
			continue
		}
		p, ok, why := offerPlace(s, e, m, by)
		switch {
		case !ok && why == "":
			soon = true
		case !ok:
			reasons[slices.Index(reasonsOfPlaces[:], why)] = true
		default:
			p.lot = s.TieBreak(m.hash, e.hash)
			if e.pod.Outgoing {
				if outgoing.e == nil || p.compare(&outgoing) < 0 {
					outgoing = p
				}
				continue
			}
			if best.e == nil || p.compare(&best) < 0 {
				best = p
			}
			if m.fit.Preferred[e.Address] && (preferred.e == nil || p.compare(&preferred) < 0) {
				preferred = p
			}
		}
	}
	if preferred.e != nil && preferred.isNearlyAsGoodAs(&best, by) {
		best = preferred
	}
	if outgoing.e != nil && (best.e == nil || by.asked &&
		cmp.Or(truth(outgoing.starves)-truth(best.starves), outgoing.loads()-best.loads()) < 0) {
		best = outgoing
	}
	if best.e != nil || soon {
		return best, ""
	}
	for i, there := range reasons {
		switch why := reasonsOfPlaces[i]; {
		case !there:
		case why == LoadFailed:
			return place{}, m.whyFailed()
		default:
			return place{}, why
		}
	}
	return place{}, NoEndpoint
}

// reasonsOfPlaces are the reasons why an endpoint cannot get a copy, in order of priority. If no
// endpoint can get a copy of a model, the first of these reasons that occurred is reported.
var reasonsOfPlaces = [...]Reason{LoadFailed, NoRoom, TooLarge, NoEndpoint, NoLabels, CannotLoad}

// isRefused reports whether a model gets no more copies, whatever room there is, and why. An empty
// reason means that this is temporary.
func isRefused(m *model) (refused bool, why Reason) {
	if m.foreign { // the storage of a foreign model is unknown
		return true, UnknownModel
	}
	if m.Max > 0 {
		counted, going := 0, false
		for _, c := range m.copies {
			if c.endpoint.useful() && !c.misplaced() {
				counted++
				going = going || !c.remains()
			}
		}
		switch {
		case counted >= m.Max && going:
			return true, "" // temporary: until the copy that is being removed is gone
		case counted >= m.Max:
			return true, NoEndpoint
		}
	}
	switch {
	case len(m.failures) < maxFailures:
		return false, ""
	case slices.ContainsFunc(m.failures, m.isTransient):
		return true, ""
	}
	return true, m.whyFailed()
}

// has reports whether a copy of the model is at an endpoint, or is to be loaded there.
func (m *model) has(e *endpoint) bool {
	if len(m.copies) == 0 {
		return false
	}
	c := m.at(e.Address)
	return c != nil && c.remains()
}

// offerPlace returns an endpoint's place for a model. If the endpoint has no place for it,
// offerPlace returns the reason; an empty reason means that it may have a place soon. The
// endpoint's eviction order must be up to date.
func offerPlace(s *State, e *endpoint, m *model, by claim) (p place, ok bool, why Reason) {
	switch {
	case !m.fit.takes(e.Address):
		return p, false, NoLabels
	case e.Is():
		return p, false, NoEndpoint
	case e.state == unknown, e.outdated, e.pod.Outgoing && by.idle:
		return p, false, ""
	case len(m.copies) > 0 && m.at(e.Address) != nil:
		return p, false, "" // temporary: the model can be loaded there again after its unload
	case e.state == silent, e.state == down, m.unusable(e.Address), e.trial != nil && e.trial.Failed:
		return p, false, NoEndpoint
	case e.pod.Unready && by.purpose != ForTrial:
		return p, false, "" // temporary: until the endpoint is ready
	case !e.CanLoad || m.BaseModel != "" && len(e.BaseModels) > 0 && !slices.Contains(e.BaseModels, m.BaseModel):
		return p, false, CannotLoad
	}
	for _, f := range m.failures {
		switch {
		case f.Endpoint != e.Address:
		case m.isTransient(f):
			return p, false, ""
		default:
			return p, false, LoadFailed
		}
	}
	size := m.bytes
	if size == 0 {
		size = e.DefaultBytes
	}
	if e.Bytes > 0 && size > e.Bytes-e.reserve() {
		return p, false, TooLarge
	}
	t := e.tally()
	if by.idle && !e.idle() {
		return p, false, ""
	}
	size = e.room(m.ID, size)
	victims, worst, left, fits := e.shrink(m, nextTurn(s, m), by, t.remain.plus(size), nil)
	if by.fills && e.free(left) < keepFree {
		return p, false, NoRoom
	}
	if !fits {
		// Copies that are loading, or that requests wait for, may soon be evictable, and an assumed
		// leak may turn out not to exist.
		if without := t.stay.plus(size); by.asked && e.fits(amount{without.models, without.bytes - e.unconfirmedLeaks()}) {
			return p, false, ""
		}
		return p, false, NoRoom
	}
	p = place{
		e: e, victims: victims, free: e.free(left), worst: worst, turns: (e.turns() + len(t.queue)) / max(1, e.Loads),
		starves: e.starves(left.models, m.presence()), rereads: e.rereads(),
	}
	if (by.idle || by.leastLoaded) && (p.starves || p.rereads) && by.purpose != ForMigration { // a migration cannot wait for free slots
		return p, false, "" // once a request waits, the claim allows this place
	}
	if by.leastLoaded {
		p.load = e.load
	}
	return p, true, ""
}

// hasPlace reports whether an endpoint has a place for one more copy of a model. The endpoint's
// eviction order must be up to date.
func hasPlace(s *State, e *endpoint, m *model, by claim) bool {
	_, takes := placeAt(s, e, m, by)
	return takes
}

// placeAt returns an endpoint's place for one more copy of a model, if there is one. The endpoint's
// eviction order must be up to date.
func placeAt(s *State, e *endpoint, m *model, by claim) (p place, there bool) {
	if refused, _ := isRefused(m); refused || m.gone || m.has(e) {
		return place{}, false
	}
	p, there, _ = offerPlace(s, e, m, by)
	return p, there
}

// unusable reports whether any waiting request cannot use a copy at this endpoint.
func (m *model) unusable(address string) bool {
	if !m.restricted {
		return false
	}
	for _, w := range m.wants {
		if slices.Contains(w.Unusable, address) {
			return true
		}
	}
	return false
}
