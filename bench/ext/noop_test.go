package ext

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	edsv3 "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// kinds are the values of --noop.
var kinds = []string{"raw", "std"}

// endpoints are those that no-ops name in these tests.
var endpoints = []string{"10.0.0.1:8000", "10.0.0.2:8000"}

// part returns a message with one part of a request. Chunk is the content of a body.
func part(of kind, chunk []byte, end bool) *extprocv3.ProcessingRequest {
	body := &extprocv3.HttpBody{Body: chunk, EndOfStream: end}
	headers := &extprocv3.HttpHeaders{EndOfStream: end}
	m := new(extprocv3.ProcessingRequest)
	switch of {
	case requestHeaders:
		m.Request = &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: headers}
	case responseHeaders:
		m.Request = &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: headers}
	case requestBody:
		m.Request = &extprocv3.ProcessingRequest_RequestBody{RequestBody: body}
	case responseBody:
		m.Request = &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: body}
	case requestTrailers:
		m.Request = &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: new(extprocv3.HttpTrailers)}
	case responseTrailers:
		m.Request = &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: new(extprocv3.HttpTrailers)}
	}
	return m
}

// onWire returns a message as it may arrive: in several buffers.
func onWire(t *testing.T, m proto.Message, random *rand.Rand) (data mem.BufferSlice) {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	for len(b) > 0 {
		n := 1 + random.IntN(len(b))
		data, b = append(data, mem.SliceBuffer(b[:n])), b[n:]
	}
	return data
}

// In any order of messages, cut into buffers anywhere, raw bytes give the same replies as generated
// code.
func TestRawRepliesAsStd(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	echoed, unanswered := 0, 0
	for range 3000 {
		generated := newStd(endpoints)
		onBytes, err := newRaw(endpoints)
		if err != nil {
			t.Fatal(err)
		}
		var one, other passage
		for i := range 8 {
			in := part(kind(random.IntN(9)), make([]byte, random.IntN(2)*random.IntN(300)), random.IntN(4) == 0)
			if i == 0 || random.IntN(8) == 0 {
				in.ProtocolConfig = &extprocv3.ProtocolConfiguration{
					RequestBodyMode:  extprocfilterv3.ProcessingMode_BodySendMode(random.IntN(6)),
					ResponseBodyMode: extprocfilterv3.ProcessingMode_BodySendMode(random.IntN(6)),
				}
				in.Attributes = map[string]*structpb.Struct{"a": {}}
			}
			in.ObservabilityMode = random.IntN(50) == 0 && i == 0
			want := generated.reply(&one, in)
			f, err := onBytes.reply(&other, onWire(t, in, random))
			if err != nil {
				t.Fatalf("%v: %v", in, err)
			}
			if want == nil {
				if unanswered++; f != nil {
					t.Fatalf("%v: there is a reply, want none", in)
				}
				continue
			}
			got := new(extprocv3.ProcessingResponse)
			if f == nil || proto.Unmarshal(f.data.Materialize(), got) != nil || !proto.Equal(got, want) {
				t.Fatalf("%v: %v, want %v", in, got, want)
			}
			if got.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse() != nil {
				echoed++
			}
		}
	}
	if echoed < 100 || unanswered < 100 {
		t.Errorf("%d chunks were echoed, and %d messages had no reply: the messages are not random", echoed, unanswered)
	}
}

// A message that ends too early is an error, and never a panic.
func TestTruncatedMessagesAreErrors(t *testing.T) {
	n, err := newRaw(nil)
	if err != nil {
		t.Fatal(err)
	}
	in := part(requestBody, []byte("abc"), true)
	in.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED}
	b, err := proto.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	wrong := 0
	for i := range b {
		p := passage{duplex: [2]bool{true, true}}
		if _, err := n.reply(&p, mem.BufferSlice{mem.SliceBuffer(b[:i])}); err != nil {
			wrong++
			if !errors.Is(err, errTruncated) {
				t.Errorf("%d bytes: %v", i, err)
			}
		}
	}
	if wrong == 0 {
		t.Error("no truncated message is an error")
	}
}

// dial serves a no-op, and returns a connection to it.
func dial(t *testing.T, server *grpc.Server) *grpc.ClientConn {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- serve(ctx, server, l) }()
	conn, err := grpc.NewClient("passthrough:", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return conn
}

