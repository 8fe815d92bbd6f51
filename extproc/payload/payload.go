// Package payload sends copies of requests and their answers to sinks, as ModelMesh's payload
// processors do. An Envoy shows it both by a second ext_proc filter, which waits for nothing
// (observability mode); what is to be sent waits in a queue of its sink, and what has no room is
// dropped and counted. No request waits for it, and none fails by it.
//
// Package sink says what goes where; this one is its edge: streams, queues and HTTP.
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
	// maxKept bounds the bytes of all payloads, those that are not whole yet and those that wait.
	maxKept = 64 << 20
	// lastly is how long what waits at the end has to be sent.
	lastly = 2 * time.Second
)

// Config is what a Server needs.
type Config struct {
	Sinks []sink.Sink
	// Queue is how many payloads wait for a sink.
	Queue int
	// TLS is how sinks with https are called, and Token what they are shown, nil for none.
	TLS   *tls.Config
	Token func() string
	Meter *metrics.Meter
	Log   *slog.Logger
}

// Server takes what Envoys show, and sends it. Make one with [New]; nothing is sent before Run.
type Server struct {
	outlets []*outlet
	log     *slog.Logger
	kept    atomic.Int64 // bytes
	turn    atomic.Uint64
	started string // tells the ids of this process from those of others

	mu      sync.Mutex // guards that no stream begins after closed
	streams sync.WaitGroup
	once    sync.Once
	closed  chan struct{}
}

// New returns a Server.
func New(c Config) *Server {
	s := &Server{log: c.Log, closed: make(chan struct{}), started: strconv.FormatUint(rand.Uint64(), 36)}
	client := newClient(c.TLS)
	for _, k := range c.Sinks {
		s.outlets = append(s.outlets, newOutlet(k, c, client))
	}
	return s
}

// Run sends until ctx ends, and then for a short while what waits. It is called once.
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

// Close ends all streams, for what an Envoy shows may go on for as long as an answer does. It may
// be called more than once.
func (s *Server) Close() {
	s.once.Do(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		close(s.closed)
	})
}

// open says whether a stream may begin, and counts it.
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

// Beside returns a service that takes the streams that show copies, and leaves all others to
// another one.
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
		return nil // Envoy shows no more of this request
	}
	if !s.open() {
		return status.Error(codes.Unavailable, "extproc is stopping")
	}
	ended := make(chan struct{})
	go func() { // ends with the stream, at the latest when this returns
		defer s.streams.Done()
		defer close(ended)
		defer func() { // a fault in one request costs its copies only
			if fault := recover(); fault != nil {
				s.log.Error("panic in the copies of a request", "fault", fault, "stack", string(debug.Stack()))
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

// watched is a request, as its copies are made.
type watched struct {
	server   *Server
	exchange *sink.Exchange
	turn     uint64
	wanting  []*outlet
	kept     int64 // bytes, counted in the server's
}

// copies reads what an Envoy shows of a request and its answer until both have ended. It never
// waits for anything else: where it did, Envoy would have the client wait.
func (s *Server) copies(messages extprocv3.ExternalProcessor_ProcessServer) {
	first, err := messages.Recv()
	if err != nil || first.GetRequestHeaders() == nil {
		return // an answer that extproc gave, or Envoy
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

// begin begins with the headers of a request; nil where no sink wants it, or nothing was decided of
// it.
func (s *Server) begin(in *extprocv3.ProcessingRequest) *watched {
	pick := in.GetMetadataContext().GetFilterMetadata()[wire.PickNamespace].GetFields()
	if pick[wire.PickPool].GetStringValue() == "" || pick[wire.PickRelay].GetBoolValue() {
		return nil // it is for control, or was copied when its client sent it
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

// add adds a chunk where there is room for it.
func (w *watched) add(to func(chunk []byte, end, keep bool) []sink.Payload, body *extprocv3.HttpBody) []sink.Payload {
	chunk := body.GetBody()
	room := w.server.take(len(chunk))
	if room {
		w.kept += int64(len(chunk)) // until count has what is kept of it
	}
	return to(chunk, body.GetEndOfStream(), room)
}

// count counts what is kept of what is not whole.
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

// send puts payloads into the queues of the sinks that want them.
func (w *watched) send(all []sink.Payload) {
	for i := range all {
		p := &all[i]
		switch {
		case p.Lost != "":
		case w.server.take(len(p.Data)):
			shared := &parcel{Payload: p, server: w.server}
			shared.holders.Store(int32(len(w.wanting)))
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

// take counts bytes as kept, if there is room for them.
func (s *Server) take(n int) bool {
	if s.kept.Add(int64(n)) <= maxKept {
		return true
	}
	s.give(n)
	return false
}

func (s *Server) give(n int) { s.kept.Add(-int64(n)) }

// parcel is a payload that waits for sinks.
type parcel struct {
	*sink.Payload
	server  *Server
	holders atomic.Int32
}

// release says that one sink is done with it.
func (p *parcel) release() {
	if p.holders.Add(-1) == 0 {
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
