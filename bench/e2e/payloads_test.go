package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/api/inference"
	"github.com/headgate/headgate/headgate/rig"
)

// payload is the copy of a message or body that a sink gets.
type payload struct {
	ID       string            `json:"id"`
	Model    string            `json:"modelid"`
	VModel   string            `json:"vModelId"`
	Kind     string            `json:"kind"`
	Status   string            `json:"status"`
	Metadata map[string]string `json:"metadata"`
	Data     []byte            `json:"data"`
}

// sink is a server that receives payloads and keeps them by model.
type sink struct {
	*httptest.Server
	mu  sync.Mutex // guards all fields
	all []payload
}

func newSink(t *testing.T) *sink {
	s := new(sink)
	s.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var p payload
		decoder := json.NewDecoder(r.Body)
		decoder.DisallowUnknownFields()
		err := decoder.Decode(&p)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return // extproc ended while it was sending this payload
		}
		if err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s of no payload: %v", r.Method, err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all = append(s.all, p)
	}))
	t.Cleanup(s.Close)
	return s
}

// taken waits until the sink has n payloads, and removes and returns them.
func (s *sink) taken(t *stack, n int) []payload {
	t.t.Helper()
	t.await(fmt.Sprintf("the sink has %d payloads", n), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.all) >= n
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	s.all = nil
	if len(all) != n {
		t.t.Errorf("the sink has %d payloads, want %d", len(all), n)
	}
	return all
}

// copying makes Envoy send payloads to extproc, and extproc send copies to sinks.
func copying(urls ...string) setting {
	return func(c *rig.Config) {
		standalone(c)
		c.EngineFlags = nil
		c.EnvoyChanges = append(c.EnvoyChanges, enableFilter("payloads"))
		for _, url := range urls {
			c.ExtprocFlags = append(c.ExtprocFlags, "--payload-processor", url)
		}
	}
}

