package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// envoys counts events of Gateways' Envoys. It is a [controller.Meter].
type envoys struct {
	connected *prometheus.GaugeVec   // label: gateway
	sent      *prometheus.CounterVec // label: kind
	refusals  *prometheus.CounterVec // label: kind
	took      prometheus.Histogram
	plan      prometheus.Histogram

	mu    *sync.Mutex // guards the fields below
	count map[string]int
}

func newEnvoys(
	gauge func(name, help string, labels ...string) *prometheus.GaugeVec,
	histogram func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec,
) envoys {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"kind"})
	}
	return envoys{
		connected: gauge("headgate_envoys", "Envoys of a Gateway that are connected to this control.", "gateway"),
		sent: counter("headgate_envoy_resources_total",
			"Resources that this control sent to Envoys or removed from them, by kind: clusters, listeners, routes, secrets or endpoints."),
		refusals: counter("headgate_envoy_nacks_total", "NACKs: updates that an Envoy rejected, trial updates included, by kind."),
		took: histogram("headgate_envoy_update_seconds",
			"Seconds from a change of the configuration to the acknowledgement of an Envoy.",
			ownBuckets).WithLabelValues().(prometheus.Histogram),
		plan: histogram("headgate_plan_seconds", "Seconds to compute the configuration of Envoys after objects changed.",
			ownBuckets).WithLabelValues().(prometheus.Histogram),
		mu: new(sync.Mutex), count: make(map[string]int),
	}
}

// EnvoyCame increments the number of connected Envoys of a Gateway.
func (e *envoys) EnvoyCame(gateway string) { e.add(gateway, 1) }

// EnvoyLeft decrements the number of connected Envoys of a Gateway.
func (e *envoys) EnvoyLeft(gateway string) { e.add(gateway, -1) }

func (e *envoys) add(gateway string, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.count[gateway] += n; e.count[gateway] == 0 { // remove the series, since the Gateway may be gone
		delete(e.count, gateway)
		e.connected.DeleteLabelValues(gateway)
		return
	}
	e.connected.WithLabelValues(gateway).Set(float64(e.count[gateway]))
}

// EnvoySent counts resources of a kind that control sent to an Envoy.
func (e *envoys) EnvoySent(kind string, resources int) {
	e.sent.WithLabelValues(kind).Add(float64(resources))
}

// EnvoyRefused counts a NACK of resources of a kind.
func (e *envoys) EnvoyRefused(kind string) { e.refusals.WithLabelValues(kind).Inc() }

// EnvoyTook records how long an Envoy took to send an ACK.
func (e *envoys) EnvoyTook(after time.Duration) { e.took.Observe(after.Seconds()) }

// Replanned records how long control took to plan.
func (e *envoys) Replanned(took time.Duration) { e.plan.Observe(took.Seconds()) }
