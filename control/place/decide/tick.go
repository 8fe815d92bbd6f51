package decide

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// What no request asks for is decided at a tick: how many copies of a model its load asks for, a
// second copy of what is in use, and what free room is filled with.

// TickInterval is between two ticks, if nobody says otherwise: ModelMesh's rate check
// (tas.ratecheck_freq_ms).
const TickInterval = 10 * time.Second

const (
	// Loads of models are means over about loadMean seconds, so that two ticks see a crowd that
	// comes; how long a request takes is a mean over serviceMean.
	loadMean    = 20.0
	serviceMean = 180.0
	// A model gets more copies where its load asks for more than growBeyond times those that it has
	// and growAbove, and one less where its load has asked for less than shrinkWithin times as
	// many, less shrinkBelow, for calmFor seconds. Loads that are up and down by a tenth are
	// between.
	growBeyond, growAbove     = 1.15, 0.45
	shrinkWithin, shrinkBelow = 0.85, 0.6
	calmFor                   = 180.0
	// leastBusy is the load below which no copy is added: one request at a time, all the time.
	leastBusy = 1.0
	// fullShare is how much of what copies take at once is to be in use: above that requests wait
	// for long (ModelMesh: MM_CONC_SCALEUP_BANDWIDTH_PCT, 90).
	fullShare = 0.9
	// A model in use was used again after secondAfter, without a break of more than secondWithin
	// (ModelMesh: mm.min_ and max_second_copy_age_secs). If its load takes less than secondAfter /
	// secondLoads, as that of an adapter does, it is used again after so many load times.
	secondAfter  = 7 * time.Minute
	secondLoads  = 50
	secondWithin = 40 * time.Minute
	// It gets a second copy where so much of the pool is free, or nothing has had to leave that was
	// used within roomyAge (ModelMesh's rateTrackingTask).
	secondFree = 0.1
	roomyAge   = 20 * time.Hour
	// What room is free beyond keepFree of an endpoint is filled (ModelMesh's reaper).
	keepFree = 1.0 / 8
)

// Tick lets [State.Decide] decide what no event asks for. It is to be called about every
// [TickInterval].
func (s *State) Tick() { s.due.tick = true }

// runTick is a tick.
func runTick(s *State, now time.Time) (todo []Action) {
	if !s.due.tick {
		return nil
	}
	s.due.tick = false
	for address := range s.clock.endpoints {
		s.noteEndpoint(migrationChanged, s.endpoints[address]) // what was used meanwhile is to be moved, too
	}
	passed := now.Sub(s.ticked).Seconds()
	if s.ticked.IsZero() || passed <= 0 {
		passed = 0
	}
	since := s.ticked
	s.ticked = now
	all := make(map[objects.Name][]*model, len(s.pools))
	for _, m := range s.models {
		if !m.gone {
			all[m.Pool] = append(all[m.Pool], m)
		}
	}
	pools := slices.SortedFunc(maps.Keys(s.pools), objects.Name.Compare)
	used := make(map[objects.Name][]*model, len(s.pools)) // of all, the most missed first
	for _, name := range pools {
		p := s.pools[name]
		tickFading(s, name, p)
		tickWorth(s, p, all[name], now)
		used[name] = slices.DeleteFunc(slices.Clone(all[name]), func(m *model) bool { return math.IsInf(m.worth, -1) })
		slices.SortFunc(used[name], (*model).missedMore)
		if passed > 0 {
			tickLoads(s, p, all[name], used[name], passed, now)
			continue
		}
		for _, m := range all[name] { // nobody knows in how long that came
			m.requests, m.waited = 0, 0
			for _, c := range m.copies {
				c.fly(now)
				c.flown, c.occupied = 0, 0
			}
		}
	}
	weigh(s)
	measureDemands(s, now)
	todo = evictExcess(s, now)
	todo = append(todo, spreadAdapters(s, now)...)
	for _, name := range pools {
		p := s.pools[name]
		todo = append(todo, relocate(s, all[name], now)...)
		todo = append(todo, addForLoad(s, used[name], now)...)
		todo = append(todo, balancePool(s, p, used[name], now)...)
		todo = append(todo, addForUse(s, p, used[name], since, now)...)
		p.fills = used[name]
		todo = append(todo, fillPool(s, p, now)...)
	}
	return todo
}

// missedMore orders models by what they are missed by, the most first.
func (m *model) missedMore(o *model) int {
	return cmp.Or(cmp.Compare(o.worth, m.worth), m.Compare(o.ModelKey))
}

// load is what requests ask of the copies of a model.
type load struct {
	// requests are those that named it since the last tick, flown the seconds that they were in
	// flight, and waited those that they waited for copies that had as many as they take.
	requests, flown, waited float64
	rate                    float64 // requests a second
	crowd                   float64 // requests that are in flight or wait for such copies
	// slowRate and slowFlight are requests a second and in flight over a longer time: one over the
	// other is how long a request takes.
	slowRate, slowFlight float64
	// engines is how many requests it would keep in flight at engines that are as fast as they
	// were: what it loads them with.
	engines float64
	// aim is how many copies its load asks for, calm for how many seconds fewer would have done.
	aim  int
	calm float64
}