// Copies of V2 calls over gRPC and REST and of an OpenAI stream reach the sinks that want them,
// with the model that was picked, and without secrets.
func TestPayloadsAreCopied(t *testing.T) {
	runs(t)
	all, some := newSink(t), newSink(t)
	s := start(t, runtimes(t, 1, map[string]string{"one": "sim:", "two": "sim:"}),
		copying(all.URL+"/all", some.URL+"/some?latest#inference.GRPCInferenceService/ModelInfer", "logger://*"))
	s.write("vmodels.yaml",
		"apiVersion: inference.x-k8s.io/v1alpha1\nkind: VModel\nmetadata: {name: latest}\nspec: {poolRef: {name: pool}, target: one}\n")
	s.await("latest is known", func() bool {
		return s.must(request{method: "GET", path: "/v2/models/latest/ready"}).status == http.StatusOK
	})
	calls := s.calls()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()

	// For a unary call, the request and the response are copied.
	a, err := calls.ModelInfer(metadata.AppendToOutgoingContext(ctx, "tenant", "blue", "trace-bin", "\x00\xff", "authorization",
		"Bearer secret", "cookie", "secret"), tensor("latest", 1, 2))
	if fault := answers(a, err, "one", 1, 2); fault != "" {
		t.Fatal(fault)
	}
	got := all.taken(s, 2)
	var sent inference.ModelInferRequest
	if err := proto.Unmarshal(got[0].Data, &sent); err != nil || !proto.Equal(&sent, tensor("one", 1, 2)) {
		t.Errorf("the copy of the request is %v, %v", &sent, err)
	}
	var said inference.ModelInferResponse
	if err := proto.Unmarshal(got[1].Data, &said); err != nil || !proto.Equal(&said, a) {
		t.Errorf("the copy of the answer is %v, %v", &said, err)
	}
	for i, want := range []payload{{Kind: "request"}, {Kind: "response", Status: "OK"}} {
		p := got[i]
		if p.Kind != want.Kind || p.Status != want.Status || p.Model != "one" || p.VModel != "latest" || p.ID == "" || p.ID != got[0].ID {
			t.Errorf("payload %d is %+v", i, p)
		}
		if text := fmt.Sprint(p.Metadata); strings.Contains(text, "secret") || strings.Contains(text, "x-gateway") ||
			strings.Contains(text, "x-headgate") {
			t.Errorf("its metadata are %v", p.Metadata)
		}
	}
	if m := got[0].Metadata; m["tenant"] != "blue" || m["trace-bin"] != "AP8=" || m["content-type"] != "application/grpc" ||
		m["mm-model-id"] != "one" {
		t.Errorf("the metadata of the request are %v", m)
	}
	if got := some.taken(s, 2); got[0].Kind != "request" || got[1].Kind != "response" {
		t.Errorf("of the VModel's calls come %+v", got)
	}

	// For a streaming call, each message is copied separately, in order.
	stream, err := calls.ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if err := stream.Send(tensor("two", float32(i))); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	for i, p := range all.taken(s, 10) {
		kind := []string{"request", "response"}[i%2]
		if p.Kind != kind || p.Model != "two" || p.VModel != "" {
			t.Errorf("payload %d of the stream is %+v", i, p)
		}
	}

	// The path of a V2 request over REST names a VModel.
	b := s.must(request{path: "/v2/models/latest/infer", body: `{"id":"7","inputs":[]}`})
	if b.status != http.StatusOK {
		t.Fatalf("%d %s", b.status, b.body)
	}
	got = all.taken(s, 2)
	if string(got[0].Data) != `{"id":"7","inputs":[]}` || got[0].Model != "one" || got[0].VModel != "latest" || got[1].Status != "200" ||
		string(got[1].Data) != b.body {
		t.Errorf("of REST come %+v", got)
	}

	// A streamed OpenAI response is copied as one body.
	b = s.must(request{
		body:   `{"model":"one","prompt":"hello","max_tokens":5,"stream":true}`,
		header: map[string]string{"Authorization": "Bearer secret"},
	})
	if !b.done() {
		t.Fatalf("%d %s", b.status, b.body)
	}
	got = all.taken(s, 2)
	if !strings.Contains(string(got[0].Data), `"prompt":"hello"`) || got[0].Model != "one" || got[1].Status != "200" ||
		string(got[1].Data) != b.body || got[0].Metadata["authorization"] != "" {
		t.Errorf("of a stream come %+v\nand %s\nwant %s", got, got[1].Data, b.body)
	}

	// A request that extproc rejects is not copied.
	if _, err := calls.ModelInfer(ctx, tensor("nobody", 1)); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown model: %v", err)
	}
	if a, err := calls.ModelInfer(ctx, tensor("two", 3)); err != nil || answers(a, err, "two", 3) != "" {
		t.Errorf("%v, %v", a, err)
	}
	if got := all.taken(s, 2); got[0].Model != "two" {
		t.Errorf("after a refused call come %+v", got)
	}
	s.await("nothing is kept", func() bool { return s.inFlight() == 0 })
	if n := s.sum(s.Metrics, "headgate_payloads_dropped_total"); n != 0 {
		t.Errorf("%v payloads are dropped", n)
	}
}

// Neither a sink that accepts no connection nor one that never answers changes a response. The
// payloads that they do not accept are dropped and counted.
func TestSinksDelayNoResponse(t *testing.T) {
	runs(t)
	never := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-never }))
	t.Cleanup(slow.Close)
	t.Cleanup(func() { close(never) })
	s := start(t, runtimes(t, 1, map[string]string{"one": "sim:"}), copying(slow.URL, "http://127.0.0.1:1/dead"))
	calls := s.calls()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var group sync.WaitGroup
	for i := range 200 {
		group.Go(func() {
			a, err := calls.ModelInfer(ctx, tensor("one", float32(i)))
			if fault := answers(a, err, "one", float32(i)); fault != "" {
				t.Error(fault)
			}
		})
	}
	group.Wait()
	s.await("what is dropped is counted", func() bool {
		return s.sum(s.Metrics, "headgate_payloads_dropped_total", "reason", "queue") >= 300 &&
			s.sum(s.Metrics, "headgate_payloads_dropped_total", "reason", "failed") >= 1
	})
	s.await("no call is in flight", func() bool { return s.inFlight() == 0 })
	began := time.Now()
	s.Extproc.Stop(10 * time.Second)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("extproc ends after %v", took)
	}
}

