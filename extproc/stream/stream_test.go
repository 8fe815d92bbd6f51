package stream_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/meter"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/golden"
	"github.com/headgate/headgate/internal/objects"
)

// The fleet of the scenarios: one endpoint with the base model "llama" and the adapter "sql-v2". Routes admit
// "text-to-sql" for that adapter, "gpt-4" for the base model, "llama" for it under its own name, "missing" for an adapter
// that nobody lists and "nowhere" for a pool that does not exist.
const address = "10.0.0.1:8000"

func aRoute(name, pool, adapter string) v1alpha1.LLMRoute {
	r := v1alpha1.LLMRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "for-" + name}}
	r.Spec.ModelNames = []string{name}
	r.Spec.BackendRefs = []v1alpha1.BackendReference{{Name: pool}}
	if adapter != "" {
		r.Spec.Adapter = &v1alpha1.Adapter{Name: adapter}
	}
	return r
}

func newFleet() *fleet.Fleet {
	p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "base"}}
	p.Spec.Selector.MatchLabels = map[string]string{"app": "llama"}
	p.Spec.TargetPorts = []pool.Port{{Number: 8000}}
	f := fleet.New(time.Now)
	w := objects.Build(objects.Set{
		Pools: []pool.InferencePool{p},
		Routes: []v1alpha1.LLMRoute{
			aRoute("text-to-sql", "base", "sql-v2"), aRoute("gpt-4", "base", ""), aRoute("llama", "base", ""),
			aRoute("missing", "base", "nobody"), aRoute("nowhere", "no-pool", ""),
		},
		Pods: []objects.Pod{{
			Name: objects.Name{Namespace: "ns", Name: "pod"}, IP: netip.MustParseAddr("10.0.0.1"), Ready: true,
			Labels: map[string]string{"app": "llama"},
		}},
	})
	f.SetWorld(w)
	f.SetModels(address, engine.Models{Base: []string{"llama"}, Adapters: []string{"sql-v2"}})
	f.Look(address).Saw(engine.Load{})
	f.SetWorld(w) // publishes the news
	return f
}

// dial serves f over gRPC and returns a client.
func dial(t *testing.T, f *fleet.Fleet) extprocv3.ExternalProcessorClient {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer(grpc.MaxRecvMsgSize(stream.MaxMessage))
	extprocv3.RegisterExternalProcessorServer(server, stream.New(f, pick.Policy{Threshold: 4}, 1, meter.New(f), slog.New(slog.DiscardHandler)))
	done := make(chan struct{})
	go func() {
		_ = server.Serve(l)
		close(done)
	}()
	conn, err := grpc.NewClient("passthrough:", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		<-done
	})
	return extprocv3.NewExternalProcessorClient(conn)
}

// Scenarios: each block is one HTTP request, each line a message of Envoy's:
//
//	headers NAME=VALUE… [end] [mode=MODE]
//	body TEXT        (Go-quoted, or as it is)
//	response         response headers
//	trailers         request trailers
//
// What comes out is what extproc answers, and how many requests it counts at the endpoint before the stream ends.
func TestScenarios(t *testing.T) {
	golden.Run(t, "testdata/*.txt", func(t *testing.T) func(string) string {
		f := newFleet()
		client := dial(t, f)
		return func(input string) string {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			s, err := client.Process(ctx)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			for line := range strings.Lines(input) {
				if err := s.Send(message(t, strings.TrimRight(line, "\n"))); err != nil {
					t.Fatal(err)
				}
				m, err := s.Recv()
				if err != nil {
					fmt.Fprintf(&out, "stream ends: %s: %s\n", status.Code(err), status.Convert(err).Message())
					return out.String()
				}
				out.WriteString(render(t, m))
			}
			fmt.Fprintf(&out, "in flight: %d\n", inFlight(f))
			if err := s.CloseSend(); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Recv(); err == nil {
				t.Fatal("a message after the end")
			}
			awaitIdle(t, f)
			return out.String()
		}
	})
}

func inFlight(f *fleet.Fleet) int64 {
	n := int64(0)
	for _, e := range f.Endpoints() {
		n += e.InFlight
	}
	return n
}

// awaitIdle waits for the stream's handler, which ends a moment after its client sees the end.
func awaitIdle(t *testing.T, f *fleet.Fleet) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	limit := time.After(5 * time.Second)
	for inFlight(f) != 0 {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%d requests are still in flight", inFlight(f))
		}
	}
}

