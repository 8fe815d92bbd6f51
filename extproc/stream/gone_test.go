package stream_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/meter"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/stream"
)

// A request is ended once, when its endpoint is vacant in two records in a row and sent nothing in between. What was kept for that is gone with
// the exchange.
func TestARequestWhoseEngineHasGoneIsEndedOnItsStream(t *testing.T) {
	f := newFleet()
	server, _ := newServer(t, f, nil)
	exchange, err := dialServer(t, server, stream.Own).Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var answer *extprocv3.ProcessingResponse
	for _, m := range []*extprocv3.ProcessingRequest{message(t, "headers :method=POST :path=/v1/completions"), message(t, `body {"model":"text-to-sql"}`)} {
		if err := exchange.Send(m); err != nil {
			t.Fatal(err)
		}
		if answer, err = exchange.Recv(); err != nil {
			t.Fatal(err)
		}
	}
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
		{id, endpoint, 5, false, false}, // a living engine may be silent
		{id, endpoint, 5, true, false},
		{id, endpoint, 6, true, false}, // it is draining
		{"another", endpoint, 6, true, false},
		{"another", endpoint, 6, true, false}, // of another process
		{id, endpoint, 6, true, true},
		{id, endpoint, 6, false, false},
		{id, endpoint, 6, true, false},
		{id, "10.0.0.9:8000", 6, true, false}, // a retry moved it
		{id, "10.0.0.9:8000", 6, true, true},
		{id, "10.0.0.9:8000", 6, false, false},
	} {
		if got := server.Silent(outcome.Progress{ID: c.id, Endpoint: c.endpoint, Bytes: c.bytes}, c.vacant); got != c.ends {
			t.Errorf("record %d: it is ended: %v, want %v", n, got, c.ends)
		}
	}
	record := outcome.Progress{ID: id, Endpoint: endpoint, Bytes: 7}
	server.Progressed(record)
	server.Progressed(record)
	f.Refused(endpoint)
	f.Ended(endpoint)
	for range 4 { // it is ended once
		server.Progressed(record)
	}
	if answer, err = exchange.Recv(); err != nil {
		t.Fatal(err)
	}
	if got := answer.GetImmediateResponse(); got.GetDetails() != "headgate_engine_gone" || got.GetStatus().GetCode() != 503 || len(got.GetHeaders().GetSetHeaders()) != 2 {
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

// await waits until something holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	limit := time.After(5 * time.Second)
	for !holds() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("it does not hold that %s", what)
		}
	}
}

// A request that finds no endpoint has a series of its pool and route, so that an alert or an autoscaler knows which pool it was for.
func TestRequestsThatFindNoEndpointAreCountedByPoolAndRoute(t *testing.T) {
	f := newFleet()
	m := meter.New(f)
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
		`headgate_failures_total{kind="no_endpoint",pool="",route="ns/for-nowhere"} 1`, // there is no such pool
		`headgate_failures_total{kind="no_endpoint",pool="ns/base",route="ns/for-missing"} 1`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("the series are %q, want %q", got, want)
	}
}

// series are the lines of a metrics page that begin with something.
func series(m *meter.Meter, prefix string) (all []string) {
	page := httptest.NewRecorder()
	m.Handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, prefix) {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}

// A call that is refused is counted as a reply before its answer begins. Later the access log counts it, by the status with which it ends.
func TestARefusedCallIsCountedOnce(t *testing.T) {
	for annotation, want := range map[string]int{"": 1, "@answered ": 0} {
		f := newFleet()
		m := meter.New(f)
		server, _ := newServer(t, f, func(c *stream.Config) { c.Meter = m })
		x := server.Exchange(stream.Own, "extproc", 0)
		for _, text := range []string{
			"headers :method=POST content-type=application/grpc mode=NONE shown=NONE :path=/inference.GRPCInferenceService/ModelStreamInfer",
			`chunk "\x00\x00\x00\x00\x0a\x0a\x05llama\x1a\x01x"`,
			"chunk " + annotation + `"\x00\x00\x00\x00\x0d\x0a\x0btext-to-sql"`,
		} {
			if _, err := x.Receive(message(t, text), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		x.End(time.Now())
		if got := series(m, "headgate_replies_total{"); len(got) != want {
			t.Errorf("%q: the replies are %q, want %d", annotation, got, want)
		}
	}
}
