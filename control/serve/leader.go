package serve

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/api/placement"
)

// term contains the services of a leadership term.
type term struct {
	placement placement.PlacementServer
	mesh      mmesh.ModelMeshServer
	ctx       context.Context // ends with the term
	calls     sync.WaitGroup  // running calls; Add is called only under Server.mu, while this is Server.term
}

var errNotLeading = status.Error(codes.Unavailable, "this control is not the leader, or has not read its objects yet; try again")

// Lead serves placement and ModelMesh's API until end is called. Then the Server rejects new calls
// as Unavailable and cancels unary calls; end returns when the last call has ended. The placement
// server itself must end its streams.
func (s *Server) Lead(p placement.PlacementServer, m mmesh.ModelMeshServer) (end func()) {
	ctx, stop := context.WithCancel(context.Background())
	t := &term{placement: p, mesh: m, ctx: ctx}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.term = t
	s.setHealth(healthv1.HealthCheckResponse_SERVING)
	return sync.OnceFunc(func() {
		s.mu.Lock()
		s.term = nil
		s.setHealth(healthv1.HealthCheckResponse_NOT_SERVING)
		s.mu.Unlock()
		stop()
		t.calls.Wait()
	})
}

// enter returns the current term for a call, which must call calls.Done at its end. It returns nil
// if another control leads.
func (s *Server) enter() *term {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term != nil {
		s.term.calls.Add(1)
	}
	return s.term
}

// whileLeading wraps a service, so that calls go to the implementation of the current term.
func (s *Server) whileLeading(desc *grpc.ServiceDesc, of func(*term) any) *grpc.ServiceDesc {
	led := &grpc.ServiceDesc{ServiceName: desc.ServiceName, HandlerType: (*any)(nil), Metadata: desc.Metadata}
	for _, m := range desc.Methods {
		led.Methods = append(led.Methods, grpc.MethodDesc{MethodName: m.MethodName, Handler: s.unary(m, of)})
	}
	for _, d := range desc.Streams {
		handle := d.Handler
		d.Handler = func(_ any, stream grpc.ServerStream) error {
			t := s.enter()
			if t == nil {
				return errNotLeading
			}
			defer t.calls.Done()
			return handle(of(t), stream)
		}
		led.Streams = append(led.Streams, d)
	}
	return led
}

func (s *Server) unary(m grpc.MethodDesc, of func(*term) any) grpc.MethodHandler {
	return func(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		t := s.enter()
		if t == nil {
			return nil, errNotLeading
		}
		defer t.calls.Done()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(t.ctx, cancel)()
		answer, err := m.Handler(of(t), ctx, decode, intercept)
		if err != nil && t.ctx.Err() != nil {
			return nil, errNotLeading
		}
		return answer, err
	}
}