// A no-op serves what Envoy expects on the socket beside ext_proc: it accepts records, lists its
// endpoints, and is healthy.
func TestNoopServesWhatEnvoyExpects(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			server, err := noop(kind, endpoints)
			if err != nil {
				t.Fatal(err)
			}
			conn := dial(t, server)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()

			records, err := accesslogv3.NewAccessLogServiceClient(conn).StreamAccessLogs(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if err := records.Send(&accesslogv3.StreamAccessLogsMessage{Identifier: &accesslogv3.StreamAccessLogsMessage_Identifier{
					LogName: "outcome",
				}}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := records.CloseAndRecv(); err != nil {
				t.Errorf("records: %v", err)
			}

			lists, err := edsv3.NewEndpointDiscoveryServiceClient(conn).DeltaEndpoints(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for i, names := range [][]string{{"endpoints", "calls"}, nil, {"more"}} {
				if err := lists.Send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: names}); err != nil {
					t.Fatal(err)
				}
				if names == nil {
					continue
				}
				got, err := lists.Recv()
				if err != nil || len(got.GetResources()) != len(names) || got.GetResources()[0].GetName() != names[0] {
					t.Fatalf("endpoints, request %d: %v, %v", i, got, err)
				}
			}

			healths := healthv1.NewHealthClient(conn)
			if got, err := healths.Check(ctx, new(healthv1.HealthCheckRequest)); got.GetStatus() != healthv1.HealthCheckResponse_SERVING {
				t.Errorf("health: %v, %v", got, err)
			}
			watch, err := healths.Watch(ctx, new(healthv1.HealthCheckRequest))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := watch.Recv(); err != nil || got.GetStatus() != healthv1.HealthCheckResponse_SERVING {
				t.Errorf("health, watched: %v, %v", got, err)
			}
		})
	}
}

// A no-op names its endpoints in turn, and none if it has none. Its stream ends when Envoy ends it.
func TestNoopNamesEndpointsInTurn(t *testing.T) {
	for _, kind := range kinds {
		for _, of := range [][]string{endpoints, nil} {
			server, err := noop(kind, of)
			if err != nil {
				t.Fatal(err)
			}
			client := extprocv3.NewExternalProcessorClient(dial(t, server))
			named := make(map[string]int)
			for range 4 {
				s, err := client.Process(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Send(part(requestHeaders, nil, true)); err != nil {
					t.Fatal(err)
				}
				m, err := s.Recv()
				if err != nil {
					t.Fatal(err)
				}
				named[destination(m)]++
				_ = s.CloseSend()
				if _, err := s.Recv(); !errors.Is(err, io.EOF) {
					t.Errorf("%s: the stream ends with %v", kind, err)
				}
			}
			want := map[string]int{"": 4}
			if len(of) > 0 {
				want = map[string]int{of[0]: 2, of[1]: 2}
			}
			if fmt.Sprint(named) != fmt.Sprint(want) {
				t.Errorf("%s: it names %v, want %v", kind, named, want)
			}
		}
	}
}

// If Envoy delivers the end of a full duplex body twice, only the first one is passed on.
func TestSecondEndOfABodyIsDropped(t *testing.T) {
	start := part(requestHeaders, nil, false)
	start.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED}
	end := part(requestBody, []byte("x"), true)
	random := rand.New(rand.NewPCG(1, 2))
	generated := newStd(nil)
	onBytes, err := newRaw(nil)
	if err != nil {
		t.Fatal(err)
	}
	var one, other passage
	for i, m := range []*extprocv3.ProcessingRequest{start, end, end} {
		f, err := onBytes.reply(&other, onWire(t, m, random))
		if r := generated.reply(&one, m); err != nil || (r != nil) != (i < 2) || (f != nil) != (i < 2) {
			t.Errorf("message %d: std replies %v, raw %v, %v", i, r, f, err)
		}
	}
}

func TestWrongNoopsAreRefused(t *testing.T) {
	for _, c := range []struct {
		kind     string
		endpoint []string
	}{{"fast", nil}, {"raw", []string{"localhost:8000"}}, {"std", []string{"10.0.0.1"}}} {
		if _, err := noop(c.kind, c.endpoint); err == nil {
			t.Errorf("%v is accepted", c)
		}
	}
}
