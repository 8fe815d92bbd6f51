package decide

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// For random loads and copies: an endpoint takes over a model only while the endpoint has less than
// half the mean load, and only from an endpoint that stays at least as loaded as itself. It takes
// the model with the largest allowed load from the busiest endpoint that has such a model, as a
// search of all copies confirms. If nothing else changes, balancing ends.
func TestBalance(t *testing.T) {
	moves := 0
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		s, now, name := New(Config{}), time.Unix(1e9, 0), objects.Name{Namespace: "n", Name: "p"}
		second := objects.Name{Namespace: "n", Name: "q"}
		n := 2 + random.IntN(6)
		for i := range n {
			address := fmt.Sprintf("e%d", i)
			s.SetEndpoint(address, []objects.Name{name, second}[:1+random.IntN(2)])
			s.Scraped(ScrapeResult{Began: now, Endpoint: Endpoint{Address: address, CanLoad: true, Slots: 6, Loads: 1 +
				random.IntN(2)}}, now)
		}
		p := s.pool(name)
		var all []*model
		for i := range 4 * n {
			key := Key{Pool: []objects.Name{name, name, name, second}[random.IntN(4)], ID: fmt.Sprintf("m%02d", i)}
			s.SetModel(objects.Entry{ModelKey: key, Pinned: random.IntN(8) == 0, Max: random.IntN(4)}.Complete(nil), now)
			m := s.models[key]
			m.slowFlight, m.slowRate = float64(random.IntN(8)), 1
			all = append(all, m)
			for range random.IntN(3) {
				if e := p.endpoints[random.IntN(n)]; m.at(e.Address) == nil && slices.Contains(e.pools, m.Pool) &&
					(m.Max == 0 || len(m.copies) < m.Max) && random.IntN(n) <= len(e.copies) {
					s.add(m, e, []CopyState{Loaded, Loaded, Loaded, Loading}[random.IntN(4)], now)
				}
			}
		}
		for round := 0; ; round++ {
			if round > 10*n {
				t.Fatalf("seed %d: it goes on for ever", seed)
			}
			computeLoads(s)
			mean, was, bore, most := 0.0, map[*model]int{}, map[*endpoint]float64{}, map[*endpoint]float64{}
			for _, e := range p.endpoints {
				mean += e.load / float64(n)
				bore[e] = e.load
			}
			for _, m := range all {
				was[m] = len(m.copies)
			}
			reorder(s, s.now)
			if e, m := searched(s, p, mean); e != nil {
				// Another endpoint may have the same load, and balancing may start with that
				// endpoint.
				if got := modelToTakeOver(s, e, sortedByLoad(p)); got == nil || loadPerCopy(got) != loadPerCopy(m) {
					t.Fatalf("seed %d: %v goes to %s, want one that bears %v", seed, got, e.Address, loadPerCopy(m))
				}
			}
			balancePool(s, p, all, now)
			bear := map[*endpoint]float64{}
			for _, e := range p.endpoints {
				bear[e] = e.load
			}
			computeLoads(s)
			for _, e := range p.endpoints {
				if math.Abs(bear[e]-e.load) > 1e-9 {
					t.Fatalf("seed %d: %s bears %v, and counted anew %v", seed, e.Address, bear[e], e.load)
				}
			}
			moved := false
			for _, m := range all {
				if len(m.copies) == was[m] {
					continue
				}
				moved = true
				moves++
				var to *Copy
				for _, c := range m.copies {
					if c.State == Queued {
						to = c
					}
				}
				e := s.endpoints[to.Endpoint]
				if most[e] = max(most[e], loadPerCopy(m)); bore[e] >= mean/2 {
					t.Fatalf("seed %d: %s bore %v of a mean of %v and took over %s", seed, e.Address, bore[e], mean, m.ID)
				}
			}
			for e, share := range most {
				if e.load-share >= mean/2 {
					t.Fatalf("seed %d: %s bears %v of a mean of %v, and has taken over more than it needed to", seed, e.Address,
						e.load, mean)
				}
			}
			if !moved {
				if e, m := searched(s, p, mean); e != nil && e == sortedByLoad(p)[0] {
					t.Fatalf("seed %d: %s could take over %s", seed, e.Address, m.ID)
				}
				break
			}
			for _, m := range all {
				for _, c := range m.copies {
					if c.State == Queued {
						s.set(c, Loaded, now)
					}
				}
			}
		}
	}
	if moves < 300 {
		t.Errorf("%d moves", moves)
	}
}

func sortedByLoad(p *pool) []*endpoint {
	return slices.SortedFunc(slices.Values(p.endpoints), (*endpoint).compareLoad)
}

// searched returns the least loaded endpoint and the model that it takes over, found by a search of
// all copies; nil if it takes over none.
func searched(s *State, p *pool, mean float64) (*endpoint, *model) {
	e := sortedByLoad(p)[0]
	if e.load >= mean/2 || !e.idle() {
		return nil, nil
	}
	var best *model
	var from *endpoint
	for _, o := range p.endpoints {
		for _, c := range o.copies {
			m := c.model
			share := loadPerCopy(m)
			switch {
			case c.State != Loaded, share == 0, m.Pinned, m.has(e), m.Max > 0 && len(m.copies) >= m.Max, !slices.Contains(e.pools, m.Pool),
				o.load-share < e.load+share:
			case best != nil && (o.compareLoad(from) < 0 || o == from && share <= loadPerCopy(best)):
			default:
				if _, ok, _ := offerPlace(s, e, m, claim{below: m.value, takesSurplus: true}); ok {
					best, from = m, o
				}
			}
		}
	}
	if best == nil {
		return nil, nil
	}
	return e, best
}

// A copy that is being removed has no load, and neither has a copy at an endpoint that is about to
// end: the other copies share the load.
func TestLoadIsSharedByRemainingCopies(t *testing.T) {
	s, now, key := New(Config{}), time.Unix(1e9, 0), Key{Pool: objects.Name{Namespace: "n", Name: "p"}, ID: "m"}
	s.SetModel(objects.Entry{ModelKey: key}.Complete(nil), now)
	m := s.models[key]
	m.slowFlight = 6
	for i, state := range []CopyState{Loaded, Loading, Draining, Loaded} {
		address := fmt.Sprintf("e%d", i)
		s.SetEndpoint(address, []objects.Name{key.Pool})
		s.Scraped(ScrapeResult{Began: now, Endpoint: Endpoint{Address: address, CanLoad: true, Slots: 6}}, now)
		s.add(m, s.endpoints[address], state, now)
	}
	s.Terminating("x", "e3", true, time.Time{})
	computeLoads(s)
	for address, want := range map[string]float64{"e0": 3, "e1": 3, "e2": 0, "e3": 0} {
		if got := s.endpoints[address].load; got != want {
			t.Errorf("%s bears %v, want %v", address, got, want)
		}
	}
}
