// Package leader waits for the control that leads, for tests.
package leader

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
)

// Await waits until the control at the other end of conn leads, according to its health
// service.
func Await(ctx context.Context, conn *grpc.ClientConn) error {
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