func message(t *testing.T, line string) *extprocv3.ProcessingRequest {
	t.Helper()
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "headers":
		h := &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{}}
		mode := extprocfilterv3.ProcessingMode_BUFFERED
		for word := range strings.FieldsSeq(rest) {
			key, value, ok := strings.Cut(word, "=")
			switch {
			case word == "end":
				h.EndOfStream = true
			case key == "mode":
				mode = extprocfilterv3.ProcessingMode_BodySendMode(extprocfilterv3.ProcessingMode_BodySendMode_value[value])
			case ok:
				h.Headers.Headers = append(h.Headers.Headers, &corev3.HeaderValue{Key: key, RawValue: []byte(value)})
			default:
				t.Fatalf("what is %q?", word)
			}
		}
		return &extprocv3.ProcessingRequest{
			Request:        &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: h},
			ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: mode},
		}
	case "body":
		if text, err := strconv.Unquote(rest); err == nil {
			rest = text
		}
		return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
			RequestBody: &extprocv3.HttpBody{Body: []byte(rest), EndOfStream: true},
		}}
	case "response":
		return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{}}}
	case "trailers":
		return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}}
	}
	t.Fatalf("no message %q", verb)
	return nil
}

func render(t *testing.T, m *extprocv3.ProcessingResponse) string {
	t.Helper()
	var out strings.Builder
	switch r := m.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		out.WriteString("headers: go on" + mutation(r.RequestHeaders.GetResponse()) + "\n")
	case *extprocv3.ProcessingResponse_RequestBody:
		out.WriteString("body: go on" + mutation(r.RequestBody.GetResponse()) + "\n")
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		out.WriteString("response: go on" + mutation(r.ResponseHeaders.GetResponse()) + "\n")
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		i := r.ImmediateResponse
		fmt.Fprintf(&out, "reply: %d details=%s%s\n%s\n", i.GetStatus().GetCode(), i.GetDetails(), headers(i.GetHeaders()), i.GetBody())
	default:
		t.Fatalf("no rendering of %T", r)
	}
	if len(m.GetDynamicMetadata().GetFields()) > 0 {
		text, err := json.Marshal(m.GetDynamicMetadata().AsMap())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "metadata: %s\n", text)
	}
	return out.String()
}

func mutation(c *extprocv3.CommonResponse) string {
	out := headers(c.GetHeaderMutation())
	if b := c.GetBodyMutation(); b != nil {
		out += " body=" + strconv.Quote(string(b.GetBody()))
	}
	return out
}

func headers(m *extprocv3.HeaderMutation) string {
	var out strings.Builder
	for _, h := range m.GetSetHeaders() {
		fmt.Fprintf(&out, " %s=%s", h.GetHeader().GetKey(), h.GetHeader().GetRawValue())
	}
	return out.String()
}

// Whatever way a stream ends, its request is counted as gone.
func TestEveryEndOfAStreamEndsItsRequest(t *testing.T) {
	f := newFleet()
	client := dial(t, f)
	body := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(`{"model":"text-to-sql"}`)},
	}}
	for name, end := range map[string]func(extprocv3.ExternalProcessor_ProcessClient, context.CancelFunc){
		"closed":    func(s extprocv3.ExternalProcessor_ProcessClient, _ context.CancelFunc) { _ = s.CloseSend() },
		"cancelled": func(_ extprocv3.ExternalProcessor_ProcessClient, cancel context.CancelFunc) { cancel() },
		"misused": func(s extprocv3.ExternalProcessor_ProcessClient, _ context.CancelFunc) {
			_ = s.Send(message(t, "trailers"))
		},
		"decided over": func(s extprocv3.ExternalProcessor_ProcessClient, cancel context.CancelFunc) {
			_ = s.Send(body)
			_, _ = s.Recv()
			cancel()
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		s, err := client.Process(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []*extprocv3.ProcessingRequest{message(t, "headers :method=POST :path=/v1/completions"), body} {
			if err := s.Send(m); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		if n := inFlight(f); n != 1 {
			t.Errorf("%s: %d requests in flight, want 1", name, n)
		}
		end(s, cancel)
		awaitIdle(t, f)
		cancel()
	}
}

// A list of models is in order and names what the routes admit, whether or not anyone serves it.
func TestTheListOfModels(t *testing.T) {
	f := newFleet()
	s, err := dial(t, f).Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(message(t, "headers :method=GET :path=/v1/models end")); err != nil {
		t.Fatal(err)
	}
	m, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Data []struct{ ID string }
	}
	if err := json.Unmarshal(m.GetImmediateResponse().GetBody(), &list); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range list.Data {
		names = append(names, d.ID)
	}
	if want := []string{"gpt-4", "llama", "missing", "nowhere", "text-to-sql"}; !slices.Equal(names, want) {
		t.Errorf("the models are %v, want %v", names, want)
	}
}
