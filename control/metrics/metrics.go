// Package metrics serves control's metrics and health to everybody, and the state of each model and
// endpoint to loopback only.
//
// No label has a value that a client can choose.
package metrics

import (
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/control/place"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/place/placementserver"
	"github.com/headgate/headgate/internal/version"
)

// Meter counts events for control's metrics. It is a [place.Meter], and the meter of the objects'
// source. It is safe for concurrent use. Make one with [New].
type Meter struct {
	registry   *prometheus.Registry
	loadQueue  prometheus.Histogram
	stalled    prometheus.Histogram
	loads      *prometheus.HistogramVec // label: result
	unloads    *prometheus.HistogramVec // label: result
	evicted    prometheus.Counter
	decided    *prometheus.CounterVec // labels: "decision" and "for"
	rejections *prometheus.CounterVec // label: reason
	files      prometheus.Gauge
	readable   prometheus.Gauge
	leading    prometheus.Gauge
	term       atomic.Pointer[term]
	leader     atomic.Value // string: name of the leader's pod; empty if there is none or it is unknown
	envoys
}

// term is the source of metrics while this control leads.
type term struct {
	name   string // differs from that of every other term of any process
	board  *placementserver.Server
	placer *place.Placer

	conditions func() []admin.Condition
}

// Buckets of histograms in seconds: ownBuckets for what control does itself, loadBuckets for calls
// to engines.
var (
	ownBuckets  = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5}
	loadBuckets = []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
)

// Metrics that are read from the term at each scrape.
var (
	copiesDesc = prometheus.NewDesc("headgate_copies", "Copies of models, by state: queued, loading, loaded, draining or unloading.",
		[]string{"state"}, nil)
	modelsDesc = prometheus.NewDesc("headgate_models",
		"Models that control can load: all; requested (requests are queued for them); failing (a load failed recently); stuck (control cannot load them for now).",
		[]string{"which"}, nil)
	queuedDesc = prometheus.NewDesc("headgate_place_queued_requests",
		"Requests that are queued for a model now, summed over all extprocs.", nil, nil)
	warmWindowDesc = prometheus.NewDesc("headgate_place_warm_window_seconds",
		"Every model of a pool that was used within this many seconds is loaded or loading; +Inf if every model that was ever used is. A small value means that the pool is short of room.",
		[]string{"pool"}, nil)
	extprocsDesc = prometheus.NewDesc("headgate_extprocs", "Number of extprocs that are connected to this control.", nil, nil)
)

