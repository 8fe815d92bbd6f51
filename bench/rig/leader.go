package rig

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
)

// AwaitLeader waits until the control at the other end of conn leads, according to its health
// service.
func AwaitLeader(ctx context.Context, conn *grpc.ClientConn) error {
	request := &healthv1.HealthCheckRequest{Service: mmesh.ModelMesh_ServiceDesc.ServiceName}
	for {
		watch, err := healthv1.NewHealthClient(conn).Watch(ctx, request, grpc.WaitForReady(true))
		for err == nil {
			var health *healthv1.HealthCheckResponse
			if health, err = watch.Recv(); health.GetStatus() == healthv1.HealthCheckResponse_SERVING {
				return nil
			}
		}
		if status.Code(err) != codes.Unavailable {
			return fmt.Errorf("no control leads: %w", err)
		}
	}
}
