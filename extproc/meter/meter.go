// Package meter is what extproc says of itself: metrics, health, and a picture of the fleet, over HTTP.
//
// No label holds anything that a client can choose: routes, pools and endpoints are those of the objects, and their
// series go when the objects do.
package meter

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/version"
)

// Buckets in seconds: first tokens from a warm small model to a long queue, whole requests to a long answer, and our own
// share, which is well below a millisecond.
var (
	firstTokenBuckets = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	perTokenBuckets   = []float64{.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .5, 1}
	tokenBuckets      = []float64{1, 8, 32, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072}
	durationBuckets   = []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
	holdBuckets       = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	ownBuckets        = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1}
)

// Meter counts. It is safe for concurrent use. Make one with [New].
type Meter struct {
	registry *prometheus.Registry
	ready    atomic.Bool

	requests   *prometheus.CounterVec   // route, endpoint, code
	failures   *prometheus.CounterVec   // route, endpoint, kind
	retries    *prometheus.CounterVec   // route, endpoint
	tokens     *prometheus.CounterVec   // route, endpoint, kind
	perRequest *prometheus.HistogramVec // tokens
	firstToken *prometheus.HistogramVec
	perToken   *prometheus.HistogramVec
	duration   *prometheus.HistogramVec
	reported   *prometheus.GaugeVec // endpoint, what
	gateway    prometheus.Histogram
	decision   prometheus.Histogram
	replies    *prometheus.CounterVec // status, code
	picks      *prometheus.CounterVec // pool, reason
	looks      *prometheus.CounterVec // result
	held       prometheus.Gauge
	holds      *prometheus.HistogramVec // outcome
	connected  prometheus.Gauge
	version    prometheus.Gauge
	heardAt    prometheus.Gauge
	refused    prometheus.Gauge
	readable   prometheus.Gauge
	problems   prometheus.Gauge
	objects    *prometheus.GaugeVec // kind

	mu     sync.RWMutex // guards labels
	labels map[label]bool
}

// label is a value that the objects in force give to series.
type label struct{ name, value string }

// New returns a Meter that also reports what f believes.
func New(f *fleet.Fleet) *Meter {
	m := &Meter{registry: prometheus.NewRegistry()}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		m.registry.MustRegister(c)
		return c
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
		m.registry.MustRegister(g)
		return g
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
		m.registry.MustRegister(h)
		return h
	}
	m.requests = counter("headgate_requests_total", "Requests that ended, by the route that admitted them, the endpoint that served and the status.", "route", "endpoint", "code")
	m.failures = counter("headgate_failures_total", "Requests that did not come to their end: refused, reset or timeout at the endpoint, client_gone, cut (by nobody knows whom), no_endpoint, elsewhere (the endpoint would not take it), unreached (no connection, and another served), missing (the endpoint has no such model), error (its status is 5xx), other.", "route", "endpoint", "kind")
	m.retries = counter("headgate_retries_total", "Attempts after the first.", "route", "endpoint")
	m.tokens = counter("headgate_tokens_total", "Tokens that responses state, of kind prompt or completion. A stream without include_usage states none.", "route", "endpoint", "kind")
	m.perRequest = histogram("headgate_request_tokens", "Tokens of one request, of kind prompt or completion, where its response states them.", tokenBuckets, "route", "endpoint", "kind")
	m.perToken = histogram("headgate_time_per_output_token_seconds", "From a stream's first token to its end, for each token after the first; where the response states how many there were.", perTokenBuckets, "route", "endpoint")
	m.firstToken = histogram("headgate_time_to_first_token_seconds", "From a request's last byte to the first byte of its stream's body.", firstTokenBuckets, "route", "endpoint")
	m.duration = histogram("headgate_request_duration_seconds", "Whole requests that an endpoint served.", durationBuckets, "route", "endpoint")
	m.reported = gauge("headgate_endpoint_reported_load", "The load that the endpoint last reported with a response: waiting requests, kv_usage 0 to 1.", "endpoint", "what")
	m.gateway = histogram("headgate_gateway_seconds", "From a request's first byte to the first byte sent to the endpoint: body upload, Envoy and extproc.", ownBuckets).WithLabelValues().(prometheus.Histogram)
	m.decision = histogram("headgate_decision_seconds", "From a body in extproc to its decision.", ownBuckets).WithLabelValues().(prometheus.Histogram)
	m.replies = counter("headgate_replies_total", "Replies that extproc gave itself, by status and error code.", "status", "code")
	m.picks = counter("headgate_picks_total", "Decisions, by pool and the policy's reason.", "pool", "reason")
	m.looks = counter("headgate_scrapes_total", "Looks at endpoints, by result ok or error.", "result")
	m.held = gauge("headgate_held", "Requests that wait for their model to be loaded.").WithLabelValues()
	m.holds = histogram("headgate_hold_seconds", "How long requests waited for their model to be loaded, by what ended it: released, failed (it cannot be loaded), expired, cancelled (the client left), full (it could not wait).", holdBuckets, "outcome")
	m.connected = gauge("headgate_control_connected", "1 while control is connected and has said all that there is.").WithLabelValues()
	m.version = gauge("headgate_control_version", "Version of the last update of control that is in force, of the present connection.").WithLabelValues()
	m.heardAt = gauge("headgate_control_heard_timestamp_seconds", "When an update of control was last put in force, in seconds since 1970.").WithLabelValues()
	m.refused = gauge("headgate_objects_refused_files", "Files of objects, or objects of an API server, that are not in force because they are not valid.").WithLabelValues()
	m.readable = gauge("headgate_objects_connected", "1 while objects can be read where they come from; else what was read last stays in force.").WithLabelValues()
	m.problems = gauge("headgate_objects_problems", "Faults between objects in force, each in the log.").WithLabelValues()
	m.objects = gauge("headgate_objects", "Objects in force.", "kind")
	build := version.Read()
	gauge("headgate_build_info", "Is 1: its labels tell the program, its version, and the version of the Go that built it.", "program", "version", "goversion").
		WithLabelValues("extproc", build.Program, build.Go).Set(1)
	m.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), fleetCollector{f},
	)
	return m
}

