// Package metrics serves extproc's metrics, health and readiness, and the learned profiles of
// engines over HTTP.
//
// Metrics of what users of a route experience have route and pool labels. Metrics of engines have
// endpoint and pool labels. No series has both route and endpoint: a thousand routes and a hundred
// endpoints would make hundreds of thousands of series. No label has a value that a client can
// choose: routes, pools and endpoints are those of the objects, and their series are removed with
// the objects.
package metrics

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/version"
)

// Histogram buckets for times in seconds, ratios, and tokens. A histogram of a route has few
// buckets, because each is one series per route. The buckets cover the usual objectives. The
// gateway overhead is well below a millisecond.
var (
	firstTokenBuckets = []float64{.1, .25, .5, 1, 2.5, 10}
	perTokenBuckets   = []float64{.025, .05, .1, .25}
	durationBuckets   = []float64{1, 5, 30, 120}
	ratioBuckets      = []float64{.25, .5, .67, .8, .9, 1, 1.1, 1.25, 1.5, 2, 4}
	tokenBuckets      = []float64{1, 8, 32, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072}
	queueTimeBuckets  = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	ownBuckets        = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1}
)

// Settings of native histograms, for a Prometheus that scrapes them. Each bucket is a tenth larger
// than the one before it, and all buckets are in one series. The bucket limit and the reset are as
// client_golang recommends.
const (
	nativeFactor = 1.1
	nativeMost   = 160
	nativeReset  = time.Hour
)

// Meter counts requests, picks, scrapes and other events. It is safe for concurrent use. Create it
// with [New].
type Meter struct {
	registry *prometheus.Registry
	fleet    *fleet.Fleet
	ready    atomic.Bool

	// These have the labels route and pool, and the label in the comment.
	requests   *prometheus.CounterVec // label code
	failures   *prometheus.CounterVec // label kind
	tokens     *prometheus.CounterVec // label kind
	firstToken *prometheus.HistogramVec
	predicted  *prometheus.HistogramVec
	perToken   *prometheus.HistogramVec
	duration   *prometheus.HistogramVec

	// These have the labels pool and endpoint.
	served          *prometheus.CounterVec
	faults          *prometheus.CounterVec // label kind
	retries         *prometheus.CounterVec
	reportedWaiting *prometheus.GaugeVec
	reportedKVUsage *prometheus.GaugeVec

	// These have the label pool.
	perRequest *prometheus.HistogramVec // label kind
	picks      *prometheus.CounterVec   // label reason
	endpoints  *prometheus.GaugeVec

	attained  *prometheus.CounterVec // labels route, objective and result
	quantiles *prometheus.GaugeVec   // labels route and objective

	gateway          prometheus.Histogram
	decision         prometheus.Histogram
	replies          *prometheus.CounterVec // labels code and error
	scrapes          *prometheus.CounterVec // label result
	queued           prometheus.Gauge
	queueTime        *prometheus.HistogramVec // label outcome
	queuedAtLimit    prometheus.Gauge
	queueTimeAtLimit *prometheus.HistogramVec // label outcome
	heldTime         *prometheus.HistogramVec // labels pool, band and reason
	turnedAway       *prometheus.CounterVec   // labels pool, band and reason
	connected        *prometheus.GaugeVec     // without a series until Connected is called
	version          prometheus.Gauge
	updatedAt        prometheus.Gauge
	refused          prometheus.Gauge
	readable         prometheus.Gauge
	problems         prometheus.Gauge
	objects          *prometheus.GaugeVec // label kind

	payloadsSent    prometheus.Counter
	payloadsDropped *prometheus.CounterVec // label reason

	mu     sync.RWMutex // guards labels; also locked while a series is made for a label
	labels map[label]bool
	stated map[string][]v1alpha1.Objective // by route; guarded like labels
}

// label is a label value that the current objects allow.
type label struct{ name, value string }

