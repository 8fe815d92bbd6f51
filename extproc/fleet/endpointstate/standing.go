package endpointstate

import (
	"strings"
	"time"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// Reason is why an endpoint is in its state.
type Reason string

// The reasons. A healthy endpoint has none.
const (
	// NotReady: the endpoint's pod is not ready.
	NotReady Reason = "not_ready"
	// Terminating: the endpoint's pod is being deleted, or an operator drains the endpoint.
	Terminating Reason = "terminating"
	// EngineStopping: the engine answered that it is stopping.
	EngineStopping Reason = "engine_stopping"
	// EngineAsleep: the engine's weights are not in the GPU (vLLM's sleep mode).
	EngineAsleep Reason = "engine_asleep"
	// ConnectionRefused: the endpoint refused a connection, and has not answered a scrape since.
	ConnectionRefused Reason = "connection_refused"
	// NeverAnswered: the endpoint has not answered a scrape yet.
	NeverAnswered Reason = "never_answered"
	// ScrapesUnanswered: the endpoint has not answered the latest scrapes.
	ScrapesUnanswered Reason = "scrapes_unanswered"
	// NodeSilent: the endpoint's node does not report to the API server.
	NodeSilent Reason = "node_silent"
	// ConnectionReset: the connection of a request broke, and no scrape has succeeded since.
	ConnectionReset Reason = "connection_reset"
	// RequestsFail: a request failed because of the endpoint.
	RequestsFail Reason = "requests_fail"
	// QueueFull: the endpoint rejected a request for lack of room.
	QueueFull Reason = "queue_full"
)

// Standing is the state of an endpoint as a member of one pool.
type Standing struct {
	State pick.State
	// Since is when the endpoint got this state.
	Since time.Time
	// Reason is the current reason, which may be newer than the state.
	Reason Reason
}

// Move is a change of an endpoint's state in one pool.
type Move struct {
	Pool    objects.Name
	Address string
	From    pick.State
	To      Standing
	// Fault is the error that explains the state: the endpoint's latest one, or a scrape without an
	// answer; zero if there was none.
	Fault Fault
}

// Moves are changes of endpoints' states. They lack the first state of an endpoint, and that it
// becomes healthy when it first answers.
type Moves struct{ all []Move }

// Take returns the changes since the previous call.
func (m *Moves) Take() []Move {
	all := m.all
	m.all = nil
	return all
}

// Fault is an error of an endpoint.
type Fault struct {
	At time.Time
	// Kind is the kind of the error: of a request, a kind of outcome.Failure, "error" (5xx), "full"
	// or "stopping"; of a scrape, "scrape_refused", "scrape_timeout" or "scrape_error".
	Kind string
	// Status is the HTTP status of the answer; 0 if there was none. Type and Code are those of the
	// error in the answer.
	Status     int
	Type, Code string
	// Message is the engine's text, which may quote a prompt. It is empty unless the operator asked
	// for it.
	Message string
}

// ScrapeTimeout is the Kind of a scrape that got no answer in time.
const ScrapeTimeout = "scrape_timeout"

// cause returns the error that explains why an endpoint enters a state with this reason. A scrape
// that is still unanswered has no error yet, and the latest error may be older or that of a
// request. In this case, cause returns a scrape timeout.
func (e *endpoint) cause(reason Reason, now time.Time) Fault {
	f := e.fault
	if reason == ScrapesUnanswered && (!f.At.After(e.health.answeredAt) || !strings.HasPrefix(f.Kind, "scrape_")) {
		return Fault{At: now, Kind: ScrapeTimeout}
	}
	return f
}

// Faulted records the latest error of an endpoint.
func Faulted(s *State, address string, f Fault) {
	if e := s.endpoints[address]; e != nil {
		e.fault = f
	}
}

// stand records the state of the endpoint in a new view. Moved reports whether operators should
// learn of the change.
func (t *timed) stand(state pick.State, now time.Time) (from pick.State, moved bool) {
	is := &t.standing
	from = is.State
	if is.Since.IsZero() || from != state {
		moved = !is.Since.IsZero() && (is.Reason != NeverAnswered || state != pick.Healthy)
		is.State, is.Since = state, now
	}
	if t.standing.Reason = t.reason; state == pick.Healthy {
		t.standing.Reason = ""
	}
	return from, moved
}
