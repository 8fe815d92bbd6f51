package stream

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/decode"
	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/processing"
	"github.com/headgate/headgate/internal/objects"
)

// Exchange is an exchange that receives its messages from a test. Messages pass through the codec,
// as those of a data plane do.
type Exchange struct {
	*exchange
	wire *[]byte // the last message that arrived
}

// Exchange returns a new exchange for a data plane that called this authority and port.
func (s *Server) Exchange(front Front, authority string, port int32) Exchange {
	return Exchange{s.newExchange(scope{server: s, front: front, called: func() (string, int32) { return authority, port }}), new([]byte)}
}

// ExchangeAt returns a new exchange for a request from Headgate's own Envoy. The request's route
// may name a listener, a pool and a path rewrite; each may be empty.
func (s *Server) ExchangeAt(listener string, pool objects.Name, rewrite *wire.Rewrite) Exchange {
	return Exchange{s.newExchange(scope{server: s, front: Own, listener: listener, pool: pool, rewrite: rewrite}), new([]byte)}
}

// Receive calls receive. When the message is no longer in use, its bytes are overwritten, because a
// buffer of gRPC would be used again.
func (x Exchange) Receive(m *extprocv3.ProcessingRequest, now time.Time) ([]*extprocv3.ProcessingResponse, error) {
	x.release()
	var err error
	if *x.wire, err = proto.Marshal(m); err != nil {
		return nil, err
	}
	out, err := x.ReceiveWire(*x.wire, now)
	all := generated(out)
	x.release()
	return all, err
}

// ReceiveWire calls receive with an encoded message.
func (x Exchange) ReceiveWire(message []byte, now time.Time) ([]*processing.Response, error) {
	if err := x.received.Decode(message); err != nil {
		return nil, err
	}
	return x.receive(&x.received, now)
}

// release overwrites the last message, unless the exchange waits and still needs it.
func (x Exchange) release() {
	if x.dispatcher.waits == nil {
		for i := range *x.wire {
			(*x.wire)[i] = 0xa5
		}
		x.received.Release()
	}
}

// generated converts messages to those of generated code.
func generated(all responses) (to []*extprocv3.ProcessingResponse) {
	for _, m := range all {
		encoded, err := m.Append(nil)
		if err != nil {
			panic(err)
		}
		if in := m.Encoded(); in != nil && !bytes.Equal(in, encoded) {
			panic("a message was changed after it was encoded")
		}
		is := new(extprocv3.ProcessingResponse)
		if err := proto.Unmarshal(encoded, is); err != nil {
			panic(err)
		}
		to = append(to, is)
	}
	return to
}

// End calls end.
func (x Exchange) End(now time.Time) { x.end(now) }

// ReleaseLease ends the request's lease, as its access-log record would.
func (x Exchange) ReleaseLease() { x.server.Fleet.Release(x.dispatcher.id) }

// Waits describes the wait of the request: for which model, with how many bytes, and how long at
// most. It is empty if the request does not wait.
func (x Exchange) Waits() string {
	w := x.dispatcher.waits
	if w == nil {
		return ""
	}
	return fmt.Sprintf("%s, %d bytes, at most %v", w.of.Key, w.bytes, w.most)
}

// Kept returns how many bytes the exchange has allocated for the body.
func (x Exchange) Kept() int { return cap(x.chunks) }

// Received returns the length of the body of the last message if it is still kept.
func (x Exchange) Received() int { return len(x.received.Body) }

// Override calls override.
func (x Exchange) Override() *extprocv3.ProcessingResponse {
	if m := x.dispatcher.override(); m != nil {
		return generated(responses{m})[0]
	}
	return nil
}

// Resume decides a waiting request when it is the first in its queue.
func (x Exchange) Resume(now time.Time) []*extprocv3.ProcessingResponse {
	return generated(x.dispatcher.again(true, now))
}