// New returns a Meter that also reports the state of f.
func New(f *fleet.Fleet) *Meter {
	m := &Meter{registry: prometheus.NewRegistry(), fleet: f}
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
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: buckets,
			NativeHistogramBucketFactor: nativeFactor, NativeHistogramMaxBucketNumber: nativeMost,
			NativeHistogramMinResetDuration: nativeReset,
		}, labels)
		m.registry.MustRegister(h)
		return h
	}

	m.requests = counter("headgate_requests_total",
		"Requests that got an endpoint and have ended, by the HTTP status that the client got, 0 if no answer began; gRPC calls by their status, such as OK.",
		"route",
		"pool", "code")
	m.failures = counter("headgate_failures_total",
		"Requests that failed, each counted once, by kind: refused, reset or timeout (by the last endpoint), error (it answered 5xx, or a gRPC call with a fault of its own), stream_error (it answered 200 with an error of its own in the answer), missing (it has no such model), elsewhere (it asked for the request to be sent elsewhere), no_endpoint (no endpoint could serve it, or none was left to try), client_gone (the client left), engine_gone (the engine closed its port and went silent, and extproc ended the request), cut (the answer broke off, and it is unknown who ended it), other.", "route", "pool", "kind")
	m.tokens = counter("headgate_tokens_total",
		"Tokens that engines report in their answers, by kind: prompt or completion. Engines report none in a stream without include_usage.",
		"route",
		"pool", "kind")
	m.firstToken = histogram("headgate_time_to_first_token_seconds",
		"Seconds from a request's last byte to the first output of its stream, queue time included. Streams whose first token cannot be recognized are excluded.",
		firstTokenBuckets,
		"route", "pool")
	m.predicted = histogram("headgate_first_token_ratio",
		"Measured time to first token of a stream, divided by the prediction of policy latency. It is also counted while policy proposal decides.",
		ratioBuckets, "pool")
	m.perToken = histogram("headgate_time_per_output_token_seconds",
		"Seconds per token after the first, averaged over a stream; only of streams that report their number of tokens.", perTokenBuckets,
		"route", "pool")
	m.duration = histogram("headgate_request_duration_seconds",
		"Seconds from a request's first byte to the last byte of its answer; only of complete answers with status 200.", durationBuckets,
		"route", "pool")

	m.served = counter("headgate_endpoint_requests_total", "Requests that have ended, counted at the last endpoint that was tried.", "pool",
		"endpoint")
	m.faults = counter("headgate_endpoint_failures_total",
		"Requests that failed at the endpoint, even if another endpoint then served them, by kind: unreached (it accepted no connection, and another endpoint was tried), refused (it accepted no connection), reset (it dropped the request), timeout (it fell silent), engine_gone (it closed its port and went silent, and extproc ended the request), cut (the answer broke off, and it is unknown who ended it), elsewhere (its queue was full, or it was stopping), missing (it has no such model), error (it answered 5xx), stream_error (it answered 200 with an error of its own in the answer).", "pool", "endpoint", "kind")
	m.retries = counter("headgate_endpoint_retries_total", "Attempts after the first, counted at the last endpoint that was tried.", "pool",
		"endpoint")
	m.reportedWaiting = gauge("headgate_endpoint_engine_requests_waiting",
		"Requests in the engine's own queue, as its latest answer reported.", "pool", "endpoint")
	m.reportedKVUsage = gauge("headgate_endpoint_engine_kv_cache_usage",
		"Share of the engine's KV cache in use, 0 to 1, as its latest answer reported.", "pool", "endpoint")

	m.perRequest = histogram("headgate_request_tokens",
		"Tokens of one request, by kind: prompt or completion; only of requests whose answer reports them.", tokenBuckets, "pool", "kind")
	m.picks = counter("headgate_picks_total", "Picks, by the policy's reason for the endpoint.", "pool", "reason")
	m.endpoints = gauge("headgate_endpoints", "Endpoints of the pool in the objects in force.", "pool")

	m.attained = counter("headgate_objective_requests_total",
		"Streams that succeeded, by the objective of their route (time_to_first_token or output_token_latency) and by result: met or missed. The attainment is the share of met, and is compared with headgate_objective_quantile.",
		"route", "objective", "result")
	m.quantiles = gauge("headgate_objective_quantile",
		"Share of requests that must meet the objective, as the route states it.", "route", "objective")

	m.gateway = histogram("headgate_gateway_overhead_seconds",
		"Seconds from a request's first byte to the first byte sent to an endpoint: the upload of its body, Envoy and extproc, without queue time.",
		ownBuckets).WithLabelValues().(prometheus.Histogram)
	m.decision = histogram("headgate_decision_seconds", "Seconds from the moment that extproc has the whole request to its decision.",
		ownBuckets).WithLabelValues().(prometheus.Histogram)
	m.replies = counter("headgate_replies_total", "Replies of extproc itself, by HTTP status and error code.", "code", "error")
	m.scrapes = counter("headgate_scrapes_total", "Scrapes of endpoints, by result: ok or error.", "result")
	m.queued = gauge("headgate_queued_requests", "Requests in the queue because their model is not loaded.").WithLabelValues()
	m.queueTime = histogram("headgate_queue_time_seconds",
		"Seconds that a request spent in the queue for its model, by outcome: released (a copy can be used), failed (the model cannot be loaded), expired (its time limit passed), cancelled (the client left), stopped (extproc is stopping), full (the queue was full), late (it would have waited too long, and was rejected at once).",
		queueTimeBuckets,
		"outcome")
	m.queuedAtLimit = gauge("headgate_concurrency_queued_requests",
		"Requests in the queue because every copy of their model is at its concurrency limit.").WithLabelValues()
	m.queueTimeAtLimit = histogram("headgate_concurrency_queue_time_seconds",
		"Seconds that a request spent in the queue because every copy of its model was at its concurrency limit, by outcome: released (a copy has room, or there is no copy any more), failed, expired, cancelled, stopped and full as for headgate_queue_time_seconds.",
		queueTimeBuckets,
		"outcome")
	m.heldTime = histogram("headgate_band_held_time_seconds",
		"Seconds that requests waited in extproc, by priority and by what they waited for last: "+reasonsToWait+".", queueTimeBuckets,
		"pool", "band", "reason")
	m.turnedAway = counter("headgate_band_refused_total",
		"Requests that extproc refused, by priority and reason: full (the queue was full), expired (the time to wait passed), failed (the model cannot be loaded), stopped (extproc is stopping), late (the request would have missed its objective or deadline), limit (a limit of the route or tenant was reached).",
		"pool", "band", "reason")
	m.connected = gauge("headgate_control_connected",
		"Is 1 while control answers and the placement state is synced, else 0; only with --control.")
	m.version = gauge("headgate_control_version",
		"Version of the latest update that extproc applied, on the current connection to control.").WithLabelValues()
	m.updatedAt = gauge("headgate_control_last_message_timestamp_seconds",
		"When extproc last applied an update of control, in seconds since 1970.").WithLabelValues()
	m.refused = gauge("headgate_objects_rejected_files",
		"Files with objects, or objects of an API server, that were rejected as invalid.").WithLabelValues()
	m.readable = gauge("headgate_objects_connected",
		"Is 1 while extproc can read its objects from the folder or the API server; at 0, the last valid objects stay in force.").WithLabelValues()
	m.problems = gauge("headgate_objects_problems",
		"Conflicts between the objects in force; the log names each.").WithLabelValues()
	m.objects = gauge("headgate_objects", "Valid objects that extproc has read, by kind.", "kind")
	m.payloadsSent = counter("headgate_payloads_sent_total",
		"Copies of requests and answers that sinks accepted, each counted once for each sink.").WithLabelValues()
	m.payloadsDropped = counter("headgate_payloads_dropped_total",
		"Copies of requests and answers that a sink did not get, by reason: queue (the sink's queue was full), memory (all queues together had too many bytes), too_large (above 16 MiB), failed (the sink did not accept it), cut (the request or answer broke off), unreadable (a call sent an invalid message).",
		"reason")
	build := version.Read()
	gauge("headgate_build_info", "Is 1; the labels name the program, its version, and the version of Go that built it.", "program",
		"version", "goversion").
		WithLabelValues("extproc", build.Program, build.Go).Set(1)
	m.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), fleetCollector{f},
	)
	return m
}

