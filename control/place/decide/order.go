package decide

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/hash"
)

// Sums over the copies of an endpoint, and their eviction order, are updated as copies change. So a
// request for a model without a copy stays cheap even with thousands of copies.

// tally is the memory and slots that the copies of an endpoint use together.
type tally struct {
	// remain is the amount of all copies that are not being evicted. settled is the same without
	// copies that are only queued. held is what the engine has, was told to load, or may have. stay
	// is what may not be evicted for other models. None of them includes leaks.
	remain, settled, held, stay amount
	loading                     int     // number of loads, without overdue and slow ones
	slow                        int     // number of slow loads
	queue                       []*Copy // queued copies, unsorted
}

// amount is a number of models and their total size in bytes.
type amount struct {
	models int
	bytes  int64
}

func (a amount) plus(bytes int64) amount { return amount{a.models + 1, sum(a.bytes, bytes)} }

func (a amount) minus(bytes int64) amount { return amount{a.models - 1, a.bytes - bytes} }

func (a amount) without(b amount) amount { return amount{a.models - b.models, a.bytes - b.bytes} }

// sum adds two sizes and saturates at the largest int64: sizes from clients and engines may be any
// number.
func sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// tally returns the memory and slots that the endpoint's copies use together. It recomputes these
// sums if copies have changed since the last call.
func (e *endpoint) tally() *tally {
	if e.counted {
		return &e.sums
	}
	e.sums, e.counted, e.summed = tally{queue: e.sums.queue[:0]}, true, false
	t := &e.sums
	var twice map[string]*[4]bool // two pools of an endpoint may share one model of its engine
	if len(e.pools) > 1 {
		twice = make(map[string]*[4]bool)
	}
	for _, c := range e.copies {
		remains := c.remains() || c.late
		counted := new([4]bool)
		if twice != nil {
			if twice[c.ID] == nil {
				twice[c.ID] = counted
			}
			counted = twice[c.ID]
		}
		for i, into := range []struct {
			it  *amount
			yes bool
		}{
			{&t.remain, remains},
			{&t.settled, remains && c.loadRequested()},
			{&t.held, c.loadRequested()},
			{&t.stay, c.remains() && c.mustStay},
		} {
			if into.yes && !counted[i] {
				counted[i] = true
				*into.it = into.it.plus(c.room())
			}
		}
		switch {
		case c.State == Loading && !c.overdue && c.slow:
			t.slow++
		case c.State == Loading && !c.overdue:
			t.loading++
		case c.State == Queued:
			t.queue = append(t.queue, c)
		}
	}
	return t
}

// evictable returns how much could be evicted for a copy that may evict any evictable copy.
func (e *endpoint) evictable() amount {
	e.tally()
	if !e.summed {
		e.summed, e.mayLeave = true, amount{}
		for _, c := range e.order {
			e.mayLeave = e.mayLeave.plus(c.room())
		}
	}
	return e.mayLeave
}

// turns returns the number of loads to compare with the engine's limit of concurrent loads. Slow
// loads are included only if the engine accepts no other loads beside them.
func (e *endpoint) turns() int {
	t := e.tally()
	return max(t.loading, t.loading+t.slow+max(1, e.Loads)-max(1, e.Loads, e.Overlap))
}

// reorder updates the eviction orders of endpoints. It must run before they are read.
func reorder(s *State, _ time.Time) []Action {
	for _, m := range s.due.touched {
		m.touched = false
		if len(m.copies) == 0 {
			continue
		}
		stays := m.foreign || m.Pinned || remaining(m) <= m.min()
		for _, c := range m.copies {
			e := c.endpoint
			if c.mustStay != stays {
				c.mustStay = stays
				s.noteCopy(staysChanged, c)
			}
			r := rank{busy: c.busy(), surplus: isSurplus(s, m, c), value: evictionValue(m)}
			may := c.remains() && c.State != Loading && !stays && len(m.wants) == 0
			if c.ranked && may && c.rank == r {
				continue
			}
			if c.ranked {
				at, _ := slices.BinarySearchFunc(e.order, c, (*Copy).compareRank)
				e.order, e.summed = slices.Delete(e.order, at, at+1), false
			}
			if may && !c.ranked {
				s.noteCopy(mayLeave, c)
			}
			if may && c.ranked && r.surplus && !c.rank.surplus {
				s.noteCopy(spareNow, c) // claims that may evict only surplus copies may now evict it
			}
			c.ranked, c.rank = may, r
			if may {
				at, _ := slices.BinarySearchFunc(e.order, c, (*Copy).compareRank)
				e.order, e.summed = slices.Insert(e.order, at, c), false
			}
		}
	}
	s.due.touched = s.due.touched[:0]
	return nil
}

