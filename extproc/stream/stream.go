// Package stream speaks Envoy's ext_proc protocol: one gRPC stream for each HTTP request, which Envoy opens with the
// request's headers and, in the BUFFERED mode that envoy.yaml sets, follows with the whole body. The stream stays open
// until the HTTP request ends, so that its end is the end of the request in flight, whatever ended it.
package stream

import (
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync/atomic"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/meter"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/route"
)

const (
	// maxBody bounds a request's body: envoy.yaml's request_body_buffer_limit.
	maxBody = 32 << 20
	// MaxMessage is the largest gRPC message that Envoy may send: a body and what stands around it.
	MaxMessage = maxBody + 1<<20
)

// Server serves envoy.service.ext_proc.v3.ExternalProcessor. Make one with [New].
type Server struct {
	extprocv3.UnimplementedExternalProcessorServer

	fleet  *fleet.Fleet
	policy pick.Policy
	picks  int // at most so many endpoints for a request, in order
	meter  *meter.Meter
	log    *slog.Logger
	turn   atomic.Uint64
}

// New returns a Server that decides by policy over what f believes, and names up to picks endpoints for each request, for
// an Envoy that tries the next where one does not serve.
func New(f *fleet.Fleet, policy pick.Policy, picks int, m *meter.Meter, log *slog.Logger) *Server {
	return &Server{fleet: f, policy: policy, picks: picks, meter: m, log: log}
}

// Process serves one HTTP request. It is called in a goroutine of its own by grpc.
func (s *Server) Process(messages extprocv3.ExternalProcessor_ProcessServer) (err error) {
	x := &exchange{server: s}
	defer x.end()
	defer func() {
		// A fault in one request costs that request only: Envoy goes on without a destination and answers 503.
		if fault := recover(); fault != nil {
			s.log.Error("panic in a request", "fault", fault, "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "panic")
		}
	}()
	for {
		in, err := messages.Recv()
		if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
			return nil // the request is over
		}
		if err != nil {
			return err
		}
		out, err := x.answer(in)
		if err != nil {
			s.log.Error("Envoy is configured in a way that extproc does not serve", "err", err)
			return status.Error(codes.FailedPrecondition, err.Error())
		}
		if err := messages.Send(out); err != nil {
			return err
		}
	}
}

// decide finds the endpoints for a model, best first: one load of the fleet's view, then pure functions of it.
func (s *Server) decide(model string) (route.Target, []pick.Decision, error) {
	view := s.fleet.View()
	target, err := route.Find(view.World, model, rand.Uint64())
	if err != nil {
		return route.Target{}, nil, err
	}
	request := pick.Request{
		Pool: target.Pool.String(), Model: target.Adapter,
		Turn: s.turn.Add(1), Random: rand.Uint64(),
	}
	if target.Adapter == "" {
		request.Model, request.Base = model, true
	}
	picks, err := pick.Pick(s.policy, view.Snapshot, request, make([]pick.Decision, s.picks))
	return target, picks, err
}
