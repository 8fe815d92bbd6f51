package stream

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/decode"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// Exchange is the state machine of one request, for tests that give it messages.
type Exchange struct{ *exchange }

// Exchange returns a fresh exchange for a data plane that was given an authority and a port to call.
func (s *Server) Exchange(front Front, authority string, port int32) Exchange {
	return Exchange{s.newExchange(scope{server: s, front: front, called: func() (string, int32) { return authority, port }})}
}

// ExchangeAt returns a fresh exchange for our own Envoy, at a listener of a Gateway or for a pool, by a route that may rewrite the path;
// what is empty is not said.
func (s *Server) ExchangeAt(listener string, pool objects.Name, rewrite *wire.Rewrite) Exchange {
	return Exchange{s.newExchange(scope{server: s, front: Own, listener: listener, pool: pool, rewrite: rewrite})}
}

// Receive is receive.
func (x Exchange) Receive(m *extprocv3.ProcessingRequest, now time.Time) ([]*extprocv3.ProcessingResponse, error) {
	return x.receive(m, now)
}

// End is end.
func (x Exchange) End(now time.Time) { x.end(now) }

// ReleaseLease is what the access log's record of the request would do.
func (x Exchange) ReleaseLease() { x.server.Fleet.Release(x.dispatcher.id) }

// Waits says what the request waits for and with how many bytes, and for how long it may; empty if it does not wait.
func (x Exchange) Waits() string {
	w := x.dispatcher.waits
	if w == nil {
		return ""
	}
	return fmt.Sprintf("%s, %d bytes, at most %v", w.key, w.bytes, w.most)
}

// Kept is for how many bytes of the request's body the exchange has memory.
func (x Exchange) Kept() int { return cap(x.chunks) }

// Override is override.
func (x Exchange) Override() *extprocv3.ProcessingResponse { return x.dispatcher.override() }

// Resume is again, in the turn of a request that waits.
func (x Exchange) Resume(now time.Time) []*extprocv3.ProcessingResponse {
	return x.dispatcher.again(true, now)
}

// Expire ends the wait of a request for its time is over.
func (x Exchange) Expire() []*extprocv3.ProcessingResponse { return x.dispatcher.refuse(errExpired) }

// Refuse ends the wait of a request with an error.
func (x Exchange) Refuse(err error) []*extprocv3.ProcessingResponse { return x.dispatcher.refuse(err) }

// ReadPrompts has prompts read whatever the policy.
func (s *Server) ReadPrompts() { s.predicts = func(pick.Policy) bool { return true } }

// Asked is what a decision would be told of a prompt, of a request that was decided.
func (x Exchange) Asked(body []byte) (request pick.Request) {
	r, _ := openai.Parse(openai.JSON, "", body)
	request = pick.Request{Pool: x.dispatcher.target.Pool.String(), Model: cmp.Or(x.dispatcher.target.Adapter, r.Model), Open: x.dispatcher.target.Open}
	x.dispatcher.demand(&r, body, "", time.Now(), &request)
	request.Demand.Cached = slices.Clone(request.Demand.Cached)
	x.dispatcher.dropPrompt()
	return request
}

// HasPrompt says whether the exchange keeps anything of a prompt.
func (x Exchange) HasPrompt() bool { return x.dispatcher.prompt != nil }

// MaxBody and MaxChunk are bounds that tests go to.
const (
	MaxBody  = maxBody
	MaxChunk = maxChunk
)

// TakenAt has the Envoy of a fresh exchange take requests from the inner server at a socket.
func (x Exchange) TakenAt(socket string) Exchange {
	x.scope.back = socket
	return x
}

// FromRelay says whether the inner server sends the request.
func (x Exchange) FromRelay() bool { return x.scope.relayed != nil }

// Reads adds to the bytes of bodies that count as kept by others, and returns how many do.
func (s *Server) Reads(bytes int64) int64 { return s.kept.Add(bytes) }

// MaxKept is how many may be.
const MaxKept = maxKept

// Open is how many exchanges can be ended from outside.
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

// Silent reports whether the progress of a request shows that its engine has gone.
func (s *Server) Silent(p outcome.Progress, vacant bool) bool { return s.open.silent(p, vacant) != nil }

// TakeDecoders takes all decoders, which must be free, and returns what gives them back.
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

// BreakDecoders has each decoder panic when it is used, and returns how many there are.
func (s *Server) BreakDecoders() int {
	for range cap(s.decoders) {
		<-s.decoders
		s.decoders <- nil
	}
	return cap(s.decoders)
}
