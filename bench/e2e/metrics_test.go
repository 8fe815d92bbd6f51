package e2e

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// excused contains the metrics for which a promlint finding is accepted, with the reason.
var excused = map[string]string{}

// The metrics that the programs export under load follow Prometheus' rules for names, types and
// help.
func TestMetricsAreLinted(t *testing.T) {
	runs(t)
	names := numbered(6)
	s := start(t, placed(t, 1, names...), controlFlags("--drain-timeout", "1s")) // more adapters than fit
	for _, name := range names {
		for _, stream := range []bool{false, true} {
			if a := s.must(completion(name, 3, stream)); a.status != 200 {
				t.Fatalf("%s: %d %s", name, a.status, a.body)
			}
		}
	}
	s.must(request{body: `{"model":"llama","prompt":"x","max_tokens":9,"stream":true,"stream_options":{"include_usage":true}}`})
	s.must(request{body: `{"model":"llama","prompt":"x"}`, header: map[string]string{"X-Sim-Fault": "status=500"}})
	s.must(request{body: `{"model":"llama","prompt":"x"}`, header: map[string]string{"X-Sim-Fault": "reset"}})
	s.must(completion("nobody", 1, false))
	leaving, leave := context.WithCancel(t.Context())
	left, err := s.open(leaving, completion(baseRoute, 5000, true))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadFull(left.Body, make([]byte, 10))
	leave()
	_ = left.Body.Close()
	s.await("a client that left is counted", func() bool { return s.sum(s.Metrics, "headgate_failures_total", "kind", "client_gone") == 1 })

	seen := make(map[string]bool)
	for program, c := range map[string]struct {
		address string
		want    []string // metrics that a program exports only under load
	}{
		"extproc": {s.Metrics, []string{
			"headgate_requests_total", "headgate_failures_total", "headgate_tokens_total", "headgate_request_tokens",
			"headgate_time_to_first_token_seconds",
			"headgate_time_per_output_token_seconds", "headgate_request_duration_seconds", "headgate_endpoint_requests_total",
			"headgate_endpoint_failures_total", "headgate_endpoint_engine_requests_waiting", "headgate_endpoint_engine_kv_cache_usage",
			"headgate_endpoint_kv_usage",
			"headgate_replies_total", "headgate_picks_total", "headgate_scrapes_total", "headgate_queue_time_seconds",
		}},
		"control": {s.ControlMetrics, []string{
			"headgate_place_load_seconds", "headgate_place_unload_seconds", "headgate_copies", "headgate_models",
			"headgate_place_queued_requests", "headgate_place_decisions_total", "headgate_extprocs",
		}},
	} {
		page := s.page(c.address)
		for _, name := range c.want {
			if !strings.Contains(page, "# TYPE "+name+" ") {
				t.Errorf("%s does not serve %s, so that it is not linted", program, name)
			}
		}
		problems, err := promlint.New(strings.NewReader(page)).Lint()
		if err != nil {
			t.Errorf("the page of %s: %v", program, err)
		}
		for _, p := range problems {
			seen[p.Metric] = true
			if excused[p.Metric] == "" {
				t.Errorf("%s: %s: %s", program, p.Metric, p.Text)
			}
		}
	}
	for name, reason := range excused {
		if !seen[name] {
			t.Errorf("%s needs no excuse any more (%s)", name, reason)
		}
	}
}
