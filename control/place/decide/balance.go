package decide

import (
	"cmp"
	"slices"
	"time"
)

// Endpoints that are loaded little, as those that have just joined, take over models from those
// that are loaded most: at a tick such an endpoint gets a copy of a model that is used a lot
// elsewhere. The copy at the busier endpoint is the one that can be spared then, and leaves when
// its room is needed. A move is made only where it leaves the source no less loaded than the
// target, so none is ever undone.

const (
	// Models are moved only where endpoints got so many requests in the mean within serviceMean: of
	// fewer, chance makes one endpoint twice as busy as another.
	enoughRequests = 50
	// An endpoint that bears less than littleLoad times the mean is given more.
	littleLoad = 0.5
	// No more than movesAtOnce of the endpoints get models for the sake of balance at one tick.
	movesAtOnce = 0.1
)

// shareOf is the load that each copy of a model bears, or is to bear once it is loaded: requests in
// flight, over minutes.
func shareOf(m *model) float64 { return m.slowFlight / float64(max(1, remaining(m))) }

// weigh finds what all endpoints bear.
func weigh(s *State) {
	for _, e := range s.endpoints {
		e.load = 0
	}
	for _, m := range s.models {
		addLoad(m, 1)
		if len(m.copies) > 1 {
			s.noteModel(valueChanged, m) // which of them can be spared goes by loads
		}
	}
}

// addLoad adds so many times what the copies of a model bear to the loads of their endpoints.
func addLoad(m *model, times float64) {
	if m.slowFlight == 0 || len(m.copies) == 0 {
		return
	}
	share := times * shareOf(m)
	for _, c := range m.copies {
		if e := c.endpoint; c.remains() && e.useful() {
			e.load += share
		}
	}
}

// balancePool has endpoints that bear little load models of those that bear the most.
func balancePool(s *State, p *pool, all []*model, now time.Time) (todo []Action) {
	requests, load := 0.0, 0.0
	for _, m := range all {
		requests += m.slowRate * serviceMean
	}
	var able []*endpoint
	for _, e := range p.endpoints {
		if e.able() {
			able, load = append(able, e), load+e.load
		}
	}
	n := float64(len(able))
	if requests < enoughRequests*n {
		return nil
	}
	mean := load / n
	slices.SortFunc(able, (*endpoint).compareLoad)
	idlest := slices.DeleteFunc(slices.Clone(able), func(e *endpoint) bool { return e.pod.Outgoing })
	for _, e := range idlest[:min(len(idlest), max(1, int(movesAtOnce*n)))] {
		for e.load < littleLoad*mean && e.idle() {
			m := reliefFor(s, e, able)
			if m == nil {
				break
			}
			addLoad(m, -1)
			todo = append(todo, putCopy(s, m, e, moves(m), now)...)
			addLoad(m, 1)
			touchBeside(s, m)
			slices.SortFunc(able, (*endpoint).compareLoad)
		}
	}
	return todo
}

// touchBeside notes that the loads of a model's endpoints have changed, by which it goes which
// copies there can be spared.
func touchBeside(s *State, m *model) {
	for _, c := range m.copies {
		for _, o := range c.endpoint.copies {
			if len(o.model.copies) > 1 {
				s.noteModel(valueChanged, o.model)
			}
		}
	}
}

// moves is the claim of a copy that is to take load over from another one.
func moves(m *model) claim { return claim{purpose: ForBalance, below: m.worth, spares: true} }

// reliefFor is the model that an endpoint is to take over: of the busiest endpoint that has one
// which is not too large a load the one that bears most there.
func reliefFor(s *State, e *endpoint, byLoad []*endpoint) *model {
	for _, from := range slices.Backward(byLoad) {
		var most *model
		for _, c := range from.copies {
			m := c.model
			share := shareOf(m)
			if c.State != Loaded || m.Pinned || share == 0 || share > (from.load-e.load)/2 {
				continue
			}
			if most != nil && cmp.Or(cmp.Compare(shareOf(most), share), m.Compare(most.ModelKey)) >= 0 {
				continue
			}
			if reorder(s, s.now); !slices.Contains(e.pools, m.Pool) {
				continue
			}
			if p, there := placeAt(s, e, m, moves(m)); there && !p.starves && !p.rereads {
				most = m
			}
		}
		if most != nil {
			return most
		}
	}
	return nil
}

// compareLoad orders endpoints by load, the lowest first.
func (e *endpoint) compareLoad(o *endpoint) int {
	return cmp.Or(cmp.Compare(e.load, o.load), cmp.Compare(e.Address, o.Address))
}
