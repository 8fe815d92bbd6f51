package serve_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/control/serve"
)

const placementService, meshService = "headgate.placement.v1.Placement", "mmesh.ModelMesh"

// Every control serves health and reflection. Only the leader serves everything. Connections
// survive a change of the leader.
func TestOnlyTheLeaderPlaces(t *testing.T) {
	s := newServer(t, serve.Config{})
	conn := dial(t, serveAt(t, s, true), insecure.NewCredentials())
	dropped := make(chan connectivity.State, 1)
	conn.Connect()
	ready := limited(t)
	for is := conn.GetState(); is != connectivity.Ready; is = conn.GetState() {
		if !conn.WaitForStateChange(ready, is) {
			t.Fatal("the client does not connect")
		}
	}
	watching, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		if conn.WaitForStateChange(watching, connectivity.Ready) {
			dropped <- conn.GetState()
		}
	}()
	for range 3 {
		for _, service := range []string{placementService, meshService} {
			if isHealthy(t, conn, service) {
				t.Errorf("%s is healthy without a leader", service)
			}
		}
		if err := connect(limited(t), conn); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "is not the leader") {
			t.Errorf("without a leader a placement stream ends with %v", err)
		}
		if _, err := mmesh.NewModelMeshClient(conn).GetModelStatus(limited(t),
			&mmesh.GetStatusRequest{}); status.Code(err) != codes.Unavailable {
			t.Errorf("without a leader a call of ModelMesh's API ends with %v", err)
		}
		if got := services(t, reflectionv1.NewServerReflectionClient(conn)); !slices.Contains(got, placementService) ||
			!slices.Contains(got, meshService) {
			t.Errorf("reflection lists %v", got)
		}

		b := newBoard()
		end := s.Lead(b, mesh{})
		for _, service := range []string{placementService, meshService, ""} {
			if !isHealthy(t, conn, service) {
				t.Errorf("%q of the leader is not healthy", service)
			}
		}
		if err := connect(limited(t), conn); err != nil {
			t.Errorf("a placement stream of the leader: %v", err)
		}
		if _, err := mmesh.NewModelMeshClient(conn).GetModelStatus(limited(t), &mmesh.GetStatusRequest{}); err != nil {
			t.Errorf("a call to the leader: %v", err)
		}
		close(b.closed)
		end()
	}
	select {
	case is := <-dropped:
		t.Errorf("the connection was dropped; its state is %v", is)
	default:
	}
}

func services(t *testing.T, client reflectionv1.ServerReflectionClient) (names []string) {
	t.Helper()
	stream, err := client.ServerReflectionInfo(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	list := &reflectionv1.ServerReflectionRequest_ListServices{}
	if err := stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: list}); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range answer.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	return names
}

// At its end, a term cancels waiting calls, and waits for all calls to end, because their resources
// are closed afterwards.
func TestTermEndsItsCalls(t *testing.T) {
	s := newServer(t, serve.Config{})
	conn := dial(t, serveAt(t, s, true), insecure.NewCredentials())
	b, m := newBoard(), mesh{waits: make(chan struct{}, 1)}
	end := s.Lead(b, m)
	stream, err := placement.NewPlacementClient(conn).Connect(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		_, err := mmesh.NewModelMeshClient(conn).EnsureLoaded(limited(t), &mmesh.EnsureLoadedRequest{})
		waited <- err
	}()
	<-m.waits
	ended := make(chan struct{})
	go func() {
		end()
		close(ended)
	}()
	if err := <-waited; status.Code(err) != codes.Unavailable {
		t.Errorf("a waiting call ends with %v", err)
	}
	select {
	case <-ended:
		t.Error("the term ended while a stream was open")
	default:
	}
	if err := connect(limited(t), conn); status.Code(err) != codes.Unavailable {
		t.Errorf("a stream that begins at the end of the term ends with %v", err)
	}
	close(b.closed)
	<-ended
	if len(b.ended) != 1 {
		t.Error("the term ended before its stream")
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v", err)
	}
}

// A call that succeeds while the term ends returns its result.
func TestWriteReturnsWhenDone(t *testing.T) {
	s := newServer(t, serve.Config{})
	conn := dial(t, serveAt(t, s, true), insecure.NewCredentials())
	m := lateMesh{begun: make(chan struct{})}
	end := s.Lead(newBoard(), m)
	go func() {
		<-m.begun
		end()
	}()
	if _, err := mmesh.NewModelMeshClient(conn).UnregisterModel(limited(t), &mmesh.UnregisterModelRequest{}); err != nil {
		t.Errorf("a completed call ends with %v", err)
	}
}

func TestRunServesEveryAddressUntilItsEnd(t *testing.T) {
	socket := "unix:" + filepath.Join(t.TempDir(), "s")
	s := newServer(t, serve.Config{Listen: []string{socket, host + ":18034"}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for _, target := range []string{host + ":18034"} {
		conn := dial(t, target, insecure.NewCredentials())
		conn.Connect()
		for is := conn.GetState(); is != connectivity.Ready; is = conn.GetState() {
			if !conn.WaitForStateChange(limited(t), is) {
				t.Fatal("the client does not connect")
			}
		}
		if !isHealthy(t, conn, "") {
			t.Errorf("%s is not healthy", target)
		}
	}
	second, err := serve.New(serve.Config{Listen: []string{socket}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "another process listens there: stop it or choose another path") {
		t.Errorf("the error of a second server is %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A process that is stopped before it serves exits without error.
func TestEndAtTheStartIsNoFault(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		s := newServer(t, serve.Config{Listen: []string{"unix:" + filepath.Join(t.TempDir(), "control.sock")}})
		if err := s.Run(ctx); err != nil {
			t.Fatalf("Run returns %v", err)
		}
	}
}