// Observe counts an outcome. Where its route or endpoint is gone, it counts under an empty name.
func (m *Meter) Observe(o outcome.Outcome) {
	if o.Failure == outcome.NoEndpoint && o.Endpoint == "" {
		m.failures.WithLabelValues(o.Route, "", string(o.Failure)).Inc()
	}
	if o.Endpoint == "" {
		return // never sent on: counted as a reply, or Envoy's own
	}
	o.Route, o.Endpoint = m.known("route", o.Route), m.known("endpoint", o.Endpoint)
	m.requests.WithLabelValues(o.Route, o.Endpoint, strconv.Itoa(o.Status)).Inc()
	if o.Failure != outcome.None {
		m.failures.WithLabelValues(o.Route, o.Endpoint, string(o.Failure)).Inc()
	}
	if o.Attempts > 1 {
		m.retries.WithLabelValues(o.Route, o.Endpoint).Add(float64(o.Attempts - 1))
	}
	for _, endpoint := range o.Elsewhere {
		m.failures.WithLabelValues(o.Route, m.known("endpoint", endpoint), "elsewhere").Inc()
	}
	for _, endpoint := range o.Missing {
		m.failures.WithLabelValues(o.Route, m.known("endpoint", endpoint), "missing").Inc()
	}
	for _, endpoint := range o.Unreached {
		m.failures.WithLabelValues(o.Route, m.known("endpoint", endpoint), "unreached").Inc()
	}
	if o.Faulty() {
		m.failures.WithLabelValues(o.Route, o.Endpoint, "error").Inc()
	}
	m.countTokens(o, "prompt", o.Prompt)
	m.countTokens(o, "completion", o.Completion)
	if o.Gateway > 0 {
		m.gateway.Observe(o.Gateway.Seconds())
	}
	if n, ok := o.Load.Waiting.Get(); ok {
		m.reported.WithLabelValues(o.Endpoint, "waiting").Set(n)
	}
	if n, ok := o.Load.KVUsage.Get(); ok {
		m.reported.WithLabelValues(o.Endpoint, "kv_usage").Set(n)
	}
	if o.Status == http.StatusOK && o.Failure == outcome.None {
		m.time(o)
	}
}

// known is a label's value, or empty if the objects in force do not have it.
func (m *Meter) known(name, value string) string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.labels[label{name, value}] {
		return value
	}
	return ""
}

func (m *Meter) countTokens(o outcome.Outcome, kind string, tokens engine.Value) {
	if n, ok := tokens.Get(); ok {
		m.tokens.WithLabelValues(o.Route, o.Endpoint, kind).Add(n)
		m.perRequest.WithLabelValues(o.Route, o.Endpoint, kind).Observe(n)
	}
}

