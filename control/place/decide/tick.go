package decide

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// A tick decides what no request asks for: the number of copies that the load of a model needs, the
// second copy of a model in use, and the models that fill free room.

// TickInterval is the default time between two ticks. It is that of ModelMesh's rate check
// (tas.ratecheck_freq_ms).
const TickInterval = 10 * time.Second

const (
	// loadMean is the time constant of the mean load of a model, in seconds. It is short enough for
	// two ticks to notice a burst. serviceMean is the time constant of the mean time of a request.
	loadMean    = 20.0
	serviceMean = 180.0
	// growBeyond and the four constants after it give the number of copies hysteresis. A model gets
	// more copies if its load needs more than growBeyond times its copies plus growAbove. It loses
	// a copy if, for calmFor seconds, its load needed less than shrinkWithin times its copies minus
	// shrinkBelow. Loads that vary by a tenth change nothing.
	growBeyond, growAbove     = 1.15, 0.45
	shrinkWithin, shrinkBelow = 0.85, 0.6
	calmFor                   = 180.0
	// leastBusy is the load below which no copy is added. 1 means one request in flight at any
	// time.
	leastBusy = 1.0
	// fullShare is the share of the copies' concurrency limits above which a model needs more
	// copies: requests would wait a long time (ModelMesh: MM_CONC_SCALEUP_BANDWIDTH_PCT, 90).
	fullShare = 0.9
	// secondAfter is how long a model must have been in use, without a break longer than
	// secondWithin, to get a second copy (ModelMesh: mm.min_ and max_second_copy_age_secs). For a
	// model that loads fast, such as an adapter, secondLoads times its load time is enough.
	secondAfter  = 7 * time.Minute
	secondLoads  = 50
	secondWithin = 40 * time.Minute
	// secondFree is the share of the pool that must be free for second copies. It need not be free
	// if no model used within roomyAge would be evicted (ModelMesh's rateTrackingTask).
	secondFree = 0.1
	roomyAge   = 20 * time.Hour
	// keepFree is the share of an endpoint that is not filled with models that no request waits for
	// (ModelMesh's reaper).
	keepFree = 1.0 / 8
)

// Tick makes the next [State.Decide] also make the decisions of a tick, which no event causes. Call
// it about once per [TickInterval].
func (s *State) Tick() { s.due.tick = true }

