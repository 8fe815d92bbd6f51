// Package payload sends copies of requests and their answers to sinks, like ModelMesh's payload
// processors. Envoy sends requests and answers on streams of a second ext_proc filter and does not
// wait for replies (observability mode). Each sink has a queue. Payloads for which the queue has no
// room are dropped and counted. So payloads neither delay a request nor make it fail.
//
// Package sink decides which payloads a sink gets and builds them. This package adds streams,
// queues and HTTP.
package payload

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/payload/sink"
)

const (
	// maxKept is the maximum size of all payloads in memory, incomplete and queued.
	maxKept = 64 << 20
	// lastly is how long Run may still send queued payloads after its context has ended.
	lastly = 2 * time.Second
)

// Config configures a Server.
type Config struct {
	Sinks []sink.Sink
	// Queue is the number of payloads that may wait for a sink.
	Queue int
	// TLS is the client configuration for https sinks. Token returns the bearer token for sinks; if
	// it is nil, sinks get no token.
	TLS   *tls.Config
	Token func() string
	Meter *metrics.Meter
	Log   *slog.Logger
}

// Server receives copies from Envoys and sends them to sinks. Create it with [New]; it sends
// nothing before Run.
type Server struct {
	outlets []*outlet
	log     *slog.Logger
	kept    atomic.Int64 // number of payload bytes in memory
	turn    atomic.Uint64
	started string // distinguishes the payload ids of this process from those of others

	mu      sync.Mutex // after closed is set, no stream begins
	streams sync.WaitGroup
	once    sync.Once
	closed  chan struct{}
}

// New returns a Server that is not running yet.
func New(c Config) *Server {
	s := &Server{log: c.Log, closed: make(chan struct{}), started: strconv.FormatUint(rand.Uint64(), 36)}
	client := newClient(c.TLS)
	for _, k := range c.Sinks {
		s.outlets = append(s.outlets, newOutlet(k, c, client))
	}
	return s
}

// Run sends payloads until ctx ends, and then sends queued payloads for a short time. Call it once.
func (s *Server) Run(ctx context.Context) error {
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var all sync.WaitGroup
	for _, o := range s.outlets {
		for _, q := range o.queues {
			all.Go(func() { o.work(sending, q) })
		}
	}
	<-ctx.Done()
	s.Close()
	s.streams.Wait()
	for _, o := range s.outlets {
		o.close()
	}
	defer time.AfterFunc(lastly, stop).Stop()
	all.Wait()
	return nil
}

// Close ends all streams, which could otherwise last as long as the answers that they copy. It may
// be called more than once.
func (s *Server) Close() {
	s.once.Do(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		close(s.closed)
	})
}

// open counts a stream that begins. It returns false after Close.
func (s *Server) open() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
		return false
	default:
		s.streams.Add(1)
		return true
	}
}

// Beside returns a service that handles the streams with copies of requests, and passes all other
// streams to other.
func (s *Server) Beside(other extprocv3.ExternalProcessorServer) extprocv3.ExternalProcessorServer {
	return &processor{ExternalProcessorServer: other, server: s}
}

type processor struct {
	extprocv3.ExternalProcessorServer
	server *Server
}

// Process implements ExternalProcessorServer.
func (p *processor) Process(messages extprocv3.ExternalProcessor_ProcessServer) error {
	if len(metadata.ValueFromIncomingContext(messages.Context(), wire.PayloadsMetadata)) == 0 {
		return p.ExternalProcessorServer.Process(messages)
	}
	s := p.server
	if len(s.outlets) == 0 {
		return nil // Envoy then sends no more of this request to the Server
	}
	if !s.open() {
		return status.Error(codes.Unavailable, "extproc is stopping")
	}
	ended := make(chan struct{})
	go func() { // the goroutine ends with the stream, at the latest when Process returns
		defer s.streams.Done()
		defer close(ended)
		defer func() { // a panic loses only the copies of this request
			if fault := recover(); fault != nil {
				s.log.Error("panic while copying a request", "fault", fault, "stack", string(debug.Stack()))
			}
		}()
		s.copies(messages)
	}()
	select {
	case <-ended:
		return nil
	case <-s.closed:
		return status.Error(codes.Unavailable, "extproc is stopping")
	}
}

// watched is a request that is being copied.
type watched struct {
	server   *Server
	exchange *sink.Exchange
	turn     uint64
	wanting  []*outlet
	kept     int64 // the request's bytes that server.kept includes
}

