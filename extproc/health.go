package main

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// liveness is the service whose health is that of the process. Every other name, and none, asks whether requests are
// welcome: gateways probe the ext_proc service, "readiness" and names of their own (endpoint-picker protocol, health).
const liveness = "liveness"

// healthService answers for every name. Make one with newHealth.
type healthService struct {
	healthv1.UnimplementedHealthServer
	mu       sync.Mutex // guards closing draining
	draining chan struct{}
}

func newHealth() *healthService { return &healthService{draining: make(chan struct{})} }

// drain says that requests are no longer welcome.
func (h *healthService) drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.draining:
	default:
		close(h.draining)
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
	<-updates.Context().Done()
	return nil
}