// within is how much what came in the last so many seconds counts in a mean over others.
func within(passed, mean float64) float64 { return 1 - math.Exp(-passed/mean) }

// tick takes what came since the last tick into the means.
func (l *load) tick(passed float64) {
	fast, slow := within(passed, loadMean), within(passed, serviceMean)
	rate, flight := l.requests/passed, l.flown/passed
	l.rate += (rate - l.rate) * fast
	l.slowRate += (rate - l.slowRate) * slow
	l.slowFlight += (flight - l.slowFlight) * slow
	l.crowd += (flight + l.waited/passed - l.crowd) * fast
	l.requests, l.flown, l.waited, l.engines = 0, 0, 0, 0
	if l.slowRate > 0 {
		l.engines = l.rate * l.slowFlight / l.slowRate
	}
}

// turn finds how many copies are to bear the load where copies of it are the share of one endpoint,
// so many seconds after it did last.
func (l *load) turn(copies float64, most int, passed float64) {
	now := max(1, l.aim)
	switch {
	case copies > growBeyond*float64(now)+growAbove:
		l.aim, l.calm = min(most, int(math.Ceil((copies-growAbove)/growBeyond))), 0
	case now > most:
		l.aim = most
	case now == 1 || copies >= shrinkWithin*float64(now)-shrinkBelow:
		l.calm = 0
	default:
		if l.calm += passed; l.calm >= calmFor {
			l.aim, l.calm = now-1, 0
		}
	}
}

// tickLoads finds what models ask of engines, and how many copies are to bear it. Of models that
// nobody has used nothing is asked.
func tickLoads(s *State, p *pool, all, used []*model, passed float64, now time.Time) {
	endpoints, total, fast := 0, 0.0, within(passed, loadMean)
	for _, e := range p.endpoints {
		if e.able() {
			endpoints++
		}
	}
	for _, m := range all {
		for _, c := range m.copies {
			c.fly(now)
			m.flown += c.flown
			if c.State >= Loaded { // of one that is on its way it is expected
				c.presence += (min(1, c.occupied/passed) - c.presence) * fast
			}
			c.flown, c.occupied = 0, 0
		}
		m.tick(passed)
	}
	flight, rate := 0.0, 0.0
	for _, m := range used {
		total += m.engines
		flight, rate = flight+m.slowFlight, rate+m.slowRate
	}
	if p.requestTime = 0; rate > 0 {
		p.requestTime = flight / rate
	}
	share := total / float64(max(1, endpoints))
	for _, m := range used {
		for _, c := range m.copies {
			if brief := isBrief(s, m, c.endpoint); brief != c.brief {
				c.brief = brief
				s.noteModel(valueChanged, m)
			}
		}
		copies := m.engines / share // without any load not a number, and above nothing
		if p.RPM > 0 {
			copies = m.rate * 60 / float64(p.RPM)
		} else if m.engines < leastBusy {
			copies = 0
		}
		if limit := m.limit(); limit > 0 {
			copies = max(copies, m.crowd/(fullShare*limit))
		}
		if m.aim <= 1 && !(copies > 1) {
			continue
		}
		most := endpoints
		if m.Max > 0 {
			most = min(most, m.Max)
		}
		if was := m.aim; was != 0 || copies > 1 {
			if m.turn(copies, max(1, most), passed); m.aim != was {
				s.noteModel(valueChanged, m)
			}
		}
	}
}

// limit is how many requests a copy of the model takes at once, in the mean of those that answer;
// 0: one of them takes as many as come, or there is none.
func (m *model) limit() float64 {
	sum, n := 0, 0
	for _, c := range m.copies {
		switch {
		case c.State != Loaded:
		case c.Limit == 0:
			return 0
		default:
			sum, n = sum+c.Limit, n+1
		}
	}
	return float64(sum) / float64(max(1, n))
}

// fly counts the seconds that requests have been in flight at a copy, and those in which any was.
func (c *Copy) fly(now time.Time) {
	if c.inFlight > 0 && now.After(c.flying) {
		passed := now.Sub(c.flying).Seconds()
		c.flown += float64(c.inFlight) * passed
		c.occupied += passed
	}
	c.flying = now
}

// addForLoad adds the copies that loads ask for: where there is room, or others are missed less.
func addForLoad(s *State, all []*model, now time.Time) (todo []Action) {
	for _, m := range all {
		for m.aim > 1 && remaining(m) < m.aim && remaining(m) > 0 {
			added, more := growModel(s, m, claim{purpose: ForLoad, below: m.worth, spares: true, relieves: true}, now)
			todo = append(todo, more...)
			if !added {
				break
			}
		}
	}
	return todo
}

