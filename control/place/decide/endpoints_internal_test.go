package decide

import (
	"fmt"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// If an endpoint leaves a pool, the pool's models are loaded elsewhere. The engine unloads them,
// except models that it also has for another pool.
func TestEndpointLeavesAPool(t *testing.T) {
	p, q := objects.Name{Namespace: "n", Name: "p"}, objects.Name{Namespace: "n", Name: "q"}
	for _, both := range []bool{true, false} {
		s, now := New(Config{}), time.Unix(1e9, 0)
		see := func(address string, listed ...string) {
			s.Scraped(ScrapeResult{
				Endpoint: Endpoint{Address: address, CanLoad: true, Lists: true, Slots: 8, Loads: 1}, Began: now,
				Listed: listed,
			}, now)
		}
		s.SetEndpoint("e1", []objects.Name{p, q})
		s.SetEndpoint("e2", []objects.Name{p})
		s.SetModel(objects.Entry{ModelKey: Key{Pool: p, ID: "a"}}.Complete(nil), now)
		if both {
			s.SetModel(objects.Entry{ModelKey: Key{Pool: q, ID: "a"}}.Complete(nil), now)
			see("e1", "a")
		} else {
			see("e1")
			s.add(s.models[Key{Pool: p, ID: "a"}], s.endpoints["e1"], Loaded, now)
		}
		see("e2")
		s.Decide(now)
		s.SetEndpoint("e1", []objects.Name{q})
		s.Decide(now)
		now = now.Add(time.Minute)
		s.Wanted("x", Key{Pool: p, ID: "a"}, Want{Requests: 1, Since: now})
		todo, _ := s.Decide(now)
		loads, unloads := 0, 0
		for _, a := range todo {
			switch {
			case a.Kind == Load && a.Endpoint == "e2":
				loads++
			case a.Kind == Unload && a.Endpoint == "e1":
				unloads++
			}
		}
		if loads != 1 || unloads != truth(!both) || len(todo) != loads+unloads {
			t.Errorf("another pool has it: %v, and to be done is %+v", both, todo)
		}
	}
}

// The removal time of a copy is kept until a scrape begins after it, even for an engine that lists
// no models.
func TestRemovalTimesAreForgotten(t *testing.T) {
	s, now := New(Config{}), time.Unix(1e9, 0)
	p := objects.Name{Namespace: "n", Name: "p"}
	s.SetEndpoint("e1", []objects.Name{p})
	look := func() {
		s.Scraped(ScrapeResult{Endpoint: Endpoint{Address: "e1", CanLoad: true, Slots: 3, Loads: 1, Incarnation: "1"}, Began: now}, now)
	}
	look()
	for i := range 10 {
		c := CopyKey{ModelKey: Key{Pool: p, ID: fmt.Sprint("m", i)}, Endpoint: "e1"}
		s.SetModel(objects.Entry{ModelKey: c.ModelKey}.Complete(nil), now)
		s.Ensure(c.ModelKey)
		s.Decide(now)
		s.LoadEnded(c, LoadResult{}, now)
		s.RemoveModel(c.ModelKey)
		s.Decide(now)
		s.Drained(c, now)
		s.UnloadEnded(c, false, now)
		s.Decide(now)
		now = now.Add(time.Minute)
		look()
	}
	if n := len(s.endpoints["e1"].left); n > 0 || len(s.models) > 0 {
		t.Errorf("%d models are known, and of %d that they left", len(s.models), n)
	}
}
