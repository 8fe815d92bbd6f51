// Package stream serves Envoy's ext_proc protocol. A data plane opens one gRPC stream per HTTP
// request, and sends the parts of the request that its processing mode selects. An exchange handles
// one request; this file accepts the streams.
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
	// maxBody bounds a request's body. It equals request_body_buffer_limit in envoy.yaml, and also
	// holds for bodies in chunks, which Envoy does not limit.
	maxBody = 32 << 20
	// MaxMessage is the largest gRPC message that a data plane may send: a body and its envelope.
	MaxMessage = maxBody + 1<<20
)

// Config configures a Server.
type Config struct {
	Fleet *fleet.Fleet
	// Flow queues requests whose model control may load; nil means that there is no control.
	Flow  *flow.Flow
	Meter *metrics.Meter
	Log   *slog.Logger
	// Settings apply to pools without settings of their own; zero means the defaults.
	Settings settings.Settings
	// Tokens has the engines' tokens for pools whose requests carry one; nil means none.
	Tokens *engineclient.Tokens
	// Default is the pool for requests that no route admits; zero means none. Listeners of Gateways
	// do not use it.
	Default objects.Name
	// Observe is called with the outcome of each request whose response the data plane shows; nil
	// means nobody needs it.
	Observe func(outcome.Outcome)
	// Relay is the socket of the relay, and RelayTokens encrypts its tokens; empty and nil mean
	// that there is no relay.
	Relay       string
	RelayTokens *relaytoken.Sealer
	// Manages means that the relay forwards calls of ModelMesh's API to control.
	Manages bool
	// ModeOverride means that data planes let extproc request the body after the headers.
	ModeOverride bool
	// ExplainPicks adds the reasons for each pick to the metadata of the decision.
	ExplainPicks bool
	// Conformance obeys the headers of the endpoint-picker protocol's conformance suite.
	Conformance bool
	// Dial reports whether an endpoint that was removed from the objects accepts connections; nil
	// makes a TCP connection.
	Dial func(ctx context.Context, address string) error
	// Random returns uniformly random numbers and is safe for concurrent use; nil means good ones.
	Random func() uint64
}

// Server handles the requests of the data planes that call it. Make one with [New].
type Server struct {
	Config
	started string // makes request ids unique across processes
	turn    atomic.Uint64
	open    open
	left    left
	kept    atomic.Int64 // bytes of incomplete messages, decoded bodies, and requests that wait for control's answer
	// decoders has the free decoders. Their number bounds how many bodies are decoded at once.
	decoders chan *decode.Decoder
	// predicts reports whether a policy predicts latencies, and so needs the prompt.
	predicts func(pick.Policy) bool

	stopping context.Context // canceled by Stop
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
	s := &Server{
		Config: c, started: strconv.FormatUint(rand.Uint64(), 36), open: open{all: make(map[string]*exchange)},
		refusing: make(chan struct{}), predicts: pick.Policy.Predicts,
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.refuse = sync.OnceFunc(func() { close(s.refusing) })
	s.decoders = newDecoders()
	return s
}

// Stop ends each exchange with Headgate's own Envoy as soon as its request is decided; the data
// plane finishes the request without it. Stop may be called more than once. It needs [Endable].
func (s *Server) Stop() { s.stop() }

// Refuse rejects all requests that wait for their model, now and later. It may be called more than
// once.
func (s *Server) Refuse() { s.refuse() }

// Endable is the tap handle for a gRPC server that Stop should end. A stream whose handler waits
// for a message ends only if its context is canceled.
func Endable(ctx context.Context, _ *tap.Info) (context.Context, error) {
	ctx, end := context.WithCancel(ctx) // canceled with the stream at the latest
	return context.WithValue(ctx, endKey{}, end), nil
}

// endKey is the context key under which Endable stores the stream's cancel function.
type endKey struct{}

// Front is the kind of data plane that calls. It decides which requests may pass and who reports
// outcomes.
type Front uint8

const (
	// Own is Headgate's own Envoy: only inference passes, and the access log reports outcomes.
	Own Front = iota
	// Gateway is any other data plane that speaks the endpoint-picker protocol. Its HTTPRoutes
	// decide what passes, and the responses that it shows give the outcomes.
	Gateway
)

// For returns the service for data planes of a kind.
func (s *Server) For(front Front) extprocv3.ExternalProcessorServer {
	return &processor{server: s, front: front}
}

// processor implements envoy.service.ext_proc.v3.ExternalProcessor.
type processor struct {
	extprocv3.UnimplementedExternalProcessorServer
	server *Server
	front  Front
}

type extprocStream = extprocv3.ExternalProcessor_ProcessServer

// Process handles one HTTP request. gRPC calls it in a goroutine of its own.
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
		// A panic costs only its own request: Envoy continues without a destination and answers
		// 503.
		if fault := recover(); fault != nil {
			p.server.Log.Error("panic while serving a request", "fault", fault, "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "panic")
		}
	}()
	for {
		in, err := messages.Recv()
		if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
			return nil // the request is over, or the data plane shows no more of it
		}
		if err != nil {
			return err
		}
		out, err := x.receive(in, time.Now())
		if err != nil {
			p.server.Log.Error("cannot serve this data plane: its ext_proc configuration is unsupported", "err", err)
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

// called returns the authority that the data plane called, and the local port that it reached.
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