// time counts how long a request took that came to its end.
func (m *Meter) time(o outcome.Outcome) {
	if o.Duration > 0 {
		m.duration.WithLabelValues(o.Route, o.Endpoint).Observe(o.Duration.Seconds())
	}
	if !o.Stream || o.FirstBody <= 0 {
		return
	}
	m.firstToken.WithLabelValues(o.Route, o.Endpoint).Observe(o.FirstBody.Seconds())
	if n, ok := o.Completion.Get(); ok && n > 1 && o.Duration > o.FirstBody {
		m.perToken.WithLabelValues(o.Route, o.Endpoint).Observe((o.Duration - o.FirstBody).Seconds() / (n - 1))
	}
}

// Replied counts a reply of extproc itself.
func (m *Meter) Replied(status int, code string) {
	m.replies.WithLabelValues(strconv.Itoa(status), code).Inc()
}

// Hold outcomes: what ended a request's wait for its model.
const (
	HoldReleased  = "released"
	HoldFailed    = "failed"
	HoldExpired   = "expired"
	HoldCancelled = "cancelled"
	HoldFull      = "full"
)

// HoldBegan counts a request that waits for its model.
func (m *Meter) HoldBegan() { m.held.Inc() }

// HoldEnded counts the end of its wait.
func (m *Meter) HoldEnded(outcome string, took time.Duration) {
	m.held.Dec()
	m.holds.WithLabelValues(outcome).Observe(took.Seconds())
}

// Connected says whether control is connected and has said all that there is.
func (m *Meter) Connected(is bool) {
	m.connected.Set(0)
	if is {
		m.connected.Set(1)
	}
}

// Heard says that an update of control is in force, at a time.
func (m *Meter) Heard(version uint64, at time.Time) {
	m.version.Set(float64(version))
	m.heardAt.Set(float64(at.UnixMilli()) / 1000)
}

// Decided counts a decision and the time that it took.
func (m *Meter) Decided(pool, reason string, took time.Duration) {
	m.picks.WithLabelValues(pool, reason).Inc()
	m.decision.Observe(took.Seconds())
}

// Looked counts a look at an endpoint.
func (m *Meter) Looked(err error) {
	if err != nil {
		m.looks.WithLabelValues("error").Inc()
		return
	}
	m.looks.WithLabelValues("ok").Inc()
}

// Refused says how many files of objects, or objects of an API server, are not in force.
func (m *Meter) Refused(n int) { m.refused.Set(float64(n)) }

// Readable says whether objects can be read where they come from.
func (m *Meter) Readable(ok bool) { m.readable.Set(bit(ok)) }

// bit is 1 for true.
func bit(ok bool) float64 {
	if ok {
		return 1
	}
	return 0
}

// SetWorld drops the series of routes, pools and endpoints that are gone, and makes extproc ready.
func (m *Meter) SetWorld(w *objects.World) {
	m.mu.Lock()
	defer m.mu.Unlock()
	current := labels(w)
	for l := range m.labels {
		if current[l] {
			continue
		}
		gone := prometheus.Labels{l.name: l.value}
		for _, vec := range []interface{ DeletePartialMatch(prometheus.Labels) int }{
			m.requests, m.failures, m.retries, m.tokens, m.perRequest, m.firstToken, m.perToken, m.duration, m.reported, m.picks,
		} {
			vec.DeletePartialMatch(gone)
		}
	}
	m.labels = current
	endpoints := 0
	for _, p := range w.Pools {
		endpoints += len(p.Endpoints)
	}
	m.objects.WithLabelValues("LLMRoute").Set(float64(len(w.Routes)))
	m.objects.WithLabelValues("InferencePool").Set(float64(len(w.Pools)))
	m.objects.WithLabelValues("endpoint").Set(float64(endpoints))
	m.problems.Set(float64(len(w.Problems)))
	m.ready.Store(true)
}

// labels is every label value that the objects of a World may give to a series.
func labels(w *objects.World) map[label]bool {
	all := make(map[label]bool)
	for _, r := range w.Routes {
		all[label{"route", r.Name.String()}] = true
	}
	for name, p := range w.Pools {
		all[label{"pool", name.String()}] = true
		for _, e := range p.Endpoints {
			all[label{"endpoint", e.Address}] = true
		}
	}
	return all
}

// Handler serves /metrics, /healthz (the process lives) and /readyz (it has objects).
func (m *Meter) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !m.ready.Load() {
			http.Error(w, "no objects yet", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	return mux
}
