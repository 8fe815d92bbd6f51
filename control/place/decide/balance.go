package decide

import (
	"cmp"
	"slices"
	"time"
)

// Endpoints with little load, such as new ones, take over models from busy endpoints: at a tick,
// such an endpoint gets a copy of a model that is used a lot elsewhere. The copy at the busier
// endpoint can then be spared, and is evicted when its room is needed. A move must leave the source
// at least as loaded as the target, so no move is ever undone.

const (
	// enoughRequests is the mean number of requests per endpoint within serviceMean below which no
	// model is moved: with fewer, chance alone makes one endpoint twice as busy as another.
	enoughRequests = 50
	// littleLoad is the share of the mean load below which an endpoint gets more models.
	littleLoad = 0.5
	// movesAtOnce is the largest share of the endpoints that get models for balance at one tick.
	movesAtOnce = 0.1
)

// shareOf returns the load of each copy of a model, loaded or to be loaded: requests in flight,
// averaged over minutes.
func shareOf(m *model) float64 { return m.slowFlight / float64(max(1, remaining(m))) }

// weigh computes the load of all endpoints.
func weigh(s *State) {
	for _, e := range s.endpoints {
		e.load = 0
	}
	for _, m := range s.models {
		addLoad(m, 1)
		if len(m.copies) > 1 {
			s.noteModel(valueChanged, m) // loads decide which copies can be spared
		}
	}
}

// addLoad adds the load of each copy of a model, multiplied by times, to the load of its endpoint.
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

// balancePool gives endpoints with little load copies of models of the busiest endpoints.
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

// touchBeside notes that the loads of a model's endpoints have changed, which changes the copies
// that can be spared there.
func touchBeside(s *State, m *model) {
	for _, c := range m.copies {
		for _, o := range c.endpoint.copies {
			if len(o.model.copies) > 1 {
				s.noteModel(valueChanged, o.model)
			}
		}
	}
}

// moves returns the claim of a copy that takes over load from another one.
func moves(m *model) claim { return claim{purpose: ForBalance, below: m.worth, spares: true} }

// reliefFor returns the model that an endpoint takes over. It comes from the busiest endpoint that
// has a model with a small enough load; of those models it is the one with the most load.
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
