package belief

import "github.com/headgate/headgate/extproc/pick"

// Backlog is what requests that one process, or several, sent to an endpoint still ask of it, as processes tell each other: the sums of
// [pick.Backlog] at one moment.
type Backlog struct {
	Endpoint string // "ip:port"
	Requests int64
	// Through is when their prompts are computed, in nanoseconds since 1970; the time of all that have passed is the same.
	Through int64
	// Beside is in picoseconds, Urgency in thousandths of 1/s, Held in tokens; all are 0 of requests of which nothing is predicted.
	Beside, Urgency, Held int64
}

// Nothing says whether there is nothing at the endpoint. Prompts of nobody are computed by nobody.
func (b Backlog) Nothing() bool {
	return b.Requests == 0 && b.Beside == 0 && b.Urgency == 0 && b.Held == 0
}

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
		Through: of.Through.Load(), Beside: of.Beside.Load(), Urgency: of.Urgency.Load(), Held: of.Held.Load(),
	}
}

// HearPeers believes what other processes have at endpoints, as the sum of all of them. It is in force at once, in every view. What is told
// of an endpoint that is not known is kept until it is.
func (s *State) HearPeers(told []Backlog) {
	for _, b := range told {
		if e := s.endpoints[b.Endpoint]; e != nil {
			e.hear(b)
		} else if s.strays[b.Endpoint] = b; b.Nothing() {
			delete(s.strays, b.Endpoint)
		}
	}
}

// ForgetPeers believes that other processes have nothing, for nobody tells any more: what they have is found by looks.
func (s *State) ForgetPeers() {
	for _, e := range s.endpoints {
		e.hear(Backlog{})
	}
	clear(s.strays)
}

// hear puts in force what other processes have.
func (e *endpoint) hear(b Backlog) {
	p := &e.peers
	p.Requests.Store(b.Requests)
	p.Through.Store(b.Through)
	p.Beside.Store(b.Beside)
	p.Urgency.Store(b.Urgency)
	p.Held.Store(b.Held)
}

// peersTell is what other processes have, as they told.
func (e *endpoint) peersTell(address string) Backlog {
	return backlogOf(address, e.peers.Requests.Load(), &e.peers.Backlog)
}

// told is how many requests the endpoint has of which somebody knows: this process, or others that tell.
func (e *endpoint) told() int64 { return e.inFlight.Load() + e.peers.Requests.Load() }