// addForUse adds second copies of what is in use, where there is much room.
func addForUse(s *State, p *pool, all []*model, since, now time.Time) (todo []Action) {
	claims := make(map[*Fit]*claim)
	for _, m := range all {
		if !m.lastUsed.After(since) || m.lastUsed.Sub(m.inUseSince) < m.secondAfter() || remaining(m) != 1 {
			continue
		}
		by, known := claims[m.fit]
		if !known {
			by = p.claimForUse(m.fit, now)
			claims[m.fit] = by
		}
		if by != nil {
			_, more := growModel(s, m, *by, now)
			todo = append(todo, more...)
		}
	}
	return todo
}

// secondAfter returns for how long a model is used before it gets a second copy.
func (m *model) secondAfter() time.Duration {
	if m.took == 0 { // nothing is known of its load
		return secondAfter
	}
	return min(secondAfter, time.Duration(secondLoads*m.took*float64(time.Second)))
}

// claimForUse is that of second copies at endpoints that are for a model; nil where these have too
// little room.
func (p *pool) claimForUse(f *Fit, now time.Time) *claim {
	by := claim{purpose: ForUse, below: math.Inf(-1), idle: true}
	if p.free(f) < secondFree {
		if oldest, any := p.oldest(f); !any || now.Sub(oldest) < roomyAge {
			return nil
		}
		by.below = seconds(now.Add(-roomyAge))
	}
	return &by
}

// fillPool fills free room with what was used and has no copy, the most missed first: as much as
// endpoints load at once, and more when that has ended (refill), so that a request never waits for
// more than that.
func fillPool(s *State, p *pool, now time.Time) (todo []Action) {
	var waiting []*model
	for len(p.fills) > 0 && slices.ContainsFunc(p.endpoints, (*endpoint).spare) {
		for added := false; len(p.fills) > 0 && !added; p.fills = p.fills[1:] {
			var more []Action
			m := p.fills[0]
			switch {
			case m.gone || len(m.copies) > 0 || len(m.failures) > 0:
			case m.awaitsPreferred(p):
				waiting = append(waiting, m)
			default:
				added, more = growModel(s, m, claim{purpose: ForRoom, below: math.Inf(-1), idle: true, fills: true}, now)
			}
			todo = append(todo, more...)
		}
	}
	p.fills = append(waiting, p.fills...)
	return todo
}

// awaitsPreferred reports whether an endpoint that is preferred for a model has room for it beside
// what is kept free, and is busy loading others.
func (m *model) awaitsPreferred(p *pool) bool {
	for _, e := range p.endpoints {
		if !m.fit.Preferred[e.Address] || !m.fit.takes(e.Address) || !e.able() || e.idle() {
			continue
		}
		if e.free(e.tally().remain.plus(cmp.Or(m.bytes, e.DefaultBytes))) >= keepFree {
			return true
		}
	}
	return false
}

// fillPools goes on filling the pools in which a load has ended.
func fillPools(s *State, now time.Time) (todo []Action) {
	for _, name := range slices.SortedFunc(maps.Keys(s.due.fills), objects.Name.Compare) {
		todo = append(todo, fillPool(s, s.pool(name), now)...)
	}
	clear(s.due.fills)
	return todo
}

// spare says whether an endpoint would load something at once, and keeps room free beside it.
func (e *endpoint) spare() bool {
	with := e.tally().remain.plus(e.DefaultBytes)
	return e.able() && e.idle() && e.free(with) >= keepFree && !e.rereads() && !e.starves(with.models, 0)
}

// idle says whether an endpoint loads fewer models than it does at once.
func (e *endpoint) idle() bool {
	return len(e.tally().queue)+e.turns() < max(1, e.Loads)
}

// free is the share of the room of those endpoints of a pool that is free which are for a model.
func (p *pool) free(f *Fit) float64 {
	var has, free float64
	for _, e := range p.endpoints {
		if f.takes(e.Address) && e.able() {
			has++
			free += max(0, e.free(e.tally().remain))
		}
	}
	return free / max(1, has)
}

// oldest is when the model was last used that is next to leave those endpoints, of all that may.
func (p *pool) oldest(f *Fit) (used time.Time, any bool) {
	for _, e := range p.endpoints {
		if !f.takes(e.Address) {
			continue
		}
		for _, c := range e.order {
			if u := c.model.lastUsed; !any || u.Before(used) {
				used, any = u, true
			}
		}
	}
	return used, any
}

// growModel gives a model another copy, if there is a place for it.
func growModel(s *State, m *model, by claim, now time.Time) (added bool, todo []Action) {
	best, _ := choosePlace(s, m, by)
	if best.e == nil {
		return false, nil
	}
	return true, putCopy(s, m, best.e, by, now)
}
