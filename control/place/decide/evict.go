package decide

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// evictExcess evicts the models with the lowest eviction value from engines whose models exceed the
// engine's memory because some models are larger than expected. If the models that must stay
// already exceed the memory, nothing is evicted. The number of models is not enforced, because some
// may have been loaded by an operator.
func evictExcess(s *State, now time.Time) (todo []Action) {
	for _, address := range slices.Sorted(maps.Keys(s.endpoints)) {
		e := s.endpoints[address]
		all := e.tally().settled
		if e.state != up || !e.CanLoad || e.Is() || e.holds(all) {
			continue
		}
		reorder(s, s.now)
		var victims []*Copy
		for _, c := range e.order {
			if e.holds(all) || all.models <= 1 {
				break
			}
			if c.loadRequested() {
				victims = append(victims, c)
				all = all.minus(c.room())
			}
		}
		if !e.holds(all) {
			continue
		}
		for _, c := range victims {
			todo = append(todo, dismissCopy(s, c, now)...)
		}
	}
	return todo
}

// shrink chooses copies to evict from an endpoint so that a model fits, and calls leave for each.
// It returns their number, the highest rank among them, the amount that remains, and whether the
// model then fits.
//
// turn is the turn of the model's copy in the queue. The copies with the lowest eviction value are
// evicted, as far as the claim allows, whatever their age: of two preloaded models, the later one
// may evict the earlier one.
func (e *endpoint) shrink(m *model, turn time.Time, by claim, all amount, leave func(*Copy)) (victims int, worst rank, left amount,
	fits bool,
) {
	switch {
	case e.fits(all):
		return 0, rank{}, all, true
	case !e.fits(all.without(e.evictable())):
		return 0, rank{}, all, false
	}
	for _, c := range e.order {
		o := c.model
		if o.value >= by.below && (!by.takesSurplus || !c.rank.surplus) {
			continue
		}
		// A copy that is earlier in the queue is not evicted.
		if c.State == Queued && (by.settled && !c.interrupted || cmp.Or(c.update().Compare(turn), o.compare(m)) < 0) {
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

// briefShare is a share of the load time. Requests that take less are brief: an eviction that waits
// for them costs little.
const briefShare = 0.1

// isBrief reports whether requests of a model at an endpoint are short compared with a load.
func isBrief(s *State, m *model, e *endpoint) bool {
	mean := s.pool(m.Pool).requestTime // used as a lower bound: the mean of a model with few requests may be too low
	takes := mean
	if m.slowRate > 0 {
		takes = max(mean, m.meanRequestTime())
	}
	return mean > 0 && e.loadTime.known() && takes <= briefShare*e.loadTime.median
}

// busy reports whether requests in flight would delay the eviction of a copy for a long time.
func (c *Copy) busy() bool { return c.inFlight > 0 && !c.brief }

// prepareRoom evicts copies from an endpoint for the next loads of its queue, which must be sorted.
// It evicts when the turn of a load has come, or one unload time before. Earlier evictions would
// cost requests, and the queued copy may still go elsewhere. A queued copy for which too little can
// be evicted is removed from the queue. Victims are chosen only for the next loads; for the other
// copies in the queue, prepareRoom only checks whether they would fit if all evictable copies were
// evicted.
func prepareRoom(s *State, e *endpoint, queue []*Copy, now time.Time) (todo []Action) {
	t := e.tally()
	all, held, next := t.settled, t.held, max(1, e.Loads)-e.turns()
	soon, at := e.ending(now)
	reorder(s, s.now)
	var evictable amount // without queued copies, which are never evicted for other queued copies
	for _, c := range e.order {
		if c.loadRequested() {
			evictable = evictable.plus(c.room())
		}
	}
	for _, c := range queue {
		if isAbandoned(c, now) {
			s.drop(c)
			continue
		}
		if c.misplaced() { // it has become misplaced since it was queued
			todo = append(todo, dismissCopy(s, c, now)...)
			continue
		}
		if c.predicting { // no eviction before the copy's size is known: it may be too large
			continue
		}
		if c.interrupted { // the engine may have it, so t.settled includes its size
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
		if remaining(m) <= m.min() || m.starved(c) {
			by.below, by.takesSurplus = math.Inf(1), true
		}
		reorder(s, s.now)
		var victims []*Copy
		_, worst, left, fits := e.shrink(m, c.update(), by, with, func(v *Copy) { victims = append(victims, v) })
		if !fits {
			s.drop(c)
			continue
		}
		for i := len(victims) - 2; i >= 0; i-- { // a small victim can stay if a large one is evicted
			if back := left.plus(victims[i].room()); e.fits(back) {
				left, victims = back, slices.Delete(victims, i, i+1)
			}
		}
		all, held = with, then
		early, room := next <= 0, e.hasRoom(held)
		if next--; early {
			if soon--; room { // when its turn comes, it will fit without evictions
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
			todo = append(todo, dismissCopy(s, victim, now)...)
		}
	}
	if e.prepares = at; !at.IsZero() {
		s.noteEndpoint(turnAwaited, e)
	}
	return todo
}

// shares reports whether another pool of the endpoint has a copy of the same model there. The
// engine has that model only once. A copy that is only queued is included if queued is set and the
// copy is earlier in the queue than c.
func (e *endpoint) shares(c *Copy, queued bool) bool {
	return slices.ContainsFunc(e.duplicates(c), func(o *Copy) bool {
		return o.remains() && (o.loadRequested() || queued && o.compareTurn(c) < 0)
	})
}

// ends returns when a load is expected to end; zero if unknown.
func (c *Copy) ends() time.Time {
	took := cmp.Or(c.model.took, c.endpoint.loadTime.median)
	if took == 0 {
		return time.Time{}
	}
	return c.Since.Add(time.Duration(took * float64(time.Second)))
}

// ending returns how many loads are expected to end within one unload time, and when the next load
// will be within one unload time of its end; zero if no load will. A load that is overdue by more
// than one unload time may go on for a long time, and is not counted.
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

// mostPause is the longest time that an eviction waits for a better victim.
const mostPause = 10 * time.Second

// better reports whether an eviction should wait, and until when, because a copy with a lower
// eviction value than the worst victim will soon be evictable. That copy was just loaded and its
// requests have not arrived yet or, if early, its load is about to end. without is the amount that
// would remain at the endpoint if all victims except the worst were evicted.
func (e *endpoint) better(worst rank, without amount, early bool, now time.Time) (until time.Time, waits bool) {
	if worst.surplus {
		return until, false
	}
	pause := min(mostPause, time.Duration(briefShare*e.loadTime.median*float64(time.Second)))
	for _, c := range e.copies {
		m := c.model
		if !c.brief || c.mustStay || !c.remains() || evictionValue(m) >= worst.value || !e.fits(without.minus(c.room())) {
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
