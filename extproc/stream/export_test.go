package stream

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/decode"
	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// Exchange is an exchange that receives its messages from a test.
type Exchange struct{ *exchange }

// Exchange returns a new exchange for a data plane that called this authority and port.
func (s *Server) Exchange(front Front, authority string, port int32) Exchange {
	return Exchange{s.newExchange(scope{server: s, front: front, called: func() (string, int32) { return authority, port }})}
}

// ExchangeAt returns a new exchange for a request from Headgate's own Envoy. The request's route
// may name a listener, a pool and a path rewrite; each may be empty.
func (s *Server) ExchangeAt(listener string, pool objects.Name, rewrite *wire.Rewrite) Exchange {
	return Exchange{s.newExchange(scope{server: s, front: Own, listener: listener, pool: pool, rewrite: rewrite})}
}

// Receive calls receive.
func (x Exchange) Receive(m *extprocv3.ProcessingRequest, now time.Time) ([]*extprocv3.ProcessingResponse, error) {
	return x.receive(m, now)
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

// Override calls override.
func (x Exchange) Override() *extprocv3.ProcessingResponse { return x.dispatcher.override() }

// Resume decides a waiting request when it is the first in its queue.
func (x Exchange) Resume(now time.Time) []*extprocv3.ProcessingResponse {
	return x.dispatcher.again(true, now)
}

// Expire refuses a waiting request because its model was not loaded in time.
func (x Exchange) Expire() []*extprocv3.ProcessingResponse { return x.dispatcher.refuse(errExpired) }

// Refuse ends the wait of a request with an error.
func (x Exchange) Refuse(err error) []*extprocv3.ProcessingResponse { return x.dispatcher.refuse(err) }

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
