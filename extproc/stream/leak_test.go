package stream_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/metadata"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/leak"
)

// counted is an ext_proc service that counts its open streams.
type counted struct {
	extprocv3.ExternalProcessorServer
	streams sync.WaitGroup
}

func (c *counted) Process(s extprocv3.ExternalProcessor_ProcessServer) error {
	c.streams.Add(1)
	defer c.streams.Done()
	return c.ExternalProcessorServer.Process(s)
}

// After all requests have ended, whatever their outcomes, no map of the server, the flow or the
// fleet has more entries than before. In between, an endpoint is removed and added again.
func TestEndedRequestsLeaveNothing(t *testing.T) {
	var held *flow.Flow
	f := newFleetOfVModels(fleet.Config{Placed: true, Published: func(v *endpointstate.View) {
		if held != nil {
			held.Published(v)
		}
	}, Freed: func(address, model string) { held.Freed(address, model) }})
	held = flow.New(flow.Config{View: f.View, MaxQueued: 10, MaxBytes: 1 << 20})
	server, _ := newServer(t, f, func(c *stream.Config) {
		c.Flow, c.Relay, c.RelayTokens = held, "/run/inner.sock", relayTokens(t, 'k')
		c.Settings.EndpointsPerRequest, c.Settings.QueueTimeout = 3, 20*time.Millisecond
		c.Settings.RequestsPerEndpoint, c.Settings.EmptyTimeout = 1, 10*time.Millisecond
		c.Observe = func(outcome.Outcome) {}
	})
	own, gateway := &counted{ExternalProcessorServer: server.For(stream.Own)}, &counted{ExternalProcessorServer: server.For(stream.Gateway)}
	ofOwn, ofGateway := dialService(t, own), dialService(t, gateway)
	with := f.View().World
	base := *with.Pools[objects.Name{Namespace: "ns", Name: "base"}]
	without := withoutEndpoint(with, base)
	left := func() map[string]int {
		all := rand.New(rand.NewPCG(1, 2))
		var workers sync.WaitGroup
		for range 4 {
			random := rand.New(rand.NewPCG(all.Uint64(), 0))
			workers.Go(func() {
				for range 60 {
					if random.IntN(3) > 0 {
						sendAny(t, ofOwn, f, ownRequests[random.IntN(len(ownRequests))])
					} else {
						sendAny(t, ofGateway, f, gatewayRequests[random.IntN(len(gatewayRequests))])
					}
				}
			})
		}
		over := make(chan struct{})
		go func() {
			for {
				select {
				case <-f.Questions():
					answers(f)
				case <-over:
					return
				}
			}
		}()
		defer close(over)
		for range 5 { // waiting requests are served meanwhile
			time.Sleep(2 * time.Millisecond)
			f.ApplyPlacement(news(t, f, []string{"loaded=nobody@" + address}))
			f.ApplyPlacement(news(t, f, []string{"gone=nobody@" + address}))
			time.Sleep(time.Millisecond)
			f.SetWorld(without)
			time.Sleep(time.Millisecond)
			f.SetWorld(with)
			f.Scrape(address).Succeeded(engine.Load{})
			f.SetModels(address, engine.Models{Base: []string{"llama"}, Adapters: []string{"sql-v2"}})
			f.ApplyPlacement(news(t, f, []string{"loaded=mm-1@" + address}))
			f.Made("resp_base", fleet.Maker{Pool: base.Name, Address: address})
		}
		workers.Wait()
		own.streams.Wait()
		gateway.streams.Wait()
		for number := range uint64(1e5) { // Envoy's records of all decisions
			held.Answered(number, -1)
		}
		fleet.Read(f, (*endpointstate.State).Usage) // control reads usage, which deletes entries of models that were used
		f.ApplyPlacement(news(t, f, []string{"gone=nobody@" + address}))
		return leak.Maps([]any{server, held, f})
	}
	f.ApplyPlacement(news(t, f, []string{"loaded=sql-v2@" + address, "loaded=mm-1@" + address, "gone=nobody@" + address}))
	answers(f)
	f.ApplyPlacement(news(t, f, []string{"loaded=nobody@" + address}))
	f.ApplyPlacement(news(t, f, []string{"gone=nobody@" + address}))
	before := leak.Maps([]any{server, held, f})
	after := left()
	for path, n := range after {
		// Metrics keep their series. The log keeps one entry for each endpoint, for three minutes.
		if n != before[path] && !strings.Contains(path, ".Meter.") && !strings.Contains(path, ".states.members") {
			t.Errorf("%s has %d entries, and had %d before all requests", path, n, before[path])
		}
	}
	if n, bytes := inFlight(f), server.Reads(0); n != 0 || bytes != 0 {
		t.Errorf("%d requests are in flight, with %d bytes of bodies", n, bytes)
	}
	for n := range 1000 { // the maximum number of requests that ask control at the same time
		if _, _, ok := f.AskControl(); !ok {
			t.Fatalf("%d requests still ask control", 1000-n)
		}
	}
}