// Replied counts a reply that extproc itself sent.
func (m *Meter) Replied(status int, code string) {
	m.replies.WithLabelValues(strconv.Itoa(status), code).Inc()
}

// PayloadSent counts a payload (a copy of a request or answer) that its sink accepted.
func (m *Meter) PayloadSent() { m.payloadsSent.Inc() }

// PayloadDropped counts a payload that did not reach its sink.
func (m *Meter) PayloadDropped(reason string) { m.payloadsDropped.WithLabelValues(reason).Inc() }

// Values of the label outcome, which states how a request's wait for its model ended.
const (
	QueueReleased  = "released"
	QueueFailed    = "failed"
	QueueExpired   = "expired"
	QueueCancelled = "cancelled"
	QueueStopped   = "stopped"
	QueueFull      = "full"
	QueueLate      = "late"
)

// QueuedRequest is a waiting request. It waits until its model is loaded or, if all copies are at
// their concurrency limit, until one of them accepts a request. Only one goroutine may use it.
type QueuedRequest struct {
	meter *Meter
	full  bool
	since time.Time
}

// Enqueued counts a request that starts to wait.
func (m *Meter) Enqueued(full bool, at time.Time) *QueuedRequest {
	h := &QueuedRequest{m, full, at}
	now, _ := h.of()
	now.Inc()
	return h
}

