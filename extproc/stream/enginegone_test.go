package stream_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
)

// A request is ended when its endpoint has no listener in two consecutive records and no byte
// arrived in between. That happens only once. After the exchange, nothing of the request is kept.
func TestRequestOnADeadEngineIsEnded(t *testing.T) {
	f := newFleet()
	server, _ := newServer(t, f, nil)
	exchange, answer := openRequest(t, dialServer(t, server, stream.Own))
	told := answer.GetDynamicMetadata().GetFields()
	id := told[wire.PickNamespace].GetStructValue().GetFields()[wire.PickID].GetStringValue()
	endpoint := told[wire.DestinationNamespace].GetStructValue().GetFields()[wire.DestinationHeader].GetStringValue()
	await(t, "the exchange is open", func() bool { return server.Open() == 1 })
	for n, c := range []struct {
		id, endpoint string
		bytes        uint64
		vacant, ends bool
	}{
		{id, endpoint, 5, false, false},
		{id, endpoint, 5, false, false}, // a running engine may send no bytes
		{id, endpoint, 5, true, false},
		{id, endpoint, 6, true, false}, // an engine that drains sends bytes
		{"another", endpoint, 6, true, false},
		{"another", endpoint, 6, true, false}, // request of another process
		{id, endpoint, 6, true, true},
		{id, endpoint, 6, false, false},
		{id, endpoint, 6, true, false},
		{id, "10.0.0.9:8000", 6, true, false}, // a retry went to another endpoint
		{id, "10.0.0.9:8000", 6, true, true},
		{id, "10.0.0.9:8000", 6, false, false},
	} {
		if got := server.Silent(outcome.Progress{ID: c.id, Endpoint: c.endpoint, Bytes: c.bytes}, c.vacant); got != c.ends {
			t.Errorf("record %d: the request is ended: %v, want %v", n, got, c.ends)
		}
	}
	record := outcome.Progress{ID: id, Endpoint: endpoint, Bytes: 7}
	server.Progressed(record)
	server.Progressed(record)
	f.Update(fleet.Soon, func(s *endpointstate.State, now time.Time) {
		s.Refused(endpoint, now)
		s.ProcessEnded(endpoint, now)
	})
	for range 4 { // the request is ended only once
		server.Progressed(record)
	}
	answer, err := exchange.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if got := answer.GetImmediateResponse(); got.GetDetails() != "headgate_engine_gone" || got.GetStatus().GetCode() != 503 ||
		len(got.GetHeaders().GetSetHeaders()) != 2 {
		t.Errorf("the data plane gets %v", answer)
	}
	if err := exchange.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if extra, err := exchange.Recv(); err == nil {
		t.Errorf("then it gets %v", extra)
	}
	awaitIdle(t, f)
	if n := server.Open(); n != 0 {
		t.Errorf("%d exchanges are open", n)
	}
	server.Progressed(record)
}

// An endpoint that was removed from the objects is not scraped. A progress record of one of its
// requests starts a dial, unless one is in progress. If the endpoint refuses connections, requests
// without new bytes end.
func TestRequestAtARemovedEndpointIsEnded(t *testing.T) {
	f := newFleet()
	dials, dialed := make(chan error), make(chan string, 10)
	server, _ := newServer(t, f, func(c *stream.Config) {
		c.Dial = func(_ context.Context, address string) error {
			dialed <- address
			return <-dials
		}
	})
	client := dialServer(t, server, stream.Own)
	var records []outcome.Progress
	exchanges := make(map[string]extprocv3.ExternalProcessor_ProcessClient)
	for range 2 {
		exchange, answer := openRequest(t, client)
		id := answer.GetDynamicMetadata().GetFields()[wire.PickNamespace].GetStructValue().GetFields()[wire.PickID].GetStringValue()
		exchanges[id] = exchange
		records = append(records, outcome.Progress{ID: id, Endpoint: address, Bytes: 5})
	}
	await(t, "the exchanges are open", func() bool { return server.Open() == 2 })
	// pass adds bytes to one of the requests, and records the progress of each. The dial that
	// follows then ends with err.
	pass := func(err error) {
		records[1].Bytes++
		for _, r := range records {
			server.Progressed(r)
		}
		await(t, "the endpoint is dialed", func() bool { return len(dialed) == 1 })
		if got := <-dialed; got != address {
			t.Errorf("%s is dialed, want %s", got, address)
		}
		dials <- err
		await(t, "no dial goes on", func() bool { return server.Dialing() == 0 })
	}
	server.Progressed(records[0]) // an endpoint that still exists is not dialed
	f.SetWorld(objects.Build(objects.Set{}))
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for _, err := range []error{nil, refused, context.DeadlineExceeded, refused} {
		pass(err)
		lives := exchanges[records[0].ID]
		if err := lives.Send(message(t, "trailers")); err != nil {
			t.Fatal(err)
		}
		if answer, err := lives.Recv(); err != nil || answer.GetRequestTrailers() == nil {
			t.Fatalf("before two refusals in a row the data plane gets %v, %v", answer, err)
		}
	}
	pass(refused)
	answer, err := exchanges[records[0].ID].Recv()
	if err != nil {
		t.Fatal(err)
	}
	if got := answer.GetImmediateResponse(); got.GetDetails() != "headgate_engine_gone" {
		t.Errorf("the data plane gets %v", answer)
	}
	if err := exchanges[records[0].ID].CloseSend(); err != nil {
		t.Fatal(err)
	}
	await(t, "one exchange is open", func() bool { return server.Open() == 1 })
	server.Progressed(records[0]) // the request is over, so its endpoint is not dialed
	server.Progressed(outcome.Progress{ID: records[1].ID, Endpoint: "/run/inner.sock"})
	if len(dialed) != 0 || server.Dialing() != 0 {
		t.Errorf("%d dials are in progress", server.Dialing())
	}
	if err := exchanges[records[1].ID].CloseSend(); err != nil {
		t.Fatal(err)
	}
	if answer, err := exchanges[records[1].ID].Recv(); err == nil {
		t.Errorf("the request that is served gets %v", answer)
	}
	await(t, "no exchange is open", func() bool { return server.Open() == 0 })
}