// With both ext_proc filters, 16 MiB pass unchanged in both directions, and so do a thousand
// concurrent streams. The count of requests in flight is right, and zero in the end.
func TestBothFiltersPassAllBytes(t *testing.T) {
	runs(t)
	const streams = 1000
	all := newSink(t)
	s := start(t, runtimes(t, 1, map[string]string{"one": "sim:"}),
		copying(all.URL+"?one#inference.GRPCInferenceService/ModelInfer", "http://127.0.0.1:1/dead"))
	calls := s.calls()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	large := tensor("one")
	large.RawInputContents = [][]byte{make([]byte, 16<<20-1000)}
	for i := range large.RawInputContents[0] {
		large.RawInputContents[0][i] = byte(i * i >> 3)
	}
	for range 2 {
		a, err := calls.ModelInfer(ctx, large)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a.GetRawOutputContents()[0], large.GetRawInputContents()[0]) {
			t.Error("16 MiB come back as others")
		}
		for _, p := range all.taken(s, 2) {
			if !bytes.Contains(p.Data, large.GetRawInputContents()[0]) {
				t.Errorf("the copy of the %s has others", p.Kind)
			}
		}
	}
	body := `{"id":"1","inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["` +
		strings.Repeat("0123456789abcdef", 1<<20-100) + `"]}]}`
	if b := s.must(request{path: "/v2/models/one/infer", body: body}); b.status != http.StatusOK ||
		!strings.Contains(b.body, body[len(`{"id":"1","inputs":[{"name":"x",`):len(body)-4]) {
		t.Errorf("REST of %d bytes: %d and %d bytes", len(body), b.status, len(b.body))
	}

	var group sync.WaitGroup
	opened := make(chan struct{})
	var open sync.WaitGroup
	open.Add(streams)
	for i := range streams {
		group.Go(func() {
			began := false
			defer func() {
				if !began {
					open.Done()
				}
			}()
			stream, err := calls.ModelStreamInfer(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			for j := range 6 {
				values := make([]float32, 50*(j+1))
				for k := range values {
					values[k] = float32(i*1000 + j*100 + k)
				}
				if err := stream.Send(tensor("one", values...)); err != nil {
					t.Error(err)
					return
				}
				a, err := stream.Recv()
				if fault := answers(a.GetInferResponse(), err, "one", values...); fault != "" {
					t.Errorf("stream %d: %s", i, fault)
					return
				}
				if j == 2 {
					began = true
					open.Done()
					<-opened
				}
			}
			if err := stream.CloseSend(); err != nil {
				t.Error(err)
			}
			if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
				t.Errorf("stream %d ends with %v", i, err)
			}
		})
	}
	open.Wait()
	if n := s.inFlight(); n != streams {
		t.Errorf("%v streams are in flight, want %d", n, streams)
	}
	close(opened)
	group.Wait()
	s.await("no stream is in flight", func() bool { return s.inFlight() == 0 })
}

