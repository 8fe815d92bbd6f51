package decide

import (
	"cmp"
	"hash/fnv"
	"math"
	"slices"
	"time"
)

// What is known of all copies of an endpoint together is kept as they change, so that a request for
// a model that no endpoint has costs little where there are thousands of copies: sums in a tally,
// and who is to leave first in an order.

// tally is what the copies of an endpoint take up together.
type tally struct {
	// remain is all that is not being evicted, and settled the part of it that is not only queued.
	// held is what the engine has or was told to load, or may have been. stay is what may not be
	// evicted for other models. None of them includes leaks.
	remain, settled, held, stay amount
	loading                     int     // but for those that are overdue or slow
	slow                        int     // loads that are slow
	queue                       []*Copy // in no order
}

// amount is so many models of so many bytes together.
type amount struct {
	models int
	bytes  int64
}

func (a amount) plus(bytes int64) amount { return amount{a.models + 1, sum(a.bytes, bytes)} }

func (a amount) minus(bytes int64) amount { return amount{a.models - 1, a.bytes - bytes} }

func (a amount) without(b amount) amount { return amount{a.models - b.models, a.bytes - b.bytes} }

// sum adds sizes. It stops at the greatest number there is: what clients and engines say of sizes
// may be anything.
func sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// tally counts the copies, if they have changed since it last did.
func (e *endpoint) tally() *tally {
	if e.counted {
		return &e.sums
	}
	e.sums, e.counted, e.summed = tally{queue: e.sums.queue[:0]}, true, false
	t := &e.sums
	var twice map[string]*[4]bool // in an endpoint of two pools a model may be there once, for both
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
		}{{&t.remain, remains}, {&t.settled, remains && c.told()}, {&t.held, c.told()}, {&t.stay, c.remains() && c.stays}} {
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

// evictable returns how much may leave an endpoint for a copy that may put out any other.
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

// turns is how many loads count among those that an engine does at once. Slow ones count only where
// the engine takes no more beside them.
func (e *endpoint) turns() int {
	t := e.tally()
	return max(t.loading, t.loading+t.slow+max(1, e.Loads)-max(1, e.Loads, e.Overlap))
}

// reorder brings the orders of endpoints up to date. Whoever reads one calls it before.
func reorder(s *State, _ time.Time) []Action {
	for _, m := range s.due.touched {
		m.touched = false
		if len(m.copies) == 0 {
			continue
		}
		stays := m.foreign || m.Pinned || remaining(m) <= m.min()
		for _, c := range m.copies {
			e := c.endpoint
			if c.stays != stays {
				c.stays = stays
				s.noteCopy(staysChanged, c)
			}
			r := rank{busy: c.busy(), spare: canSpare(s, m, c), worth: worth(m)}
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
			if may && c.ranked && r.spare && !c.rank.spare {
				s.noteCopy(spareNow, c) // it leaves for those who may put out nothing else
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

// rank is a copy's place in the order in which copies leave.
type rank struct {
	busy  bool // its requests do not end soon
	spare bool // its model can spare it
	worth float64
}

// canSpare says whether a copy can be spared: its model has loaded as many others as it needs, none
// of them at a busier endpoint.
func canSpare(s *State, m *model, but *Copy) bool {
	others, busier := 0, false
	for _, c := range m.copies {
		if c != but && c.State == Loaded && c.endpoint.useful() {
			others++
			e, o := but.endpoint, c.endpoint
			busier = busier || cmp.Or(cmp.Compare(o.load, e.load), cmp.Compare(s.Lots(m.hash, o.hash), s.Lots(m.hash, e.hash))) > 0
		}
	}
	return !busier && others >= max(1, m.needs(), m.aim)
}

func (r rank) compare(o rank) int {
	return cmp.Or(truth(r.busy)-truth(o.busy), truth(o.spare)-truth(r.spare), cmp.Compare(r.worth, o.worth))
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// compareRank orders the copies of an endpoint for eviction: first those without long requests,
// among these spare copies first, then by lowest worth.
func (c *Copy) compareRank(o *Copy) int {
	return cmp.Or(c.rank.compare(o.rank), c.Key.Compare(o.Key))
}

// turnAfter is how much longer than a waiting request a queued copy waits for its turn if no
// request waits for its model.
const turnAfter = time.Minute

// turn returns the time by which queued copies are ordered.
func (c *Copy) turn() time.Time { return c.model.due(c.asked) }

// nextTurn returns what that time would be of a copy that the model got now.
func nextTurn(s *State, m *model) time.Time {
	asked := s.now
	if !m.placeless.IsZero() {
		asked = m.placeless
	}
	return m.due(asked)
}

// due returns the turn of a copy of m that was asked for at a time: when requests began to wait, or
// turnAfter later if none waits. A model that needs copies without any request does not lose its
// turn to its own requests, which may come late and give up soon.
func (m *model) due(asked time.Time) time.Time {
	since, unasked := m.since(), asked.Add(turnAfter)
	if since.IsZero() || m.needs() > 0 && unasked.Before(since) {
		return unasked
	}
	return since
}

// compareTurn orders queued copies by whose turn is first. Copies for which requests wait go first,
// but not for ever: a queue may never be without any of them.
func (c *Copy) compareTurn(o *Copy) int {
	return cmp.Or(c.turn().Compare(o.turn()), c.model.compare(o.model))
}

// isAbandoned reports whether a copy has been queued for turnAfter for requests that have all given
// up. Others may wait for room there.
func isAbandoned(c *Copy, now time.Time) bool {
	m := c.model
	return c.claim.asked && now.Sub(c.asked) >= turnAfter && len(m.wants) == 0 && remaining(m) > m.needs()
}

// worth is what copies of a model are missed by: no less than if it had been used when requests
// began to wait for it, which nobody has counted yet as they leave the queue.
func worth(m *model) float64 { return max(m.worth, seconds(m.awaited)) }

// rendezvous is a lot for a model at an endpoint, by their hashes (the last steps of splitmix64).
func rendezvous(model, endpoint uint64) uint64 {
	x := model ^ endpoint*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// hashed is a name as a number (FNV-1a).
func hashed(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64()
}
