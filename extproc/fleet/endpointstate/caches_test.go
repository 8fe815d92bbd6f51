package endpointstate_test

import (
	"slices"
	"testing"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// listed returns a World of endpoints without pods.
func listed(addresses ...string) *objects.World { return objects.Build(objects.Endpoints(addresses)) }

// numbers returns the numbers of the endpoints in a view, sorted by address.
func numbers(s *endpointstate.State) (all []int) {
	for _, e := range view(s, start).Snapshot.Pools[objects.EndpointsPool.String()].Endpoints {
		all = append(all, e.Number)
	}
	return all
}

// An endpoint keeps its number while it exists. The next new endpoint gets the smallest free
// number, and the cache entries of that number's former owner are dropped.
func TestNumbers(t *testing.T) {
	const c, d, e = "10.0.0.3:8000", "10.0.0.4:8000", "10.0.0.5:8000"
	s := endpointstate.New(endpointstate.Config{})
	for i, step := range []struct {
		world *objects.World
		want  []int
		empty []int
	}{
		{listed(a, b), []int{0, 1}, []int{0, 1}},
		{listed(a, b, c), []int{0, 1, 2}, []int{2}},
		{listed(a, c), []int{0, 2}, nil},
		{listed(a, c, d, e), []int{0, 2, 1, 3}, []int{1, 3}},
		{listed(), nil, nil},
		{listed(e), []int{0}, []int{0}},
	} {
		s.SetWorld(step.world)
		if i == 4 {
			if got := s.TakeCaches(); len(got) != 0 {
				t.Errorf("step %d: caches of removed endpoints are reported: %+v", i, got)
			}
			continue
		}
		if got := numbers(s); !slices.Equal(got, step.want) {
			t.Errorf("step %d: numbers are %v, want %v", i, got, step.want)
		}
		var empty []int
		for _, c := range s.TakeCaches() {
			if c.Empty && c.Tokens == (engine.Value{}) {
				empty = append(empty, c.Number)
			}
		}
		slices.Sort(empty)
		if !slices.Equal(empty, step.empty) {
			t.Errorf("step %d: emptied are %v, want %v", i, empty, step.empty)
		}
	}
}

// A removed endpoint keeps its number while it has requests in flight, because it may come back.
func TestNumberIsKeptWithRequestsInFlight(t *testing.T) {
	s := endpointstate.New(endpointstate.Config{})
	s.SetWorld(listed(a, b))
	counts, _ := s.Moved(endpointstate.Counts{}, a, "", true)
	counts.Add(start)
	s.SetWorld(listed(b))
	s.SetWorld(listed(b, "10.0.0.3:8000"))
	if got := numbers(s); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("numbers are %v, want 1 and 2", got)
	}
}

func TestCaches(t *testing.T) {
	s := endpointstate.New(endpointstate.Config{})
	s.SetWorld(world("one"))
	s.TakeCaches()
	saw := func(load engine.Load) []endpointstate.Cache {
		s.ScrapeSucceeded(s.Scrape(b, start), load)
		return s.TakeCaches()
	}
	number := view(s, start).Snapshot.Pools["ns/one"].Endpoints[1].Number
	tokens, began, later := engine.Known(4096), engine.Known(100), engine.Known(200)
	for i, c := range []struct {
		load engine.Load
		want []endpointstate.Cache
	}{
		{engine.Load{}, nil},
		{engine.Load{KVTokens: tokens, Started: began}, []endpointstate.Cache{{Number: number, Tokens: tokens}}},
		{engine.Load{KVTokens: tokens, Started: began, Running: tokens}, nil},
		{engine.Load{KVTokens: tokens, Started: later}, []endpointstate.Cache{{Number: number, Tokens: tokens, Empty: true}}},
		{engine.Load{KVTokens: began, Started: later}, []endpointstate.Cache{{Number: number, Tokens: began}}},
		{
			engine.Load{KVTokens: began, Started: later, Forgets: true},
			[]endpointstate.Cache{{Number: number, Tokens: began, Forgets: true}},
		},
	} {
		if got := saw(c.load); !slices.Equal(got, c.want) {
			t.Errorf("scrape %d: %+v, want %+v", i, got, c.want)
		}
	}
	// In scripts with few bytes per token, the same cache contains less text.
	s.Dense(objects.Name{Namespace: "ns", Name: "one"}, 1.5)
	if got := s.TakeCaches(); !slices.Equal(got, []endpointstate.Cache{{
		Number: number, Tokens: began, BytesPerToken: 1.5,
		Forgets: true,
	}}) {
		t.Errorf("with a new density: %+v", got)
	}
	if got := saw(engine.Load{KVTokens: tokens, Started: later}); !slices.Equal(got,
		[]endpointstate.Cache{{Number: number, Tokens: tokens, BytesPerToken: 1.5}}) {
		t.Errorf("after the next scrape: %+v", got)
	}
	s.Dense(objects.Name{Namespace: "ns", Name: "gone"}, 9)
	if got := s.TakeCaches(); len(got) != 0 {
		t.Errorf("with a density of another pool: %+v", got)
	}
	saw(engine.Load{KVTokens: tokens, Started: later, Forgets: true})
	if all := view(s, start).Snapshot.Pools["ns/one"].Endpoints; all[0].Forgets || !all[1].Forgets {
		t.Errorf("whether an engine has a prefix cache is unknown: %v and %v", all[0].Forgets, all[1].Forgets)
	}
	// Another pod at the same address is another engine.
	other := world("one")
	for i := range other.Engines {
		if other.Engines[i].Address == b {
			other.Engines[i].Pod.Name = "other"
		}
	}
	s.SetWorld(other)
	if got := s.TakeCaches(); !slices.Equal(got, []endpointstate.Cache{{Number: number, Empty: true}}) {
		t.Errorf("with another pod: %+v", got)
	}
}