// of returns the metrics for the reason of the wait: the number of waiting requests, and the
// durations of ended waits.
func (h *QueuedRequest) of() (now prometheus.Gauge, ended *prometheus.HistogramVec) {
	if h.full {
		return h.meter.queuedAtLimit, h.meter.queueTimeAtLimit
	}
	return h.meter.queued, h.meter.queueTime
}

// Goes updates the metrics while the request still waits. If the reason has changed, it counts the
// end of one wait and the start of another.
func (h *QueuedRequest) Goes(full bool, at time.Time) {
	if full != h.full {
		h.Ended(QueueReleased, at)
		*h = *h.meter.Enqueued(full, at)
	}
}

// Ended counts the end of the wait.
func (h *QueuedRequest) Ended(outcome string, at time.Time) {
	now, ended := h.of()
	now.Dec()
	ended.WithLabelValues(outcome).Observe(at.Sub(h.since).Seconds())
}

// Connected records whether control answers and has sent its complete state. Without control it is
// never called, and the metric has no series.
func (m *Meter) Connected(is bool) { m.connected.WithLabelValues().Set(bit(is)) }

// UpdateApplied records when an update of control took effect.
func (m *Meter) UpdateApplied(version uint64, at time.Time) {
	m.version.Set(float64(version))
	m.updatedAt.Set(float64(at.UnixMilli()) / 1000)
}

// Decided counts a decision and records how long it took.
func (m *Meter) Decided(pool, reason string, took time.Duration) {
	m.picks.WithLabelValues(pool, reason).Inc()
	m.decision.Observe(took.Seconds())
}

// Scraped counts a scrape of an endpoint.
func (m *Meter) Scraped(err error) {
	if err != nil {
		m.scrapes.WithLabelValues("error").Inc()
		return
	}
	m.scrapes.WithLabelValues("ok").Inc()
}

// Refused sets how many object files, or objects of an API server, were rejected.
func (m *Meter) Refused(n int) { m.refused.Set(float64(n)) }

// Readable records whether the source of objects can be read.
func (m *Meter) Readable(ok bool) { m.readable.Set(bit(ok)) }

func bit(ok bool) float64 {
	if ok {
		return 1
	}
	return 0
}

// Serves makes extproc ready: it has objects and answers requests.
func (m *Meter) Serves() { m.ready.Store(true) }

// SetWorld removes the series of routes, pools and endpoints that are gone.
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
			m.requests, m.failures, m.tokens, m.firstToken, m.predicted, m.perToken, m.duration,
			m.served, m.faults, m.retries, m.reportedWaiting, m.reportedKVUsage,
			m.perRequest, m.picks, m.endpoints, m.attained, m.heldTime, m.turnedAway,
		} {
			vec.DeletePartialMatch(gone)
		}
	}
	m.labels = current
	m.setObjectives(w)
	for name, p := range w.Pools {
		m.endpoints.WithLabelValues(name.String()).Set(float64(len(p.Endpoints)))
	}
	for kind, n := range w.Objects {
		m.objects.WithLabelValues(kind).Set(float64(n))
	}
	m.problems.Set(float64(len(w.Problems)))
}

// labels returns all label values that the objects of a World allow.
func labels(w *objects.World) map[label]bool {
	all := make(map[label]bool)
	for _, r := range w.Routes {
		if r.Kind == v1alpha1.LLMRouteKind { // there can be many Models without a route; their label route is empty
			all[label{"route", r.Name.String()}] = true
		}
	}
	for name, p := range w.Pools {
		all[label{"pool", name.String()}] = true
		for _, e := range p.Endpoints {
			all[label{"endpoint", e.Address}] = true
		}
	}
	return all
}

// Handler serves /metrics, /profiles (the learned latency of engines), /healthz (the process is
// alive) and /readyz (extproc has objects and serves requests).
func (m *Meter) Handler() *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /profiles", profiles(m.fleet))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !m.ready.Load() {
			http.Error(w, "extproc is not ready: it has not read its objects yet", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	return mux
}
