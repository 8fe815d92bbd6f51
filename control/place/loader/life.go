package loader

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	// IncarnationHeader is the gRPC header in which every answer of an agent has the incarnation of
	// its engine: an id of one run of the engine's process.
	IncarnationHeader = "headgate-incarnation"
	// LifePrefix is the prefix of each value of [IncarnationHeader].
	LifePrefix = "life "
)

// lifeTimeout limits the call that reads the incarnation of an engine. An agent answers within a
// second, even if its engine does not.
const lifeTimeout = 2 * time.Second

// lifeReports records whether an agent answers for a runtime.
type lifeReports struct {
	// expected means that an agent has answered, or that the record is from one. Then a failed
	// health check does not mean that the runtime has no agent.
	expected atomic.Bool
	// without is the number of the last connection whose answers have no incarnation. The loader
	// does not query the incarnation again over that connection.
	without atomic.Int64
}

// lifeIn returns the incarnation in the header of an answer; empty if there is none.
func lifeIn(header metadata.MD) string {
	if all := header.Get(IncarnationHeader); len(all) > 0 {
		return all[0]
	}
	return ""
}

// reportedLife returns the incarnation that an agent reports for its engine. It returns "" for a
// runtime without an agent, and fails if the engine of an agent does not answer.
func (r *modelRuntime) reportedLife(ctx context.Context) (string, error) {
	if n := r.reports.without.Load(); n > 0 && n == r.dialled.Load() {
		return "", nil
	}
	limited, cancel := context.WithTimeout(ctx, lifeTimeout)
	defer cancel()
	var header metadata.MD
	client := healthv1.NewHealthClient(r.conn)
	is, err := client.Check(limited, &healthv1.HealthCheckRequest{}, grpc.Header(&header), grpc.WaitForReady(true))
	life := lifeIn(header)
	switch code := status.Code(err); {
	case life != "":
		r.reports.expected.Store(true)
		if err != nil {
			return "", fault(Unclear, "health: "+formatStatus(err))
		}
		if is.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			return "", fault(Unreached, "no engine listens behind the agent")
		}
		return life, nil
	case err == nil, code == codes.Unimplemented: // an agent sets the header in each of these answers
		r.reports.expected.Store(false)
		r.reports.without.Store(r.dialled.Load())
	case r.reports.expected.Load():
		return "", fault(Unclear, "the agent does not report the incarnation of its engine: "+formatStatus(err))
	case ctx.Err() != nil:
		return "", fault(Unclear, "health: "+formatStatus(err))
	case code != codes.Unavailable && code != codes.DeadlineExceeded && code != codes.Canceled:
		r.reports.without.Store(r.dialled.Load())
	}
	return "", nil
}
