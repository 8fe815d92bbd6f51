package metrics_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/version"
)

// world returns a World with one route, two Models, and one endpoint per address. Requests may name
// only one of the Models.
func world(ips ...string) *objects.World {
	p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pool"}}
	p.Spec.Selector.MatchLabels = map[string]string{"app": "llama"}
	p.Spec.TargetPorts = []pool.Port{{Number: 8000}}
	r := v1alpha1.LLMRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sql"}}
	r.Spec.BackendRefs = []v1alpha1.BackendReference{{Name: "pool"}}
	s := objects.Set{Pools: []pool.InferencePool{p}, Routes: []v1alpha1.LLMRoute{r}}
	for _, id := range []string{"sql", "other"} {
		model := v1alpha1.Model{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "model-" + id}}
		model.Spec.ID, model.Spec.PoolRef.Name = id, "pool"
		s.Models = append(s.Models, &model)
	}
	for _, ip := range ips {
		s.Pods = append(s.Pods, objects.Pod{
			Name: objects.Name{Namespace: "ns", Name: "pod-" + ip}, IP: netip.MustParseAddr(ip), Ready: true,
			Labels: map[string]string{"app": "llama"},
		})
	}
	return objects.Build(s)
}

func get(t *testing.T, m *metrics.Meter, path string) (int, string) {
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

func started() (*metrics.Meter, *fleet.Fleet) {
	f := fleet.New(fleet.Config{})
	m := metrics.New(f)
	w := world("10.0.0.1")
	f.SetWorld(w)
	m.SetWorld(w)
	return m, f
}

func TestOutcomeBecomesMetrics(t *testing.T) {
	m, _ := started()
	m.Observe(outcome.Outcome{
		Route: "ns/sql", Pool: "ns/pool", Model: "sql", Stream: true, Endpoint: endpoint, Status: 200, Attempts: 2,
		Duration: 3 * time.Second, FirstBody: 200 * time.Millisecond, Gateway: 400 * time.Microsecond,
		Prompt: engine.Known(7), Completion: engine.Known(20), Expected: 160 * time.Millisecond,
		Load: engine.Load{Waiting: engine.Known(4), KVUsage: engine.Known(0.25)},
	})
	m.Observe(outcome.Outcome{Route: "ns/sql", Pool: "ns/pool", Endpoint: endpoint, Status: 503, Attempts: 2, Failure: outcome.Refused})
	m.Observe(outcome.Outcome{Pool: "ns/pool", Endpoint: endpoint, Status: 200})
	m.Observe(outcome.Outcome{Route: "ns/model-other", Pool: "ns/pool", Endpoint: endpoint, Status: 200}) // a Model without a route
	m.Observe(outcome.Outcome{Status: 503, Failure: outcome.NoEndpoint})
	m.Observe(outcome.Outcome{Status: 404, ByExtproc: true})
	m.Replied(404, "model_not_found")
	m.Decided("ns/pool", "least pending", 20*time.Microsecond)
	began := time.Now()
	m.Enqueued(false, began)
	m.Enqueued(false, began).Ended(metrics.QueueReleased, began.Add(2*time.Second))
	m.Enqueued(true, began)
	wait := m.Enqueued(false, began)
	wait.Goes(false, began.Add(time.Second))
	wait.Goes(true, began.Add(3*time.Second)) // the model is loaded, but its copies are at their limit
	wait.Goes(true, began.Add(4*time.Second))
	wait.Ended(metrics.QueueExpired, began.Add(8*time.Second))
	if _, page := get(t, m, "/metrics"); strings.Contains(page, "\nheadgate_control_connected") {
		t.Error("headgate_control_connected has a value without control")
	}
	m.Connected(true)
	m.UpdateApplied(7, time.Unix(1e9, 0))
	m.Scraped(nil)
	m.Scraped(errors.New("down"))
	m.Refused(2)
	_, page := get(t, m, "/metrics")
	expect(t, page,
		`headgate_requests_total{code="200",pool="ns/pool",route="ns/sql"} 1`,
		`headgate_requests_total{code="503",pool="ns/pool",route="ns/sql"} 1`,
		`headgate_requests_total{code="200",pool="ns/pool",route=""} 2`,
		`headgate_failures_total{kind="refused",pool="ns/pool",route="ns/sql"} 1`,
		`headgate_failures_total{kind="no_endpoint",pool="",route=""} 1`,
		`headgate_tokens_total{kind="prompt",pool="ns/pool",route="ns/sql"} 7`,
		`headgate_tokens_total{kind="completion",pool="ns/pool",route="ns/sql"} 20`,
		`headgate_time_to_first_token_seconds_sum{pool="ns/pool",route="ns/sql"} 0.2`,
		`headgate_time_to_first_token_seconds_bucket{pool="ns/pool",route="ns/sql",le="0.25"} 1`,
		`headgate_first_token_ratio_sum{pool="ns/pool"} 1.25`,
		`headgate_first_token_ratio_count{pool="ns/pool"} 1`,
		`headgate_pool_predictions_trusted{pool="ns/pool"} 0`,
		`headgate_time_per_output_token_seconds_count{pool="ns/pool",route="ns/sql"} 1`,
		`headgate_request_duration_seconds_sum{pool="ns/pool",route="ns/sql"} 3`,
		`headgate_request_tokens_sum{kind="completion",pool="ns/pool"} 20`,
		`headgate_endpoint_requests_total{endpoint="10.0.0.1:8000",pool="ns/pool"} 4`,
		`headgate_endpoint_failures_total{endpoint="10.0.0.1:8000",kind="refused",pool="ns/pool"} 1`,
		`headgate_endpoint_retries_total{endpoint="10.0.0.1:8000",pool="ns/pool"} 2`,
		`headgate_endpoint_engine_requests_waiting{endpoint="10.0.0.1:8000",pool="ns/pool"} 4`,
		`headgate_endpoint_engine_kv_cache_usage{endpoint="10.0.0.1:8000",pool="ns/pool"} 0.25`,
		`headgate_gateway_overhead_seconds_count 1`,
		`headgate_replies_total{code="404",error="model_not_found"} 1`,
		`headgate_picks_total{pool="ns/pool",reason="least pending"} 1`,
		`headgate_decision_seconds_count 1`,
		`headgate_queued_requests 1`,
		`headgate_queue_time_seconds_sum{outcome="released"} 5`,
		`headgate_concurrency_queued_requests 1`,
		`headgate_concurrency_queue_time_seconds_sum{outcome="expired"} 5`,
		`headgate_control_connected 1`,
		`headgate_control_version 7`,
		`headgate_control_last_message_timestamp_seconds 1e+09`,
		`headgate_scrapes_total{result="error"} 1`,
		`headgate_objects_rejected_files 2`,
		`headgate_objects{kind="LLMRoute"} 1`,
		`headgate_objects{kind="Model"} 2`,
		`headgate_objects{kind="Pod"} 1`,
		`headgate_objects{kind="EndpointList"} 0`,
		`headgate_endpoints{pool="ns/pool"} 1`,
		`headgate_build_info{goversion="`+version.Read().Go+`",program="extproc",version="`+version.Read().Program+`"} 1`,
	)
}

// A failed request is counted as one failure of its route, with the kind of failure of its last
// endpoint. Each endpoint that did not serve the request also counts one failure, even if another
// endpoint then served the request.
func TestFailuresAreCountedOnceForTheRouteAndAtEachEndpoint(t *testing.T) {
	const a, b = "10.0.0.1:8000", "10.0.0.2:8000"
	for name, c := range map[string]struct {
		outcome outcome.Outcome
		route   string   // expected kind of failure of the route
		at      []string // expected endpoints with failures, and the kinds
		last    string   // the endpoint that served the request last
	}{
		"served":                 {outcome.Outcome{Endpoint: a, Status: 200}, "", nil, a},
		"a fault of the request": {outcome.Outcome{Endpoint: a, Status: 400}, "", nil, a},
		"an error":               {outcome.Outcome{Endpoint: a, Status: 500}, "error", []string{a, "error"}, a},
		"reset":                  {outcome.Outcome{Endpoint: a, Status: 200, Failure: outcome.Reset}, "reset", []string{a, "reset"}, a},
		"timeout":                {outcome.Outcome{Endpoint: a, Failure: outcome.TimedOut}, "timeout", []string{a, "timeout"}, a},
		"cut":                    {outcome.Outcome{Endpoint: a, Status: 200, Failure: outcome.Cut}, "cut", []string{a, "cut"}, a},
		"the client left":        {outcome.Outcome{Endpoint: a, Status: 200, Failure: outcome.ClientGone}, "client_gone", nil, a},
		"other":                  {outcome.Outcome{Endpoint: a, Status: 503, Failure: outcome.Other}, "other", nil, a},
		"full, then served":      {outcome.Outcome{Endpoint: b, Status: 200, Elsewhere: []string{a}}, "", []string{a, "elsewhere"}, b},
		"full, and the last": {
			outcome.Outcome{Endpoint: b, Status: 503, Elsewhere: []string{a, b}},
			"elsewhere",
			[]string{a, "elsewhere", b, "elsewhere"},
			b,
		},
		"missing, then served": {outcome.Outcome{Endpoint: b, Status: 200, Missing: []string{a}}, "", []string{a, "missing"}, b},
		"missing, and the last": {
			outcome.Outcome{Endpoint: a, Status: 404, Missing: []string{a}},
			"missing",
			[]string{a, "missing"},
			a,
		},
		"unreached, then served": {outcome.Outcome{Endpoint: b, Status: 200, Unreached: []string{a}}, "", []string{a, "unreached"}, b},
		"unreached, then refused": {
			outcome.Outcome{Endpoint: b, Status: 503, Failure: outcome.Refused, Unreached: []string{a}},
			"refused",
			[]string{a, "unreached", b, "refused"},
			b,
		},
		"no endpoint could be left": {
			outcome.Outcome{Endpoint: a, Status: 503, Failure: outcome.NoEndpoint, Unreached: []string{a, b}},
			"no_endpoint",
			[]string{a, "unreached", b, "unreached"},
			"",
		},
	} {
		f := fleet.New(fleet.Config{})
		m := metrics.New(f)
		m.SetWorld(world("10.0.0.1", "10.0.0.2"))
		c.outcome.Route, c.outcome.Pool = "ns/sql", "ns/pool"
		m.Observe(c.outcome)
		_, page := get(t, m, "/metrics")
		var got, want []string
		for line := range strings.Lines(page) {
			for _, prefix := range []string{
				"headgate_failures_total{", "headgate_endpoint_failures_total{",
				"headgate_endpoint_requests_total{",
			} {
				if strings.HasPrefix(line, prefix) {
					got = append(got, strings.TrimSpace(line))
				}
			}
		}
		for i := 0; i < len(c.at); i += 2 {
			want = append(want, fmt.Sprintf(`headgate_endpoint_failures_total{endpoint="%s",kind="%s",pool="ns/pool"} 1`, c.at[i],
				c.at[i+1]))
		}
		if c.last != "" {
			want = append(want, fmt.Sprintf(`headgate_endpoint_requests_total{endpoint="%s",pool="ns/pool"} 1`, c.last))
		}
		if c.route != "" {
			want = append(want, fmt.Sprintf(`headgate_failures_total{kind="%s",pool="ns/pool",route="ns/sql"} 1`, c.route))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

func TestEndpointsAreShownAsTheyAre(t *testing.T) {
	m, f := started()
	f.SetModels(endpoint, engine.Models{Base: []string{"llama"}, Adapters: []string{"sql"}})
	f.Scrape(endpoint).Succeeded(engine.Load{Running: engine.Known(3)})
	f.SetWorld(world("10.0.0.1"))
	at := f.View().Snapshot.Pools["ns/pool"]
	for _, c := range []pick.Copy{at.Copies["sql"][0], at.Copies["sql"][0], at.Copies["llama"][0]} {
		f.Begin(pick.Decision{Endpoint: at.Endpoints[0], Copy: &c})
	}
	_, page := get(t, m, "/metrics")
	expect(t, page,
		`headgate_endpoint_state{endpoint="10.0.0.1:8000",pool="ns/pool",state="healthy"} 1`,
		`headgate_endpoint_state{endpoint="10.0.0.1:8000",pool="ns/pool",state="out"} 0`,
		`headgate_endpoint_in_flight{endpoint="10.0.0.1:8000",pool="ns/pool"} 3`,
		`headgate_endpoint_models_in_flight{endpoint="10.0.0.1:8000",pool="ns/pool"} 2`,
		`headgate_endpoint_running{endpoint="10.0.0.1:8000",pool="ns/pool"} 3`,
	)
	if strings.Contains(page, "headgate_endpoint_waiting{") {
		t.Error("an unknown number is exported")
	}
}

// An endpoint in two pools has metrics for each of them, because its state can differ between
// pools.
func TestEndpointOfTwoPoolsIsReportedForBoth(t *testing.T) {
	labels := map[string]string{"app": "llama"}
	s := objects.Set{Pods: []objects.Pod{{
		Name: objects.Name{Namespace: "ns", Name: "pod"}, IP: netip.MustParseAddr("10.0.0.1"), Ready: true, Labels: labels,
	}}}
	for _, name := range []string{"strict", "lenient"} {
		p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		p.Spec.Selector.MatchLabels = labels
		p.Spec.TargetPorts = []pool.Port{{Number: 8000}}
		s.Pools = append(s.Pools, p)
	}
	f := fleet.New(fleet.Config{})
	m := metrics.New(f)
	f.SetWorld(objects.Build(s))
	f.Scrape(endpoint).Succeeded(engine.Load{Running: engine.Known(3)})
	code, page := get(t, m, "/metrics")
	if code != http.StatusOK {
		t.Fatalf("%d: %s", code, page)
	}
	expect(t, page,
		`headgate_endpoint_state{endpoint="10.0.0.1:8000",pool="ns/lenient",state="healthy"} 1`,
		`headgate_endpoint_state{endpoint="10.0.0.1:8000",pool="ns/strict",state="healthy"} 1`,
		`headgate_endpoint_running{endpoint="10.0.0.1:8000",pool="ns/lenient"} 3`,
		`headgate_endpoint_running{endpoint="10.0.0.1:8000",pool="ns/strict"} 3`,
	)
}

// After an object is removed it has no series, and a request that ends later creates none.
// Otherwise series of former pods would accumulate.
func TestSeriesEndWithTheirObjects(t *testing.T) {
	m, f := started()
	o := outcome.Outcome{
		Route: "ns/sql", Pool: "ns/pool", Endpoint: endpoint, Status: 200, Duration: time.Second, Stream: true, FirstBody: time.Millisecond,
		Attempts: 2, Elsewhere: []string{endpoint}, Prompt: engine.Known(1), Completion: engine.Known(2),
		Load: engine.Load{Waiting: engine.Known(4), KVUsage: engine.Known(0.25)},
	}
	m.Observe(o)
	m.Decided("ns/pool", "least pending", time.Millisecond)
	w := world("10.0.0.2")
	f.SetWorld(w)
	m.SetWorld(w)
	m.Observe(o)
	_, page := get(t, m, "/metrics")
	if strings.Contains(page, endpoint) {
		t.Errorf("the page still names %s", endpoint)
	}
	expect(t, page,
		`headgate_requests_total{code="200",pool="ns/pool",route="ns/sql"} 2`,
		`headgate_endpoint_requests_total{endpoint="",pool="ns/pool"} 1`,
	)

	w = objects.Build(objects.Set{})
	f.SetWorld(w)
	m.SetWorld(w)
	m.Observe(o)
	_, page = get(t, m, "/metrics")
	for _, gone := range []string{"ns/sql", "ns/pool", "10.0.0."} {
		if strings.Contains(page, gone) {
			t.Errorf("the page still names %s", gone)
		}
	}
	expect(t, page, `headgate_requests_total{code="200",pool="",route=""} 1`, `headgate_objects{kind="LLMRoute"} 0`)
}

// The metrics page remains small with many routes: the number of series per route is bounded,
// however many endpoints served the route.
func TestPageIsSmall(t *testing.T) {
	const routes, endpoints, pools = 1000, 64, 4
	// Upper limits of the number of series: for a route that had two statuses and two kinds of
	// failures, for an endpoint with all its metrics, for a pool, and for the process.
	const perRoute, perEndpoint, perPool, rest = 30, 20, 45, 150
	var s objects.Set
	poolOf := func(i int) string { return fmt.Sprintf("pool-%d", i%pools) }
	for i := range pools {
		p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: poolOf(i)}}
		p.Spec.Selector.MatchLabels = map[string]string{"pool": poolOf(i)}
		p.Spec.TargetPorts = []pool.Port{{Number: 8000}}
		s.Pools = append(s.Pools, p)
	}
	for i := range routes {
		r := v1alpha1.LLMRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("route-%d", i)}}
		r.Spec.BackendRefs = []v1alpha1.BackendReference{{Name: poolOf(i)}}
		s.Routes = append(s.Routes, r)
	}
	for i := range endpoints {
		s.Pods = append(s.Pods, objects.Pod{
			Name: objects.Name{Namespace: "ns", Name: fmt.Sprintf("pod-%d", i)}, IP: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}),
			Ready:  true,
			Labels: map[string]string{"pool": poolOf(i)},
		})
	}
	f := fleet.New(fleet.Config{})
	m := metrics.New(f)
	w := objects.Build(s)
	f.SetWorld(w)
	m.SetWorld(w)
	load := engine.Load{Running: engine.Known(1), Waiting: engine.Known(4), KVUsage: engine.Known(0.25)}
	for _, address := range w.Addresses() {
		f.Scrape(address).Succeeded(load)
	}
	for i := range routes {
		name := "ns/" + poolOf(i)
		for _, e := range w.Pools[objects.Name{Namespace: "ns", Name: poolOf(i)}].Endpoints {
			o := outcome.Outcome{
				Route: fmt.Sprintf("ns/route-%d", i), Pool: name, Stream: true, Endpoint: e.Address, Status: 200, Attempts: 2,
				Duration: 3 * time.Second, FirstBody: 200 * time.Millisecond, Gateway: time.Millisecond,
				Prompt: engine.Known(7), Completion: engine.Known(20), Load: load,
			}
			m.Observe(o)
			o.Status = 500
			m.Observe(o)
			o.Status, o.Failure = 200, outcome.Reset
			m.Observe(o)
			m.Decided(name, "least pending", time.Microsecond)
		}
	}
	_, page := get(t, m, "/metrics")
	lines := 0
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		lines++
		if strings.Contains(line, "endpoint=") && (strings.Contains(line, "route=") || strings.Contains(line, "code=")) {
			t.Fatalf("there is a series for each route or status and each endpoint: %s", line)
		}
	}
	if most := perRoute*routes + perEndpoint*endpoints + perPool*pools + rest; lines > most {
		t.Errorf("the page has %d lines, want at most %d", lines, most)
	}
	t.Logf("%d lines for %d routes and %d endpoints in %d pools", lines, routes, endpoints, pools)
}

