package e2e

import (
	"context"
	"flag"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/headgate/headgate/api/inference"
	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/headgate/rig"
	"github.com/headgate/headgate/headgate/simulated/runtime"
)

// idle is an ext_proc server that always names the same endpoint and does nothing else. It responds
// at the headers or, for methods whose messages may name a model, after the messages, which it does
// not change. It runs in its own process, as extproc does: see serveIdle.
type idle struct {
	extprocv3.UnimplementedExternalProcessorServer
	to string
}

var beIdle = flag.String("idle", "", "be an ext_proc that does nothing: SOCKET,ENDPOINT")

// serveIdle runs an idle server until the parent process ends this process.
func serveIdle(what string) error {
	socket, to, _ := strings.Cut(what, ",")
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	extprocv3.RegisterExternalProcessorServer(server, &idle{to: to})
	return server.Serve(l)
}

func (i *idle) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	lb, err := structpb.NewStruct(map[string]any{wire.DestinationHeader: i.to})
	if err != nil {
		return err
	}
	headers := &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{
				HeaderMutation: &extprocv3.HeaderMutation{},
			},
		}},
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{wire.DestinationNamespace: structpb.NewStructValue(lb)}},
	}
	headers.GetRequestHeaders().GetResponse().HeaderMutation.SetHeaders = []*corev3.HeaderValueOption{
		set(wire.DestinationHeader, i.to), set("mm-model-id", "one"), set("mm-model-id-bin", "b25l"), // model runtimes read these headers
	}
	begun := false
	for {
		in, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // the call is over
		}
		var out []*extprocv3.ProcessingResponse
		switch m := in.GetRequest().(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			var path string
			for _, h := range m.RequestHeaders.GetHeaders().GetHeaders() {
				if h.GetKey() == ":path" {
					path = string(h.GetRawValue())
				}
			}
			switch out = append(out, headers); path {
			case wire.ModelsPath: // path of the health check
				out = []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
					ImmediateResponse: new(extprocv3.ImmediateResponse),
				}}}
			case "/" + runtime.EchoMethod:
			default:
				out = []*extprocv3.ProcessingResponse{{ModeOverride: &extprocfilterv3.ProcessingMode{
					RequestHeaderMode:  extprocfilterv3.ProcessingMode_SEND,
					RequestBodyMode:    extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
					RequestTrailerMode: extprocfilterv3.ProcessingMode_SEND,
					ResponseHeaderMode: extprocfilterv3.ProcessingMode_SKIP, ResponseTrailerMode: extprocfilterv3.ProcessingMode_SKIP,
				}}}
			}
		case *extprocv3.ProcessingRequest_ResponseTrailers:
			out = append(out,
				&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{
					ResponseTrailers: new(extprocv3.TrailersResponse),
				}})
		case *extprocv3.ProcessingRequest_RequestBody:
			if !begun {
				out, begun = append(out, headers), true
			}
			out = append(out,
				&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
					RequestBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{
						BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
							StreamedResponse: &extprocv3.StreamedBodyResponse{
								Body: m.RequestBody.GetBody(), EndOfStream: m.RequestBody.GetEndOfStream(),
							},
						}},
					}},
				}})
		}
		for _, m := range out {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
	}
}

// BenchmarkCalls measures what extproc adds to a unary gRPC call of 1 KB, compared with an ext_proc
// server that does nothing in the same mode. It measures a method whose messages extproc does not
// need, and a V2 method, whose messages name the model. One client sends one call at a time. The
// servers alternate; one op is 500 calls through each. Run it with go test ./bench/e2e -run "^$"
// -bench Calls -benchtime 12x.
func BenchmarkCalls(b *testing.B) {
	loaded := func(c *rig.Config) {
		c.EngineFlags = nil
		if err := os.WriteFile(filepath.Join(c.Objects, "models.yaml"),
			[]byte(modelObject("one", "type: sim, source: 'sim:', copies: {min: 1, max: 1}")), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	ours := start(b, runtimes(b, 1, nil), standalone, loaded)
	socket := filepath.Join(b.TempDir(), "idle.sock")
	theirs := start(b, runtimes(b, 1, nil), standalone, loaded, func(c *rig.Config) {
		c.EnvoyChanges = append(c.EnvoyChanges, copyCluster("extproc", "idle"),
			setField(socket, "static_resources", "clusters", 3, "load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint",
				"address", "pipe", "path"),
			setExtProc(map[string]any{"grpc_service": map[string]any{"envoy_grpc": map[string]any{"cluster_name": "idle"}}}))
		process := exec.Command(os.Args[0], "-idle", socket+","+strings.TrimSuffix(c.Listen, "1:8080")+"11:8000")
		if err := process.Start(); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			_ = process.Process.Kill()
			_ = process.Wait()
		})
	})
	for _, s := range []*stack{ours, theirs} {
		s.await("the model is loaded", func() bool { return len(held(s.events())) == 1 })
	}
	named := metadata.AppendToOutgoingContext(context.Background(), "mm-model-id", "one")
	bytes, message := wrapperspb.Bytes(make([]byte, 960)), tensor("one", make([]float32, 240)...)
	for _, c := range []struct {
		name string
		call func(grpc.ClientConnInterface) error
	}{
		{"header", func(conn grpc.ClientConnInterface) error {
			return conn.Invoke(named, "/"+runtime.EchoMethod, bytes, new(wrapperspb.BytesValue))
		}},
		{"message", func(conn grpc.ClientConnInterface) error {
			_, err := inference.NewGRPCInferenceServiceClient(conn).ModelInfer(context.Background(), message)
			return err
		}},
	} {
		median := func(conn grpc.ClientConnInterface) float64 {
			const requests = 500
			took := make([]time.Duration, requests)
			for i := range took {
				began := time.Now()
				if err := c.call(conn); err != nil {
					b.Fatal(err)
				}
				took[i] = time.Since(began)
			}
			slices.Sort(took)
			return took[requests/2].Seconds() * 1e6
		}
		clients := [2]grpc.ClientConnInterface{theirs.conn(), ours.conn()}
		b.Run("model="+c.name, func(b *testing.B) {
			for _, conn := range clients {
				median(conn) // warm up connections, and load the model
			}
			var more []float64
			for i := range b.N {
				var is [2]float64
				for j := range clients {
					at := (i + j) % 2
					is[at] = median(clients[at])
				}
				more = append(more, is[1]-is[0])
				b.Logf("round %d: idle %.0f µs, extproc %.0f µs", i, is[0], is[1])
			}
			slices.Sort(more)
			b.ReportMetric(more[len(more)/2], "µs-more")
			b.ReportMetric(more[len(more)/10], "µs-more-p10")
			b.ReportMetric(more[len(more)*9/10], "µs-more-p90")
		})
	}
}
