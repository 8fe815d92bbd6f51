package manage

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/control/place/loader"
)

// Runtime is an [Engine] that serves mmesh.ModelRuntime itself. Answers, unknown fields and
// statuses pass unchanged.
type Runtime struct {
	place   place
	conn    *grpc.ClientConn
	calls   mmesh.ModelRuntimeClient
	process string       // random mark of this process, for the marks of connections
	dialled atomic.Int64 // number of connections opened so far
}

// OpenRuntime returns the runtime at an address: HOST:PORT, or unix:PATH.
func OpenRuntime(address string) (*Runtime, error) {
	r := &Runtime{place: place(address), process: rand.Text()}
	authority := address
	if network, _ := r.place.network(); network == "unix" {
		authority = "localhost"
	}
	var err error
	r.conn, err = grpc.NewClient(
		"passthrough:///runtime",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := r.place.dial(ctx)
			if err == nil {
				r.dialled.Add(1)
			}
			return conn, err
		}),
		grpc.WithIdleTimeout(0), // stay connected: a broken connection may be the only sign of a restart
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(authority),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: time.Second,
		}),
	)
	if err != nil {
		return nil, err
	}
	r.calls = mmesh.NewModelRuntimeClient(r.conn)
	return r, nil
}

// Look returns the marks of the listener. If the system does not show them, the mark is the number
// of the connection, because a new connection may be to a new process.
func (r *Runtime) Look(ctx context.Context) (Sight, error) {
	marks, err := r.place.look(ctx)
	if err != nil || len(marks) > 0 {
		return Sight{Marks: marks}, err
	}
	r.conn.Connect()
	for state := r.conn.GetState(); state != connectivity.Ready; state = r.conn.GetState() {
		if !r.conn.WaitForStateChange(ctx, state) {
			return Sight{}, ctx.Err()
		}
	}
	return Sight{Marks: []string{fmt.Sprintf("connection %d of %s", r.dialled.Load(), r.process)}}, nil
}

// Status passes the call. The runtime unloads its models itself before it answers READY.
func (r *Runtime) Status(ctx context.Context, q *mmesh.RuntimeStatusRequest) (*mmesh.RuntimeStatusResponse, error) {
	return r.calls.RuntimeStatus(ctx, q, grpc.WaitForReady(true))
}

// Load passes the call with the local path and key.
func (r *Runtime) Load(ctx context.Context, q *mmesh.LoadModelRequest, l Local) (*mmesh.LoadModelResponse, error) {
	q = proto.CloneOf(q)
	q.ModelPath, q.ModelKey = l.Path, l.Key
	return r.calls.LoadModel(ctx, q)
}

// Unload passes the call.
func (r *Runtime) Unload(ctx context.Context, q *mmesh.UnloadModelRequest) error {
	_, err := r.calls.UnloadModel(ctx, q)
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

// Predict passes the call.
func (r *Runtime) Predict(ctx context.Context, q *mmesh.PredictModelSizeRequest) (*mmesh.PredictModelSizeResponse, error) {
	return r.calls.PredictModelSize(ctx, q)
}

// Size passes the call.
func (r *Runtime) Size(ctx context.Context, q *mmesh.ModelSizeRequest) (*mmesh.ModelSizeResponse, error) {
	return r.calls.ModelSize(ctx, q)
}

// Recall does nothing: a runtime lists no models.
func (r *Runtime) Recall([]loader.Model) {}

// Quit does nothing: calls to a process that has ended fail.
func (r *Runtime) Quit() {}

// Close closes the connection.
func (r *Runtime) Close() error { return r.conn.Close() }
