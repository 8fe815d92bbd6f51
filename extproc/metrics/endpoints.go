package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
)

// fleetCollector is a collector that reports the fleet's state of each endpoint when Prometheus
// scrapes extproc.
type fleetCollector struct{ fleet *fleet.Fleet }

func endpointGauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("headgate_endpoint_"+name, help, append([]string{"pool", "endpoint"}, labels...), nil)
}

var (
	stateDesc = endpointGauge("state",
		"Is 1 for the state that the endpoint is in, and 0 for each other: healthy, suspect, stale, lost or out.", "state")
	inFlightDesc = endpointGauge("in_flight", "Requests of this extproc in flight at the endpoint.")
	modelsDesc   = endpointGauge("models_in_flight", "Models with requests of this extproc in flight at the endpoint.")
	runningDesc  = endpointGauge("running", "Requests in the engine's batch, as it last reported.")
	waitingDesc  = endpointGauge("waiting", "Requests in the engine's own queue, as it last reported.")
	kvUsageDesc  = endpointGauge("kv_usage", "Share of the engine's KV cache in use, 0 to 1, as it last reported.")
	failOpenDesc = prometheus.NewDesc("headgate_pool_fail_open",
		"Is 1 while most endpoints of the pool look unhealthy, so that extproc picks among all that are not out.", []string{"pool"}, nil)
	trustedDesc = prometheus.NewDesc("headgate_pool_predictions_trusted",
		"Is 1 while policy latency decides by predictions for the pool, and 0 while it falls back to policy proposal.",
		[]string{"pool"}, nil)
	requestsInFlightDesc = prometheus.NewDesc("headgate_requests_in_flight",
		"Requests in flight whose end is reported apart from their own stream, such as by an access log.", nil, nil)
	inferredDesc = prometheus.NewDesc("headgate_requests_in_flight_inferred_total",
		"Requests whose end was not reported but follows from the load of their endpoint.", nil, nil)
	expiredDesc = prometheus.NewDesc("headgate_requests_in_flight_expired_total",
		"Requests that stopped counting as in flight because nothing reported their end before --in-flight-timeout.", nil, nil)
)

// Describe implements prometheus.Collector.
func (fleetCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		stateDesc, inFlightDesc, modelsDesc, runningDesc, waitingDesc, kvUsageDesc, failOpenDesc, trustedDesc, requestsInFlightDesc,
		inferredDesc,
		expiredDesc,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c fleetCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	leases := c.fleet.Leases()
	gauge(requestsInFlightDesc, float64(leases.Current))
	ch <- prometheus.MustNewConstMetric(inferredDesc, prometheus.CounterValue, float64(leases.Inferred))
	ch <- prometheus.MustNewConstMetric(expiredDesc, prometheus.CounterValue, float64(leases.Expired))
	for _, pool := range fleet.Read(c.fleet, (*endpointstate.State).FailOpen) {
		gauge(failOpenDesc, 1, pool)
	}
	for name, p := range c.fleet.View().Snapshot.Pools {
		gauge(trustedDesc, bit(p.Predictable), name)
	}
	for _, e := range fleet.Read(c.fleet, func(s *endpointstate.State) []endpointstate.Status { return s.Endpoints(c.fleet.Now()) }) {
		pool := e.Pool.String()
		known := func(d *prometheus.Desc, v engine.Value) {
			if n, ok := v.Get(); ok {
				gauge(d, n, pool, e.Address)
			}
		}
		for state, name := range pick.States {
			gauge(stateDesc, bit(e.State == pick.State(state)), pool, e.Address, name)
		}
		gauge(inFlightDesc, float64(e.InFlight), pool, e.Address)
		gauge(modelsDesc, float64(len(e.Models)), pool, e.Address)
		known(runningDesc, e.Load.Running)
		known(waitingDesc, e.Load.Waiting)
		known(kvUsageDesc, e.Load.KVUsage)
	}
}
