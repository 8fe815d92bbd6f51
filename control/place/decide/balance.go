package decide

import (
	"cmp"
	"slices"
	"time"
)

// Endpoints with little load, such as new endpoints, take over models from busy endpoints. At a
// tick, such an endpoint gets a copy of a model that has much load elsewhere. The copy at the
// busier endpoint is then surplus, and is evicted when its room is needed. A move must leave the
// source at least as loaded as the target, so no move is ever undone.

const (
	// minRequests is the smallest mean number of requests per endpoint, within serviceMean, at
	// which models are moved. With fewer requests, chance alone makes one endpoint twice as busy as
	// another.
	minRequests = 50
	// lowLoadShare: an endpoint gets more models if its load is below this share of the mean load.
	lowLoadShare = 0.5
	// maxMoveShare is the largest share of all endpoints that get a model at one tick to balance
	// the load.
	maxMoveShare = 0.1
)

// loadPerCopy returns the mean load of the copies of a model, loaded or to be loaded: the number of
// requests in flight, averaged over minutes.
func loadPerCopy(m *model) float64 { return m.slowFlight / float64(max(1, remaining(m))) }

// computeLoads computes the load of all endpoints.
func computeLoads(s *State) {
	for _, e := range s.endpoints {
		e.load = 0
	}
	for _, m := range s.models {
		addLoad(m, 1)
		if len(m.copies) > 1 {
			s.noteModel(valueChanged, m) // the load of an endpoint decides which copies are surplus
		}
	}
}

// addLoad adds the load of each copy of a model to the load of the copy's endpoint, multiplied by
// times.
func addLoad(m *model, times float64) {
	if m.slowFlight == 0 || len(m.copies) == 0 {
		return
	}
	share := times * loadPerCopy(m)
	for _, c := range m.copies {
		if e := c.endpoint; c.remains() && e.useful() {
			e.load += share
		}
	}
}

// balancePool gives endpoints with little load copies of models that the busiest endpoints have.
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
	if requests < minRequests*n {
		return nil
	}
	mean := load / n
	slices.SortFunc(able, (*endpoint).compareLoad)
	idlest := slices.DeleteFunc(slices.Clone(able), func(e *endpoint) bool { return e.pod.Outgoing })
	for _, e := range idlest[:min(len(idlest), max(1, int(maxMoveShare*n)))] {
		for e.load < lowLoadShare*mean && e.idle() {
			m := modelToTakeOver(s, e, able)
			if m == nil {
				break
			}
			addLoad(m, -1)
			todo = append(todo, putCopy(s, m, e, balanceClaim(m), now)...)
			addLoad(m, 1)
			touchPeers(s, m)
			slices.SortFunc(able, (*endpoint).compareLoad)
		}
	}
	return todo
}

// touchPeers notes that the loads of a model's endpoints have changed. This can change which copies
// at these endpoints are surplus.
func touchPeers(s *State, m *model) {
	for _, c := range m.copies {
		for _, o := range c.endpoint.copies {
			if len(o.model.copies) > 1 {
				s.noteModel(valueChanged, o.model)
			}
		}
	}
}

// balanceClaim returns the claim of a copy that takes over load from another copy.
func balanceClaim(m *model) claim {
	return claim{purpose: ForBalance, below: m.value, takesSurplus: true}
}

// modelToTakeOver returns the model that an endpoint takes over. It chooses the busiest endpoint
// that has a model with a small enough load, and of these models the one with the most load.
func modelToTakeOver(s *State, e *endpoint, byLoad []*endpoint) *model {
	for _, from := range slices.Backward(byLoad) {
		var most *model
		for _, c := range from.copies {
			m := c.model
			share := loadPerCopy(m)
			if c.State != Loaded || m.Pinned || share == 0 || share > (from.load-e.load)/2 {
				continue
			}
			if most != nil && cmp.Or(cmp.Compare(loadPerCopy(most), share), m.Compare(most.ModelKey)) >= 0 {
				continue
			}
			if reorder(s, s.now); !slices.Contains(e.pools, m.Pool) {
				continue
			}
			if p, there := placeAt(s, e, m, balanceClaim(m)); there && !p.starves && !p.rereads {
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