// await waits until holds returns true.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	limit := time.After(5 * time.Second)
	for !holds() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s: this never holds", what)
		}
	}
}

// Metrics count each request that found no endpoint, by pool and route, for alerts and autoscalers.
func TestRequestsWithoutAnEndpointAreCounted(t *testing.T) {
	f := newFleet()
	m := metrics.New(f)
	m.SetWorld(f.View().World)
	server, _ := newServer(t, f, func(c *stream.Config) { c.Meter = m })
	for _, body := range []string{`body {"model":"missing"}`, `body {"model":"nowhere"}`, `body {"model":"no such model"}`} {
		x := server.Exchange(stream.Own, "extproc", 0)
		for _, text := range []string{"headers :method=POST :path=/v1/completions", body} {
			if _, err := x.Receive(message(t, text), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		x.End(time.Now())
	}
	got := series(m, "headgate_failures_total{")
	slices.Sort(got)
	want := []string{
		`headgate_failures_total{kind="no_endpoint",pool="",route="ns/for-nowhere"} 1`, // the route's pool does not exist
		`headgate_failures_total{kind="no_endpoint",pool="ns/base",route="ns/for-missing"} 1`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("the series are %q, want %q", got, want)
	}
}

// series returns the lines of the metrics page that begin with prefix.
func series(m *metrics.Meter, prefix string) (all []string) {
	page := httptest.NewRecorder()
	m.Handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, prefix) {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}

// A call that is refused before its response begins is counted as a reply of extproc. A call that
// is refused later is counted by the access log, with its final status.
func TestRejectedCallIsCountedOnce(t *testing.T) {
	for chunk, want := range map[string]int{"chunk": 1, "chunk @answered": 0} {
		f := newFleet()
		m := metrics.New(f)
		server, _ := newServer(t, f, func(c *stream.Config) { c.Meter = m })
		x := server.Exchange(stream.Own, "extproc", 0)
		for _, text := range []string{
			"headers :method=POST content-type=application/grpc mode=NONE shown=NONE :path=/inference.GRPCInferenceService/ModelStreamInfer",
			`chunk "\x00\x00\x00\x00\x0a\x0a\x05llama\x1a\x01x"`,
			chunk + ` "\x00\x00\x00\x00\x0d\x0a\x0btext-to-sql"`,
		} {
			if _, err := x.Receive(message(t, text), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		x.End(time.Now())
		if got := series(m, "headgate_replies_total{"); len(got) != want {
			t.Errorf("%q: the replies are %q, want %d", chunk, got, want)
		}
	}
}

// openRequest opens an ext_proc stream and sends a request. It returns the stream and the decision.
func openRequest(t *testing.T, client extprocv3.ExternalProcessorClient) (exchange extprocv3.ExternalProcessor_ProcessClient,
	decision *extprocv3.ProcessingResponse,
) {
	t.Helper()
	exchange, err := client.Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"headers :method=POST :path=/v1/completions", `body {"model":"text-to-sql"}`} {
		if err := exchange.Send(message(t, line)); err != nil {
			t.Fatal(err)
		}
		if decision, err = exchange.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	return exchange, decision
}
