package repository

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/inference"
	"github.com/headgate/headgate/internal/engine"
)

// ServeGRPC serves the V2 model repository of a Triton or an MLServer over gRPC until ctx ends:
// what Handler serves over HTTP, with the codes that the real engines answer with. It does not
// serve inference.
func ServeGRPC(ctx context.Context, s *Server, listener net.Listener) error {
	defer close(s.over)
	calls := grpc.NewServer()
	calls.RegisterService(&v2Calls, s)
	defer context.AfterFunc(ctx, calls.Stop)()
	if err := calls.Serve(listener); !errors.Is(err, grpc.ErrServerStopped) && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

var v2Calls = grpc.ServiceDesc{
	ServiceName: "inference.GRPCInferenceService", HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{
		method("ServerLive", func(ctx context.Context, s *Server, _ *inference.ServerLiveRequest) (any, error) {
			_, err := s.answer(ctx, http.MethodGet, engine.LivePath)
			return &inference.ServerLiveResponse{Live: true}, err
		}),
		method("ModelReady", func(ctx context.Context, s *Server, q *inference.ModelReadyRequest) (any, error) {
			r, err := s.answer(ctx, http.MethodGet, engine.ReadyCall.Path(s.config.Kind, q.GetName()))
			if err == nil && r.status == http.StatusNotFound {
				err = status.Errorf(codes.Unknown, "Unexpected <class 'mlserver.errors.ModelNotFound'>: %s", words(r))
			}
			return &inference.ModelReadyResponse{Ready: r.status == http.StatusOK}, err
		}),
		method("RepositoryIndex", func(ctx context.Context, s *Server, _ *inference.RepositoryIndexRequest) (any, error) {
			r, err := s.answer(ctx, http.MethodPost, engine.IndexPath)
			if err != nil {
				return nil, err
			}
			index := &inference.RepositoryIndexResponse{}
			for _, e := range r.body.([]entry) {
				m := &inference.RepositoryIndexResponse_ModelIndex{Name: e.Name, Version: e.Version, State: e.State}
				if s.config.Kind == engine.MLServer {
					m.State = "State." + m.State
				}
				if e.Reason != nil {
					m.Reason = *e.Reason
				}
				index.Models = append(index.Models, m)
			}
			return index, nil
		}),
		method("RepositoryModelLoad", func(ctx context.Context, s *Server, q *inference.RepositoryModelLoadRequest) (any, error) {
			r, err := s.answer(ctx, http.MethodPost, engine.LoadCall.Path(s.config.Kind, q.GetModelName()))
			if at, _ := s.slot(q.GetModelName()); err != nil && at != nil && s.config.Kind == engine.MLServer {
				s.set(func() { at.lost = at.stage == engine.Coming })
			}
			return &inference.RepositoryModelLoadResponse{}, errors.Join(err, coded(r))
		}),
		method("RepositoryModelUnload", func(ctx context.Context, s *Server, q *inference.RepositoryModelUnloadRequest) (any, error) {
			r, err := s.answer(ctx, http.MethodPost, engine.UnloadCall.Path(s.config.Kind, q.GetModelName()))
			return &inference.RepositoryModelUnloadResponse{}, errors.Join(err, coded(r))
		}),
	},
}

// method describes a unary call.
func method[Q any](name string, answer func(context.Context, *Server, *Q) (any, error)) grpc.MethodDesc {
	handle := func(s any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		q := new(Q)
		if err := decode(q); err != nil {
			return nil, err
		}
		return answer(ctx, s.(*Server), q)
	}
	return grpc.MethodDesc{MethodName: name, Handler: handle}
}

// answer makes a call of HTTP. The call continues if ctx ends.
func (s *Server) answer(ctx context.Context, method, path string) (reply, error) {
	s.set(func() { s.asked[method+" "+path]++ })
	answer := make(chan reply, 1)
	go func() { answer <- s.serve(method, path, []byte("{}")) }()
	select {
	case r := <-answer:
		return r, nil
	case <-ctx.Done():
		return reply{}, status.FromContextError(ctx.Err()).Err()
	}
}

// v2Codes are the codes for statuses of HTTP.
var v2Codes = map[int]codes.Code{
	http.StatusNotFound: codes.NotFound, http.StatusBadRequest: codes.InvalidArgument,
	http.StatusUnprocessableEntity: codes.FailedPrecondition,
	http.StatusInternalServerError: codes.Internal, http.StatusServiceUnavailable: codes.Unavailable,
}

// coded returns the error for an answer of HTTP; nil if it is none.
func coded(r reply) error {
	if code, failed := v2Codes[r.status]; failed {
		return status.Error(code, words(r))
	}
	return nil
}

// words is the message of an answer.
func words(r reply) string {
	if fields, is := r.body.(map[string]string); is {
		return fields["error"]
	}
	return strings.TrimSpace(fmt.Sprint(r.body))
}
