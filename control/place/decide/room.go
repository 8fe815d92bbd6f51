package decide

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// reserve is what of a capacity in bytes is left free, so that a load can begin while what makes room for it is still being
// unloaded: a share of what the loads of an engine take at once (ModelMesh's unload buffer: half of it for one or two
// loads, a quarter for more; 1 % to 10 % of the capacity). Where fewer than ten models of the default size have room, to
// keep that of one of them free would cost more than a tenth of them: no more is kept than what they leave over.
func (e *endpoint) reserve() int64 {
	if e.DefaultBytes > e.Bytes/10 {
		return min(e.Bytes%e.DefaultBytes, e.Bytes/10)
	}
	share := int64(4)
	if e.Loads <= 2 {
		share = 2
	}
	loads := e.Bytes / 10
	if e.DefaultBytes <= loads { // else their product is more still, and may be more than there are numbers
		loads = int64(e.Loads) * e.DefaultBytes / share
	}
	return min(max(loads, e.Bytes/100), e.Bytes/10)
}

// keepAgain is how many times as long as that an unload takes before the reserve is kept free again, so that it does not come and go.
const keepAgain = 2

// keep decides whether an endpoint keeps its reserve free. It does not if unload time over load time is less than reserve over capacity: then one
// more model saves more load time than waiting for unloads costs.
func (s *State) keep(e *endpoint) {
	limit := e.loadTime.median * float64(e.reserve())
	if e.quick {
		limit *= keepAgain
	}
	quick := e.unloadTime.known() && e.loadTime.known() && e.unloadTime.median*float64(e.Bytes) < limit
	if quick == e.quick {
		return
	}
	e.quick = quick
	s.dueEndpoints[e.Address], s.helped[e.Address] = true, true
	s.unsettle(e)
}

// usable is what all models may take that are not on their way out, in bytes.
func (e *endpoint) usable() int64 {
	if e.quick {
		return e.Bytes - e.leaked
	}
	return e.Bytes - e.reserve() - e.leaked
}

// fits says whether so much has room at an endpoint.
func (e *endpoint) fits(a amount) bool {
	return (e.Slots == 0 || a.models <= e.Slots) && (e.Bytes == 0 || a.bytes <= e.usable())
}

// free is the share of an endpoint that is free beside so much, by what it has least of.
func (e *endpoint) free(a amount) float64 {
	free := 1.0
	if e.Slots > 0 {
		free = min(free, float64(e.Slots-a.models)/float64(e.Slots))
	}
	if e.Bytes > 0 {
		free = min(free, float64(e.usable()-a.bytes)/float64(e.Bytes))
	}
	return free
}

// remains says whether a copy is not on its way out.
func (c *Copy) remains() bool { return c.State <= Loaded && !c.doomed }

// holds reports whether an engine has room for the bytes of an amount and its leaks.
func (e *endpoint) holds(a amount) bool { return e.Bytes == 0 || sum(a.bytes, e.leaked) <= e.Bytes }

// told reports whether this process or an earlier one told the engine to load a copy.
func (c *Copy) told() bool { return c.State != Queued || c.cut }

// started says whether the engine has room to begin a load now, with everything in it that has not left yet.
func (e *endpoint) started(c *Copy) bool {
	held := e.tally().held
	if !c.told() && !e.shares(c, false) {
		held = held.plus(c.room())
	}
	return e.hasRoom(held)
}

// hasRoom reports whether an engine has slots and bytes for an amount and its leaks.
func (e *endpoint) hasRoom(held amount) bool {
	return (e.Slots == 0 || held.models <= e.Slots) && e.holds(held)
}

// evictExcess evicts models, lowest worth first, from engines whose models exceed their capacity because some are larger than expected. If the models
// that may not leave exceed it by themselves, nothing is evicted. The number of models is not enforced: some may have been loaded by hand.
func (s *State) evictExcess(now time.Time) (todo []Action) {
	for _, address := range slices.Sorted(maps.Keys(s.endpoints)) {
		e := s.endpoints[address]
		all := e.tally().settled
		if e.state != up || !e.CanLoad || e.Is() || e.holds(all) {
			continue
		}
		s.reorder()
		var victims []*Copy
		for _, c := range e.order {
			if e.holds(all) || all.models <= 1 {
				break
			}
			if c.told() {
				victims = append(victims, c)
				all = all.minus(c.room())
			}
		}
		if !e.holds(all) {
			continue
		}
		for _, c := range victims {
			todo = append(todo, s.dismiss(c, now)...)
		}
	}
	return todo
}

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
	// idle: only an endpoint takes it that would load it at once and has slots for it, and with fills one where keepFree is left. With relieves it
	// goes to the endpoint that is loaded least of those that have slots for it.
	idle, fills, relieves bool
	// from is the endpoint whose copy leaves when this one is loaded; empty: none does.
	from string
}

