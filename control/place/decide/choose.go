package decide

import (
	"cmp"
	"math"
	"slices"
)

// claim is what may leave an endpoint for a copy, and where it may go.
type claim struct {
	purpose Purpose // of the copy
	// asked: requests wait for it.
	asked bool
	// below: models leave that are missed less than that.
	below float64
	// spares: and copies that their models can spare.
	spares bool
	// settled: queued copies are not evicted, unless the engine may have them.
	settled bool
	// idle: only an endpoint takes it that would load it at once and has slots for it, and with
	// fills one where keepFree is left. With relieves it goes to the endpoint that is loaded least
	// of those that have slots for it.
	idle, fills, relieves bool
	// from is the endpoint whose copy leaves when this one is loaded; empty: none does.
	from string
}

// claimOf is that of a model which is to have one more copy because of requests that wait for it,
// because it must, or because somebody asked for one, or one of its copies is where an endpoint
// migrates: then none leaves that is missed as much as it.
func claimOf(m *model) claim {
	starved := m.starved(nil)
	if starved || remaining(m) < m.min() {
		by := claim{purpose: ForLeast, below: math.Inf(1), spares: true}
		if starved {
			by.purpose, by.asked = ForRequests, true
		}
		return by
	}
	by := claim{purpose: ForRequests, below: m.worth, spares: true}
	if remaining(m) < m.goal {
		by.purpose = ForMigration
	}
	return by
}

// place is what an endpoint offers to a model that is to be loaded there.
type place struct {
	e *endpoint
	// victims is how many have to leave first.
	victims int
	// free is the share of the endpoint that would be free still, by what it has least of.
	free float64
	// worst is the rank of the victim that would be missed most.
	worst rank
	lot   uint64
	// turns is how many loads come first, one after the other.
	turns int
	// load is the endpoint's, where it matters.
	load float64
	// starves: requests there would wait for a slot of the GPU for long. Rereads: host memory is
	// full of adapters in use, and one of them would be read from storage again.
	starves, rereads bool
}

// compare orders places: those first where requests get their turn; of these those that cost the
// fewest loads; then those that are loaded least, where a copy is to bear load; then those with
// room, the most free first; then those whose victims would be missed least; at last by lot.
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

// loads is how many loads somebody waits for: for those before it in the queue, and for one more if
// something has to leave, because somebody may ask for that again.
func (p *place) loads() int { return p.turns + truth(p.victims > 0 || p.rereads) }

// nearlyMissed is how much more recent the use may be, in seconds, that what leaves a preferred
// endpoint is missed by (ModelMesh 0.12, CacheMissForwardingLB).
const nearlyMissed = 120

// nearly says whether a place is about as good as the best one: nobody waits for a slot, or for
// more loads, there who would not elsewhere; nothing leaves there that need not elsewhere, and what
// does is not missed much more.
func (p *place) nearly(best *place, by claim) bool {
	switch {
	case p.starves && !best.starves, p.rereads && !best.rereads, by.asked && p.turns > best.turns:
		return false
	case p.victims == 0:
		return true
	}
	return best.victims > 0 && p.worst.busy == best.worst.busy && p.worst.spare == best.worst.spare && p.worst.worth <= best.worst.worth+
		nearlyMissed
}

// choosePlace finds a place for one more copy of a model, or says why there is none; the empty
// reason is that one is to come. What is outgoing is no place where another is, but for those whom
// requests wait for, and that would have to wait for more loads there (ModelMesh 0.12,
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
			p.lot = s.Lots(m.hash, e.hash)
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
	if preferred.e != nil && preferred.nearly(&best, by) {
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

// reasonsOfPlaces are why an endpoint takes no copy, those first that say most about a model that
// no endpoint takes.
var reasonsOfPlaces = [...]Reason{LoadFailed, NoRoom, TooLarge, NoEndpoint, NoLabels, CannotLoad}

// isRefused says whether a model gets no further copy wherever there is room, and why; the empty
// reason is that this will pass.
func isRefused(m *model) (refused bool, why Reason) {
	if m.foreign { // nobody says where from it could be loaded
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
			return true, "" // when it is gone
		case counted >= m.Max:
			return true, NoEndpoint
		}
	}
	switch {
	case len(m.failures) < maxFailures:
		return false, ""
	case slices.ContainsFunc(m.failures, m.mayPass):
		return true, ""
	}
	return true, m.whyFailed()
}

// has says whether a model has, or will have, a copy at an endpoint.
func (m *model) has(e *endpoint) bool {
	if len(m.copies) == 0 {
		return false
	}
	c := m.at(e.Address)
	return c != nil && c.remains()
}

// offerPlace is the place that an endpoint has for a model, or why it has none; the empty reason is
// that it may have one in a moment. Orders are up to date.
func offerPlace(s *State, e *endpoint, m *model, by claim) (p place, ok bool, why Reason) {
	switch {
	case !m.fit.takes(e.Address):
		return p, false, NoLabels
	case e.Is():
		return p, false, NoEndpoint
	case e.state == unknown, e.pod.Outgoing && by.idle:
		return p, false, ""
	case len(m.copies) > 0 && m.at(e.Address) != nil:
		return p, false, "" // it can be loaded there again when it has left
	case e.state == silent, e.state == down, m.unusable(e.Address), e.trial != nil && e.trial.Failed:
		return p, false, NoEndpoint
	case e.pod.Unready && by.purpose != ForTrial:
		return p, false, "" // when it is ready
	case !e.CanLoad || m.BaseModel != "" && len(e.BaseModels) > 0 && !slices.Contains(e.BaseModels, m.BaseModel):
		return p, false, CannotLoad
	}
	for _, f := range m.failures {
		switch {
		case f.Endpoint != e.Address:
		case m.mayPass(f):
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
		// What is loading or waited for now may leave in a moment, and it may turn out that a leak
		// is none.
		if without := t.stay.plus(size); by.asked && e.fits(amount{without.models, without.bytes - e.unclear()}) {
			return p, false, ""
		}
		return p, false, NoRoom
	}
	p = place{
		e: e, victims: victims, free: e.free(left), worst: worst, turns: (e.turns() + len(t.queue)) / max(1, e.Loads),
		starves: e.starves(left.models, m.presence()), rereads: e.rereads(),
	}
	if (by.idle || by.relieves) && (p.starves || p.rereads) && by.purpose != ForMigration { // that must leave where it is
		return p, false, "" // when it is asked for
	}
	if by.relieves {
		p.load = e.load
	}
	return p, true, ""
}

// hasPlace says whether an endpoint has a place for one more copy of a model. Orders are up to
// date.
func hasPlace(s *State, e *endpoint, m *model, by claim) bool {
	_, takes := placeAt(s, e, m, by)
	return takes
}

// placeAt is that place, if there is one. Orders are up to date.
func placeAt(s *State, e *endpoint, m *model, by claim) (p place, there bool) {
	if refused, _ := isRefused(m); refused || m.gone || m.has(e) {
		return place{}, false
	}
	p, there, _ = offerPlace(s, e, m, by)
	return p, there
}

// unusable says whether somebody who wants the model can use no copy there.
func (m *model) unusable(address string) bool {
	if !m.barred {
		return false
	}
	for _, w := range m.wants {
		if slices.Contains(w.Unusable, address) {
			return true
		}
	}
	return false
}
