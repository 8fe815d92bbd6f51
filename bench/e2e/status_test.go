package e2e

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/headgate/drain"
	"github.com/headgate/headgate/headgate/status"
)

// status returns the output of headgate status.
func (s *stack) status(args ...string) string {
	s.t.Helper()
	var out bytes.Buffer
	if err := status.Command(s.t.Context(),
		append(args, "--control-url", "http://"+s.ControlMetrics, "--extproc-url", "http://"+s.Metrics), &out); err != nil {
		s.t.Errorf("headgate status: %v", err)
	}
	return out.String()
}

// An endpoint is drained under load, while control is killed and starts again. No request fails or
// waits for a load, none is left at the endpoint, and no new one goes there until it is put back.
func TestDrainedEndpointLosesNoRequest(t *testing.T) {
	runs(t)
	names := []string{"v1", "v2", "v3"} // v4 is loaded later
	s := start(t, placed(t, 4, append(names, "v4")...), loading(t, 0.3))
	for _, name := range names {
		s.must(completion(name, 1, false))
	}
	endpoint := 0
	for n := 1; n <= 4 && endpoint == 0; n++ {
		if len(s.copiesAt(s.endpoint(n))) > 0 {
			endpoint = n
		}
	}
	address := s.endpoint(endpoint)
	l := s.pour(6, func(client, n int) request { return completion(names[client%3], 20, n%2 == 0) }, isOK)
	l.goesOn(s, 10)
	held := s.histogram(s.Metrics, "headgate_queue_time_seconds").GetSampleCount()
	var out bytes.Buffer
	began := time.Now()
	drained := make(chan error, 1)
	go func() {
		drained <- drain.Command(t.Context(), []string{"--control-url", "http://" + s.ControlMetrics, "--timeout", "1m", address}, &out)
	}()
	// A control that is killed earlier may lose when models were last used, and then moves none.
	s.await("a model is being loaded elsewhere", func() bool {
		return slices.ContainsFunc(from(s.events(), began), func(e engineEvent) bool { return e.Event == "load" })
	})
	s.Control.Kill()
	if err := s.StartControl(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-drained; err != nil || !strings.Contains(out.String(), address+" is drained: stop its engine") {
		t.Fatalf("%v\n%s", err, out.String())
	}
	shown := s.status()
	t.Logf("%s%s", out.String(), shown)
	if !strings.Contains(shown, address+"  out") || !strings.Contains(shown, "headgate drain --undo") {
		t.Errorf("status shows\n%s", shown)
	}
	if n := s.sum(s.Metrics, "headgate_endpoint_in_flight", "endpoint", address); n != 0 {
		t.Errorf("%.0f requests are still there", n)
	}
	before := s.asked(endpoint, "200")
	l.goesOn(s, 10)
	s.must(completion("v4", 1, false))
	if more := s.asked(endpoint, "200") - before; more > 0 {
		t.Errorf("%.0f requests went there after the drain", more)
	}
	if now := s.histogram(s.Metrics, "headgate_queue_time_seconds").GetSampleCount(); now != held+1 { // that of v4
		t.Errorf("%d requests waited for a load", now-held-1)
	}
	if err := drain.Command(t.Context(), []string{"--control-url", "http://" + s.ControlMetrics, "--undo", address}, &out); err != nil {
		t.Error(err)
	}
	s.await("the endpoint is back", func() bool { return strings.Contains(s.status("--endpoint", address), "healthy") })
	l.stop()
	for _, fault := range l.faults {
		t.Error(fault)
	}
}
