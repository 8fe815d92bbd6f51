package meter_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/meter"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/version"
)

// world has one route and one endpoint for each address.
func world(ips ...string) *objects.World {
	p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pool"}}
	p.Spec.Selector.MatchLabels = map[string]string{"app": "llama"}
	p.Spec.TargetPorts = []pool.Port{{Number: 8000}}
	r := v1alpha1.LLMRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sql"}}
	r.Spec.BackendRefs = []v1alpha1.BackendReference{{Name: "pool"}}
	s := objects.Set{Pools: []pool.InferencePool{p}, Routes: []v1alpha1.LLMRoute{r}}
	for _, ip := range ips {
		s.Pods = append(s.Pods, objects.Pod{
			Name: objects.Name{Namespace: "ns", Name: "pod-" + ip}, IP: netip.MustParseAddr(ip), Ready: true, Labels: map[string]string{"app": "llama"},
		})
	}
	return objects.Build(s)
}

func get(t *testing.T, m *meter.Meter, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	body, err := io.ReadAll(w.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.Code, string(body)
}

func expect(t *testing.T, page string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains(page, "\n"+line+"\n") {
			t.Errorf("the page lacks %s", line)
		}
	}
}

const endpoint = "10.0.0.1:8000"

func started() (*meter.Meter, *fleet.Fleet) {
	f := fleet.New(fleet.Config{})
	m := meter.New(f)
	w := world("10.0.0.1")
	f.SetWorld(w)
	m.SetWorld(w)
	return m, f
}

func TestAnOutcomeBecomesMetrics(t *testing.T) {
	m, _ := started()
	ok := outcome.Outcome{
		Route: "ns/sql", Pool: "ns/pool", Model: "sql", Stream: true, Endpoint: endpoint, Status: 200, Attempts: 2,
		Duration: 3 * time.Second, FirstBody: 200 * time.Millisecond, Gateway: 400 * time.Microsecond,
		Prompt: engine.Known(7), Completion: engine.Known(20),
		Load: engine.Load{Waiting: engine.Known(4), KVUsage: engine.Known(0.25)},
	}
	m.Observe(ok)
	m.Observe(outcome.Outcome{Route: "ns/sql", Endpoint: endpoint, Status: 503, Attempts: 2, Failure: outcome.Refused})
	m.Observe(outcome.Outcome{Status: 503, Failure: outcome.NoEndpoint})
	m.Observe(outcome.Outcome{Status: 404, ByExtproc: true})
	m.Replied(404, "model_not_found")
	m.Decided("ns/pool", "least pending", 20*time.Microsecond)
	m.HoldBegan()
	m.HoldBegan()
	m.HoldEnded(meter.HoldReleased, 2*time.Second)
	m.Connected(true)
	m.Heard(7, time.Unix(1e9, 0))
	m.Observe(outcome.Outcome{Status: 404, Missing: []string{endpoint}, Endpoint: "10.9.9.9:1"})
	m.Looked(nil)
	m.Looked(errors.New("down"))
	m.Refused(2)
	_, page := get(t, m, "/metrics")
	expect(t, page,
		`headgate_requests_total{code="200",endpoint="10.0.0.1:8000",route="ns/sql"} 1`,
		`headgate_requests_total{code="503",endpoint="10.0.0.1:8000",route="ns/sql"} 1`,
		`headgate_failures_total{endpoint="10.0.0.1:8000",kind="refused",route="ns/sql"} 1`,
		`headgate_failures_total{endpoint="",kind="no_endpoint",route=""} 1`,
		`headgate_retries_total{endpoint="10.0.0.1:8000",route="ns/sql"} 2`,
		`headgate_tokens_total{endpoint="10.0.0.1:8000",kind="prompt",route="ns/sql"} 7`,
		`headgate_tokens_total{endpoint="10.0.0.1:8000",kind="completion",route="ns/sql"} 20`,
		`headgate_time_to_first_token_seconds_count{endpoint="10.0.0.1:8000",route="ns/sql"} 1`,
		`headgate_request_duration_seconds_sum{endpoint="10.0.0.1:8000",route="ns/sql"} 3`,
		`headgate_endpoint_reported_load{endpoint="10.0.0.1:8000",what="waiting"} 4`,
		`headgate_gateway_seconds_count 1`,
		`headgate_replies_total{code="model_not_found",status="404"} 1`,
		`headgate_picks_total{pool="ns/pool",reason="least pending"} 1`,
		`headgate_decision_seconds_count 1`,
		`headgate_held 1`,
		`headgate_hold_seconds_sum{outcome="released"} 2`,
		`headgate_control_connected 1`,
		`headgate_control_version 7`,
		`headgate_control_heard_timestamp_seconds 1e+09`,
		`headgate_failures_total{endpoint="10.0.0.1:8000",kind="missing",route=""} 1`,
		`headgate_scrapes_total{result="error"} 1`,
		`headgate_objects_refused_files 2`,
		`headgate_objects{kind="endpoint"} 1`,
		`headgate_build_info{goversion="`+version.Read().Go+`",program="extproc",version="`+version.Read().Program+`"} 1`,
	)
}

func TestEndpointsAreShownAsTheyAre(t *testing.T) {
	m, f := started()
	f.SetModels(endpoint, engine.Models{Adapters: []string{"sql"}})
	f.Look(endpoint).Saw(engine.Load{Running: engine.Known(3)})
	_, page := get(t, m, "/metrics")
	expect(t, page,
		`headgate_endpoint_state{endpoint="10.0.0.1:8000",state="healthy"} 1`,
		`headgate_endpoint_state{endpoint="10.0.0.1:8000",state="out"} 0`,
		`headgate_endpoint_in_flight{endpoint="10.0.0.1:8000"} 0`,
		`headgate_endpoint_running{endpoint="10.0.0.1:8000"} 3`,
	)
	if strings.Contains(page, "headgate_endpoint_waiting{") {
		t.Error("an unknown number is shown")
	}
}

// A gateway lives long and pods do not: what is gone leaves no series, and what ends later makes none.
func TestSeriesGoWithTheirObjects(t *testing.T) {
	m, f := started()
	o := outcome.Outcome{Route: "ns/sql", Endpoint: endpoint, Status: 200, Duration: time.Second}
	m.Observe(o)
	w := world("10.0.0.2")
	f.SetWorld(w)
	m.SetWorld(w)
	m.Observe(o)
	_, page := get(t, m, "/metrics")
	if strings.Contains(page, endpoint) {
		t.Errorf("the page still names %s", endpoint)
	}
	expect(t, page, `headgate_requests_total{code="200",endpoint="",route="ns/sql"} 1`)
}

func TestReadyWithObjects(t *testing.T) {
	m := meter.New(fleet.New(fleet.Config{}))
	if code, _ := get(t, m, "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("without objects /readyz is %d", code)
	}
	m.SetWorld(world())
	if code, _ := get(t, m, "/readyz"); code != http.StatusOK {
		t.Errorf("with objects /readyz is %d", code)
	}
	if code, _ := get(t, m, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz is %d", code)
	}
}