// withoutEndpoint returns a copy of the world in which the pool has no endpoint at address.
func withoutEndpoint(w *objects.World, p objects.Pool) *objects.World {
	changed := *w
	p.Endpoints = slices.DeleteFunc(slices.Clone(p.Endpoints), func(e objects.Endpoint) bool { return e.Address == address })
	changed.Pools = maps.Clone(w.Pools)
	changed.Pools[p.Name] = &p
	changed.Engines = slices.DeleteFunc(slices.Clone(w.Engines), func(e objects.Engine) bool { return e.Address == address })
	return &changed
}

const (
	completions = "headers :method=POST :path=/v1/completions "
	inferCall   = "headers :method=POST mode=NONE shown=NONE content-type=application/grpc :path=/inference.GRPCInferenceService/ModelInfer"
)

// ownRequests and gatewayRequests contain requests of every API and mode, as lines of scenarios.
// The line "leave" ends the stream after its first answer. "leave waiting" ends it after its
// second.
var (
	ownRequests = [][]string{
		{completions, `body {"model":"text-to-sql"}`},
		{completions, `body {"model":"text-to-sql"}`, "leave"},
		{completions, `body {"model":"sql"}`},
		{completions, `body {"model":"missing"}`},
		{completions, `body {"model":"missing"}`, "leave waiting"},
		{completions, `body {"model":"missing"}`},
		{completions, `body {"model":"nobody-knows"}`},
		{completions, `body {"model":`},
		{completions + "content-encoding=gzip", `body x`},
		{completions + "content-length=99999999", "body x"},
		{completions + "content-length=99999999 mode=NONE", "body x"},
		{"headers :method=GET :path=/v1/models end"},
		{"headers :method=GET :path=/v1/responses/resp_base end mode=NONE shown=NONE"},
		{"headers :method=GET :path=/v1/responses/resp_other end mode=NONE shown=NONE"},
		{"headers :method=POST :path=/v2/models/mm-1/infer mode=NONE shown=NONE"},
		{"for base /go /v2/models/sql/infer", "headers :method=POST :path=/go mode=NONE shown=NONE"}, // the model cannot be renamed
		{"headers :method=POST :path=/v2/models/nobody/infer mode=NONE shown=NONE"},
		{"headers :method=GET :path=/v2/models/mm-1/ready mode=NONE shown=NONE end"},
		{aCall + "mm-model-id=mm-1"},
		{aCall + "mm-model-id=nobody"},
		{aCall + "mm-model-id=mm-1 mm-model-id=nobody"},
		{
			inferCall,
			`body "\x00\x00\x00\x00\x06\x0a\x04mm-1"`,
		},
		{
			inferCall,
			`chunk "\x00\x00\x00\x00\x06\x0a"`, "leave",
		},
	}
	gatewayRequests = [][]string{
		{completions + "mode=FULL_DUPLEX_STREAMED shown=STREAMED", `body {"model":"text-to-sql"}`, "response :status=200", "answer x"},
		{completions + "mode=BUFFERED shown=STREAMED", `body {"model":"text-to-sql"}`, "response :status=200", "part x"},
		{completions + "mode=BUFFERED shown=STREAMED", `body {"model":"missing"}`, "leave waiting"},
		{completions + "mode=BUFFERED shown=NONE", `body {"model":"llama"}`, "response :status=503 end"},
		{completions + "silent", `body {"model":"llama"}`, "response :status=200", "answer x"},
		{completions + "silent", `body {"model":"llama"}`},
	}
)

// sendAny sends a request, and returns when its stream has ended. It also does what the access log
// would do.
func sendAny(t *testing.T, client extprocv3.ExternalProcessorClient, f *fleet.Fleet, lines []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), wire.BackMetadata, "back"))
	defer cancel()
	if rest, ok := strings.CutPrefix(lines[0], "for "); ok {
		pool, rewrite, _ := strings.Cut(rest, " ")
		ctx = metadata.AppendToOutgoingContext(ctx, wire.PoolMetadata, "ns/"+pool, wire.RewriteMetadata, rewrite)
		lines = lines[1:]
	}
	s, err := client.Process(ctx)
	if err != nil {
		t.Error(err)
		return
	}
	leavesAfter := map[string]int{"leave": 1, "leave waiting": 2}[lines[len(lines)-1]]
	if leavesAfter > 0 {
		lines = lines[:len(lines)-1]
	}
	for _, line := range lines {
		_ = s.Send(message(t, line)) // an error means that the stream has ended
	}
	if leavesAfter == 0 {
		_ = s.CloseSend()
	}
	id := ""
	for got := 1; ; got++ {
		m, err := s.Recv()
		if err != nil {
			break
		}
		if v := m.GetDynamicMetadata().GetFields()[wire.PickNamespace].GetStructValue().GetFields()[wire.PickID]; v != nil {
			id = v.GetStringValue()
		}
		if got == leavesAfter {
			break
		}
	}
	if modes := lines[0]; strings.Contains(modes, "mode=NONE") || strings.Contains(modes, "silent") {
		f.Release(id) // as the access-log record would
	}
}
