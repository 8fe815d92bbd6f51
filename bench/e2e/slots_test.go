package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Three adapters with constant requests share an engine whose GPU has two slots. Requests for the
// third adapter wait for a slot, and keep waiting there even if another engine loads this adapter.
// When a second engine appears, one of the three adapters moves there and all requests are
// answered.
func TestStarvingAdaptersAreSpread(t *testing.T) {
	runs(t, raced)
	names := []string{"v1", "v2", "v3"}
	s := start(t, pods(t, 2), placed(t, 8, names...), engineFlags("--max-loras", "2"), controlFlags("--rebalance-interval", "2s"))
	s.write("engines.yaml", s.without(2, 2))
	s.starve(names, 4, func() { s.write("engines.yaml", engines(strings.TrimSuffix(s.Listen, "1:8080"), 2)) })
	// One adapter leaves the first engine, unless the second engine already has two: then only one
	// adapter needs the first engine.
	left, came := false, make(map[string]bool)
	for _, e := range s.events() {
		left = left || e.Engine == s.endpoint(1) && e.Event == "unload"
		if e.Engine == s.endpoint(2) && e.Event == "loaded" {
			came[e.Model] = true
		}
	}
	if !left && len(came) < 2 {
		t.Errorf("none has left the engine, and %v came to the other", came)
	}
}

// starve runs clients for each of three adapters at the only engine and waits until one adapter
// starves. Then it adds another engine, and waits until the starved adapter is served and all
// clients get responses.
func (s *stack) starve(names []string, clients int, add func()) {
	s.t.Helper()
	s.await("one engine is left", func() bool { return s.sum(s.Metrics, "headgate_endpoints") == 1 })
	for _, name := range names {
		s.must(completion(name, 1, false))
	}
	l := s.pour(clients*len(names), func(client, n int) request {
		return completion(names[client/clients], 100+37*client%50, n%2 == 0)
	}, isOK)
	of := func(counts []int64, i int) []int64 { return counts[clients*i : clients*(i+1)] }
	// Two of the adapters always get responses. Which two is random.
	var starved int
	s.awaitWithin(time.Minute, "one starves", func() bool {
		before := l.counts(0)
		time.Sleep(2 * time.Second)
		after, answered := l.counts(0), 0
		for i := range names {
			if slices.Equal(of(after, i), of(before, i)) {
				starved = i
			} else {
				answered++
			}
		}
		return answered == 2
	})
	add()
	began, before := time.Now(), l.counts(0)
	s.awaitWithin(time.Minute, "the one that starves is answered", func() bool {
		return slices.Min(of(l.counts(0), starved)) >= slices.Max(of(before, starved))+3
	})
	s.t.Logf("%s was answered %v after there was another engine", names[starved], time.Since(began).Round(time.Millisecond))
	// Requests that the first engine has wait there until one of its three adapters has left it.
	want := l.counts(3)
	s.awaitWithin(time.Minute, "each client's requests are answered", func() bool {
		for client := range want {
			if l.each[client].Load() < want[client] {
				return false
			}
		}
		return true
	})
	l.stop()
	for _, fault := range l.faults {
		s.t.Error(fault)
	}
}
