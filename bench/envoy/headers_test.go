package envoy_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/headgate/envoy/adapt"
	"github.com/headgate/headgate/headgate/envoy/find"
	"github.com/headgate/headgate/internal/listen"
	"github.com/headgate/headgate/test/realenvoy"
)

// Decision 1 keeps header messages: Envoy applies extproc's header changes only if it holds the
// headers back. So with envoy.yaml the engine gets its own token. Without header messages, Envoy
// silently drops the changes in the answer to the body, and the engine gets the client's token. If
// that case fails, an Envoy may do with one message for each request.
func TestEnvoyReplacesTheTokenOnlyWithHeaderMessages(t *testing.T) {
	binary, err := find.Envoy(t.Context(), cache, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		name   string
		change adapt.Change
		want   string
	}{
		{"envoy.yaml", func(any) error { return nil }, "Bearer engine"},
		{"only the body", bodyAlone, "Bearer client"},
	} {
		t.Run(c.name, func(t *testing.T) {
			own, dir := fmt.Sprintf("127.%d.153.%d", 200+os.Getpid()%50, i+1), t.TempDir()
			engine := echoToken(t, own+":8001")
			socket := filepath.Join(dir, "x.sock")
			servePicker(t, socket, &replacer{endpoint: engine})
			config, err := adapt.Config(text(t, originalDstYAML), adapt.Addresses{Listen: own + ":8080", Admin: own + ":9901", Socket: socket},
				toEngine(engine), c.change)
			if err != nil {
				t.Fatal(err)
			}
			realenvoy.Start(t, binary, dir, config, own+":8080", "--concurrency", "1")
			client := new(http.Client)
			t.Cleanup(client.CloseIdleConnections)
			for _, size := range []int{1, 300 << 10} {
				body := `{"model":"m","prompt":"` + strings.Repeat("x", size) + `"}`
				q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+own+":8080/v1/completions", strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				q.Header.Set("Authorization", "Bearer client")
				q.Header.Set("Content-Type", "application/json")
				response, err := client.Do(q)
				if err != nil {
					t.Fatal(err)
				}
				got, _ := io.ReadAll(response.Body)
				_ = response.Body.Close()
				if response.StatusCode != http.StatusOK || string(got) != c.want {
					t.Errorf("%d bytes: %d, and the engine got %q, want %q", len(body), response.StatusCode, got, c.want)
				}
			}
		})
	}
}

// bodyAlone makes Envoy send only the body to ext_proc.
func bodyAlone(root any) error {
	filters := adapt.At(root, "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config", "http_filters")
	for _, f := range filters.([]any) {
		if adapt.At(f, "name") == "envoy.filters.http.ext_proc" {
			adapt.At(f, "typed_config", "processing_mode").(map[string]any)["request_header_mode"] = "SKIP"
		}
	}
	return nil
}

// toEngine makes the cluster of endpoints one engine, whatever the picker names: without header
// messages Envoy chooses the endpoint before the answer.
func toEngine(address string) adapt.Change {
	return func(root any) error {
		host, port, _ := strings.Cut(address, ":")
		var cluster map[string]any
		if err := yaml.Unmarshal(fmt.Appendf(nil, `
name: %s
type: STATIC
load_assignment:
  cluster_name: engine
  endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: %s, port_value: %s } } } }] }]
`, wire.EndpointsCluster, host, port), &cluster); err != nil {
			return err
		}
		adapt.At(root, "static_resources", "clusters").([]any)[0] = cluster
		return nil
	}
}

// replacer is an ext_proc server that replaces the token of each request in its answer to the body.
type replacer struct {
	extprocv3.UnimplementedExternalProcessorServer
	endpoint string
}

func (r *replacer) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	for {
		in, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // the request has ended
		}
		out := new(extprocv3.ProcessingResponse)
		switch in.GetRequest().(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			out.Response = &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}
		case *extprocv3.ProcessingRequest_RequestBody:
			to := structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
				wire.DestinationHeader: structpb.NewStringValue(r.endpoint),
			}})
			out.DynamicMetadata = &structpb.Struct{Fields: map[string]*structpb.Value{wire.DestinationNamespace: to}}
			change := &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{{
				AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
				Header:       &corev3.HeaderValue{Key: wire.AuthorizationHeader, RawValue: []byte("Bearer engine")},
			}}}}
			out.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: change}}
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

// servePicker serves an ext_proc server at a socket until the test ends.
func servePicker(t *testing.T, socket string, picker extprocv3.ExternalProcessorServer) {
	t.Helper()
	l, err := listen.On("listen", "unix:"+socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	extprocv3.RegisterExternalProcessorServer(server, picker)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
}

// echoToken serves an engine at an address, which it returns. The engine answers with the token of
// the request.
func echoToken(t *testing.T, address string) string {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	is := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, r.Header.Get("Authorization"))
		}),
	}
	go func() { _ = is.Serve(l) }()
	t.Cleanup(func() { _ = is.Close() })
	return address
}
