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

// Exchange is an exchange to which tests give messages.
type Exchange struct{ *exchange }

// Exchange returns a new exchange for a data plane that called an authority and a port.
func (s *Server) Exchange(front Front, authority string, port int32) Exchange {
	return Exchange{s.newExchange(scope{server: s, front: front, called: func() (string, int32) { return authority, port }})}
}

// ExchangeAt returns a new exchange for Headgate's own Envoy, at a listener or for a pool, with a
// route that may rewrite the path. Each may be empty.
func (s *Server) ExchangeAt(listener string, pool objects.Name, rewrite *wire.Rewrite) Exchange {
	return Exchange{s.newExchange(scope{server: s, front: Own, listener: listener, pool: pool, rewrite: rewrite})}
}

// Receive calls receive.
func (x Exchange) Receive(m *extprocv3.ProcessingRequest, now time.Time) ([]*extprocv3.ProcessingResponse, error) {
	return x.receive(m, now)
}

// End calls end.
func (x Exchange) End(now time.Time) { x.end(now) }

// ReleaseLease does what the request's access-log record would do.
func (x Exchange) ReleaseLease() { x.server.Fleet.Release(x.dispatcher.id) }

// Waits returns what the request waits for, with how many bytes and how long at most; empty if it
// does not wait.
func (x Exchange) Waits() string {
	w := x.dispatcher.waits
	if w == nil {
		return ""
	}
	return fmt.Sprintf("%s, %d bytes, at most %v", w.key, w.bytes, w.most)
}

// Kept returns how many bytes the exchange has allocated for the body.
func (x Exchange) Kept() int { return cap(x.chunks) }

// Override calls override.
func (x Exchange) Override() *extprocv3.ProcessingResponse { return x.dispatcher.override() }

// Resume decides a waiting request in its turn.
func (x Exchange) Resume(now time.Time) []*extprocv3.ProcessingResponse {
	return x.dispatcher.again(true, now)
}

// Expire ends the wait of a request because its time is over.
func (x Exchange) Expire() []*extprocv3.ProcessingResponse { return x.dispatcher.refuse(errExpired) }

// Refuse ends the wait of a request with an error.
func (x Exchange) Refuse(err error) []*extprocv3.ProcessingResponse { return x.dispatcher.refuse(err) }

// ReadPrompts makes the server read prompts whatever the policy.
func (s *Server) ReadPrompts() { s.predicts = func(pick.Policy) bool { return true } }

// Asked returns the pick.Request that the decision for a prompt would get.
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

// MaxBody and MaxChunk are limits that tests reach.
const (
	MaxBody  = maxBody
	MaxChunk = maxChunk
)

// TakenAt sets the socket at which the Envoy of a new exchange takes requests from the relay.
func (x Exchange) TakenAt(socket string) Exchange {
	x.scope.back = socket
	return x
}

// FromRelay reports whether the relay sent the request.
func (x Exchange) FromRelay() bool { return x.scope.relayed != nil }

// Reads adds to the bytes that all bodies count, and returns the total.
func (s *Server) Reads(bytes int64) int64 { return s.kept.Add(bytes) }

// MaxKept is the limit of that total.
const MaxKept = maxKept

// Open returns how many exchanges can be ended from outside.
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

// TakeDecoders takes all decoders, which must be free. The result gives them back.
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

// BreakDecoders makes each decoder panic on use, and returns their number.
func (s *Server) BreakDecoders() int {
	for range cap(s.decoders) {
		<-s.decoders
		s.decoders <- nil
	}
	return cap(s.decoders)
}
