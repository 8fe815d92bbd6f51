package stream_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"weak"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/headgate/headgate/extproc/codec"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
)

// dial starts a gRPC server for the fleet f, and returns a client.
func dial(t *testing.T, f *fleet.Fleet, front stream.Front) extprocv3.ExternalProcessorClient {
	t.Helper()
	return dialWith(t, f, front, nil)
}

func dialWith(t *testing.T, f *fleet.Fleet, front stream.Front, change func(*stream.Config)) extprocv3.ExternalProcessorClient {
	t.Helper()
	exchanges, _ := newServer(t, f, change)
	return dialServer(t, exchanges, front)
}

func dialServer(t *testing.T, exchanges *stream.Server, front stream.Front) extprocv3.ExternalProcessorClient {
	t.Helper()
	return dialService(t, exchanges.For(front))
}

func dialService(t *testing.T, service extprocv3.ExternalProcessorServer) extprocv3.ExternalProcessorClient {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer(grpc.MaxRecvMsgSize(stream.MaxMessage), grpc.ForceServerCodecV2(codec.With(overwritten)))
	extprocv3.RegisterExternalProcessorServer(server, service)
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

// awaitIdle waits until no request is in flight: the stream's handler ends later than the client's
// stream.
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

// However a stream ends, its request is no longer counted as in flight.
func TestEveryStreamEndEndsItsRequest(t *testing.T) {
	f := newFleet()
	client := dial(t, f, stream.Own)
	body := message(t, `body {"model":"text-to-sql"}`)
	for name, end := range map[string]func(extprocv3.ExternalProcessor_ProcessClient, context.CancelFunc){
		"closed":    func(s extprocv3.ExternalProcessor_ProcessClient, _ context.CancelFunc) { _ = s.CloseSend() },
		"cancelled": func(_ extprocv3.ExternalProcessor_ProcessClient, cancel context.CancelFunc) { cancel() },
		"misused": func(s extprocv3.ExternalProcessor_ProcessClient, _ context.CancelFunc) {
			_ = s.Send(message(t, "headers :method=POST"))
		},
		"a body twice": func(s extprocv3.ExternalProcessor_ProcessClient, cancel context.CancelFunc) {
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

// Simultaneous requests have different lease IDs. If they shared one, the end of one request would
// end the other's lease.
func TestConcurrentRequestsHaveTheirOwnLeases(t *testing.T) {
	f := newFleet()
	calls := 0
	var between func()
	server, _ := newServer(t, f, func(c *stream.Config) {
		random := c.Random
		c.Random = func() uint64 {
			if calls++; calls == 2 { // the last random number that the first decision uses
				between()
			}
			return random()
		}
	})
	decide := func() stream.Exchange {
		x := server.Exchange(stream.Gateway, "open-picker:9002", 9002)
		for _, text := range []string{
			"headers :method=POST :path=/v1/completions mode=FULL_DUPLEX_STREAMED", `body {"model":"qwen"}`,
		} {
			if _, err := x.Receive(message(t, text), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		return x
	}
	var within stream.Exchange
	between = func() { within = decide() }
	around := decide()
	if leases := f.Leases().Current; leases != 2 {
		t.Errorf("there are %d leases, want 2", leases)
	}
	for left, x := range []stream.Exchange{around, within} {
		x.ReleaseLease()
		if n := inFlight(f); n != int64(1-left) {
			t.Errorf("%d requests in flight after %d leases ended", n, 1+left)
		}
	}
}

// A data plane with an unsupported mode gets an error at its first message.
func TestStreamedIsRefusedAtTheFirstMessage(t *testing.T) {
	s, err := dial(t, newFleet(), stream.Gateway).Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(message(t, "headers :method=POST :path=/v1/completions mode=STREAMED")); err != nil {
		t.Fatal(err)
	}
	_, err = s.Recv()
	const want = "the request_body_mode of ext_proc is STREAMED, in which Envoy forwards the headers before extproc knows the model: set FULL_DUPLEX_STREAMED, BUFFERED or NONE"
	if status.Code(err) != codes.FailedPrecondition || status.Convert(err).Message() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// The list of models is sorted. It contains all models of routes, even those without a copy.
func TestListOfModels(t *testing.T) {
	s, err := dial(t, newFleet(), stream.Own).Process(t.Context())
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
	if want := []string{
		"/models/qwen.gguf", "qwen", "gpt-4", "llama", "missing", "nowhere", "sticky",
		"text-to-sql",
	}; !slices.Equal(names, want) {
		t.Errorf("the models are %v, want %v", names, want)
	}
}

// extproc limits the size of bodies in chunks, because Envoy does not. It forwards them in pieces
// that are small enough for Envoy.
func TestLargeBodiesInChunks(t *testing.T) {
	server, _ := newServer(t, newFleet(), nil)
	open := func() (stream.Exchange, time.Time) {
		x, now := server.Exchange(stream.Gateway, "base-picker:9002", 9002), time.Now()
		if out, err := x.Receive(message(t, "headers :method=POST :path=/v1/completions mode=FULL_DUPLEX_STREAMED"), now); err != nil ||
			len(out) != 0 {
			t.Fatalf("%v, %v", out, err)
		}
		return x, now
	}
	send := func(x stream.Exchange, now time.Time, body []byte, end bool) []*extprocv3.ProcessingResponse {
		out, err := x.Receive(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
			RequestBody: &extprocv3.HttpBody{Body: body, EndOfStream: end},
		}}, now)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}

	x, now := open()
	mebibyte := bytes.Repeat([]byte(" "), 1<<20)
	for range stream.MaxBody >> 20 {
		if out := send(x, now, mebibyte, false); len(out) != 0 {
			t.Fatalf("below the limit it returns %v", out)
		}
	}
	if out := send(x, now, []byte("x"), false); len(out) != 1 || out[0].GetImmediateResponse().GetStatus().GetCode() != 413 {
		t.Errorf("beyond the limit it returns %v", out)
	}
	if out := send(x, now, mebibyte, true); len(out) != 0 {
		t.Errorf("after its reply it returns %v", out)
	}

	x, now = open()
	defer x.End(now)
	body := append([]byte(`{"model":"llama","prompt":"`), append(bytes.Repeat([]byte("p"), 3*stream.MaxChunk), `"}`...)...)
	send(x, now, body[:100_000], false)
	out := send(x, now, body[100_000:], true)
	if len(out) != 5 || out[0].GetRequestHeaders() == nil {
		t.Fatalf("%d messages", len(out))
	}
	var whole []byte
	for i, m := range out[1:] {
		piece := m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if len(piece.GetBody()) > stream.MaxChunk || piece.GetEndOfStream() != (i == 3) {
			t.Errorf("piece %d has %d bytes, end %v", i, len(piece.GetBody()), piece.GetEndOfStream())
		}
		whole = append(whole, piece.GetBody()...)
	}
	if !bytes.Equal(whole, body) {
		t.Error("the pieces are not the body")
	}
}

// A response may take minutes. Meanwhile its exchange must not keep the decision's snapshot in
// memory: with a thousand endpoints a snapshot is large, and a new snapshot is made every few
// milliseconds.
func TestOpenStreamKeepsNoSnapshotAlive(t *testing.T) {
	for name, script := range map[string][]string{
		"buffered": {"headers :method=POST :path=/v1/completions", `body {"model":"qwen"}`},
		"duplex": {
			"headers :method=POST :path=/v1/completions mode=FULL_DUPLEX_STREAMED shown=FULL_DUPLEX_STREAMED",
			`body {"model":"qwen"}`, "response :status=200",
		},
		"headers":  {"headers @model=qwen :method=POST :path=/v1/completions mode=NONE"},
		"no model": {"headers :method=GET :path=/health end"},
	} {
		f := newFleet()
		server, _ := newServer(t, f, nil)
		x := server.Exchange(stream.Gateway, "open-picker:9002", 9002)
		for _, line := range script {
			if _, err := x.Receive(message(t, line), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		if n := inFlight(f); n != 1 {
			t.Fatalf("%s: %d requests are in flight", name, n)
		}
		decidedOver := weak.Make(f.View().Snapshot.Pools["ns/open"].Endpoints[0])
		f.SetWorld(f.View().World) // publishes a new view
		for range 3 {
			runtime.GC()
		}
		if decidedOver.Value() != nil {
			t.Errorf("%s: the snapshot is still in memory", name)
		}
		x.End(time.Now())
	}
}

// Headgate's own Envoys send the listener or the pool as metadata of the stream. Such metadata of
// other gateways is ignored.
func TestListenerAndThePoolAreReadFromTheStream(t *testing.T) {
	f := newFleet()
	const noSuchModel, found = typev3.StatusCode_NotFound, typev3.StatusCode_Empty
	for _, c := range []struct {
		front stream.Front
		said  []string
		want  typev3.StatusCode
	}{
		{stream.Own, nil, found},
		{stream.Own, []string{"x-gateway-listener", "Gateway ns/g chat"}, found},
		{stream.Own, []string{"x-gateway-listener", "Gateway ns/g other"}, noSuchModel},
		{stream.Own, []string{"x-gateway-listener", "Gateway ns/g none"}, typev3.StatusCode_ServiceUnavailable},
		{stream.Own, []string{"x-gateway-pool", "ns/base"}, found},
		{stream.Own, []string{"x-gateway-pool", "ns/sticky"}, noSuchModel},
		{stream.Own, []string{"x-gateway-pool", "ns/base", "x-gateway-rewrite", "/v1/completions /adapters"}, noSuchModel},
		{stream.Gateway, []string{"x-gateway-listener", "Gateway ns/g other", "x-gateway-pool", "ns/sticky"}, found},
	} {
		x, err := dial(t, f, c.front).Process(metadata.AppendToOutgoingContext(t.Context(), c.said...))
		if err != nil {
			t.Fatal(err)
		}
		got := found
		for _, line := range []string{
			"headers :method=POST :path=/v1/completions content-type=application/json",
			`body {"model":"text-to-sql"}`,
		} {
			if err := x.Send(message(t, line)); err != nil {
				t.Fatal(err)
			}
			m, err := x.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if got = m.GetImmediateResponse().GetStatus().GetCode(); got != found {
				break
			}
		}
		if got != c.want {
			t.Errorf("with %q the reply is %v, want %v", c.said, got, c.want)
		}
	}
}

// The health check succeeds while endpoints migrate. It fails if all endpoints are terminating and
// none migrates.
func TestMigratingEndpointsAreHealthy(t *testing.T) {
	f := newFleetWith(fleet.Config{Placed: true}, func(*objects.Set) {})
	server, _ := newServer(t, f, nil)
	all := fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status { return s.Endpoints(f.Now()) })
	for _, c := range []struct {
		until time.Time
		want  string
	}{{time.Now().Add(time.Hour), "reply: 200 "}, {time.Time{}, "reply: 503 "}} {
		n := endpointstate.PlacementUpdate{All: true, Leaving: make(map[string]endpointstate.Leaving)}
		for _, e := range all {
			n.Leaving[e.Address] = endpointstate.Leaving{Terminating: true, Migrates: c.until}
		}
		f.ApplyPlacement(n)
		x := server.Exchange(stream.Own, "", 0)
		answers, err := x.Receive(message(t, "headers :method=GET :path=/health end"), time.Now())
		if err != nil || len(answers) != 1 || !strings.Contains(render(t, answers[0]), c.want) {
			t.Errorf("until %v it returns %v, %v, want %s", c.until, answers, err, c.want)
		}
	}
}
