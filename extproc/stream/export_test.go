package stream

import (
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// Exchange is the state machine of one request, for tests that give it messages.
type Exchange struct{ *exchange }

// Exchange returns a fresh exchange for a data plane that was given an authority and a port to call.
func (s *Server) Exchange(front Front, authority string, port int32) Exchange {
	return Exchange{newExchange(s, front, func() (string, int32) { return authority, port })}
}

// Receive is receive.
func (x Exchange) Receive(m *extprocv3.ProcessingRequest, now time.Time) ([]*extprocv3.ProcessingResponse, error) {
	return x.receive(m, now)
}

// End is end.
func (x Exchange) End(now time.Time) { x.end(now) }

// ReleaseLease is what the access log's record of the request would do.
func (x Exchange) ReleaseLease() { x.server.Fleet.Release(x.id) }

// MaxBody and MaxChunk are bounds that tests go to.
const (
	MaxBody  = maxBody
	MaxChunk = maxChunk
)
