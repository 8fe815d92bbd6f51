package decide

import (
	"slices"
	"time"
)

// nextWake returns the next time at which a decision is needed even if no fact arrives.
func nextWake(s *State, now time.Time) (at time.Time) {
	soonest := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if s.due.expiry.IsZero() { // a new failure may expire before this time
		s.due.expiry = nextExpiry(s, now)
	}
	if len(s.clock.failing) > 0 && !s.due.expiry.IsZero() {
		soonest(later(s.due.expiry, now))
	}
	if len(s.due.stale) > 0 {
		soonest(now)
	}
	for key := range s.clock.models {
		if m := s.models[key]; !m.catalogueLags() || !now.Before(m.since().Add(catalogueLag)) {
			delete(s.clock.models, key)
		} else {
			soonest(m.since().Add(catalogueLag))
		}
	}
	for key := range s.clock.copies {
		if next := nextOfCopy(s, s.copy(key)); next.IsZero() {
			delete(s.clock.copies, key)
		} else {
			soonest(next)
		}
	}
	for address := range s.clock.endpoints {
		if next := s.endpoints[address].next(); next.IsZero() {
			delete(s.clock.endpoints, address)
		} else {
			soonest(next)
		}
	}
	for key := range s.clock.vmodels {
		if v := s.vmodels[key]; v == nil || v.Previous == "" {
			delete(s.clock.vmodels, key)
		} else {
			soonest(v.Until)
		}
	}
	return at
}

// nextOfCopy returns the next time at which a copy needs a decision even if no fact arrives; zero
// means never.
func nextOfCopy(s *State, c *Copy) (at time.Time) {
	switch {
	case c == nil:
	case c.State == Draining && !c.endpoint.Is():
		at = c.Since.Add(s.DrainLimit)
	case !c.waitsForRoomSince.IsZero():
		at = c.waitsForRoomSince.Add(roomWait)
		for _, o := range c.endpoint.copies {
			if o.State == Unloading && !o.late {
				at = sooner(at, o.Since.Add(unloadLimit))
			}
		}
	case !c.slow:
		at = c.slowAt
	}
	return at
}

// next returns the next time at which an endpoint needs a decision even if no fact arrives; zero
// means never.
func (e *endpoint) next() (at time.Time) {
	at = e.prepares
	if e.IsMigrating() {
		at = sooner(at, e.until())
	}
	if !e.Stopping.IsZero() {
		at = sooner(at, e.Stopping.Add(StoppingFor))
	}
	return at
}

// catalogueLags reports whether requests wait for a model that is missing from the catalogue. It
// may be missing only for a moment.
func (m *model) catalogueLags() bool { return m != nil && m.gone && len(m.wants) > 0 }

// timedCopies returns, sorted, the copies that the passage of time alone may change.
func timedCopies(s *State) []*Copy {
	if len(s.clock.copies) == 0 {
		return nil
	}
	all := make([]*Copy, 0, len(s.clock.copies))
	for key := range s.clock.copies {
		if c := s.copy(key); c != nil {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *Copy) int { return a.Compare(b.CopyKey) })
	return all
}

// markLate marks copies whose unload takes too long, so that other copies are evicted for the
// waiting requests.
func markLate(s *State, e *endpoint, now time.Time) {
	for _, c := range e.copies {
		if c.State == Unloading && !c.late && now.Sub(c.Since) >= unloadLimit {
			c.late = true
			s.noteCopy(unloadLate, c)
		}
	}
}

// elapse removes failures that have expired, and engines' reports that they are stopping once these
// are too old. A copy that has waited too long for room is queued elsewhere.
func elapse(s *State, now time.Time) []Action {
	for address := range s.clock.endpoints {
		e := s.endpoints[address]
		if !e.Stopping.IsZero() && now.Sub(e.Stopping) >= StoppingFor {
			endStopping(s, e)
		}
		if !e.prepares.IsZero() && !now.Before(e.prepares) {
			e.prepares = time.Time{}
			s.noteEndpoint(turnCame, e)
		}
	}
	for key := range s.clock.models {
		if m := s.models[key]; m.catalogueLags() {
			s.noteModel(catalogueLagged, m)
		}
	}
	for key := range s.clock.vmodels {
		if v := s.vmodels[key]; v != nil && v.Previous != "" && !now.Before(v.Until) {
			s.noteVModel(vmodelSet, key)
		}
	}
	for _, c := range timedCopies(s) {
		switch {
		case !c.waitsForRoomSince.IsZero() && now.Sub(c.waitsForRoomSince) >= roomWait:
			addFailure(s, c.model, Failure{Endpoint: c.Endpoint, At: now, Message: "what was to make room for it has not left within " +
				roomWait.String(), Why: LoadFailed})
			dismissCopy(s, c, now)
		case !c.waitsForRoomSince.IsZero():
			markLate(s, c.endpoint, now)
		case !c.slowAt.IsZero() && !c.slow && !now.Before(c.slowAt):
			c.slow = true
			s.noteCopy(loadSlow, c)
		}
	}
	forgive(s, now)
	return nil
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