// rank is the position of a copy in the eviction order.
type rank struct {
	busy    bool // requests of the copy will not end soon
	surplus bool // the copy is surplus
	value   float64
}

// isSurplus reports whether a copy is surplus: its model has as many other loaded copies as it
// needs, none of them at a busier endpoint.
func isSurplus(s *State, m *model, but *Copy) bool {
	others, busier := 0, false
	for _, c := range m.copies {
		if c != but && c.State == Loaded && c.endpoint.useful() {
			others++
			e, o := but.endpoint, c.endpoint
			busier = busier || cmp.Or(cmp.Compare(o.load, e.load), cmp.Compare(s.TieBreak(m.hash, o.hash), s.TieBreak(m.hash, e.hash))) > 0
		}
	}
	return !busier && others >= max(1, m.needs(), m.aim)
}

func (r rank) compare(o rank) int {
	return cmp.Or(truth(r.busy)-truth(o.busy), truth(o.surplus)-truth(r.surplus), cmp.Compare(r.value, o.value))
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// compareRank orders the copies of an endpoint for eviction: first copies that are not busy; among
// these, surplus copies first; then by eviction value, the lowest first.
func (c *Copy) compareRank(o *Copy) int {
	return cmp.Or(c.rank.compare(o.rank), c.ModelKey.Compare(o.ModelKey))
}

// turnAfter is the delay of a queued copy's turn if no request waits for its model: requests that
// begin to wait within this time go first.
const turnAfter = time.Minute

// update returns the copy's turn in the queue, by which queued copies are sorted.
func (c *Copy) update() time.Time { return c.model.due(c.asked) }

// nextTurn returns the turn that a copy of the model would have if it were queued now.
func nextTurn(s *State, m *model) time.Time {
	asked := s.now
	if !m.lacksPlaceSince.IsZero() {
		asked = m.lacksPlaceSince
	}
	return m.due(asked)
}

// due returns the turn of a copy that was queued at the time asked: the time at which requests
// began to wait or, if none waits, turnAfter after asked. If the model needs the copy even without
// requests, the turn is the earlier of both, so it stays the same if requests arrive late and give
// up soon.
func (m *model) due(asked time.Time) time.Time {
	since, unasked := m.since(), asked.Add(turnAfter)
	if since.IsZero() || m.needs() > 0 && unasked.Before(since) {
		return unasked
	}
	return since
}

// compareTurn orders queued copies by turn. Copies with waiting requests have earlier turns, but
// only by a limited time, since the queue may always contain some of them.
func (c *Copy) compareTurn(o *Copy) int {
	return cmp.Or(c.update().Compare(o.update()), c.model.compare(o.model))
}

// isAbandoned reports whether a copy was queued turnAfter ago for requests that have all given up.
// Such a copy must not keep other copies waiting.
func isAbandoned(c *Copy, now time.Time) bool {
	m := c.model
	return c.claim.asked && now.Sub(c.asked) >= turnAfter && len(m.wants) == 0 && remaining(m) > m.needs()
}

// evictionValue returns the eviction value of a model. It is at least as high as if the model had
// been used when requests last began to wait, because waiting requests are counted as uses only
// afterwards.
func evictionValue(m *model) float64 { return max(m.value, seconds(m.awaited)) }

// rendezvous returns the rendezvous hash of a model and an endpoint (the last steps of splitmix64).
func rendezvous(model, endpoint uint64) uint64 {
	return hash.Mix(model ^ endpoint*hash.Gamma)
}
