package serve

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// liveness is the health service that reports whether the process is alive. Every other service
// name, including an empty one, asks whether extproc accepts requests: gateways probe the ext_proc
// service, "readiness", or names of their own (endpoint-picker protocol).
const liveness = "liveness"

// healthService reports health for every service name. Create it with newHealth.
type healthService struct {
	healthv1.UnimplementedHealthServer
	drain    func() // makes readiness report NOT_SERVING
	end      func() // ends all Watch calls, so that the server can stop
	draining <-chan struct{}
	ended    <-chan struct{}
}

func newHealth() *healthService {
	draining, ended := make(chan struct{}), make(chan struct{})
	return &healthService{
		drain: sync.OnceFunc(func() { close(draining) }), draining: draining,
		end: sync.OnceFunc(func() { close(ended) }), ended: ended,
	}
}

func (h *healthService) status(service string) *healthv1.HealthCheckResponse {
	answer := &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}
	select {
	case <-h.draining:
		if service != liveness {
			answer.Status = healthv1.HealthCheckResponse_NOT_SERVING
		}
	default:
	}
	return answer
}

// Check implements grpc.health.v1.Health.
func (h *healthService) Check(_ context.Context, r *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	return h.status(r.GetService()), nil
}

// Watch implements grpc.health.v1.Health.
func (h *healthService) Watch(r *healthv1.HealthCheckRequest, updates grpc.ServerStreamingServer[healthv1.HealthCheckResponse]) error {
	if err := updates.Send(h.status(r.GetService())); err != nil {
		return err
	}
	select {
	case <-updates.Context().Done():
		return nil
	case <-h.draining:
	}
	if err := updates.Send(h.status(r.GetService())); err != nil {
		return err
	}
	select {
	case <-updates.Context().Done():
		return nil
	case <-h.ended:
		return status.Error(codes.Unavailable, "extproc is stopping")
	}
}
