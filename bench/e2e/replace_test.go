package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/headgate/rig"
)

// An extproc that is told to stop releases its socket at once and ends its ext_proc streams. Envoy
// completes the responses without extproc, so extproc does not wait for them.
func TestStoppingExtprocWaitsForNoResponse(t *testing.T) {
	onBothPlanes(t, stoppingExtprocWaitsForNoResponse)
}

func stoppingExtprocWaitsForNoResponse(t *testing.T) {
	const open = 150
	// The engines are as slow as with a large model: 45 ms per token.
	s := start(t, extprocFlags("--drain-timeout", "1m"), withoutFlow(t), func(c *rig.Config) { c.EngineFlags = []string{"--max-loras", "4"} })
	ends := s.streams(open, 600) // 27 s each: a busy machine needs up to 15 s to start all streams
	asked := time.Now()
	s.Extproc.Signal(syscall.SIGTERM)
	select {
	case <-s.Extproc.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("it waits for what flows without it")
	}
	t.Logf("it ended after %v, with %d streams not at their end", time.Since(asked).Round(time.Millisecond), open-len(ends))
	if len(ends) > 0 {
		t.Errorf("%d streams ended meanwhile: they were too short to tell", len(ends))
	}
	refused(t, "a request while nobody leads", s.must(completion("a01", 1, false)), http.StatusServiceUnavailable, "picker_unavailable")
	if err := s.StartExtproc(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.promised(time.Second, "requests are answered again", func() bool { return s.must(completion("a01", 1, false)).status == 200 })
	for range open {
		if err := <-ends; err != nil {
			t.Errorf("a stream did not survive: %v", err)
		}
	}
	s.await("nothing is in flight", func() bool { return s.inFlight() == 0 })
}

// When an extproc takes over from another, no request fails and no stream is cut, however many
// there are.
func TestTakeOverFailsNoRequest(t *testing.T) {
	onBothPlanes(t, takeOverFailsNoRequest)
}

func takeOverFailsNoRequest(t *testing.T) {
	s := start(t)
	ends := s.streams(32, 2000)
	l := s.pour(32, func(client, n int) request { return completion(adapters[(client+n)%len(adapters)], 10, n%2 == 0) }, isOK)
	s.await("requests flow", func() bool { return l.sent.Load() > 200 })
	for range 4 {
		sent := l.sent.Load()
		began := time.Now()
		if err := s.ReplaceExtproc(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Logf("replaced within %v, and %d requests", time.Since(began).Round(time.Millisecond), l.sent.Load()-sent)
		l.goesOn(s, 3)
	}
	l.stop()
	for _, fault := range l.faults {
		t.Error(fault)
	}
	for range 32 {
		if err := <-ends; err != nil {
			t.Errorf("a stream did not survive: %v", err)
		}
	}
	t.Logf("%d requests", l.sent.Load())
}

// Requests that wait for their model when extproc is told to stop continue when the model is
// loaded. Requests that wait longer than the drain timeout get 503 with Retry-After.
func TestWaitingRequestsSurviveAnExtprocStop(t *testing.T) {
	onBothPlanes(t, waitingRequestsSurviveAnExtprocStop)
}

func waitingRequestsSurviveAnExtprocStop(t *testing.T) {
	slow := filepath.Join(t.TempDir(), "slow.yaml")
	if err := os.WriteFile(slow, []byte(strings.Replace(profile, "adapterLoad: {mean: 0.02}", "adapterLoad: {mean: 2}", 1)),
		0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		timeout string
		want    int
	}{"the load ends before": {"30s", http.StatusOK}, "the load ends after": {"500ms", http.StatusServiceUnavailable}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, pods(t, 1), placed(t, 4, "a01"), extprocFlags("--drain-timeout", c.timeout), engineFlags("--profile", slow))
			answers := make(chan answer, 1)
			go func() {
				a, err := s.ask(t.Context(), completion("a01", 5, true))
				if err != nil {
					t.Error(err)
				}
				answers <- a
			}()
			s.await("it waits", func() bool { return len(s.events()) > 0 })
			asked := time.Now()
			s.Extproc.Signal(syscall.SIGTERM)
			a := <-answers
			if a.status != c.want {
				t.Errorf("after %v it gets %d %s", time.Since(asked), a.status, a.body)
			}
			if a.status != http.StatusOK {
				refused(t, "a request that waited in vain", a, http.StatusServiceUnavailable, "not_ready")
			}
			select {
			case <-s.Extproc.Done():
			case <-time.After(10 * time.Second):
				t.Error("it does not end")
			}
		})
	}
}
