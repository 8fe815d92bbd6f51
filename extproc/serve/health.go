package serve

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// liveness is the service whose health is that of the process. Every other name, and none, asks
// whether requests are welcome: gateways probe the ext_proc service, "readiness" and names of their
// own (endpoint-picker protocol, health).
const liveness = "liveness"

// healthService answers for every name. Make one with newHealth.
type healthService struct {
	healthv1.UnimplementedHealthServer
	drain    func() // says that requests are no longer welcome
	end      func() // ends those that watch, so that nobody waits for them
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
