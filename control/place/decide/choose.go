package decide

import (
	"cmp"
	"math"
	"slices"
)

// claim says what may be evicted for a copy, and where the copy may go.
type claim struct {
	purpose Purpose
	// asked: requests wait for the model.
	asked bool
	// below is an eviction value: models with a lower one may be evicted.
	below float64
	// takesSurplus: copies that their models can spare may be evicted, too.
	takesSurplus bool
	// settled: queued copies are not evicted, unless the engine may already have them.
	settled bool
	// idle: the endpoint must be able to start the load at once and have free GPU slots. With
	// fills, it must also keep the share keepFree free. With relieves, the copy goes to the least
	// loaded endpoint with free GPU slots.
	idle, fills, leastLoaded bool
	// from is the endpoint whose copy is unloaded once this one is loaded; it may be empty.
	from string
}

// claimOf returns the claim of a model that needs one more copy: requests wait for it, its minimum
// demands it, a client asked for it, or one of its copies is at a migrating endpoint. Only models
// with a lower eviction value are evicted for it.
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
	// victims is the number of copies to evict first.
	victims int
	// free is the share of the endpoint that stays free, of its scarcest resource.
	free float64
	// worst is the rank of the most valuable victim.
	worst rank
	lot   uint64
	// turns is the number of loads that come first, one after the other.
	turns int
	// load is the endpoint's load, if the claim depends on it.
	load float64
	// starves: requests there would wait long for a GPU slot. rereads: host memory is full of
	// adapters in use, so one of them would have to be read from storage again.
	starves, rereads bool
}

// compare orders places, the best first: first those where requests get a GPU slot; then those that
// need the fewest loads; then the least loaded ones, if the copy is to take load; then those with
// room, the most free first; then those with the lowest eviction value of victims; ties are broken
// at random.
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

// loads returns the number of loads that requests wait for: those earlier in the queue, and one
// more if something must be evicted, since a later request may need it again.
func (p *place) loads() int { return p.turns + truth(p.victims > 0 || p.rereads) }

// recencyMargin is, in seconds, how much more recently used a victim at a preferred endpoint may be
// than a victim elsewhere (ModelMesh 0.12, CacheMissForwardingLB).
const recencyMargin = 120

// isNearlyAsGoodAs reports whether a place is about as good as the best one: no request waits there
// for a GPU slot or for loads that the best place does not need, no eviction is needed there that
// the best place does not need, and the victims are not much more valuable.
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

// choosePlace finds a place for one more copy of a model. If there is none it returns the reason;
// an empty reason means that a place will come free. An outgoing endpoint is chosen only if there
// is no other, or if requests wait and would wait for more loads elsewhere (ModelMesh 0.12,
// UpgradeTracker).
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

// reasonsOfPlaces are the reasons why an endpoint takes no copy. If no endpoint takes a model, the
// first of these reasons that occurred is reported.
var reasonsOfPlaces = [...]Reason{LoadFailed, NoRoom, TooLarge, NoEndpoint, NoLabels, CannotLoad}

// isRefused reports whether a model gets no further copy, whatever room there is, and why; an empty
// reason means that this is temporary.
func isRefused(m *model) (refused bool, why Reason) {
	if m.foreign { // its storage is unknown
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
			return true, "" // until the old copy is gone
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

// has reports whether a model has, or will have, a copy at an endpoint.
func (m *model) has(e *endpoint) bool {
	if len(m.copies) == 0 {
		return false
	}
	c := m.at(e.Address)
	return c != nil && c.remains()
}

// offerPlace returns an endpoint's place for a model, or the reason why it has none; an empty
// reason means that it may have one soon. The endpoint's eviction order must be up to date.
func offerPlace(s *State, e *endpoint, m *model, by claim) (p place, ok bool, why Reason) {
	switch {
	case !m.fit.takes(e.Address):
		return p, false, NoLabels
	case e.Is():
		return p, false, NoEndpoint
	case e.state == unknown, e.pod.Outgoing && by.idle:
		return p, false, ""
	case len(m.copies) > 0 && m.at(e.Address) != nil:
		return p, false, "" // the model can be loaded there again after the unload
	case e.state == silent, e.state == down, m.unusable(e.Address), e.trial != nil && e.trial.Failed:
		return p, false, NoEndpoint
	case e.pod.Unready && by.purpose != ForTrial:
		return p, false, "" // until the endpoint is ready
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
		// Copies that are loading or have requests waiting may leave soon, and an assumed leak may
		// turn out to be none.
		if without := t.stay.plus(size); by.asked && e.fits(amount{without.models, without.bytes - e.unconfirmedLeaks()}) {
			return p, false, ""
		}
		return p, false, NoRoom
	}
	p = place{
		e: e, victims: victims, free: e.free(left), worst: worst, turns: (e.turns() + len(t.queue)) / max(1, e.Loads),
		starves: e.starves(left.models, m.presence()), rereads: e.rereads(),
	}
	if (by.idle || by.leastLoaded) && (p.starves || p.rereads) && by.purpose != ForMigration { // a migrating copy must leave its endpoint
		return p, false, "" // allowed once a request asks for it
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

// placeAt returns that place, if there is one. The endpoint's eviction order must be up to date.
func placeAt(s *State, e *endpoint, m *model, by claim) (p place, there bool) {
	if refused, _ := isRefused(m); refused || m.gone || m.has(e) {
		return place{}, false
	}
	p, there, _ = offerPlace(s, e, m, by)
	return p, there
}

// unusable reports whether some waiting request cannot use a copy at this endpoint.
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
