package loader

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"

	"github.com/headgate/headgate/api/mmesh"
)

// limiting is a model runtime that reports the limits that a test sets.
type limiting struct {
	mmesh.UnimplementedModelRuntimeServer
	limits bool
	most   uint32
}

func (r *limiting) RuntimeStatus(context.Context, *mmesh.RuntimeStatusRequest) (*mmesh.RuntimeStatusResponse, error) {
	return &mmesh.RuntimeStatusResponse{Status: mmesh.RuntimeStatusResponse_READY, LimitModelConcurrency: r.limits}, nil
}

func (r *limiting) LoadModel(context.Context, *mmesh.LoadModelRequest) (*mmesh.LoadModelResponse, error) {
	return &mmesh.LoadModelResponse{MaxConcurrency: r.most}, nil
}

// A copy gets the concurrency limit that the runtime reports after the load, or 1 if it reports
// none. It gets no limit if the runtime's status does not announce limits.
func TestCopyHasItsRuntimesLimit(t *testing.T) {
	for i, c := range []struct {
		limits bool
		most   uint32
		want   int
	}{{true, 5, 5}, {true, 0, 1}, {false, 5, 0}, {true, 1<<32 - 1, maxConcurrency}} {
		socket := filepath.Join(t.TempDir(), "runtime.sock")
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		mmesh.RegisterModelRuntimeServer(server, &limiting{limits: c.limits, most: c.most})
		done := make(chan error, 1)
		go func() { done <- server.Serve(listener) }()
		l := openRuntimeFor(t, "unix:"+socket, "")
		look(t, l, Record{})
		if got, err := l.Load(t.Context(), Model{ID: "x"}, testTimeout); err != nil || got.Concurrency != c.want {
			t.Errorf("%d: %+v, %v, want %d", i, got, err, c.want)
		}
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
