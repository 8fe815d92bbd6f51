package relay

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
)

// startServer starts a relay to a server, which runs until the test ends.
func startServer(t *testing.T, network string, run func(net.Listener)) *world {
	t.Helper()
	w := start(t, network, nil, nil)
	l, err := net.Listen(network, w.relay.config.Engine.Address)
	if err != nil {
		t.Fatal(err)
	}
	w.engine = l
	go run(l)
	w.accepting()
	return w
}

// Streams of gRPC pass: one that the server sends, and one in which both sides send in turn. The
// stream continues while the relay drains, and ends with the server.
func TestStreamsOfGRPC(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			server, state := grpc.NewServer(), health.NewServer()
			healthpb.RegisterHealthServer(server, state)
			reflection.Register(server)
			defer server.Stop()
			w := startServer(t, network, func(l net.Listener) { _ = server.Serve(l) })
			conn, err := grpc.NewClient(w.relay.config.Listen, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			watch, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{})
			if err != nil {
				t.Fatal(err)
			}
			next := func(want healthpb.HealthCheckResponse_ServingStatus) {
				t.Helper()
				if got, err := watch.Recv(); err != nil || got.GetStatus() != want {
					t.Errorf("the server sends %v, %v", got, err)
				}
			}
			next(healthpb.HealthCheckResponse_SERVING)
			talk, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for range 100 {
				if err := talk.Send(&reflectionpb.ServerReflectionRequest{
					MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
				}); err != nil {
					t.Fatal(err)
				}
				if got, err := talk.Recv(); err != nil || len(got.GetListServicesResponse().GetService()) != 3 {
					t.Fatalf("%v, %v", got, err)
				}
			}
			if err := talk.CloseSend(); err != nil {
				t.Error(err)
			}
			if _, err := talk.Recv(); err != io.EOF { //nolint:errorlint // gRPC returns it unwrapped
				t.Errorf("after its end the stream returns %v", err)
			}
			w.stop()
			await(t, "it refuses after the end", w.refuses)
			state.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
			next(healthpb.HealthCheckResponse_NOT_SERVING)
			server.Stop()
			if _, err := watch.Recv(); err == nil {
				t.Error("the stream outlives the server")
			}
			w.end()
		})
	}
}

// An HTTP/1.1 client keeps its connection for several requests, and gets a stream piece by piece.
func TestHTTP(t *testing.T) {
	more := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	mux.HandleFunc("GET /stream", func(w http.ResponseWriter, _ *http.Request) {
		for i := range 3 {
			fmt.Fprintf(w, "%d\n", i)
			_ = http.NewResponseController(w).Flush()
			<-more
		}
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	defer server.Close()
	w := startServer(t, "tcp", func(l net.Listener) { _ = server.Serve(l) })
	client := &http.Client{Transport: &http.Transport{}, Timeout: patience}
	defer client.CloseIdleConnections()
	for range 20 {
		answer, err := client.Post("http://"+w.relay.config.Listen+"/echo", "text/plain", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
	}
	await(t, "one connection is open", func() bool { return w.relay.count() == 1 })
	answer, err := client.Get("http://" + w.relay.config.Listen + "/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	lines := bufio.NewReader(answer.Body)
	for i := range 3 {
		if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintln(i) {
			t.Errorf("line %d is %q, %v", i, line, err)
		}
		more <- struct{}{}
	}
}
