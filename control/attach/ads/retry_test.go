package ads_test

import (
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// A request to a Service is retried as its rule says: on the listed statuses, on connection
// failures, and after a per-try timeout. The number of attempts and the timeout of the whole
// request limit the retries.
func TestRequestsToServicesAreRetried(t *testing.T) {
	s := start(t, 20)
	var tries atomic.Int32
	fault := new(atomic.Pointer[func(w http.ResponseWriter, try int32)])
	ready := func(w http.ResponseWriter, _ int32) { _, _ = fmt.Fprint(w, "ready") }
	fault.Store(&ready)
	l, err := net.Listen("tcp", s.own+":8001")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		(*fault.Load())(w, tries.Add(1))
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	s.slice("a", 8001)
	s.apply(`---
kind: Service
metadata: {namespace: ns, name: a}
spec: {ports: [{port: 80}]}
---
kind: HTTPRoute
metadata: {namespace: ns, name: r}
spec:
  parentRefs: [{name: g}]
  rules:
  - retry: {codes: [503, 429], attempts: 2, backoff: 1ms}
    timeouts: {request: 3s, backendRequest: 200ms}
    backendRefs: [{name: a, port: 80}]
`)
	s.await("200 ready")
	status := func(code int, until int32) func(http.ResponseWriter, int32) {
		return func(w http.ResponseWriter, try int32) {
			if try <= until {
				w.WriteHeader(code)
			}
			_, _ = fmt.Fprint(w, try)
		}
	}
	for _, c := range []struct {
		what  string
		fault func(w http.ResponseWriter, try int32)
		want  string
		tries int32
	}{
		{"a status that it names, twice", status(503, 2), "200 3", 3},
		{"the other one, once", status(429, 1), "200 2", 2},
		{"a status that it names, more often than it tries", status(503, 9), "503 3", 3},
		{"a status that it does not name", status(500, 9), "500 1", 1},
		{"a connection that breaks", func(w http.ResponseWriter, try int32) {
			if try == 1 {
				panic(http.ErrAbortHandler)
			}
			_, _ = fmt.Fprint(w, try)
		}, "200 2", 2},
		{"a try that takes too long", func(w http.ResponseWriter, try int32) {
			if try == 1 {
				time.Sleep(time.Second) // the server's response time
			}
			_, _ = fmt.Fprint(w, try)
		}, "200 2", 2},
	} {
		tries.Store(0)
		fault.Store(&c.fault)
		if got := s.get(); got != c.want || tries.Load() != c.tries {
			t.Errorf("%s: %s after %d tries, want %s after %d", c.what, got, tries.Load(), c.want, c.tries)
		}
	}
}
