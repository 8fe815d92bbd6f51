package e2e

import (
	"fmt"
	"testing"
	"time"
)

// An engine that drops requests without a response must not fail any other request, however few
// engines there are, because it still responds to the next scrape.
func TestRequestsThatAreDroppedCostNoOtherRequest(t *testing.T) {
	onBothPlanes(t, requestsThatAreDroppedCostNoOtherRequest)
}

func requestsThatAreDroppedCostNoOtherRequest(t *testing.T) {
	for _, c := range []struct {
		engines int
		every   time.Duration
	}{{1, time.Second / 60}, {1, time.Second / 4}, {2, time.Second / 30}, {8, time.Second / 60}} {
		t.Run(fmt.Sprintf("%d engines, every %v", c.engines, c.every.Round(time.Millisecond)), func(t *testing.T) {
			t.Parallel()
			s := start(t, pods(t, c.engines))
			l := s.pour(4, func(client, n int) request { return completion(adapters[(client*5+n)%12], 4, n%2 == 0) }, isOK)
			ticker := time.NewTicker(c.every)
			defer ticker.Stop()
			dropped := 0
			for began := time.Now(); time.Since(began) < time.Second; dropped++ {
				<-ticker.C
				a := s.must(request{body: completion("a01", 4, false).body, header: map[string]string{"X-Sim-Fault": "reset"}})
				refused(t, "a request that is dropped", a, 503, "server_ended")
			}
			l.stop()
			for _, fault := range l.faults {
				t.Error(fault)
			}
			t.Logf("%d requests were dropped, and %d of %d others failed", dropped, len(l.faults), l.sent.Load())
			s.await("every engine is healthy", func() bool {
				return s.sum(s.Metrics, "headgate_endpoint_state", "state", "healthy") == float64(c.engines)
			})
		})
	}
}

// Engines that close idle connections after a second or more fail no request, because Envoy closes
// idle connections sooner. A request on a connection that the engine is closing may already have
// started, so Envoy does not retry it.
func TestEnginesThatCloseIdleConnectionsCostNoRequest(t *testing.T) {
	runs(t)
	s := start(t, pods(t, 1), engineFlags("--fault", "idle=800ms"))
	ask := func() {
		answers := make(chan string)
		for range 8 {
			go func() {
				a, err := s.ask(t.Context(), completion("a01", 20, false))
				answers <- isOK(a, err)
			}()
		}
		for range 8 {
			if fault := <-answers; fault != "" {
				t.Error(fault)
			}
		}
	}
	ask()
	<-time.After(900 * time.Millisecond) // connections stay idle for this time
	ask()
}
