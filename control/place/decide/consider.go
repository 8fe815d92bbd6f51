package decide

import (
	"math"
	"slices"
	"time"
)

// considerModel adds copies that a model must have, and removes copies that it must not have.
func considerModel(s *State, m *model, now time.Time) (todo []Action) {
	if m.gone {
		return considerGone(s, m, now)
	}
	todo = dropDisowned(s, m, now)
	if m.Max > 0 && len(m.copies) > m.Max {
		staying := staying(m)
		for ; len(staying) > m.Max; staying = staying[1:] {
			todo = append(todo, dismissCopy(s, staying[0], now)...)
		}
	}
	for {
		starved := m.starved(nil)
		if !starved && remaining(m) >= m.needs() {
			if m.failed != "" {
				if best, why := choosePlace(s, m, claim{asked: true, below: math.Inf(1), takesSurplus: true}); best.e == nil && why != "" {
					return todo // keep the failure: a new request would get the same answer
				}
			}
			unblockModel(s, m)
			m.lacksPlaceSince = time.Time{}
			return todo
		}
		by := claimOf(m)
		best, why := choosePlace(s, m, by)
		if best.e == nil {
			m.ensure = m.ensure && why == ""
			if m.lacksPlaceSince.IsZero() {
				m.lacksPlaceSince = now
			}
			blockModel(s, m, why, starved)
			return todo
		}
		unblockModel(s, m)
		todo = append(todo, putCopy(s, m, best.e, by, now)...)
	}
}

// dropDisowned removes copies of a model from endpoints that have left the model's pool. If another
// pool has a copy of the same model there, the engine keeps the model.
func dropDisowned(s *State, m *model, now time.Time) (todo []Action) {
	for _, c := range slices.Clone(m.copies) {
		switch e := c.endpoint; {
		case slices.Contains(e.pools, m.Pool):
		case len(e.duplicates(c)) > 0:
			s.drop(c)
		default:
			todo = append(todo, dismissCopy(s, c, now)...)
		}
	}
	return todo
}

// putCopy queues a copy of a model at an endpoint that has a place for it. The copy is loaded when
// its turn comes.
func putCopy(s *State, m *model, e *endpoint, by claim, now time.Time) []Action {
	presence := m.presence()
	c := s.add(m, e, Queued, now)
	c.claim, c.presence = by, presence
	e.addDemand(c, now)
	if !m.lacksPlaceSince.IsZero() {
		c.asked, m.lacksPlaceSince = m.lacksPlaceSince, time.Time{}
	}
	if e.Bytes > 0 && c.Source < PredictedSize && e.CanPredict {
		c.predicting = true
		return []Action{{Kind: Predict, Endpoint: e.Address, Model: m.Entry, For: by.purpose}}
	}
	return nil
}

// considerGone removes the copies of a model that is not in the catalogue. Requests may name a new
// model a moment before it is in the catalogue, so waiting requests fail only after that moment.
func considerGone(s *State, m *model, now time.Time) (todo []Action) {
	for _, c := range slices.Clone(m.copies) {
		todo = append(todo, dismissCopy(s, c, now)...)
	}
	switch {
	case len(m.wants) > 0 && now.Sub(m.since()) >= catalogueLag:
		blockModel(s, m, UnknownModel, true)
	case len(m.wants) == 0 && len(m.copies) == 0:
		forgetModel(s, m)
	}
	return todo
}

// least returns the number of copies that the model needs even if no request waits.
func (m *model) least() int {
	if m.ensure {
		return max(m.min(), 1)
	}
	return m.min()
}

// remaining counts the copies of a model, loaded or to be loaded, that can serve requests.
func remaining(m *model) int {
	n := 0
	for _, c := range m.copies {
		if c.remains() && c.endpoint.useful() {
			n++
		}
	}
	return n
}

// blockModel records why a model gets no copy. Waiting requests get that reason as their answer,
// unless a place will become free.
func blockModel(s *State, m *model, why Reason, starved bool) {
	if !m.stuck {
		p := s.pool(m.Pool)
		m.stuck, m.place = true, len(p.stuck)
		p.stuck = append(p.stuck, m)
	}
	if m.blocked != why {
		m.blocked = why
		s.noteModel(reasonChanged, m)
	}
	if starved && m.failed != why {
		m.failed = why
		s.noteModel(reasonChanged, m)
	}
}

// unblockModel records that a model has the copies that it needs, or may be placed again.
func unblockModel(s *State, m *model) {
	clearStuck(s, m)
	if m.blocked != "" || m.failed != "" {
		m.blocked, m.failed = "", ""
		s.noteModel(reasonChanged, m)
	}
}

// clearStuck records that a model no longer waits for a place.
func clearStuck(s *State, m *model) {
	if !m.stuck {
		return
	}
	p := s.pool(m.Pool)
	last := p.stuck[len(p.stuck)-1]
	p.stuck[m.place], last.place = last, m.place
	p.stuck, m.stuck = p.stuck[:len(p.stuck)-1], false
}
