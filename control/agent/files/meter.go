package files

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/headgate/headgate/control/agent/fetch"
)

// progressEvery is the time between two lines about a download in the log.
const progressEvery = 10 * time.Second

// meter counts what a Store does.
type meter struct {
	bytes, seconds, failures, hits *prometheus.CounterVec
	evictions                      prometheus.Counter
}

var (
	diskDesc = prometheus.NewDesc("headgate_agent_disk_bytes",
		"Bytes of model files on disk, by scheme of their source. Interrupted and running downloads have the scheme partial.",
		[]string{"scheme"}, nil)
	limitDesc = prometheus.NewDesc("headgate_agent_disk_limit_bytes", "Maximum number of bytes of model files on disk; 0 if only the disk limits.",
		nil, nil)
)

func newMeter() *meter {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return &meter{
		bytes: counter("headgate_agent_fetched_bytes_total", "Bytes of model files that arrived from storage, by scheme of the URI.", "scheme"),
		seconds: counter("headgate_agent_fetch_seconds_total", "Seconds that fetches of models took, by scheme, with those that failed.",
			"scheme"),
		failures: counter("headgate_agent_fetch_failures_total",
			"Fetches of models that failed, by scheme and reason: NotFound, Denied, Busy, Changed, Corrupt, Full, Unsafe, Empty, Invalid or Canceled.",
			"scheme", "reason"),
		hits: counter("headgate_agent_cache_hits_total",
			"Fetches of models whose files were on disk, in the version that storage has, by scheme.", "scheme"),
		evictions: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "headgate_agent_evictions_total", Help: "Sources whose files were removed because their room was needed.",
		}),
	}
}

// ended counts a fetch that has ended.
func (m *meter) ended(f *flight, began time.Time, hit bool, err error) {
	scheme := string(f.scheme)
	var e *fetch.Error
	switch {
	case errors.As(err, &e):
		m.failures.WithLabelValues(scheme, string(e.Reason)).Inc()
	case err != nil:
		m.failures.WithLabelValues(scheme, "Canceled").Inc()
	case hit:
		m.hits.WithLabelValues(scheme).Inc()
	}
	m.seconds.WithLabelValues(scheme).Add(time.Since(began).Seconds())
}

// collectors are the metrics that are counted as things happen.
func (m *meter) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.bytes, m.seconds, m.failures, m.hits, m.evictions}
}

// Describe makes a Store a [prometheus.Collector].
func (s *Store) Describe(to chan<- *prometheus.Desc) {
	for _, c := range s.meter.collectors() {
		c.Describe(to)
	}
	to <- diskDesc
	to <- limitDesc
}

// Collect makes a Store a [prometheus.Collector].
func (s *Store) Collect(to chan<- prometheus.Metric) {
	for _, c := range s.meter.collectors() {
		c.Collect(to)
	}
	to <- prometheus.MustNewConstMetric(limitDesc, prometheus.GaugeValue, float64(s.config.Limit))
	bytes := map[string]int64{"partial": 0}
	s.mu.Lock()
	for _, e := range s.entries {
		bytes[string(e.Scheme)] += e.Bytes
	}
	for _, p := range s.partials {
		bytes["partial"] += p.bytes
	}
	s.unlock()
	for scheme, n := range bytes {
		to <- prometheus.MustNewConstMetric(diskDesc, prometheus.GaugeValue, float64(n), scheme)
	}
}

// logProgress logs the progress of a download until the caller calls the function that it returns.
func (s *Store) logProgress(f *flight) (stop func()) {
	stopped := make(chan struct{})
	s.tasks.Go(func() {
		ticker := time.NewTicker(progressEvery)
		defer ticker.Stop()
		last := f.kept.Load() + f.fetched.Load()
		for {
			select {
			case <-stopped:
				return
			case <-ticker.C:
			}
			have, total := f.kept.Load()+f.fetched.Load(), f.total.Load()
			rate := max(0, float64(have-last)/progressEvery.Seconds())
			last = have
			attributes := []any{"uri", f.uri, "bytes", have, "total", total, "bytesPerSecond", int64(rate)}
			if rate > 0 && total > have {
				attributes = append(attributes, "remaining", time.Duration(float64(total-have)/rate*float64(time.Second)).Round(time.Second).String())
			}
			s.config.Log.Info("fetching model files", attributes...)
		}
	})
	return func() { close(stopped) }
}
