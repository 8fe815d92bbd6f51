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
	"sync"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/headgate/headgate/extproc/decisions"
	"github.com/headgate/headgate/extproc/decode"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/limits"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
)

const (
	// maxBody is the maximum size of a request's body. It equals request_body_buffer_limit in
	// envoy.yaml. extproc also enforces it for bodies in chunks, which Envoy does not limit.
	maxBody = 32 << 20
	// MaxMessage is the maximum size of a gRPC message from a data plane: a body and its envelope.
	MaxMessage = maxBody + 1<<20
)

// Config configures a Server.
type Config struct {
	Fleet *fleet.Fleet
	// Flow queues requests that no endpoint can serve yet; nil means that no request waits, and
	// that there is no control.
	Flow  *flow.Flow
	Meter *metrics.Meter
	Log   *slog.Logger
	// Limits has the state of routes with limits; nil means a Book of the Server's own.
	Limits *limits.Book
	// Settings apply to pools without their own settings. The zero value means the defaults.
	Settings settings.Settings
	// Tokens contains the tokens that replace clients' Authorization headers; nil means no tokens.
	Tokens *engineclient.Tokens
	// Default is the pool for requests that no route admits; zero means no pool. It does not apply
	// to requests at listeners of Gateways.
	Default objects.Name
	// Observe is called with the outcome of each request whose response the data plane sends to
	// extproc. It may be nil.
	Observe func(outcome.Outcome)
	// Decisions records decisions; nil means a Log of the Server's own.
	Decisions *decisions.Log
	// Relay is the socket of the relay; empty means that there is no relay. RelayTokens encrypts
	// and decrypts the relay's tokens; nil without a relay.
	Relay       string
	RelayTokens *relaytoken.Sealer
	// Manages means that the relay forwards calls of ModelMesh's API to control.
	Manages bool
	// ModeOverride means that data planes obey a mode override, by which extproc requests the body
	// after the headers.
	ModeOverride bool
	// ExplainPicks adds the reasons for each pick to the metadata of a decision.
	ExplainPicks bool
	// EmitScores adds the predicted seconds to the first token at each ranked endpoint to the
	// metadata of a decision.
	EmitScores bool
	// Conformance enables the headers of the endpoint-picker protocol's conformance suite.
	Conformance bool
	// Dial checks whether an endpoint that was removed from the objects still accepts connections.
	// If Dial is nil, the Server makes a TCP connection.
	Dial func(ctx context.Context, address string) error
	// Random returns uniformly random numbers, and must be safe for concurrent use. If it is nil,
	// the Server uses math/rand/v2.
	Random func() uint64
}

// Server handles the requests of the data planes that call it. Make one with [New].
type Server struct {
	Config
	turn atomic.Uint64
	open open
	left left
	kept atomic.Int64 // bytes buffered for all requests; see maxKept
	// decoders contains the free decoders. Their number limits how many bodies are decoded at the
	// same time.
	decoders chan *decode.Decoder
	// memory is what the fleet remembers of earlier requests.
	memory memory
	// explains means that requests are decided only to explain the decision.
	explains bool
	explain  explainer
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
	if c.Decisions == nil {
		c.Decisions = decisions.New()
	}
	if c.Limits == nil {
		c.Limits = limits.New()
	}
	s := &Server{
		Config: c, memory: c.Fleet, open: open{all: make(map[string]*exchange)},
		refusing: make(chan struct{}), predicts: pick.Policy.Predicts,
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.refuse = sync.OnceFunc(func() { close(s.refusing) })
	s.decoders = newDecoders()
	return s
}

// placing reports whether there is a control, which loads models.
func (s *Server) placing() bool { return s.Flow != nil && !s.Flow.Alone }

// Stop ends each exchange with Headgate's own Envoy as soon as its request is decided. The data
// plane then finishes the request without extproc. Stop may be called more than once. The gRPC
// server must use [Endable].
func (s *Server) Stop() { s.stop() }

// Refuse rejects all requests that wait for their model, and those that would wait later. Requests
// that wait for room at an engine are sent at once. It may be called more than once.
func (s *Server) Refuse() { s.refuse() }

// refuses reports whether Refuse was called.
func (s *Server) refuses() bool {
	select {
	case <-s.refusing:
		return true
	default:
		return false
	}
}

// Endable is the tap handle of a gRPC server whose streams Stop can end. A stream that waits for a
// message ends only if its context is canceled, so Endable makes the context cancelable.
func Endable(ctx context.Context, _ *tap.Info) (context.Context, error) {
	ctx, end := context.WithCancel(ctx) // canceled when the stream ends, if not before
	return context.WithValue(ctx, endKey{}, end), nil
}

// endKey is the context key under which Endable stores the stream's cancel function.
type endKey struct{}

// Front is the kind of data plane that calls extproc. It determines which requests are allowed, and
// where outcomes are reported.
type Front uint8

const (
	// Own is Headgate's own Envoy: only inference is allowed, and the access log reports outcomes.
	Own Front = iota
	// Gateway is any other data plane that speaks the endpoint-picker protocol. Its HTTPRoutes
	// decide what is allowed. Outcomes come from the responses that it sends to extproc.
	Gateway
)

// For returns the ext_proc service for data planes of one kind.
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

// begin returns an exchange for a stream. It is apart from Process, whose stack lasts as long as a
// request waits.
func (p *processor) begin(messages extprocStream) *exchange {
	x := p.server.newExchange(p.server.scopeOf(p.front, messages))
	x.out.messages = messages
	return x
}

// Process handles one HTTP request. gRPC calls it in a separate goroutine for each stream.
func (p *processor) Process(messages extprocv3.ExternalProcessor_ProcessServer) (err error) {
	growStack()
	x := p.begin(messages)
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
		// A panic fails only its own request: Envoy continues without a destination and answers
		// 503.
		if fault := recover(); fault != nil {
			p.server.Log.Error("panic while serving a request", "fault", fault, "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "panic")
		}
	}()
	defer x.received.Release()
	for {
		x.received.Release() // nothing of the last message is in use
		err := messages.RecvMsg(&x.received)
		if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
			return nil // the request is over, or the data plane sends no more of it to extproc
		}
		if err != nil {
			return err
		}
		out, err := x.receive(&x.received, time.Now())
		if err != nil {
			p.server.Log.Error("cannot serve this data plane: its ext_proc configuration is unsupported", "err", err)
			return status.Error(codes.FailedPrecondition, err.Error())
		}
		for x.dispatcher.waits != nil && err == nil {
			out, err = x.wait(messages.Context(), x.out.sendNow)
		}
		if err != nil {
			return nil // an error means that the request is over
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
