package e2e

import (
	"flag"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// restarts is the number of engines that TestRollingRestartFailsNoRequest restarts. It is small by
// default; make soak sets a large number.
var restarts = flag.Int("engines", 6, "how many engines are restarted one by one")

// Like vLLM, engines that stop with --shutdown-timeout finish their requests, reject new ones, and
// keep answering for some seconds. They are restarted one after the other under load. No client
// gets an error, although the gateway gets no notice: the pod of a stopping engine stays ready and
// its metrics page answers. extproc detects that an engine is stopping before the engine closes its
// connections, so no request is on these connections.
func TestRollingRestartFailsNoRequest(t *testing.T) {
	runs(t)
	s := start(t, pods(t, *restarts), engineFlags("--shutdown-timeout", "15", "--shutdown-delay", "3"))
	l := s.pour(32, func(client, n int) request {
		tokens := 20
		if client < 8 {
			tokens = 400 // tokens of a long stream, which keeps an engine from ending at once
		}
		return completion(adapters[(client*5+n)%12], tokens, n%2 == 0)
	}, isOK)
	began := time.Now()
	for n := 1; n <= *restarts; n++ {
		s.endEngine(n)
		s.await("a look finds it gone", func() bool { return s.tells(s.Extproc.Log, "endpoint is out", s.endpoint(n)) })
		if err := s.StartEngine(t.Context(), s.endpoint(n)); err != nil {
			t.Fatal(err)
		}
		s.awaitHealthy(n)
	}
	took := time.Since(began)
	l.stop()
	s.Envoy.Stop(5 * time.Second) // Envoy flushes its log when it stops
	for _, fault := range l.faults {
		t.Error(fault)
	}
	for _, r := range s.accessLog(func(l logged) bool { return l.Status != 200 }) {
		t.Errorf("Envoy logged %+v", r)
	}
	saved := s.accessLog(func(l logged) bool { return l.Attempts > 1 && l.Status == 200 })
	told := 0
	for _, r := range saved {
		if r.Usage.Elsewhere != "" {
			told++
		}
	}
	t.Logf("%d engines restarted in %v under %d requests: %d failed, %d were served by another endpoint than the first pick, of which %d because an engine that was stopping said so",
		*restarts, took.Round(time.Millisecond), l.sent.Load(), len(l.faults), len(saved), told)
	if told == 0 {
		t.Error("no engine turned a request away: they ended idle")
	}
}

// endEngine stops the engine at an endpoint and waits until it has ended.
func (s *stack) endEngine(endpoint int) {
	s.t.Helper()
	engine := s.Engines[s.endpoint(endpoint)]
	engine.Signal(syscall.SIGTERM)
	select {
	case <-engine.Done():
	case <-time.After(20 * time.Second):
		s.t.Fatalf("%s does not end", engine.Name)
	}
}

// awaitHealthy waits until the engine at an endpoint gets requests again.
func (s *stack) awaitHealthy(endpoint int) {
	s.t.Helper()
	s.await("the engine is a candidate again", func() bool {
		return s.sum(s.Metrics, "headgate_endpoint_state", "endpoint", s.endpoint(endpoint), "state", "healthy") == 1
	})
}

// tells reports whether a line of the log file contains both what and of.
func (s *stack) tells(log, what, of string) bool {
	s.t.Helper()
	text, err := os.ReadFile(log)
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, what) && strings.Contains(line, of) {
			return true
		}
	}
	return false
}
