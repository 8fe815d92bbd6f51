package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// An engine stops without notice. A request fails only if it was sent before extproc detected the
// stop. The models that requests wait for are loaded elsewhere, nothing more is loaded at the
// stopping engine, and it ends when its own requests have ended.
func TestStoppingEngineDelaysNoOtherRequest(t *testing.T) {
	onBothPlanes(t, stoppingEngineDelaysNoOtherRequest)
}

func stoppingEngineDelaysNoOtherRequest(t *testing.T) {
	s := start(t, pods(t, 2), engineFlags("--shutdown-timeout", "15", "--shutdown-delay", "3"), placed(t, 2, numbered(5)...))
	engine := s.Engines[s.endpoint(1)]
	s.stopsUnderLoad(numbered(5), s.endpoint(1), func() { engine.Signal(syscall.SIGTERM) }, engine.Done(), 20*time.Second)
	s.exactlyOnce(s.events())
}

// stopsUnderLoad stops an engine while there are requests for more adapters than the other engine
// has slots. It reports which requests failed and how long the others took. The test fails if the
// engine takes longer to end than the duration within.
func (s *stack) stopsUnderLoad(names []string, address string, stop func(), ended <-chan struct{}, within time.Duration) {
	s.t.Helper()
	var mu sync.Mutex // guards the variables below
	var failed []answer
	var longest, before time.Duration
	var asked time.Time
	draw := zipf(names)
	const clients = 8
	draws := make([]*rand.Rand, clients)
	for i := range draws {
		draws[i] = rand.New(rand.NewPCG(uint64(i), 3))
	}
	l := s.pour(clients, func(client, n int) request { return completion(draw(draws[client]), 20, n%2 == 0) },
		func(a answer, err error) string {
			took := time.Since(a.begun)
			mu.Lock()
			defer mu.Unlock()
			if asked.IsZero() {
				before = max(before, took)
			} else {
				longest = max(longest, took)
			}
			if a.status == http.StatusServiceUnavailable {
				failed = append(failed, a)
				return ""
			}
			return isOK(a, err)
		})
	s.await("requests flow", func() bool { return l.sent.Load() > 200 })
	mu.Lock()
	asked = time.Now()
	mu.Unlock()
	stop()
	select {
	case <-ended:
		s.t.Logf("it ended after %v", time.Since(asked).Round(time.Millisecond))
	case <-time.After(within):
		s.t.Errorf("it has not ended after %v", within)
	}
	l.goesOn(s, 5)
	l.stop()
	for _, fault := range l.faults {
		s.t.Error(fault)
	}
	known := s.logged(s.Control.Log, "the endpoint is leaving", address)
	if known.IsZero() {
		s.t.Fatal("control was never told that the engine is stopping")
	}
	for _, a := range failed {
		// Control may log the stop a moment before extproc is informed.
		if late := a.begun.Sub(known); late > 250*time.Millisecond || a.header.Get("Retry-After") == "" {
			s.t.Errorf("a request that was sent %v after the stop was known gets %d %s, Retry-After %q", late, a.status, a.body,
				a.header.Get("Retry-After"))
		}
	}
	if most := max(before*3, 3*time.Second); longest > most {
		s.t.Errorf("a request took %v, at most %v before the stop", longest, before)
	}
	s.t.Logf("%d requests; known after %v; %d got 503, sent before; the longest took %v, %v before", l.sent.Load(),
		known.Sub(asked).Round(time.Millisecond), len(failed), longest.Round(time.Millisecond), before.Round(time.Millisecond))
}

// logged returns when a program first logged a message that contains about, zero if never.
func (s *stack) logged(log, message, about string) time.Time {
	s.t.Helper()
	text, err := os.ReadFile(log)
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var entry struct {
			Time time.Time
			Msg  string
		}
		if json.Unmarshal([]byte(line), &entry) == nil && strings.HasPrefix(entry.Msg, message) &&
			strings.Contains(line, fmt.Sprintf("%q", about)) {
			return entry.Time
		}
	}
	return time.Time{}
}