// A route has few classic buckets. A Prometheus that asks for native histograms gets finer buckets.
func TestHistogramsAreNativeToo(t *testing.T) {
	m, _ := started()
	for _, took := range []time.Duration{110, 120, 130, 140} { // all of these are in one classic bucket
		m.Observe(outcome.Outcome{
			Route: "ns/sql", Pool: "ns/pool", Endpoint: endpoint, Status: 200, Stream: true, FirstBody: took * time.Millisecond,
		})
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeProtoDelim)))
	m.Handler().ServeHTTP(w, r)
	for d := expfmt.NewDecoder(w.Body, expfmt.ResponseFormat(w.Header())); ; {
		var family dto.MetricFamily
		if err := d.Decode(&family); err != nil {
			t.Fatalf("the page has no first tokens: %v", err)
		}
		if family.GetName() == "headgate_time_to_first_token_seconds" {
			if h := family.GetMetric()[0].GetHistogram(); len(h.GetPositiveDelta()) < 3 {
				t.Errorf("four times that differ by a tenth are in %d buckets", len(h.GetPositiveDelta()))
			}
			return
		}
	}
}

func TestReadyWithObjects(t *testing.T) {
	m := metrics.New(fleet.New(fleet.Config{}))
	if code, _ := get(t, m, "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("without objects /readyz is %d", code)
	}
	m.SetWorld(world())
	if code, _ := get(t, m, "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("with objects, before it serves, /readyz is %d", code)
	}
	m.Serves()
	if code, _ := get(t, m, "/readyz"); code != http.StatusOK {
		t.Errorf("with objects /readyz is %d", code)
	}
	if code, _ := get(t, m, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz is %d", code)
	}
}
