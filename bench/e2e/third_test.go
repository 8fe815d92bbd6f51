package e2e

import (
	"bufio"
	"context"
	"strings"
	"testing"
	"time"
)

// patience is how long a request that is first in order waits for room before it reserves some, as
// in extproc/flow.
const patience = 5 * time.Second

// Two adapters with constant requests occupy both slots of the only engine. A request for a third
// one waits until it reserves a slot, and then until the running requests of one adapter have
// ended.
func TestThirdAdapterWaitsForASlot(t *testing.T) {
	runs(t)
	names := []string{"v1", "v2", "v3"}
	s := start(t, pods(t, 1), placed(t, 8, names...), engineFlags("--max-loras", "2"))
	s.serveThird(names, 2)
}

// serveThird keeps the first two of three adapters busy at the only engine, whose two slots they
// occupy. It sends requests for the third adapter, one at a time, and checks how long they wait for
// their first tokens.
func (s *stack) serveThird(names []string, requests int) {
	s.t.Helper()
	for _, name := range names {
		s.must(completion(name, 1, false)) // loads it
	}
	const each = 3
	l := s.pour(2*each, func(client, n int) request {
		return completion(names[client/each], 100+37*client%50, n%2 == 0)
	}, isOK)
	l.goesOn(s, 2)
	var waits []time.Duration
	for range requests {
		began := time.Now()
		ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
		response, err := s.open(ctx, completion(names[2], 5, true))
		if err != nil {
			s.t.Fatalf("a request for the third adapter starves: %v", err)
		}
		if line, err := bufio.NewReader(response.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, "data:") {
			s.t.Errorf("the stream begins with %q, %v", line, err)
		}
		waits = append(waits, time.Since(began))
		_ = response.Body.Close()
		cancel()
		l.goesOn(s, 2)
	}
	l.stop()
	for _, fault := range l.faults {
		s.t.Error(fault)
	}
	longest := time.Duration(0) // time of a request of the two at the engine
	busy := func(l logged) bool { return decided(l) && (l.Pick.Model == names[0] || l.Pick.Model == names[1]) }
	for _, l := range s.accessLog(busy) {
		longest = max(longest, time.Duration((l.MS-l.Before)*float64(time.Millisecond)))
	}
	s.t.Logf("the third adapter's first tokens came after %v; the longest request of the others ran for %v", waits, longest)
	for _, is := range waits {
		// The second is for timers, the adapter's load, and the step with the first token.
		if most := patience + longest + time.Second; is > most {
			s.t.Errorf("a request for the third adapter waited %v, want at most %v", is, most)
		}
	}
}