// When extproc dies, no response in flight is cut. When extproc returns, copies continue with the
// next request.
func TestPayloadsOutliveExtproc(t *testing.T) {
	runs(t)
	all := newSink(t)
	s := start(t, runtimes(t, 1, map[string]string{"one": "sim:"}), copying(all.URL+"?one#v1/completions"))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	response, err := s.open(ctx, request{body: `{"model":"one","prompt":"hello","max_tokens":200,"stream":true}`})
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.ReadFull(response.Body, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	s.Extproc.Kill()
	rest, err := io.ReadAll(response.Body)
	if !strings.HasSuffix(strings.TrimSpace(string(rest)), "data: [DONE]") {
		t.Errorf("the stream ends with %v after %d bytes", err, len(rest))
	}
	if err := s.StartExtproc(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.await("copies go on", func() bool {
		_, _ = s.ask(ctx, completion("one", 3, true))
		all.mu.Lock()
		defer all.mu.Unlock()
		return len(all.all) > 1 && all.all[len(all.all)-1].Kind == "response"
	})
}

// BenchmarkPayloads measures the cost of the payload filter for a request: of a disabled filter,
// compared with a configuration without it, and of copying to a sink. Run it with go test
// ./bench/e2e -run "^$" -bench Payloads -benchtime 12x.
func BenchmarkPayloads(b *testing.B) {
	k := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	b.Cleanup(k.Close)
	instant := engineFlags("--profile", "testdata/instant.yaml")
	without := start(b, instant, standalone, func(c *rig.Config) { c.EnvoyChanges = append(c.EnvoyChanges, removeFilter("payloads")) })
	off := start(b, instant, standalone)
	on := start(b, instant, standalone, extprocFlags("--payload-processor", k.URL), func(c *rig.Config) {
		c.EnvoyChanges = append(c.EnvoyChanges, enableFilter("payloads"))
	})
	both := func(s *stack) []int { return []int{s.Envoy.PID(), s.Extproc.PID()} }
	for name, stacks := range map[string][2]*stack{"off": {without, off}, "on": {off, on}} {
		b.Run(name, func(b *testing.B) { compare(b, stacks, "a01", both) })
	}
}

// At a Gateway whose class configures payloads, calls and requests for pools are copied. At a
// Gateway without this setting, none is copied.
func TestPayloadsAreCopiedAtAGateway(t *testing.T) {
	runs(t)
	all := newSink(t)
	s := start(t, runtimes(t, 1, map[string]string{"one": "sim:"}), throughGateway, extprocFlags("--payload-processor", all.URL),
		func(c *rig.Config) { c.EngineFlags = nil })
	host, _, _ := strings.Cut(s.Listen, ":")
	gateway := aGateway(host)
	class := strings.Replace(gateway, "{controllerName: headgate.dev/gateway-controller}",
		"{controllerName: headgate.dev/gateway-controller, parametersRef: {group: inference.x-k8s.io, kind: GatewaySettings, namespace: default, name: copies}}", 1)
	if class == gateway {
		t.Fatal("the class of the Gateway is not as this test takes it to be")
	}
	calls := s.calls()
	infer := func(value float32) {
		t.Helper()
		a, err := calls.ModelInfer(t.Context(), tensor("one", value))
		if fault := answers(a, err, "one", value); fault != "" {
			t.Fatal(fault)
		}
	}
	copies := func(holds func(payload) bool) string {
		all.mu.Lock()
		defer all.mu.Unlock()
		var kinds []string
		for _, p := range all.all {
			if holds(p) {
				kinds = append(kinds, p.Kind+" of "+p.Model)
			}
		}
		return strings.Join(kinds, ", ")
	}
	s.await("calls are answered", func() bool {
		_, err := calls.ModelInfer(t.Context(), tensor("one", 1))
		return err == nil
	})
	s.write("gateway.yaml", class+
		"---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: GatewaySettings\nmetadata: {name: copies}\nspec: {payloads: {}}\n")
	s.await("calls are copied", func() bool {
		infer(1)
		return copies(func(payload) bool { return true }) != ""
	})
	infer(2)
	s.await("a call and its answer are copied", func() bool {
		return copies(func(p payload) bool {
			return bytes.Contains(p.Data, []byte{0, 0, 0, 0x40}) // little-endian bytes of the 32-bit float 2
		}) == "request of one, response of one"
	})
	const body = `{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[3]}]}`
	if a := s.must(request{method: "POST", path: "/v2/models/one/infer", body: body}); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	s.await("a request by REST and its answer are copied", func() bool {
		return copies(func(p payload) bool { return p.Metadata["content-type"] == "application/json" }) == "request of one, response of one"
	})
}