// New returns a Meter of a control that does not lead.
func New() *Meter {
	m := &Meter{registry: prometheus.NewRegistry()}
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
	m.loadQueue = histogram("headgate_place_load_queue_seconds",
		"Seconds from the first queued request for a model to the call that loads it at an engine, without the time that the load waited for room or for its turn.",
		ownBuckets).WithLabelValues().(prometheus.Histogram)
	m.stalled = histogram("headgate_place_stalled_seconds",
		"Seconds that a load with queued requests waited for room or for its turn before control called the engine.",
		loadBuckets).WithLabelValues().(prometheus.Histogram)
	m.loads = histogram("headgate_place_load_seconds", "Seconds that engines took to load a model, by result: done or failed.", loadBuckets,
		"result")
	m.unloads = histogram("headgate_place_unload_seconds", "Seconds that engines took to unload a model, by result: done or failed.",
		loadBuckets, "result")
	m.evicted = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "headgate_place_evictions_total",
		Help: "Copies that began to drain: they get no new requests, and control unloads them when the running ones have ended.",
	})
	m.decided = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "headgate_place_decisions_total",
		Help: "Decisions of control, by decision: load, reload (unload what an earlier load may have left, then load), predict (ask for a size), cancel (a load), unload, or quit (give up all calls to an engine that is about to end); and by the purpose of a load, reload or predict: requests (they are queued, or a client asked), least (the minimum number of copies), migration (the pod of another copy is being deleted), load, balance (the endpoint has little load), use (a second copy), room (free room), trial (the pod is on trial), slots (another endpoint has more adapters in use than GPU slots) or record (an earlier process began it).",
	}, []string{"decision", "for"})
	m.rejections = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "headgate_place_rejections_total",
		Help: "How often control began to reject the requests for a model because it cannot load it for now, by reason: load_failed, rank_too_large, files_missing, no_endpoint, cannot_load, no_labels, no_room, too_large or unknown_model.",
	},
		[]string{"reason"})
	m.files = gauge("headgate_objects_rejected_files",
		"Object files, or objects of an API server, that control ignores because they are invalid.").WithLabelValues()
	m.readable = gauge("headgate_objects_connected",
		"1 while control can read the folder or the API server of the objects; at 0 it uses the objects that it read last.").WithLabelValues()
	m.leading = gauge("headgate_leader",
		"1 while this control is the leader, which alone loads models and writes objects; 0 otherwise.").WithLabelValues()
	build := version.Read()
	gauge("headgate_build_info", "Is 1; the labels name the program, its version, and the version of Go that built it.", "program",
		"version", "goversion").
		WithLabelValues("control", build.Program, build.Go).Set(1)
	m.envoys = newEnvoys(gauge, histogram)
	m.registry.MustRegister(
		m.evicted, m.decided, m.rejections, m.sent, m.refusals, termCollector{m}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// Follow sets the placement server and the placer of the current term, and what returns the
// conditions of objects that are False. A nil placer means that this control does not lead.
func (m *Meter) Follow(board *placementserver.Server, placer *place.Placer, conditions func() []admin.Condition) {
	if placer == nil {
		m.term.Store(nil)
		return
	}
	m.term.Store(&term{fmt.Sprintf("%d/%d", os.Getpid(), time.Now().UnixNano()), board, placer, conditions})
}

// Leads sets whether this control leads.
func (m *Meter) Leads(is bool) { m.leading.Set(bit(is)) }

// Leader sets the name of the leader's pod; empty if there is none.
func (m *Meter) Leader(pod string) { m.leader.Store(pod) }

// LoadCalled implements [place.Meter], like the methods below.
func (m *Meter) LoadCalled(waited, stalled time.Duration) {
	m.loadQueue.Observe(max(0, waited-stalled).Seconds())
	m.stalled.Observe(stalled.Seconds())
}

// LoadEnded counts a load.
func (m *Meter) LoadEnded(took time.Duration, failed bool) {
	m.loads.WithLabelValues(result(failed)).Observe(took.Seconds())
}

// UnloadEnded counts an unload.
func (m *Meter) UnloadEnded(took time.Duration, failed bool) {
	m.unloads.WithLabelValues(result(failed)).Observe(took.Seconds())
}

// Evicted counts a copy that begins to drain.
func (m *Meter) Evicted() { m.evicted.Inc() }

// Decided counts a decision.
func (m *Meter) Decided(what decide.ActionKind, purpose decide.Purpose) {
	reason := ""
	switch what {
	case decide.Load, decide.Reload, decide.Predict:
		reason = purpose.String()
	}
	m.decided.WithLabelValues(what.String(), reason).Inc()
}

// CannotLoad counts a model whose requests are rejected.
func (m *Meter) CannotLoad(why decide.Reason) { m.rejections.WithLabelValues(string(why)).Inc() }

// Refused sets the number of invalid object files, or of invalid objects of an API server.
func (m *Meter) Refused(n int) { m.files.Set(float64(n)) }

// Readable sets whether the source of objects can be read.
func (m *Meter) Readable(ok bool) { m.readable.Set(bit(ok)) }

// bit returns 1 for true and 0 for false.
func bit(ok bool) float64 {
	if ok {
		return 1
	}
	return 0
}

func result(failed bool) string {
	if failed {
		return "failed"
	}
	return "done"
}

// termCollector collects the metrics of the term. There are none if another control leads.
type termCollector struct{ meter *Meter }

// Describe implements prometheus.Collector.
func (termCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{copiesDesc, modelsDesc, queuedDesc, warmWindowDesc, extprocsDesc} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (f termCollector) Collect(out chan<- prometheus.Metric) {
	t := f.meter.term.Load()
	if t == nil {
		return
	}
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	gauge(extprocsDesc, t.board.Peers())
	count := t.placer.Count()
	for state := decide.Queued; state <= decide.Unloading; state++ {
		gauge(copiesDesc, count.Copies[state], state.String())
	}
	gauge(queuedDesc, count.Queued)
	for pool, missed := range count.LastMissing {
		window := math.Inf(1)
		if !missed.IsZero() {
			window = max(0, time.Since(missed).Seconds())
		}
		out <- prometheus.MustNewConstMetric(warmWindowDesc, prometheus.GaugeValue, window, pool.String())
	}
	for which, n := range map[string]int{"all": count.Models, "requested": count.Wanted, "failing": count.Failing, "stuck": count.Stuck} {
		gauge(modelsDesc, n, which)
	}
}