// runTick makes the decisions of a tick.
func runTick(s *State, now time.Time) (todo []Action) {
	if !s.due.tick {
		return nil
	}
	s.due.tick = false
	for address := range s.clock.endpoints {
		s.noteEndpoint(migrationChanged, s.endpoints[address]) // models used since the last tick must move, too
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
	used := make(map[objects.Name][]*model, len(s.pools)) // used models by pool, the highest eviction value first
	for _, name := range pools {
		p := s.pools[name]
		tickDecay(s, name, p)
		tickValues(s, p, all[name], now)
		used[name] = slices.DeleteFunc(slices.Clone(all[name]), func(m *model) bool { return math.IsInf(m.value, -1) })
		slices.SortFunc(used[name], (*model).compareValue)
		if passed > 0 {
			tickLoads(s, p, all[name], used[name], passed, now)
			continue
		}
		for _, m := range all[name] { // ignore requests before the first tick: its interval is unknown
			m.requests, m.waited = 0, 0
			for _, c := range m.copies {
				c.countInFlight(now)
				c.inFlightSeconds, c.busySeconds = 0, 0
			}
		}
	}
	computeLoads(s)
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

// compareValue orders models by eviction value, the highest first.
func (m *model) compareValue(o *model) int {
	return cmp.Or(cmp.Compare(o.value, m.value), m.Compare(o.ModelKey))
}

// load is how much work the requests for a model cause at its copies.
type load struct {
	// requests is the number of requests since the last tick. inFlightSeconds is the sum of their
	// seconds in flight. waited is the sum of their seconds of waiting because every copy was at
	// its limit.
	requests, inFlightSeconds, waited float64
	rate                              float64 // requests per second
	concurrency                       float64 // number of requests in flight, or waiting for copies at their limit
	// slowRate is the requests per second, and slowFlight the requests in flight, as means over a
	// longer time. slowFlight / slowRate is the mean time of a request.
	slowRate, slowFlight float64
	// engines is the load: the number of requests that would be in flight at the present rate if
	// each took the mean time of the longer period.
	engines float64
	// aim is the number of copies that the load needs. calm is the number of seconds for which
	// fewer copies would have been enough.
	aim  int
	calm float64
}

// within returns the weight of the last passed seconds in a mean with the time constant mean.
func within(passed, mean float64) float64 { return 1 - math.Exp(-passed/mean) }

// tick updates the means with the requests since the last tick.
func (l *load) tick(passed float64) {
	fast, slow := within(passed, loadMean), within(passed, serviceMean)
	rate, flight := l.requests/passed, l.inFlightSeconds/passed
	l.rate += (rate - l.rate) * fast
	l.slowRate += (rate - l.slowRate) * slow
	l.slowFlight += (flight - l.slowFlight) * slow
	l.concurrency += (flight + l.waited/passed - l.concurrency) * fast
	l.requests, l.inFlightSeconds, l.waited, l.engines = 0, 0, 0, 0
	if l.slowRate > 0 {
		l.engines = l.rate * l.slowFlight / l.slowRate
	}
}

// update recomputes aim. passed is the time since the last call, in seconds. copies is the number
// of copies that the load needs, not rounded. most is the largest allowed number of copies.
func (l *load) update(copies float64, most int, passed float64) {
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

// tickLoads computes the load of each model, and the number of copies that the load needs. Models
// that were not used have no load.
func tickLoads(s *State, p *pool, all, used []*model, passed float64, now time.Time) {
	endpoints, total, fast := 0, 0.0, within(passed, loadMean)
	for _, e := range p.endpoints {
		if e.able() {
			endpoints++
		}
	}
	for _, m := range all {
		for _, c := range m.copies {
			c.countInFlight(now)
			m.inFlightSeconds += c.inFlightSeconds
			if c.State >= Loaded { // copies that are not loaded yet keep their assumed presence
				c.presence += (min(1, c.busySeconds/passed) - c.presence) * fast
			}
			c.inFlightSeconds, c.busySeconds = 0, 0
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
		copies := m.engines / share // NaN if no model has load; every comparison with NaN is false
		if p.RPM > 0 {
			copies = m.rate * 60 / float64(p.RPM)
		} else if m.engines < leastBusy {
			copies = 0
		}
		if limit := m.limit(); limit > 0 {
			copies = max(copies, m.concurrency/(fullShare*limit))
		}
		if m.aim <= 1 && !(copies > 1) {
			continue
		}
		most := endpoints
		if m.Max > 0 {
			most = min(most, m.Max)
		}
		if was := m.aim; was != 0 || copies > 1 {
			if m.update(copies, max(1, most), passed); m.aim != was {
				s.noteModel(valueChanged, m)
			}
		}
	}
}

// limit returns the mean concurrency limit of the model's loaded copies; 0 if any loaded copy has
// no limit, or no copy is loaded.
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

// countInFlight adds up two times of a copy: the seconds of each request in flight, and the seconds
// in which at least one request was in flight.
func (c *Copy) countInFlight(now time.Time) {
	if c.inFlight > 0 && now.After(c.countedUpTo) {
		passed := now.Sub(c.countedUpTo).Seconds()
		c.inFlightSeconds += float64(c.inFlight) * passed
		c.busySeconds += passed
	}
	c.countedUpTo = now
}

// addForLoad adds the copies that the loads of models need, if there is room, or if models with
// lower eviction values can be evicted.
func addForLoad(s *State, all []*model, now time.Time) (todo []Action) {
	for _, m := range all {
		for m.aim > 1 && remaining(m) < m.aim && remaining(m) > 0 {
			added, more := growModel(s, m, claim{purpose: ForLoad, below: m.value, takesSurplus: true, leastLoaded: true}, now)
			todo = append(todo, more...)
			if !added {
				break
			}
		}
	}
	return todo
}

// addForUse adds second copies of models in use, if the pool has much free room.
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

// secondAfter returns how long a model must have been in use to get a second copy.
func (m *model) secondAfter() time.Duration {
	if m.took == 0 { // the load time is unknown
		return secondAfter
	}
	return min(secondAfter, time.Duration(secondLoads*m.took*float64(time.Second)))
}

// claimForUse returns the claim of a model's second copy at the endpoints that may load the model;
// nil if these endpoints have too little room.
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

// fillPool fills free room with models that were used and have no copy, the highest eviction value
// first. It starts only as many loads as endpoints accept at once; fillPools starts more when those
// have ended. So a request never waits for more than one such load.
func fillPool(s *State, p *pool, now time.Time) (todo []Action) {
	var waiting []*model
	for len(p.fills) > 0 && slices.ContainsFunc(p.endpoints, (*endpoint).hasSpareRoom) {
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

// awaitsPreferred reports whether a preferred endpoint has room for a model, without the share
// keepFree, but is busy with other loads.
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

// fillPools continues to fill the free room of pools in which a load has ended.
func fillPools(s *State, now time.Time) (todo []Action) {
	for _, name := range slices.SortedFunc(maps.Keys(s.due.fills), objects.Name.Compare) {
		todo = append(todo, fillPool(s, s.pool(name), now)...)
	}
	clear(s.due.fills)
	return todo
}

// hasSpareRoom reports whether an endpoint can start a load at once and has more free room than
// keepFree.
func (e *endpoint) hasSpareRoom() bool {
	with := e.tally().remain.plus(e.DefaultBytes)
	return e.able() && e.idle() && e.free(with) >= keepFree && !e.rereads() && !e.starves(with.models, 0)
}

// idle reports whether an endpoint could start to load another model now.
func (e *endpoint) idle() bool {
	return len(e.tally().queue)+e.turns() < max(1, e.Loads)
}

// free returns the free share of the endpoints of a pool that may load a model.
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

// oldest returns the last use of the model that would be evicted next at the endpoints that f
// allows, and whether any model may be evicted there.
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

// growModel adds one copy of a model, if there is a place for it.
func growModel(s *State, m *model, by claim, now time.Time) (added bool, todo []Action) {
	best, _ := choosePlace(s, m, by)
	if best.e == nil {
		return false, nil
	}
	return true, putCopy(s, m, best.e, by, now)
}
