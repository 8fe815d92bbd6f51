package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/api/inference"
	"github.com/headgate/headgate/headgate/rig"
)

// limited runs n model runtimes with slow inferences, at most two at once for each model, and a
// control that soon adds copies.
func limited(t *testing.T, n int) *stack {
	t.Helper()
	return start(t, runtimes(t, n, map[string]string{"one": "sim:?infer=100ms"}), standalone, controlFlags("--rebalance-interval", "1s"),
		func(c *rig.Config) {
			c.EngineFlags = []string{"--concurrency", "2"}
		})
}

// callers are clients that call a model until they are stopped. Each sends one call at a time.
type callers struct {
	inferLoad
	stop context.CancelFunc
}

// callsOf starts n callers, which use a V2 client.
func callsOf(t *testing.T, to inference.GRPCInferenceServiceClient, n int) *callers {
	ctx, stop := context.WithCancel(t.Context())
	c := &callers{stop: stop}
	for range n {
		c.calls.Go(func() {
			for ctx.Err() == nil {
				c.infer(to, "one")
			}
		})
	}
	return c
}

// crowded returns the number of requests that runtimes rejected because of their concurrency limit.
func (s *stack) crowded() int { return count(s.events(), "crowded") }

// end stops the callers and reports their errors.
func (c *callers) end(t *testing.T, s *stack) {
	t.Helper()
	c.stop()
	c.calls.Wait()
	c.report(t)
	if n := s.crowded(); n > 0 {
		t.Errorf("%d requests came to a runtime that had two for the model already", n)
	}
	s.await("no call is in flight or waits", func() bool {
		return s.inFlight() == 0 && s.sum(s.Metrics, "headgate_concurrency_queued_requests") == 0 &&
			s.sum(s.Metrics, "headgate_queued_requests") == 0
	})
}

// Twenty callers use a model whose copies accept two requests at once. No copy ever gets a third
// request, and every call is answered. Because calls wait, the model gets a copy at the other
// runtime. After control is killed, the new process has the limits without asking the runtimes.
func TestCopiesStayWithinTheirConcurrencyLimit(t *testing.T) {
	runs(t, raced)
	s := limited(t, 2)
	c := callsOf(t, s.calls(), 20)
	s.await("calls wait for others to end", func() bool { return s.sum(s.Metrics, "headgate_concurrency_queued_requests") > 10 })
	s.await("the model gets a second copy", func() bool { return count(s.events(), "loaded") == 2 })
	before := c.sent.Load()
	s.await("four are in flight", func() bool { return s.inFlight() == 4 })
	s.Control.Kill()
	s.await("calls go on without control", func() bool { return c.sent.Load() > before+50 })
	if err := s.StartControl(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.await("extproc knows the new control", func() bool { return s.sum(s.Metrics, "headgate_control_connected") == 1 })
	before = c.sent.Load()
	s.await("calls go on with it", func() bool { return c.sent.Load() > before+100 })
	c.end(t, s)
	if n := count(s.events(), "purge"); n != 2 {
		t.Errorf("runtimes were made ready %d times, want each once", n)
	}
	t.Logf("%d calls: %v", c.sent.Load(), c.took)
}

// The only copy of a model accepts two requests at once. Two extprocs, each with its own Envoy,
// send it one each. When one extproc has been down for a while, the other sends two.
func TestExtprocsShareAConcurrencyLimit(t *testing.T) {
	runs(t)
	s := limited(t, 1)
	c := callsOf(t, s.calls(), 6)
	s.await("two are in flight", func() bool { return s.inFlight() == 2 })
	c.end(t, s)

	other := s.beside(t)
	s.await("the other knows control", func() bool { return s.sum(other.Metrics, "headgate_control_connected") == 1 })
	// Each extproc serves one request, so that it learns that the other extproc exists.
	for _, to := range []*stack{s, other} {
		if fault := inferOnce(to); fault != "" {
			t.Fatal(fault)
		}
	}
	var both sync.WaitGroup
	first, second := callsOf(t, s.calls(), 6), callsOf(t, other.calls(), 6)
	s.await("calls of both are answered", func() bool { return first.sent.Load() > 30 && second.sent.Load() > 30 })
	if here, there := s.inFlight(), other.inFlight(); here > 1 || there > 1 {
		t.Errorf("one has %v in flight and the other %v, want one each at most", here, there)
	}
	s.Control.Kill()
	if err := s.StartControl(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := first.sent.Load()
	s.await("calls go on with another control", func() bool { return first.sent.Load() > before+60 })
	for _, c := range []*callers{first, second} {
		both.Go(func() { c.stop(); c.calls.Wait() })
	}
	both.Wait()
	first.end(t, s)
	second.report(t)

	other.Extproc.Kill()
	c = callsOf(t, s.calls(), 6)
	s.await("the one that stays has both places", func() bool { return s.inFlight() == 2 })
	c.end(t, s)
}

// inferOnce makes a call and returns its error as text, empty if there is none.
func inferOnce(s *stack) string {
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	a, err := s.calls().ModelInfer(ctx, tensor("one", 1))
	return answers(a, err, "one", 1)
}

// beside starts another Envoy with its own extproc. They use the same engines and the same control,
// if there is a control.
func (s *stack) beside(t *testing.T) *stack {
	t.Helper()
	dir, host := t.TempDir(), strings.TrimSuffix(s.Listen, "1:8080")+"2"
	files, err := os.ReadDir(s.objects)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(s.objects, f.Name()))
		if err == nil { // the engines already run
			err = os.WriteFile(filepath.Join(dir, f.Name()), []byte(strings.ReplaceAll(string(text), rig.SimulateLabel, "there")), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	c := s.Config
	c.Objects, c.Dir, c.Listen, c.Admin, c.Metrics, c.ControlMetrics = dir, filepath.Join(dir, "run"), host+":8080", host+":9901", host+
		":9090", ""
	if s.Control != nil {
		c.ExtprocFlags = append(slices.Clip(c.ExtprocFlags), "--control", "unix:"+s.ControlSocket())
	}
	r, err := rig.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Stop(5 * time.Second) })
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &stack{Rig: r, t: t, url: "http://" + c.Listen, objects: dir, client: s.client}
}
