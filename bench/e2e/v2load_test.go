package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/inference"
	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/headgate/rig"
	"github.com/headgate/headgate/test/times"
)

var (
	inferFor = flag.Duration("infer", 5*time.Second, "send calls for thousands of models for so long")
	streams  = flag.Int("streams", 50, "keep so many streams of V2 open in both directions, and as many whose answers alone go on")
	kept     = flag.Duration("kept", 30*time.Second, "keep them open for so long: longer than their leases, which are 22s or a third of it")
)

// inferLoad is an open-loop load of V2 calls with Poisson arrivals.
type inferLoad struct {
	sent   atomic.Int64
	mu     sync.Mutex // guards the fields below
	faults []string
	last   time.Time // when the last failed call began
	took   times.Times
	calls  sync.WaitGroup
}

// infers sends calls at a rate per second until ctx ends, each for a model that the function model
// returns. It returns when all calls are answered.
func (l *inferLoad) infers(ctx context.Context, calls inference.GRPCInferenceServiceClient, rate float64, model func() string) {
	next := time.NewTimer(0)
	defer next.Stop()
	defer l.calls.Wait()
	at := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		for time.Until(at) <= 0 {
			l.calls.Go(func() { l.infer(calls, model()) })
			at = at.Add(time.Duration(rand.ExpFloat64() / rate * float64(time.Second)))
		}
		next.Reset(time.Until(at))
	}
}

// infer makes one call and records its error.
func (l *inferLoad) infer(calls inference.GRPCInferenceServiceClient, model string) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	began, value := time.Now(), float32(l.sent.Add(1))
	a, err := calls.ModelInfer(ctx, tensor(model, value))
	fault := answers(a, err, model, value)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took = append(l.took, time.Since(began))
	if fault != "" {
		l.last = began
		l.faults = append(l.faults, fmt.Sprintf("%s, after %v: %s", model, time.Since(began).Round(time.Millisecond), fault))
	}
}

// report logs how many calls were sent, how many failed, and how long they took.
func (l *inferLoad) report(t *testing.T) {
	t.Helper()
	for i, fault := range l.faults {
		if i < 10 {
			t.Error(fault)
		}
	}
	t.Logf("%d calls, %d faults: %v", l.sent.Load(), len(l.faults), l.took)
}

// simModels writes n Models for simulated runtimes to the objects, and returns the Models' names.
func simModels(t *testing.T, c *rig.Config, n int, source string) (names []string) {
	t.Helper()
	var objects strings.Builder
	for i := range n {
		names = append(names, fmt.Sprintf("m%04d", i))
		objects.WriteString(modelObject(names[i], "type: sim, source: '"+source+"'"))
	}
	if err := os.WriteFile(filepath.Join(c.Objects, "models.yaml"), []byte(objects.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return names
}

// byChance returns a function that draws names by Zipf's law with exponent 1. The function is safe
// for concurrent use.
func byChance(names []string) func() string {
	draw := zipf(names)
	return func() string { return draw(rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))) }
}

// Two runtimes have room for 400 of 2,000 models. Every call is answered by the right model,
// although some call waits for a load most of the time. To run the load for a minute: go test
// ./bench/e2e -run ThousandsOfModels -v -infer 1m.
func TestThousandsOfModelsOnTwoRuntimes(t *testing.T) {
	runs(t, raced)
	var names []string
	s := start(t, runtimes(t, 2, nil), standalone, func(c *rig.Config) {
		c.EngineFlags = []string{"--capacity", "200Mi", "--default-size", "1Mi", "--loading-threads", "8"}
		names = simModels(t, c, 2000, "sim:?load=100ms&infer=1ms")
	})
	ctx, cancel := context.WithTimeout(t.Context(), *inferFor)
	defer cancel()
	var l inferLoad
	l.infers(ctx, s.calls(), 200, byChance(names))
	l.report(t)
	s.await("no call is in flight", func() bool { return s.inFlight() == 0 })
	t.Logf("%d loads, %d unloads", count(s.events(), "loaded"), count(s.events(), "unloaded"))
}

