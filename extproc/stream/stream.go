// Package stream speaks Envoy's ext_proc protocol: one gRPC stream for each HTTP request, which a data plane opens with
// the request's headers and goes on with as its processing mode says. An exchange is the state machine of one request;
// this file is its edge.
package stream

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/headgate/headgate/extproc/decode"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
)

const (
	// maxBody bounds a request's body: envoy.yaml's request_body_buffer_limit, and what extproc keeps of a body that comes
	// in chunks, for which Envoy has no limit.
	maxBody = 32 << 20
	// MaxMessage is the largest gRPC message that a data plane may send: a body and what stands around it.
	MaxMessage = maxBody + 1<<20
)

// Config is what a Server needs.
type Config struct {
	Fleet *fleet.Fleet
	// Flow keeps requests whose model control may load; nil means that there is no control.
	Flow  *flow.Flow
	Meter *metrics.Meter
	Log   *slog.Logger
	// Settings are those of pools without settings of their own; zero means the defaults.
	Settings settings.Settings
	// Tokens has those of engines, for pools whose requests carry them; nil means that there are none.
	Tokens *engineclient.Tokens
	// Default is the pool of what no route admits, zero if there is none. Listeners of Gateways have none.
	Default objects.Name
	// Observe is told what became of requests of which the data plane shows the answers; nil means nobody.
	Observe func(outcome.Outcome)
	// Inner is the inner server's socket, and Errands what is sealed for it; empty and nil where there is none.
	Relay       string
	RelayTokens *relaytoken.Sealer
	// Manages says that the inner server sends calls of ModelMesh's API on to control.
	Manages bool
	// ModeOverride says that data planes let extproc ask for the body of a request after its headers.
	ModeOverride bool
	// ExplainPicks tells the data plane why each endpoint was picked, with each decision.
	ExplainPicks bool
	// Conformance obeys the headers of the endpoint-picker protocol's conformance suite.
	Conformance bool
	// Dial reports whether an endpoint that was removed from the objects accepts connections; nil makes a TCP connection.
	Dial func(ctx context.Context, address string) error
	// Random returns uniformly random numbers and is safe for concurrent use; nil means good ones.
	Random func() uint64
}

// Server decides for the data planes that call it. Make one with [New].
type Server struct {
	Config
	started string // tells the ids of this process from those of others
	turn    atomic.Uint64
	open    open
	left    left
	kept    atomic.Int64 // bytes buffered of incomplete messages, decoded bodies, and requests that wait for control's answer
	// decoders are those that are free: as many bodies are decoded at once as there are of them.
	decoders chan *decode.Decoder
	// predicts says whether a policy asks what a request asks of an engine.
	predicts func(pick.Policy) bool

	stopping context.Context // ended by Stop
	stop     context.CancelFunc
	refusing chan struct{} // closed by Refuse
	refuse   func()
}

// New returns a Server.
func New(c Config) *Server {
	if c.Settings == (settings.Settings{}) {
		c.Settings = settings.Default()
	}
	if c.Observe == nil {
		c.Observe = func(outcome.Outcome) {}
	}
	if c.Dial == nil {
		c.Dial = dial
	}
	if c.Random == nil {
		c.Random = rand.Uint64
	}
	s := &Server{Config: c, started: strconv.FormatUint(rand.Uint64(), 36), open: open{all: make(map[string]*exchange)}, refusing: make(chan struct{}), predicts: pick.Policy.Predicts}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.refuse = sync.OnceFunc(func() { close(s.refusing) })
	s.decoders = newDecoders()
	return s
}

// Stop lets each exchange with Headgate's own Envoy end as soon as its request is decided: what flows then needs it no more. It may
// be called more than once. It needs [Endable].
func (s *Server) Stop() { s.stop() }

// Refuse refuses the requests that wait for their model, and those that would. It may be called more than once.
func (s *Server) Refuse() { s.refuse() }

// Endable is the tap handle of a gRPC server that Stop is to end: nothing else ends a stream whose handler waits for a message.
func Endable(ctx context.Context, _ *tap.Info) (context.Context, error) {
	ctx, end := context.WithCancel(ctx) // ended with the stream at the latest
	return context.WithValue(ctx, endKey{}, end), nil
}

// endKey is where Endable puts what ends a stream.
type endKey struct{}

// Front is whose data plane asks, which decides what may pass and who tells of outcomes.
type Front uint8

const (
	// Own is the project's own envoy.yaml: only inference passes, and the access log tells of outcomes.
	Own Front = iota
	// Gateway is any other that speaks the endpoint-picker protocol: its HTTPRoutes decide what passes, and what it shows of
	// answers tells of outcomes.
	Gateway
)

// For returns the service for the data planes of a front.
func (s *Server) For(front Front) extprocv3.ExternalProcessorServer {
	return &processor{server: s, front: front}
}

// processor serves envoy.service.ext_proc.v3.ExternalProcessor.
type processor struct {
	extprocv3.UnimplementedExternalProcessorServer
	server *Server
	front  Front
}

type extprocStream = extprocv3.ExternalProcessor_ProcessServer

// Process serves one HTTP request. It is called in a goroutine of its own by grpc.
func (p *processor) Process(messages extprocv3.ExternalProcessor_ProcessServer) (err error) {
	x := p.server.newExchange(p.server.scopeOf(p.front, messages))
	x.out.messages = messages
	defer func() {
		x.stopLate()
		if x.open {
			p.server.open.remove(x)
			x.out.end(nil)
		}
		if !x.leftAlone() {
			x.end(time.Now())
		}
	}()
	defer func() {
		// A fault in one request costs that request only: Envoy goes on without a destination and answers 503.
		if fault := recover(); fault != nil {
			p.server.Log.Error("panic in a request", "fault", fault, "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "panic")
		}
	}()
	for {
		in, err := messages.Recv()
		if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
			return nil // the request is over, or no more of it will be shown
		}
		if err != nil {
			return err
		}
		out, err := x.receive(in, time.Now())
		if err != nil {
			p.server.Log.Error("cannot serve a data plane whose ext_proc is configured like this", "err", err)
			return status.Error(codes.FailedPrecondition, err.Error())
		}
		for x.dispatcher.waits != nil && err == nil {
			out, err = x.wait(messages.Context(), messages.Send)
		}
		if err != nil {
			return nil // the request is over
		}
		if err := x.out.send(out); err != nil {
			return err
		}
		if p.front == Own && x.dispatcher.inFlight != nil && !x.open {
			x.open = true
			p.server.open.add(x)
		}
		x.letGo()
		if end, ok := messages.Context().Value(endKey{}).(context.CancelFunc); ok && x.endable() && !x.watched {
			x.watched = true
			unwatch := context.AfterFunc(p.server.stopping, end)
			defer unwatch()
		}
	}
}

// called returns what the data plane was given to call: the authority, and the port that it reached.
func called(messages extprocStream) (authority string, port int32) {
	if md, ok := metadata.FromIncomingContext(messages.Context()); ok {
		if a := md.Get(":authority"); len(a) > 0 {
			authority = a[0]
		}
	}
	if p, ok := peer.FromContext(messages.Context()); ok {
		if tcp, ok := p.LocalAddr.(*net.TCPAddr); ok {
			port = int32(tcp.Port)
		}
	}
	return authority, port
}
