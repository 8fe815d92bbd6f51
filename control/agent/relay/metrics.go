package relay

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the relay's metrics.
type metrics struct {
	connections, accepting prometheus.Gauge
	total, failed          prometheus.Counter
}

// newMetrics returns metrics that are registered, unless the Registerer is nil.
func newMetrics(to prometheus.Registerer) (metrics, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := metrics{
		connections: gauge("headgate_agent_connections", "Open connections of clients that the agent relays to its engine."),
		accepting:   gauge("headgate_agent_accepting", "1 while the agent accepts connections for its engine, 0 while it refuses them."),
		total:       counter("headgate_agent_connections_total", "Connections of clients that the agent accepted for its engine."),
		failed:      counter("headgate_agent_connect_failures_total", "Connections of clients that were reset, because the agent had none to its engine."),
	}
	if to == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.connections, m.accepting, m.total, m.failed} {
		errs = append(errs, to.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return m, fmt.Errorf("metrics of the relay: %w", err)
	}
	return m, nil
}