// A runtime dies under load and comes back. Every call is answered by its model, except the calls
// on the dead runtime. Its models are loaded on other runtimes when requests need them.
func TestRuntimeIsKilledUnderCalls(t *testing.T) {
	runs(t, raced)
	var names []string
	s := start(t, runtimes(t, 2, nil), standalone, func(c *rig.Config) {
		c.EngineFlags = []string{"--capacity", "30Mi", "--default-size", "1Mi", "--loading-threads", "8"}
		names = simModels(t, c, 40, "sim:?load=20ms&infer=20ms")
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var l inferLoad
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.infers(ctx, s.calls(), 100, byChance(names))
	}()
	s.await("the load goes on", func() bool { return l.sent.Load() > 300 })
	victim := s.endpoint(1)
	s.await("the victim serves", func() bool { return s.sum(s.Metrics, "headgate_endpoint_in_flight", "endpoint", victim) > 0 })
	had := s.sum(s.Metrics, "headgate_endpoint_in_flight", "endpoint", victim)
	s.Engines[victim].Kill()
	killed := time.Now()
	before := l.sent.Load()
	s.await("the load goes on without it", func() bool { return l.sent.Load() > before+300 })
	if err := s.StartEngine(t.Context(), victim); err != nil {
		t.Fatal(err)
	}
	before = l.sent.Load()
	served := func() float64 { return s.sum(s.Metrics, "headgate_endpoint_requests_total", "endpoint", victim) }
	was := served()
	s.await("it serves again", func() bool { return served() > was+50 })
	cancel()
	<-done
	if late := l.last.Sub(killed); late > 200*time.Millisecond { // time until Envoy detects the death, on a busy machine
		t.Errorf("a call fails that began %v after the kill", late)
		l.report(t)
	}
	for _, fault := range l.faults {
		if !strings.Contains(fault, "Unavailable") {
			t.Error(fault)
		}
	}
	t.Logf("%d calls, %d lost with the runtime, which had %v: %v", l.sent.Load(), len(l.faults), had, l.took)
}

// Envoy's own errors have the format of the API that the client called.
func TestEnvoysOwnErrorsOfV2(t *testing.T) {
	runs(t, raced)
	s := start(t, runtimes(t, 1, map[string]string{"one": "sim:"}), standalone, func(c *rig.Config) { c.EngineFlags = nil })
	ask := func() answer {
		return s.must(request{method: "POST", path: "/v2/models/one/infer", body: `{"inputs":[]}`})
	}
	if a := ask(); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	s.Extproc.Kill()
	if a := ask(); a.status != 503 || a.body != `{"error":"The gateway's picker (extproc) does not answer."}` {
		t.Errorf("REST: %d %s", a.status, a.body)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := s.calls().ModelInfer(ctx, tensor("one", 1)); status.Code(err) != codes.Unavailable ||
		status.Convert(err).Message() != "The gateway's picker (extproc) does not answer." {
		t.Errorf("gRPC: %v", err)
	}
}

// A stream is counted as in flight as long as it lasts, even longer than the in-flight timeout,
// because Envoy's periodic log records renew its lease. This holds for streams in both directions
// and for streams with responses alone. In the end no stream is counted. To run a thousand streams
// of each kind for three minutes: go test ./bench/e2e -run StreamsCount -v -streams 1000 -kept 3m.
func TestStreamsCountAsInFlightWhileTheyLast(t *testing.T) {
	runs(t)
	const pause = 5 * time.Second // between two responses of a stream with responses alone
	s := start(t, runtimes(t, 1, map[string]string{"one": "sim:", "slow": "sim:?infer=" + pause.String()}), standalone,
		extprocFlags("--in-flight-timeout", max(22*time.Second, *kept/3).String()), func(c *rig.Config) { c.EngineFlags = nil })
	ctx, cancel := context.WithTimeout(t.Context(), *kept+2*time.Minute)
	defer cancel()
	calls := [2]inference.GRPCInferenceServiceClient{s.calls(), s.calls()} // a connection has room for 1,024 streams
	open := func(kind int) inference.GRPCInferenceService_ModelStreamInferClient {
		t.Helper()
		stream, err := calls[kind].ModelStreamInfer(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	send := func(stream inference.GRPCInferenceService_ModelStreamInferClient, model string, value int) {
		t.Helper()
		if err := stream.Send(tensor(model, float32(value))); err != nil {
			t.Fatal(err)
		}
	}
	take := func(stream inference.GRPCInferenceService_ModelStreamInferClient, model string, value int) {
		t.Helper()
		a, err := stream.Recv()
		if fault := answers(a.GetInferResponse(), err, model, float32(value)); fault != "" {
			t.Fatalf("a stream of %s: %s", model, fault)
		}
	}
	var both, answering []inference.GRPCInferenceService_ModelStreamInferClient
	questions := int(*kept/pause) + 4
	for i := range *streams {
		both = append(both, open(0))
		send(both[i], "one", i)
		take(both[i], "one", i)
		answering = append(answering, open(1))
		for j := range questions {
			send(answering[i], "slow", j)
		}
		if err := answering[i].CloseSend(); err != nil {
			t.Fatal(err)
		}
	}
	all := float64(2 * *streams)
	s.await("all are in flight", func() bool { return s.inFlight() == all })
	for began := time.Now(); time.Since(began) < *kept; time.Sleep(time.Second) {
		if n := s.inFlight(); n != all {
			t.Fatalf("after %v %v streams are in flight, want %v", time.Since(began).Round(time.Second), n, all)
		}
	}
	for i := range *streams {
		send(both[i], "one", i)
		take(both[i], "one", i)
		if err := both[i].CloseSend(); err != nil {
			t.Fatal(err)
		}
		for j := range questions {
			take(answering[i], "slow", j)
		}
		for _, stream := range []inference.GRPCInferenceService_ModelStreamInferClient{both[i], answering[i]} {
			if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
				t.Errorf("stream %d ends with %v", i, err)
			}
		}
	}
	s.await("no stream is in flight", func() bool { return s.inFlight() == 0 })
	if n := s.sum(s.Metrics, "headgate_requests_in_flight_expired_total"); n > 0 {
		t.Errorf("%v leases ran out", n)
	}
}

// A GRPCRoute sends calls to a pool, at a listener that served no gRPC before. The listener itself
// does not change, and endpoints are picked as with envoy.yaml.
func TestAGRPCRouteLeadsToAPool(t *testing.T) {
	runs(t)
	s := start(t, runtimes(t, 2, map[string]string{"one": "sim:?load=50ms", "two": "sim:"}), throughGateway, func(c *rig.Config) {
		c.EngineFlags = nil
	})
	s.write("more.yaml",
		"apiVersion: gateway.networking.k8s.io/v1\nkind: GRPCRoute\nmetadata: {name: calls}\nspec:\n  parentRefs: [{name: gateway}]\n  rules:\n  - backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: pool}]\n"+
			"---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: LLMRoute\nmetadata: {name: latest}\nspec: {modelNames: [latest], backendRefs: [{name: pool}], adapter: {name: two}}\n")
	calls := s.calls()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s.await("the route is in force", func() bool {
		a, err := calls.ModelInfer(ctx, tensor("one", 1))
		return answers(a, err, "one", 1) == ""
	})
	s.await("calls for a route's model are answered by its adapter", func() bool {
		a, err := calls.ModelInfer(ctx, tensor("latest", 2))
		return answers(a, err, "two", 2) == ""
	})
	stream, err := calls.ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if err := stream.Send(tensor("one", float32(i))); err != nil {
			t.Fatal(err)
		}
		a, err := stream.Recv()
		if fault := answers(a.GetInferResponse(), err, "one", float32(i)); fault != "" {
			t.Fatal(fault)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	s.await("REST at the listener of the LLMRoute is answered, too", func() bool {
		a := s.must(request{method: "POST", path: "/v2/models/latest/infer", body: `{"inputs":[]}`})
		return a.status == 200 && strings.Contains(a.body, `"model_name":"two"`)
	})
	s.await("no call is in flight", func() bool { return s.inFlight() == 0 })
}

// A listener that names InferencePools serves the models of a pool without LLMRoutes, over gRPC and
// REST. It serves both Model objects and models that a ModelMesh client registered. No other
// listener serves them.
func TestGatewayServesAPoolThatNoLLMRouteNames(t *testing.T) {
	runs(t)
	s := start(t, runtimes(t, 2, map[string]string{"one": "sim:"}), throughGateway, func(c *rig.Config) { c.EngineFlags = nil })
	host, _, _ := strings.Cut(s.Listen, ":")
	const kinds = "protocol: HTTP, allowedRoutes: {kinds: [{kind: GRPCRoute}, {group: inference.networking.k8s.io, kind: InferencePool}]}}"
	s.write("gateway.yaml", strings.Replace(aGateway(host), "protocol: HTTP}", kinds+", {name: other, port: 8081, protocol: HTTP}", 1))
	if err := os.Remove(filepath.Join(s.objects, "routes.yaml")); err != nil {
		t.Fatal(err)
	}
	s.await("no other listener serves the pool", func() bool {
		other, err := http.Post("http://"+host+":8081/v2/models/one/infer", "application/json",
			strings.NewReader(`{"inputs":[]}`)) //nolint:noctx // it answers at once
		if err != nil {
			return false
		}
		defer other.Body.Close()
		return other.StatusCode == http.StatusNotFound
	})
	is, err := s.mesh().RegisterModel(t.Context(),
		&mmesh.RegisterModelRequest{ModelId: "mine", ModelInfo: &mmesh.ModelInfo{Type: "sim", Path: "sim:"}, LoadNow: true, Sync: true})
	if err != nil || is.GetStatus() != mmesh.ModelStatusInfo_LOADED {
		t.Fatalf("%v, %v", is, err)
	}
	calls := s.calls()
	for _, model := range []string{"one", "mine"} {
		s.await("calls for "+model+" are answered", func() bool {
			a, err := calls.ModelInfer(t.Context(), tensor(model, 1))
			return answers(a, err, model, 1) == ""
		})
		if a := s.must(request{method: "POST", path: "/v2/models/" + model + "/infer", body: `{"inputs":[]}`}); a.status != http.StatusOK ||
			!strings.Contains(a.body, `"model_name":"`+model+`"`) {
			t.Errorf("by REST %s is answered %d %s", model, a.status, a.body)
		}
	}
	if _, err := calls.ModelInfer(t.Context(), tensor("unknown", 1)); status.Code(err) != codes.NotFound {
		t.Errorf("a model that nobody registered: %v", err)
	}
}

// A VModel moves back and forth between two models under calls over TLS, on a GRPCRoute with its
// own host. Each call is answered by one of the two models. After control has confirmed a move,
// only the new model answers.
func TestAVModelMovesUnderCallsOverTLS(t *testing.T) {
	runs(t, raced)
	s := start(t, runtimes(t, 2, map[string]string{"v1": "sim:?load=50ms", "v2": "sim:?load=50ms"}), throughGateway, func(c *rig.Config) {
		c.EngineFlags = nil
	})
	host, _, _ := strings.Cut(s.Listen, ":")
	s.write("secret.yaml", aSecret(t, "own", "calls.test"))
	s.write("gateway.yaml", strings.Replace(aGateway(host), "port: 8080, protocol: HTTP}", "port: 8080, protocol: HTTP}, "+
		"{name: https, port: 8443, protocol: HTTPS, hostname: calls.test, tls: {certificateRefs: [{name: own}]}}", 1))
	s.write("calls.yaml",
		"apiVersion: gateway.networking.k8s.io/v1\nkind: GRPCRoute\nmetadata: {name: calls}\nspec:\n  parentRefs: [{name: gateway, sectionName: https}]\n  hostnames: [calls.test]\n  rules:\n  - backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: pool}]\n")
	move := func(target string) {
		s.write("vmodel.yaml",
			"apiVersion: inference.x-k8s.io/v1alpha1\nkind: VModel\nmetadata: {name: latest}\nspec: {poolRef: {name: pool}, target: "+
				target+"}\n")
	}
	move("v1")
	conn, err := grpc.NewClient("passthrough:///"+host+":8443",
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			InsecureSkipVerify: true,
			ServerName:         "calls.test",
		}))) //nolint:gosec // it is made for this test
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	calls := inference.NewGRPCInferenceServiceClient(conn)
	ask := func() (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		a, err := calls.ModelInfer(ctx, tensor("latest", 1))
		return a.GetModelName(), err
	}
	s.await("the VModel answers over TLS", func() bool { is, _ := ask(); return is == "v1" })
	var sent atomic.Int64
	var mu sync.Mutex
	var faults []string
	done := make(chan struct{})
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				is, err := ask()
				sent.Add(1)
				if err != nil || is != "v1" && is != "v2" {
					mu.Lock()
					faults = append(faults, fmt.Sprintf("%q, %v", is, err))
					mu.Unlock()
				}
			}
		})
	}
	for _, target := range []string{"v2", "v1", "v2", "v1", "v2"} {
		before := sent.Load()
		s.await("calls go on", func() bool { return sent.Load() > before+50 })
		move(target)
		s.await("it has moved to "+target, func() bool { is, err := ask(); return err == nil && is == target })
	}
	close(done)
	callers.Wait()
	if len(faults) > 0 {
		t.Errorf("%d of %d calls failed, such as %s", len(faults), sent.Load(), faults[0])
	}
	s.await("no call is in flight", func() bool { return s.inFlight() == 0 })
	t.Logf("%d calls", sent.Load())
}
