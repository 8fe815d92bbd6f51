package e2e

import (
	"context"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Envoy serves requests that do not need extproc while extproc hangs and does not read their
// records. When extproc continues, it also reads the records of later requests.
func TestRecordsDelayNoRequest(t *testing.T) {
	runs(t)
	s := start(t)
	s.must(completion("a01", 1, false))
	s.await("the first record is read", func() bool { return s.sum(s.Metrics, "headgate_requests_total", "route", "default/a01") == 1 })
	s.Extproc.Signal(syscall.SIGSTOP)
	s.askHealth(8, 500)
	s.Extproc.Signal(syscall.SIGCONT)
	s.await("requests are answered again", func() bool { return s.must(completion("a02", 1, false)).status == http.StatusOK })
	s.await("their records are read", func() bool { return s.sum(s.Metrics, "headgate_requests_total", "route", "default/a02") > 0 })
}

// While extproc hangs, each of Envoy's workers buffers some 1,000 records and drops the others, so
// that Envoy's memory does not grow.
func TestEnvoyDropsRecordsThatAHungExtprocDoesNotRead(t *testing.T) {
	runs(t)
	s := start(t)
	s.must(completion("a01", 1, false))
	s.await("the first record is read", func() bool { return s.sum(s.Metrics, "headgate_requests_total", "route", "default/a01") == 1 })
	s.Extproc.Signal(syscall.SIGSTOP)
	const each, clients = 4000, 4 // a connection stays at one worker
	s.askHealth(clients, each)
	written, dropped := s.envoyGauge("access_logs.grpc_access_log.logs_written"), s.envoyGauge("access_logs.grpc_access_log.logs_dropped")
	t.Logf("%v records were accepted, and %v dropped", written, dropped)
	if dropped < each*clients/4 {
		t.Errorf("%v of %d records were dropped", dropped, each*clients)
	}
	s.Extproc.Signal(syscall.SIGCONT)
	s.await("requests are answered again", func() bool { return s.must(completion("a02", 1, false)).status == http.StatusOK })
	s.await("their records are read", func() bool { return s.sum(s.Metrics, "headgate_requests_total", "route", "default/a02") > 0 })
}

// askHealth sends requests that Envoy answers itself: each of several clients sends some in turn.
func (s *stack) askHealth(clients, each int) {
	s.t.Helper()
	var all sync.WaitGroup
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	for range clients {
		all.Go(func() {
			for range each {
				if a, err := s.ask(ctx, request{method: http.MethodGet, path: "/healthz"}); err != nil || a.status != http.StatusOK {
					s.t.Errorf("a client is not served: %d, %v", a.status, err)
					return
				}
			}
		})
	}
	all.Wait()
}
