package metrics

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/internal/engine"
)

// Kinds of failures in addition to those that package outcome defines.
const (
	failedElsewhere = "elsewhere" // the endpoint rejected the request and asked for a retry elsewhere
	failedMissing   = "missing"   // the endpoint lacks the model
	failedUnreached = "unreached" // the endpoint accepted no connection, and another endpoint was tried
	failedError     = "error"     // the endpoint answered with an error
)

// Observe counts an outcome. If its route, pool or endpoint no longer exists, that label is empty.
func (m *Meter) Observe(o outcome.Outcome) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	route, pool := m.known("route", o.Route), m.known("pool", o.Pool)
	if o.Endpoint == "" && o.Failure != outcome.NoEndpoint {
		m.countTried(pool, o)
		return // not sent to an endpoint: counted as a reply instead, or with the relay's request
	}
	if kind := failure(o); kind != "" {
		m.failures.WithLabelValues(route, pool, kind).Inc()
	}
	if o.Endpoint == "" {
		return
	}
	code := strconv.Itoa(o.Status)
	if o.Call != outcome.NoCall {
		code = o.Call.String()
	}
	m.requests.WithLabelValues(route, pool, code).Inc()
	m.countTokens(route, pool, "prompt", o.Prompt)
	m.countTokens(route, pool, "completion", o.Completion)
	if o.Gateway > 0 {
		m.gateway.Observe(o.Gateway.Seconds())
	}
	if o.Status == http.StatusOK && o.Failure == outcome.None && (o.Call == outcome.NoCall || o.Call == outcome.OK) {
		m.time(route, pool, o)
	}
	m.countEndpoints(pool, o)
}

// NoEndpoint counts a request for a pool for which extproc found no endpoint; route may be empty.
// Envoy's access-log record of such a reply contains neither route nor pool.
func (m *Meter) NoEndpoint(route, pool string) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.failures.WithLabelValues(m.known("route", route), m.known("pool", pool), string(outcome.NoEndpoint)).Inc()
}

// known returns value, or an empty string if no current object has that value. The caller holds mu.
func (m *Meter) known(name, value string) string {
	if m.labels[label{name, value}] {
		return value
	}
	return ""
}

// failure returns how a request failed; empty if it succeeded.
func failure(o outcome.Outcome) string {
	switch {
	case o.Failure != outcome.None:
		return string(o.Failure)
	case slices.Contains(o.Elsewhere, o.Endpoint):
		return failedElsewhere
	case slices.Contains(o.Missing, o.Endpoint):
		return failedMissing
	case o.Faulty():
		return failedError
	}
	return ""
}

// countEndpoints counts the result at each endpoint that the request was sent to. The caller holds
// mu.
func (m *Meter) countEndpoints(pool string, o outcome.Outcome) {
	m.countTried(pool, o)
	switch {
	case o.Failure == outcome.NoEndpoint:
		return // there is no last endpoint
	case o.Failure == outcome.Refused, o.Failure == outcome.Reset, o.Failure == outcome.TimedOut, o.Failure == outcome.Cut,
		o.Failure == outcome.Erred, o.Failure == outcome.EngineGone:
		m.countFaults(pool, string(o.Failure), o.Endpoint)
	case o.Faulty():
		m.countFaults(pool, failedError, o.Endpoint)
	}
	endpoint := m.known("endpoint", o.Endpoint)
	m.served.WithLabelValues(pool, endpoint).Inc()
	if o.Attempts > 1 {
		m.retries.WithLabelValues(pool, endpoint).Add(float64(o.Attempts - 1))
	}
	if n, ok := o.Load.Waiting.Get(); ok {
		m.reportedWaiting.WithLabelValues(pool, endpoint).Set(n)
	}
	if n, ok := o.Load.KVUsage.Get(); ok {
		m.reportedKVUsage.WithLabelValues(pool, endpoint).Set(n)
	}
}

// countTried counts the endpoints that got the request and did not serve it. The caller holds mu.
func (m *Meter) countTried(pool string, o outcome.Outcome) {
	m.countFaults(pool, failedElsewhere, o.Elsewhere...)
	m.countFaults(pool, failedMissing, o.Missing...)
	m.countFaults(pool, failedUnreached, o.Unreached...)
}

// countFaults counts one failure of a kind for each of these endpoints. The caller holds mu.
func (m *Meter) countFaults(pool, kind string, endpoints ...string) {
	for _, e := range endpoints {
		m.faults.WithLabelValues(pool, m.known("endpoint", e), kind).Inc()
	}
}

func (m *Meter) countTokens(route, pool, kind string, tokens engine.Value) {
	if n, ok := tokens.Get(); ok {
		m.tokens.WithLabelValues(route, pool, kind).Add(n)
		m.perRequest.WithLabelValues(pool, kind).Observe(n)
	}
}

// time records the latencies of a successful request in the histograms.
func (m *Meter) time(route, pool string, o outcome.Outcome) {
	if o.Duration > 0 {
		m.duration.WithLabelValues(route, pool).Observe(o.Duration.Seconds())
	}
	if !o.Stream || o.FirstBody <= 0 {
		return
	}
	m.firstToken.WithLabelValues(route, pool).Observe(o.FirstBody.Seconds())
	if o.Expected > 0 {
		m.predicted.WithLabelValues(pool).Observe(o.FirstBody.Seconds() / o.Expected.Seconds())
	}
	var perToken time.Duration
	if n, ok := o.Completion.Get(); ok && n > 1 && o.Duration > o.FirstBody {
		seconds := (o.Duration - o.FirstBody).Seconds() / (n - 1)
		m.perToken.WithLabelValues(route, pool).Observe(seconds)
		perToken = time.Duration(seconds * float64(time.Second))
	}
	m.attain(route, o.FirstBody, perToken)
}
