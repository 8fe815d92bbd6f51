package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Three adapters that always have requests are at an engine whose GPU has two slots: requests for the third wait for one, and those that wait go on
// doing so wherever else it is loaded. When there is another engine one of the three leaves for it, and all are answered.
func TestAdaptersThatStarveAreKeptApart(t *testing.T) {
	t.Parallel()
	names := []string{"v1", "v2", "v3"}
	s := start(t, pods(t, 2), placed(t, 8, names...), engineFlags("--max-loras", "2"), controlFlags("--tick-interval", "2s"))
	s.write("engines.yaml", s.without(2, 2))
	s.await("one engine is left", func() bool { return s.sum(s.Metrics, "headgate_endpoints") == 1 })
	for _, name := range names {
		s.must(completion(name, 1, false))
	}
	l := s.pour(12, func(client, n int) request { return completion(names[client/4], 100+37*client%50, n%2 == 0) }, isOK)
	// Two of them are answered all the time; which two is chance.
	var starved int
	s.await("one starves", func() bool {
		before := l.counts(0)
		time.Sleep(2 * time.Second)
		after, answered := l.counts(0), 0
		for i := range names {
			if slices.Equal(after[4*i:4*i+4], before[4*i:4*i+4]) {
				starved = i
			} else {
				answered++
			}
		}
		return answered == 2
	})
	s.write("engines.yaml", engines(strings.TrimSuffix(s.Listen, "1:8080"), 2))
	began := time.Now()
	before := l.counts(0)
	s.awaitWithin(time.Minute, "the one that starves is answered", func() bool {
		return slices.Min(l.counts(0)[4*starved:4*starved+4]) >= slices.Max(before[4*starved:4*starved+4])+3
	})
	t.Logf("%s was answered %v after there was another engine", names[starved], time.Since(began).Round(time.Millisecond))
	l.goesOn(s, 3)
	l.stop()
	if left := slices.ContainsFunc(s.events(), func(e engineEvent) bool { return e.Engine == s.endpoint(1) && e.Event == "unload" }); !left {
		t.Error("none has left the engine")
	}
	for _, fault := range l.faults {
		t.Error(fault)
	}
}
