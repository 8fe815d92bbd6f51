package endpointstate

import (
	"time"

	"github.com/headgate/headgate/extproc/pick"
)

// Backlog is the unfinished work of one or several processes at an endpoint, in the form that
// processes exchange: the sums of [pick.Backlog] at one moment.
type Backlog struct {
	Endpoint string // "ip:port"
	Requests int64
	// Through is when the prefill of these requests would end if the engine had no other work, in
	// nanoseconds since 1970. All times in the past are equivalent.
	Through int64
	// Beside is in picoseconds, Urgency in thousandths of 1/s, Tokens in tokens. All are 0 for
	// requests without predictions.
	Beside, Urgency, Tokens int64
}

// Nothing reports whether the backlog is empty. Through does not matter without requests.
func (b Backlog) Nothing() bool {
	return b.Requests == 0 && b.Beside == 0 && b.Urgency == 0 && b.Tokens == 0
}

// Since returns the nanoseconds of prefill that were added since an earlier report, whose Through
// is the argument. It ignores changes that only the elapsed time explains.
func (b Backlog) Since(through, now int64) int64 { return max(b.Through, now) - max(through, now) }

// Backlogs visits the work of this process at each endpoint, in random order.
func (s *State) Backlogs(visit func(Backlog)) {
	for address, e := range s.endpoints {
		visit(backlogOf(address, e.inFlight.Load(), &e.backlog))
	}
}

// backlogOf returns the work of a number of requests at this moment.
func backlogOf(address string, requests int64, of *pick.Backlog) Backlog {
	return Backlog{
		Endpoint: address, Requests: requests,
		Through: of.Through.Load(), Beside: of.Beside.Load(), Urgency: of.Urgency.Load(), Tokens: of.Tokens.Load(),
	}
}

// SetPeers sets the work of all other processes at endpoints. Now is the time of the reports. The
// change takes effect at once, in every view. Work at unknown endpoints is kept until these
// endpoints are known.
func (s *State) SetPeers(told []Backlog, now time.Time) {
	for _, b := range told {
		if e := s.endpoints[b.Endpoint]; e != nil {
			if b.Requests > 0 && e.peers.Requests.Load() == 0 {
				s.Schedule.used = append(s.Schedule.used, b.Endpoint)
			}
			e.setPeers(b, now.UnixNano())
		} else {
			s.keepUnknown(b)
		}
	}
}

// keepUnknown keeps the work of other processes at an unknown endpoint.
func (s *State) keepUnknown(b Backlog) {
	if s.unknownBacklogs[b.Endpoint] = b; b.Nothing() {
		delete(s.unknownBacklogs, b.Endpoint)
	}
}

// ForgetPeers deletes the work of other processes after the connection to control ended. Scrapes
// count that work afterwards.
func (s *State) ForgetPeers(now time.Time) {
	for _, e := range s.endpoints {
		e.setPeers(Backlog{}, now.UnixNano())
	}
	clear(s.unknownBacklogs)
}

// setPeers sets the work of other processes at time now. An engine computes the prompts of all
// processes one after the other, so newly reported prompts queue behind all earlier ones.
func (e *endpoint) setPeers(b Backlog, now int64) {
	p := &e.peers
	e.backlog.Others(b.Since(p.Through.Load(), now), e.decodeStep().Nanoseconds(), now)
	p.Requests.Store(b.Requests)
	p.Through.Store(b.Through)
	p.Beside.Store(b.Beside)
	p.Urgency.Store(b.Urgency)
	p.Tokens.Store(b.Tokens)
	if b.Requests == 0 && e.inFlight.Load() == 0 {
		e.backlog.Idle()
	}
}

// decodeStep returns the time of a step that decodes for the known requests, at most a second; 0
// if no times are known for them.
func (e *endpoint) decodeStep() time.Duration {
	beside := e.backlog.Beside.Load() + e.peers.Beside.Load()
	if beside <= 0 {
		return 0
	}
	weights := 0.0
	for _, t := range e.times {
		if t.profile != nil {
			weights = max(weights, t.profile.Decode.Base)
		}
	}
	return min(time.Duration(weights*1e9)+time.Duration(beside/1000), longestStep)
}

// longestStep limits the time of a decode step, which reports of other processes determine. Unlike
// the other times in a report, a later report does not correct it.
const longestStep = time.Second

// peersTell returns the work at this endpoint that other processes reported.
func (e *endpoint) peersTell(address string) Backlog {
	return backlogOf(address, e.peers.Requests.Load(), &e.peers.Backlog)
}

// knownRequests returns the number of requests at the endpoint that this process and its peers
// sent.
func (e *endpoint) knownRequests() int64 { return e.inFlight.Load() + e.peers.Requests.Load() }
