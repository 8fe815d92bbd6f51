package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/headgate/headgate/extproc/fleet"
)

// Held are the waiting requests of one pool and band that wait for the same reason.
type Held struct {
	Pool     string
	Band     int32
	Reason   string // one of WaitReasons
	Requests int
	Since    time.Time // arrival of the first of them
}

// WaitReasons are the values of the label reason for waiting requests.
var WaitReasons = [...]string{"endpoint", "copy", "room", "turn"}

// RefusedLimit is the label reason for requests that exceed a limit of their route or tenant. For
// requests that were refused when they joined the queue or after they had waited, the label is one
// of QueueFull, QueueExpired, QueueFailed, QueueStopped and QueueLate.
const RefusedLimit = "limit"

const reasonsToWait = "endpoint (no endpoint of the pool may get requests), copy (the model is not loaded, or every copy is at its concurrency limit), room (no engine can start the request at once), turn (other requests go first)"

var (
	heldDesc = prometheus.NewDesc("headgate_pool_held_requests",
		"Requests that wait in extproc, by reason: "+reasonsToWait+".", []string{"pool", "reason"}, nil)
	bandHeldDesc = prometheus.NewDesc("headgate_band_held_requests",
		"Requests that wait in extproc, by priority and reason as for headgate_pool_held_requests; without a series where none waits.",
		[]string{"pool", "band", "reason"}, nil)
	bandOldestDesc = prometheus.NewDesc("headgate_band_held_oldest_seconds",
		"Seconds that the longest waiting of these requests has waited.", []string{"pool", "band", "reason"}, nil)
)

// heldCollector reports waiting requests when Prometheus scrapes extproc.
type heldCollector struct {
	fleet *fleet.Fleet
	held  func() []Held
}

// Describe implements prometheus.Collector.
func (heldCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- heldDesc
	ch <- bandHeldDesc
	ch <- bandOldestDesc
}

// Collect implements prometheus.Collector. Each pool has a series for each reason, so that an
// autoscaler sees zeros.
func (c heldCollector) Collect(ch chan<- prometheus.Metric) {
	type key struct{ pool, reason string }
	total := make(map[key]int)
	view := c.fleet.View()
	for name := range view.World.Pools {
		for _, reason := range WaitReasons {
			total[key{name.String(), reason}] = 0
		}
	}
	for _, h := range c.held() {
		total[key{h.Pool, h.Reason}] += h.Requests
		labels := []string{h.Pool, strconv.Itoa(int(h.Band)), h.Reason}
		ch <- prometheus.MustNewConstMetric(bandHeldDesc, prometheus.GaugeValue, float64(h.Requests), labels...)
		ch <- prometheus.MustNewConstMetric(bandOldestDesc, prometheus.GaugeValue, max(0, time.Since(h.Since).Seconds()), labels...)
	}
	for k, n := range total {
		ch <- prometheus.MustNewConstMetric(heldDesc, prometheus.GaugeValue, float64(n), k.pool, k.reason)
	}
}

// ReportHeld makes the Meter report waiting requests. The function held is called for each scrape.
// Call ReportHeld once.
func (m *Meter) ReportHeld(held func() []Held) { m.registry.MustRegister(heldCollector{m.fleet, held}) }

// Waited records how long a request waited, whether it was served or not. Reason is what it waited
// for last, one of WaitReasons.
func (m *Meter) Waited(pool string, band int32, reason string, took time.Duration) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.heldTime.WithLabelValues(m.known("pool", pool), strconv.Itoa(int(band)), reason).Observe(took.Seconds())
}

// TurnedAway counts a request that extproc refused, for [RefusedLimit] or an outcome of the queue.
func (m *Meter) TurnedAway(pool string, band int32, reason string) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.turnedAway.WithLabelValues(m.known("pool", pool), strconv.Itoa(int(band)), reason).Inc()
}
