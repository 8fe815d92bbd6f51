package main

import (
	"encoding/json"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/headgate/headgate/control/place"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/place/stream"
)

// meter is what control says of itself. It is a [place.Meter]. No label holds anything that a client can choose.
type meter struct {
	registry *prometheus.Registry
	toCall   prometheus.Histogram
	stalled  prometheus.Histogram
	loads    *prometheus.HistogramVec // result
	unloads  *prometheus.HistogramVec // result
	evicted  prometheus.Counter
	files    prometheus.Gauge
	readable prometheus.Gauge
	copies   *prometheus.Desc // state
	models   *prometheus.Desc // kind
	waiting  *prometheus.Desc
	peers    *prometheus.Desc
	deciding prometheus.Gauge
	term     atomic.Pointer[followed]
}

// followed is who is told of; none while another control decides.
type followed struct {
	board  *stream.Server
	placer *place.Placer
}

// Buckets in seconds: what control itself takes, and what engines do.
var (
	ownBuckets  = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5}
	loadBuckets = []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
)

func newMeter() *meter {
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: "headgate_" + name, Help: help, Buckets: buckets}
	}
	m := &meter{
		registry: prometheus.NewRegistry(),
		toCall:   prometheus.NewHistogram(histogram("place_to_load_seconds", "From the first request that waits for a model to the call that loads it, without what was waited for room or a turn.", ownBuckets)),
		stalled:  prometheus.NewHistogram(histogram("place_stalled_seconds", "What loads that requests wait for waited for others to leave, or for their turn.", loadBuckets)),
		loads:    prometheus.NewHistogramVec(histogram("place_load_seconds", "Loads, by how they ended.", loadBuckets), []string{"result"}),
		unloads:  prometheus.NewHistogramVec(histogram("place_unload_seconds", "Unloads, by how they ended.", loadBuckets), []string{"result"}),
		evicted:  prometheus.NewCounter(prometheus.CounterOpts{Name: "headgate_place_evictions_total", Help: "Copies that began to drain."}),
		files:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "headgate_objects_refused_files", Help: "Files of objects, or objects of an API server, that are not in force because they are not valid."}),
		readable: prometheus.NewGauge(prometheus.GaugeOpts{Name: "headgate_objects_connected", Help: "1 while objects can be read where they come from; else what was read last stays in force."}),
		deciding: prometheus.NewGauge(prometheus.GaugeOpts{Name: "headgate_decides", Help: "1 while this control decides; 0 where another does, or nobody can tell."}),
		copies:   prometheus.NewDesc("headgate_copies", "Copies of models, by state.", []string{"state"}, nil),
		models:   prometheus.NewDesc("headgate_models", "Models of the catalogue, and those of them that requests wait for, that failures count of, and that cannot be loaded for now.", []string{"which"}, nil),
		waiting:  prometheus.NewDesc("headgate_waiting_requests", "Requests that wait for models, by all extprocs.", nil, nil),
		peers:    prometheus.NewDesc("headgate_extprocs", "Extprocs that follow.", nil, nil),
	}
	m.registry.MustRegister(m, m.toCall, m.stalled, m.loads, m.unloads, m.evicted, m.files, m.readable, m.deciding,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// follow makes the meter tell of a term, or of none.
func (m *meter) follow(board *stream.Server, placer *place.Placer) {
	if placer == nil {
		m.term.Store(nil)
		return
	}
	m.term.Store(&followed{board, placer})
}

// decides notes whether this control decides.
func (m *meter) decides(is bool) {
	m.deciding.Set(0)
	if is {
		m.deciding.Set(1)
	}
}

// Describe is [prometheus.Collector]'s.
func (m *meter) Describe(out chan<- *prometheus.Desc) {
	out <- m.copies
	out <- m.models
	out <- m.waiting
	out <- m.peers
}

// Collect is [prometheus.Collector]'s.
func (m *meter) Collect(out chan<- prometheus.Metric) {
	term := m.term.Load()
	if term == nil {
		return
	}
	out <- prometheus.MustNewConstMetric(m.peers, prometheus.GaugeValue, float64(term.board.Peers()))
	count := term.placer.Count()
	for state, n := range count.Copies {
		out <- prometheus.MustNewConstMetric(m.copies, prometheus.GaugeValue, float64(n), decide.CopyState(state).String())
	}
	out <- prometheus.MustNewConstMetric(m.waiting, prometheus.GaugeValue, float64(count.Waiting))
	for which, n := range map[string]int{"all": count.Models, "wanted": count.Wanted, "failing": count.Failing, "stuck": count.Stuck} {
		out <- prometheus.MustNewConstMetric(m.models, prometheus.GaugeValue, float64(n), which)
	}
}

// LoadCalled is [place.Meter]'s, as what follows.
func (m *meter) LoadCalled(waited, stalled time.Duration) {
	m.toCall.Observe(max(0, waited-stalled).Seconds())
	m.stalled.Observe(stalled.Seconds())
}

func (m *meter) LoadEnded(took time.Duration, failed bool) {
	m.loads.WithLabelValues(result(failed)).Observe(took.Seconds())
}

func (m *meter) UnloadEnded(took time.Duration, failed bool) {
	m.unloads.WithLabelValues(result(failed)).Observe(took.Seconds())
}

func (m *meter) Evicted() { m.evicted.Inc() }

// Refused is [source.Meter]'s, as Readable is.
func (m *meter) Refused(n int) { m.files.Set(float64(n)) }

func (m *meter) Readable(ok bool) { m.readable.Set(bit(ok)) }

// bit is 1 for true.
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

// handler serves what operators look at. Control is ready when it decides with the objects that it has read, or waits for
// its turn with them.
func (m *meter) handler(loaded <-chan struct{}) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-loaded:
			_, _ = w.Write([]byte("ok\n"))
		default:
			http.Error(w, "the objects are not read yet", http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /models", func(w http.ResponseWriter, r *http.Request) {
		term := m.term.Load()
		if term == nil {
			http.Error(w, "another control decides: ask that one", http.StatusServiceUnavailable)
			return
		}
		all := term.placer.Statuses()
		if id := r.URL.Query().Get("id"); id != "" {
			some := all[:0]
			for _, st := range all {
				if st.ID == id {
					some = append(some, st)
				}
			}
			all = some
		}
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(all) // a client that leaves is no fault
	})
	return mux
}