// claim is that of a model which is to have one more copy because of requests that wait for it, because it must, or because somebody asked
// for one, or one of its copies is where an endpoint migrates: then none leaves that is missed as much as it.
func (s *State) claim(m *model) claim {
	starved := m.starved(nil)
	if starved || s.there(m) < m.min() {
		by := claim{purpose: ForLeast, below: math.Inf(1), spares: true}
		if starved {
			by.purpose, by.asked = ForRequests, true
		}
		return by
	}
	by := claim{purpose: ForRequests, below: m.worth, spares: true}
	if s.there(m) < m.goal {
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
	// starves: requests there would wait for a slot of the GPU for long. Rereads: host memory is full of adapters in use, and one of them would be
	// read from storage again.
	starves, rereads bool
}

// compare orders places: those first where requests get their turn; of these those that cost the fewest loads; then those that are loaded least, where a
// copy is to bear load; then those with room, the most free first; then those whose victims would be missed least; at last by lot.
func (p *place) compare(o *place) int {
	if c := cmp.Or(truth(p.starves)-truth(o.starves), p.loads()-o.loads(), cmp.Compare(p.load, o.load), min(p.victims, 1)-min(o.victims, 1)); c != 0 {
		return c
	}
	if p.victims > 0 {
		if c := p.worst.compare(o.worst); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(o.free, p.free), cmp.Compare(p.lot, o.lot))
}

// loads is how many loads somebody waits for: for those before it in the queue, and for one more if something has to leave, because somebody may ask
// for that again.
func (p *place) loads() int { return p.turns + truth(p.victims > 0 || p.rereads) }

// nearlyMissed is how much more recent the use may be, in seconds, that what leaves a preferred endpoint is missed by (ModelMesh 0.12,
// CacheMissForwardingLB).
const nearlyMissed = 120

// nearly says whether a place is about as good as the best one: nobody waits for a slot, or for more loads, there who would not elsewhere; nothing leaves there that need not
// elsewhere, and what does is not missed much more.
func (p *place) nearly(best *place, by claim) bool {
	switch {
	case p.starves && !best.starves, p.rereads && !best.rereads, by.asked && p.turns > best.turns:
		return false
	case p.victims == 0:
		return true
	}
	return best.victims > 0 && p.worst.busy == best.worst.busy && p.worst.spare == best.worst.spare && p.worst.worth <= best.worst.worth+nearlyMissed
}

// choose finds a place for one more copy of a model, or says why there is none; the empty reason is that one is to come. What is outgoing is no place
// where another is, but for those whom requests wait for, and that would have to wait for more loads there (ModelMesh 0.12, UpgradeTracker).
func (s *State) choose(m *model, by claim) (best place, why Reason) {
	if refused, why := s.refused(m); refused {
		return place{}, why
	}
	s.reorder()
	soon := false
	var preferred, outgoing place
	var reasons [len(reasonsOfPlaces)]bool
	for _, e := range s.pool(m.Pool).endpoints {
		if m.has(e) {
			soon = soon || e.pod.Unready && e.state != down
			continue
		}
		p, ok, why := s.offer(e, m, by)
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
	if outgoing.e != nil && (best.e == nil || by.asked && cmp.Or(truth(outgoing.starves)-truth(best.starves), outgoing.loads()-best.loads()) < 0) {
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

// reasonsOfPlaces are why an endpoint takes no copy, those first that say most about a model that no endpoint takes.
var reasonsOfPlaces = [...]Reason{LoadFailed, NoRoom, TooLarge, NoEndpoint, NoLabels, CannotLoad}

// refused says whether a model gets no further copy wherever there is room, and why; the empty reason is that this will pass.
func (s *State) refused(m *model) (refused bool, why Reason) {
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

// offer is the place that an endpoint has for a model, or why it has none; the empty reason is that it may have one in a moment.
// Orders are up to date.
func (s *State) offer(e *endpoint, m *model, by claim) (p place, ok bool, why Reason) {
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
	victims, worst, left, fits := e.shrink(m, s.nextTurn(m), by, t.remain.plus(size), nil)
	if by.fills && e.free(left) < keepFree {
		return p, false, NoRoom
	}
	if !fits {
		// What is loading or waited for now may leave in a moment, and it may turn out that a leak is none.
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

// takes says whether an endpoint has a place for one more copy of a model. Orders are up to date.
func (s *State) takes(e *endpoint, m *model, by claim) bool {
	_, takes := s.place(e, m, by)
	return takes
}

// place is that place, if there is one. Orders are up to date.
func (s *State) place(e *endpoint, m *model, by claim) (p place, there bool) {
	if refused, _ := s.refused(m); refused || m.gone || m.has(e) {
		return place{}, false
	}
	p, there, _ = s.offer(e, m, by)
	return p, there
}

// mayPass reports whether a failure is transient and its load is retried soon. Until then it is no reason to give up the model.
func (m *model) mayPass(f Failure) bool { return f.Why == LoadRetried && !m.exhausted() }

// exhausted reports whether maxRetries loads in a row have failed with transient errors and no request waits. This counts as a permanent failure.
// While requests wait it is false.
func (m *model) exhausted() bool { return m.retries >= maxRetries && len(m.wants) == 0 }

// whyFailed is why loads of a model failed: what all engines say that were asked, if that is the same. It is empty where all of it may pass.
func (m *model) whyFailed() (why Reason) {
	for _, f := range m.failures {
		if m.mayPass(f) {
			continue
		}
		is := f.Why
		if is == LoadRetried {
			is = LoadFailed
		}
		if why != "" && is != why {
			return LoadFailed
		}
		why = is
	}
	return why
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

// shrink is how many copies have to leave an endpoint for a model until so much fits there, the rank of the one among them that is
// missed most, how much is left then, and whether it fits: it may be that too few may leave. It tells leave of each.
//
// Turn is when that of the model's copy comes. Those leave that would be missed least, by the claim and by what is said of both, not by when they came: of two that were preloaded the
// later one may put out the other.
func (e *endpoint) shrink(m *model, turn time.Time, by claim, all amount, leave func(*Copy)) (victims int, worst rank, left amount, fits bool) {
	switch {
	case e.fits(all):
		return 0, rank{}, all, true
	case !e.fits(all.without(e.evictable())):
		return 0, rank{}, all, false
	}
	for _, c := range e.order {
		o := c.model
		if o.worth >= by.below && (!by.spares || !c.rank.spare) {
			continue
		}
		if c.State == Queued && (by.settled && !c.cut || cmp.Or(c.turn().Compare(turn), o.compare(m)) < 0) { // its turn comes first
			continue
		}
		victims++
		worst, all = c.rank, all.minus(c.room())
		if leave != nil {
			leave(c)
		}
		if e.fits(all) {
			return victims, worst, all, true
		}
	}
	return victims, worst, all, false
}

// briefShare is the share of a load's time below which requests are brief: waiting for them costs little.
const briefShare = 0.1

// brief reports whether requests of a model are short at an endpoint compared with a load.
func (s *State) brief(m *model, e *endpoint) bool {
	mean := s.pool(m.Pool).requestTime // a lower bound: a model with few requests so far may seem too fast
	takes := mean
	if m.slowRate > 0 {
		takes = max(mean, m.stay())
	}
	return mean > 0 && e.loadTime.known() && takes <= briefShare*e.loadTime.median
}

// busy reports whether requests of a copy would delay its eviction for long.
func (c *Copy) busy() bool { return c.inFlight > 0 && !c.brief }

// prepare evicts copies from an endpoint for the next loads of its queue, which is in order. It evicts when the turn of a load has come, or one
// unload time before. An earlier eviction costs misses, and the queued copy may still go elsewhere. If too little can be evicted for a copy, it
// gives up its place. Only for the next loads is it found which copies are to be evicted; for the others, whether they would fit if all were that may be.
func (s *State) prepare(e *endpoint, queue []*Copy, now time.Time) (todo []Action) {
	t := e.tally()
	all, held, next := t.settled, t.held, max(1, e.Loads)-e.turns()
	soon, at := e.ending(now)
	s.reorder()
	var evictable amount // but for queued copies, which are not evicted for others
	for _, c := range e.order {
		if c.told() {
			evictable = evictable.plus(c.room())
		}
	}
	for _, c := range queue {
		if s.abandoned(c, now) {
			s.drop(c)
			continue
		}
		if c.misplaced() { // since it got its place
			todo = append(todo, s.dismiss(c, now)...)
			continue
		}
		if c.sizing { // nothing leaves for it before its size is known: it may be too large
			continue
		}
		if c.cut { // the engine may have it: settled includes it
			next--
			continue
		}
		with, then := all.plus(c.room()), held.plus(c.room())
		if e.shares(c, true) {
			with, then = all, held
		}
		if next <= 0 && soon <= 0 {
			if !e.fits(with.without(evictable)) {
				s.drop(c)
				continue
			}
			all, held = with, then
			continue
		}
		m, by := c.model, c.claim
		by.settled = true
		if s.there(m) <= m.min() || m.starved(c) {
			by.below, by.spares = math.Inf(1), true
		}
		s.reorder()
		var victims []*Copy
		_, worst, left, fits := e.shrink(m, c.turn(), by, with, func(v *Copy) { victims = append(victims, v) })
		if !fits {
			s.drop(c)
			continue
		}
		for i := len(victims) - 2; i >= 0; i-- { // a small copy that was first to leave may stay if a large one leaves
			if back := left.plus(victims[i].room()); e.fits(back) {
				left, victims = back, slices.Delete(victims, i, i+1)
			}
		}
		all, held = with, then
		early, room := next <= 0, e.hasRoom(held)
		if next--; early {
			if soon--; room { // it needs no eviction when its turn comes
				continue
			}
		}
		if len(victims) > 0 && !room {
			without := left.plus(victims[len(victims)-1].room())
			if until, waits := e.better(worst, without, early, now); waits {
				at = sooner(at, until)
				continue
			}
		}
		all = left
		for _, victim := range victims {
			if victim.State == Loaded {
				victim.leaving = now
			}
			evictable = evictable.minus(victim.room())
			todo = append(todo, s.dismiss(victim, now)...)
		}
	}
	if e.prepares = at; at.IsZero() {
		delete(s.preparing, e.Address)
	} else {
		s.preparing[e.Address] = true
	}
	return todo
}

// shares reports whether another pool of the endpoint has the model of a copy there, or, if queued, has it in the queue before: the engine has it
// once, for both.
func (e *endpoint) shares(c *Copy, queued bool) bool {
	return slices.ContainsFunc(e.twins(c), func(o *Copy) bool { return o.remains() && (o.told() || queued && o.compareTurn(c) < 0) })
}

// sooner returns the earlier of two times; the zero time means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// ends returns when a load is expected to end; zero if unknown.
func (c *Copy) ends() time.Time {
	took := cmp.Or(c.model.took, c.endpoint.loadTime.median)
	if took == 0 {
		return time.Time{}
	}
	return c.Since.Add(time.Duration(took * float64(time.Second)))
}

// ending returns how many loads are expected to end within one unload time, and when the next load will be that close to its end; zero if none will.
// A load that should have ended one unload time ago may go on for long: nothing is expected of it any more.
func (e *endpoint) ending(now time.Time) (soon int, at time.Time) {
	if !e.unloadTime.known() || e.tally().loading == 0 {
		return 0, at
	}
	ahead := time.Duration(e.unloadTime.median * float64(time.Second))
	for _, c := range e.copies {
		if c.State != Loading || c.overdue || c.slow {
			continue
		}
		switch ends := c.ends(); {
		case ends.IsZero(), now.After(ends.Add(ahead)):
		case now.Before(ends.Add(-ahead)):
			at = sooner(at, ends.Add(-ahead))
		default:
			soon++
		}
	}
	return soon, at
}

// mostPause bounds for how long an eviction waits for a better victim.
const mostPause = 10 * time.Second

// better reports whether an eviction should wait, and until when, for a copy with lower worth than the victims that could leave instead of the worst
// of them: one that was just loaded and whose requests are on their way to it, or, if early, one whose load is about to end. Without is what the
// endpoint would have if all victims but the worst left.
func (e *endpoint) better(worst rank, without amount, early bool, now time.Time) (until time.Time, waits bool) {
	if worst.spare {
		return until, false
	}
	pause := min(mostPause, time.Duration(briefShare*e.loadTime.median*float64(time.Second)))
	for _, c := range e.copies {
		m := c.model
		if !c.brief || c.stays || !c.remains() || worth(m) >= worst.worth || !e.fits(without.minus(c.room())) {
			continue
		}
		var at time.Time
		switch {
		case c.State == Loaded && len(m.wants) > 0:
			at = c.Since.Add(pause)
		case early && c.State == Loading:
			if ends := c.ends(); !ends.IsZero() {
				at = ends.Add(pause)
			}
		}
		if now.Before(at) {
			until, waits = sooner(until, at), true
		}
	}
	return until, waits
}
