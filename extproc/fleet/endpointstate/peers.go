package endpointstate

import (
	"time"

	"github.com/headgate/headgate/extproc/pick"
)

// Backlog is what requests that one process, or several, sent to an endpoint still ask of it, as processes tell each other: the sums of
// [pick.Backlog] at one moment.
type Backlog struct {
	Endpoint string // "ip:port"
	Requests int64
	// Through is when their prompts are computed where the engine computes nobody else's, in nanoseconds since 1970; the time of all that have
	// passed is the same.
	Through int64
	// Beside is in picoseconds, Urgency in thousandths of 1/s, Tokens in tokens; all are 0 of requests of which nothing is predicted.
	Beside, Urgency, Tokens int64
}

// Nothing says whether there is nothing at the endpoint. Prompts of nobody are computed by nobody.
func (b Backlog) Nothing() bool {
	return b.Requests == 0 && b.Beside == 0 && b.Urgency == 0 && b.Tokens == 0
}

// Since is by how many nanoseconds longer prompts are computed than was told before, at a time: time explains the rest.
func (b Backlog) Since(through, now int64) int64 { return max(b.Through, now) - max(through, now) }

// Backlogs visits what this process has at each endpoint, in no order.
func (s *State) Backlogs(visit func(Backlog)) {
	for address, e := range s.endpoints {
		visit(backlogOf(address, e.inFlight.Load(), &e.backlog))
	}
}

// backlogOf is what so many requests still ask of an endpoint, at this moment.
func backlogOf(address string, requests int64, of *pick.Backlog) Backlog {
	return Backlog{
		Endpoint: address, Requests: requests,
		Through: of.Through.Load(), Beside: of.Beside.Load(), Urgency: of.Urgency.Load(), Tokens: of.Tokens.Load(),
	}
}

// HearPeers believes what other processes have at endpoints, as the sum of all of them, which is told at a time. It is in force at once, in
// every view. What is told of an endpoint that is not known is kept until it is.
func (s *State) SetPeers(told []Backlog, now time.Time) {
	for _, b := range told {
		if e := s.endpoints[b.Endpoint]; e != nil {
			e.hear(b, now.UnixNano())
		} else {
			s.stray(b)
		}
	}
}

// stray keeps what others have at an endpoint that is not known.
func (s *State) stray(b Backlog) {
	if s.strays[b.Endpoint] = b; b.Nothing() {
		delete(s.strays, b.Endpoint)
	}
}

// ForgetPeers believes that other processes have nothing, for nobody tells any more: what they have is found by looks.
func (s *State) ForgetPeers(now time.Time) {
	for _, e := range s.endpoints {
		e.hear(Backlog{}, now.UnixNano())
	}
	clear(s.strays)
}

// hear puts in force what other processes have, told at a time. An engine computes prompts of all processes one after the other, so that time
// passes once for all of them: what others have begun since they told before waits behind all that was there.
func (e *endpoint) hear(b Backlog, now int64) {
	p := &e.peers
	e.backlog.Others(b.Since(p.Through.Load(), now), now)
	p.Requests.Store(b.Requests)
	p.Through.Store(b.Through)
	p.Beside.Store(b.Beside)
	p.Urgency.Store(b.Urgency)
	p.Tokens.Store(b.Tokens)
	if b.Requests == 0 && e.inFlight.Load() == 0 {
		e.backlog.Idle()
	}
}

// peersTell is what other processes have, as they told.
func (e *endpoint) peersTell(address string) Backlog {
	return backlogOf(address, e.peers.Requests.Load(), &e.peers.Backlog)
}

// told is how many requests the endpoint has of which somebody knows: this process, or others that tell.
func (e *endpoint) told() int64 { return e.inFlight.Load() + e.peers.Requests.Load() }
