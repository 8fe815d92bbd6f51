// Package manage serves mmesh.ModelRuntime for the engine beside the agent, whatever the engine's
// own API is.
//
// A [Server] fetches the files of a model, and then has an [Engine] load it: a custom runtime,
// whose own mmesh.ModelRuntime it calls ([Runtime]), or a server of another kind, which it drives
// ([Driven]). Loads and unloads of one model run one after the other.
//
// An incarnation of the engine is one run of its process; the code calls it a life. The Server
// detects a new incarnation, and then unloads all models once. Every answer has the header
// [loader.IncarnationHeader] with the id of the incarnation, from which control detects a restart
// of the engine. A restart of the agent alone does not change the id.
package manage

import (
	"context"
	"errors"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/control/place/loader"
	"github.com/headgate/headgate/internal/engineclient"
)

// Request is a load call as control sends it.
type Request struct{ ID, Type, Path, Key string }

// Local is what the engine gets in place of a [Request]'s path and key.
type Local struct {
	// Path is a local path, or the path of the request if nothing was fetched.
	Path string
	// Schema is the local path of the schema file; empty if there is none.
	Schema string
	// Key is the key for the engine: that of the request, without what was for the fetch.
	Key string
	// Bytes is the size of the files; 0 if it is unknown.
	Bytes int64
}

// Storage fetches the files of models. It is safe for concurrent use.
type Storage interface {
	// Fetch puts the files of a model onto the disk, and ends with ctx. It fails with a
	// [*FetchError]. It may be called again for a model that has files.
	Fetch(ctx context.Context, r Request) (Local, error)
	// Release removes the files of a model, if it has any.
	Release(id string) error
	// Models returns the ids of the models that have files.
	Models() []string
}

// FetchError is the reason why the files of a model cannot be fetched.
type FetchError struct {
	// Message is one sentence for operators, without secrets.
	Message string
	// Transient: a later attempt may succeed, since the server was busy or the connection broke.
	Transient bool
}

func (e *FetchError) Error() string { return e.Message }

// Config configures a [Server].
type Config struct {
	Engine  Engine
	Storage Storage
	// StateFile stores the incarnation and its models for the next process of the agent; empty for
	// none. Without it, the agent reports a new incarnation after each of its own starts.
	StateFile string
	// Token returns the bearer token that callers must have; empty for none. It may be nil.
	Token func() string
	Log   *slog.Logger
}

// Server serves mmesh.ModelRuntime and grpc.health.v1. Make one with [New]. It is safe for
// concurrent use.
type Server struct {
	mmesh.UnimplementedModelRuntimeServer
	healthv1.UnimplementedHealthServer
	config  Config
	turns   turns
	looking chan struct{} // capacity 1: full during a call of look; never closed
	purging chan struct{} // capacity 1: full during a purge; never closed

	lives
}

// New returns a Server. If the engine has not restarted, the Server continues with the incarnation
// in the state file.
func New(c Config) (*Server, error) {
	s := &Server{config: c, looking: make(chan struct{}, 1), purging: make(chan struct{}, 1)}
	s.life = newLife()
	stored, err := readState(c.StateFile)
	if err != nil {
		c.Log.Warn("cannot read the state of an earlier agent; the engine's models are purged", "file", c.StateFile, "err", err)
	}
	if stored != nil {
		s.life = stored.life()
		c.Engine.Recall(stored.models())
	}
	s.sweep()
	return s, s.save(s.life)
}

// sweep removes the files that an earlier process of the agent left of models that are not in the
// state.
func (s *Server) sweep() {
	for _, id := range s.config.Storage.Models() {
		if _, known := s.life.models[id]; !known {
			s.release(id)
		}
	}
}

// Register adds the services to a gRPC server, which must have been made with [Server.Options].
func (s *Server) Register(to *grpc.Server) {
	mmesh.RegisterModelRuntimeServer(to, s)
	healthv1.RegisterHealthServer(to, s)
}

// Options are the options of the gRPC server: they check the token, and add the header to answers.
func (s *Server) Options() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.UnaryInterceptor(s.intercept), grpc.StreamInterceptor(s.interceptStream)}
}

func (s *Server) intercept(ctx context.Context, q any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	defer func() {
		// It fails only if the header was sent already; unary handlers do not send it.
		_ = grpc.SetHeader(ctx, metadata.Pairs(loader.IncarnationHeader, s.current().id))
	}()
	if info.FullMethod != healthv1.Health_Check_FullMethodName { // probes have no token, and the answer of Check is not secret
		if err := s.authorize(ctx); err != nil {
			return nil, err
		}
	}
	return handle(ctx, q)
}

func (s *Server) interceptStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if err := s.authorize(stream.Context()); err != nil {
		return err
	}
	return handle(srv, stream)
}

// authorize returns why a call is refused.
func (s *Server) authorize(ctx context.Context) error {
	if s.config.Token == nil {
		return nil
	}
	sent, _ := metadata.FromIncomingContext(ctx)
	if all := sent.Get("authorization"); len(all) == 1 && engineclient.Shows(all[0], s.config.Token()) {
		return nil
	}
	return status.Error(codes.Unauthenticated, "the agent requires the bearer token of the pool's engineToken")
}

// Check reports SERVING if the engine answers, and NOT_SERVING if no process listens. It fails if
// the engine does not answer in time.
func (s *Server) Check(ctx context.Context, _ *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	switch _, err := s.look(ctx); {
	case errors.Is(err, ErrEnded):
		return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_NOT_SERVING}, nil
	case err != nil:
		return nil, status.Error(codes.Unavailable, "the engine does not answer: "+err.Error())
	}
	return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}, nil
}

// Close abandons running calls, and closes connections to the engine. Models stay loaded.
func (s *Server) Close() error {
	s.current().end(errClosing)
	return s.config.Engine.Close()
}