// copies reads the copy of a request and its answer until both have ended. It never waits for a
// sink, because Envoy would then delay the client.
func (s *Server) copies(messages extprocv3.ExternalProcessor_ProcessServer) {
	first, err := messages.Recv()
	if err != nil || first.GetRequestHeaders() == nil {
		return // extproc or Envoy itself answers the request
	}
	w := s.begin(first)
	if w == nil {
		return
	}
	defer w.end()
	for !w.exchange.Over() {
		in, err := messages.Recv()
		if err != nil {
			return
		}
		w.receive(in)
	}
}

// begin starts a copy with the headers of a request. It returns nil if no sink wants the request,
// or if extproc made no decision for it.
func (s *Server) begin(in *extprocv3.ProcessingRequest) *watched {
	pick := in.GetMetadataContext().GetFilterMetadata()[wire.PickNamespace].GetFields()
	if pick[wire.PickPool].GetStringValue() == "" || pick[wire.PickRelay].GetBoolValue() {
		return nil // the request is for control, or the client's original request was copied already
	}
	headers := headersOf(in.GetRequestHeaders().GetHeaders())
	about := sink.About{Model: pick[wire.PickModel].GetStringValue(), VModel: pick[wire.PickVModel].GetStringValue()}
	w := &watched{server: s, turn: s.turn.Add(1)}
	method := ""
	for _, h := range headers {
		if h.Name == ":path" {
			method = sink.MethodOf(h.Value)
		}
	}
	for _, o := range s.outlets {
		if o.sink.Wants(method, about.Model, about.VModel) {
			w.wanting = append(w.wanting, o)
		}
	}
	if len(w.wanting) == 0 {
		return nil
	}
	about.ID = cmp.Or(pick[wire.PickID].GetStringValue(), s.started+"-"+strconv.FormatUint(w.turn, 36))
	var all []sink.Payload
	w.exchange, all = sink.Begin(about, headers, in.GetRequestHeaders().GetEndOfStream())
	w.send(all)
	return w
}

func (w *watched) receive(in *extprocv3.ProcessingRequest) {
	var all []sink.Payload
	switch is := in.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestBody:
		all = w.add(w.exchange.Request, is.RequestBody)
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		all = w.exchange.Response(headersOf(is.ResponseHeaders.GetHeaders()), is.ResponseHeaders.GetEndOfStream())
	case *extprocv3.ProcessingRequest_ResponseBody:
		all = w.add(w.exchange.Body, is.ResponseBody)
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		all = w.exchange.Trailers(headersOf(is.ResponseTrailers.GetTrailers()))
	}
	w.count()
	w.send(all)
}

// add calls to, a method of the exchange, with a chunk and with whether there is memory to keep the
// chunk.
func (w *watched) add(to func(chunk []byte, end, keep bool) []sink.Payload, body *extprocv3.HttpBody) []sink.Payload {
	chunk := body.GetBody()
	room := w.server.take(len(chunk))
	if room {
		w.kept += int64(len(chunk)) // the method count later corrects this
	}
	return to(chunk, body.GetEndOfStream(), room)
}

// count sets the request's part of server.kept to the size of its incomplete payloads.
func (w *watched) count() {
	kept := int64(w.exchange.Kept())
	w.server.kept.Add(kept - w.kept)
	w.kept = kept
}

func (w *watched) end() {
	all := w.exchange.End()
	w.count()
	w.send(all)
}

// send queues payloads for the sinks that want them.
func (w *watched) send(all []sink.Payload) {
	for i := range all {
		p := &all[i]
		switch {
		case p.Lost != "":
		case w.server.take(len(p.Data)):
			shared := &parcel{Payload: p, server: w.server}
			shared.references.Store(int32(len(w.wanting)))
			for _, o := range w.wanting {
				o.put(shared, w.turn)
			}
			continue
		default:
			p.Lost = sink.NoMemory
		}
		for _, o := range w.wanting {
			o.drop(string(p.Lost), nil)
		}
	}
}

// take adds n bytes to kept. If that exceeds the limit, it adds nothing and returns false.
func (s *Server) take(n int) bool {
	if s.kept.Add(int64(n)) <= maxKept {
		return true
	}
	s.give(n)
	return false
}

func (s *Server) give(n int) { s.kept.Add(-int64(n)) }

// parcel is a payload that is queued for one or more sinks.
type parcel struct {
	*sink.Payload
	server     *Server
	references atomic.Int32
}

// release is called once per sink. The last call releases the memory of the payload.
func (p *parcel) release() {
	if p.references.Add(-1) == 0 {
		p.server.give(len(p.Data))
	}
}

func headersOf(m *corev3.HeaderMap) []sink.Header {
	all := make([]sink.Header, 0, len(m.GetHeaders()))
	for _, h := range m.GetHeaders() {
		all = append(all, sink.Header{Name: h.GetKey(), Value: cmp.Or(string(h.GetRawValue()), h.GetValue())})
	}
	return all
}