// Expire refuses a waiting request because its model was not loaded in time.
func (x Exchange) Expire() []*extprocv3.ProcessingResponse {
	return generated(x.dispatcher.refuse(errExpired))
}

// Refuse ends the wait of a request with an error.
func (x Exchange) Refuse(err error) []*extprocv3.ProcessingResponse {
	return generated(x.dispatcher.refuse(err))
}

// ReadPrompts makes the server read prompts with every policy.
func (s *Server) ReadPrompts() { s.predicts = func(pick.Policy) bool { return true } }

// Asked returns the pick.Request for a request with this body.
func (x Exchange) Asked(body []byte) (request pick.Request) {
	r, _ := openai.Parse(openai.JSON, "", body)
	request = pick.Request{
		Pool: x.dispatcher.target.Pool.String(), Model: cmp.Or(x.dispatcher.target.Adapter, r.Model),
		Open: x.dispatcher.target.Open,
	}
	x.dispatcher.demand(&r, body, "", time.Now(), &request)
	request.Demand.Cached = slices.Clone(request.Demand.Cached)
	x.dispatcher.dropPrompt()
	return request
}

// HasPrompt reports whether the exchange still has a prompt.
func (x Exchange) HasPrompt() bool { return x.dispatcher.prompt != nil }

// MaxBody and MaxChunk are limits that tests exceed.
const (
	MaxBody  = maxBody
	MaxChunk = maxChunk
)

// TakenAt sets the socket at which the Envoy of a new exchange accepts requests from the relay.
func (x Exchange) TakenAt(socket string) Exchange {
	x.scope.back = socket
	return x
}

// FromRelay reports whether the request came from the relay.
func (x Exchange) FromRelay() bool { return x.scope.relayed != nil }

// Reads adds to the number of buffered bytes, and returns the total.
func (s *Server) Reads(bytes int64) int64 { return s.kept.Add(bytes) }

// MaxKept is the limit for buffered bytes.
const MaxKept = maxKept

// Open returns how many exchanges would be ended if their engines vanished.
func (s *Server) Open() int {
	s.open.mu.Lock()
	defer s.open.mu.Unlock()
	return len(s.open.all)
}

// Dialing returns the number of removed endpoints that are being dialed.
func (s *Server) Dialing() int {
	s.left.mu.Lock()
	defer s.left.mu.Unlock()
	return len(s.left.dialing)
}

// Silent stores a progress record, and reports whether the engine of the request has vanished.
func (s *Server) Silent(p outcome.Progress, vacant bool) bool { return s.open.silent(p, vacant) != nil }

// TakeDecoders takes all decoders, which must be free. The function that it returns makes them free
// again.
func (s *Server) TakeDecoders() (giveBack func()) {
	var all []*decode.Decoder
	for range cap(s.decoders) {
		all = append(all, <-s.decoders)
	}
	return func() {
		for _, d := range all {
			s.decoders <- d
		}
	}
}

// BreakDecoders makes each decoder panic when it is used, and returns the number of decoders.
func (s *Server) BreakDecoders() int {
	for range cap(s.decoders) {
		<-s.decoders
		s.decoders <- nil
	}
	return cap(s.decoders)
}

// KeptBlocks returns how many blocks of its prompt a waiting request keeps.
func (x Exchange) KeptBlocks() int {
	if x.dispatcher.kept == nil {
		return 0
	}
	return len(x.dispatcher.kept.blocks)
}

// Chooser returns a function that chooses the endpoints of a request with this body.
func (x Exchange) Chooser(body []byte) func() error {
	r, _ := openai.Parse(openai.JSON, "", body)
	a := ask{model: r.Model, text: r}
	return func() error {
		defer x.dispatcher.dropPrompt()
		return x.dispatcher.choose(a, body, time.Now())
	}
}

// Path returns the path in the queue of a request that waits.
func (x Exchange) Path() queue.Path {
	if x.dispatcher.waits == nil {
		return queue.Path{}
	}
	return x.dispatcher.waits.of.Path
}
