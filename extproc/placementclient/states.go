package placementclient

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
)

// maxStates is the maximum number of endpoints in one report of states. The others follow in the
// next report.
const maxStates = 2000

// observed is the last report of an endpoint's state.
type observed struct {
	state  placement.EndpointState_State
	reason endpointstate.Reason
	since  time.Time
	seen   bool // in the current round of observes
}

// observes creates the report of endpoints whose state has changed. A state that changes several
// times between two calls is reported once.
func (t *reporter) observes(each func(visit func(endpointstate.Condition)), now time.Time) []*placement.EndpointState {
	var out []*placement.EndpointState
	each(func(c endpointstate.Condition) {
		was, known := t.states[c.Endpoint]
		is := wireState(c)
		if is == placement.EndpointState_UNKNOWN {
			c.Reason = ""
		}
		if (is != was.state || c.Reason != was.reason) && len(out) < maxStates {
			if is != was.state {
				was.since = now
			}
			was.state, was.reason = is, c.Reason
			out = append(out, &placement.EndpointState{
				Endpoint: c.Endpoint, State: is, ForMs: uint64(max(0, now.Sub(was.since)).Milliseconds()), Reason: string(c.Reason),
			})
			known = true
		}
		if known {
			was.seen = true
			t.states[c.Endpoint] = was
		}
	})
	for endpoint, was := range t.states {
		switch {
		case was.seen:
			was.seen = false
			t.states[endpoint] = was
		case len(out) < maxStates: // the endpoint was removed
			delete(t.states, endpoint)
			out = append(out, &placement.EndpointState{Endpoint: endpoint})
		}
	}
	return out
}

// wireState returns the message for a state. Nothing is known of an endpoint before its first
// scrape.
func wireState(c endpointstate.Condition) placement.EndpointState_State {
	if !c.Known {
		return placement.EndpointState_UNKNOWN
	}
	switch c.State {
	case pick.Healthy, pick.Migrating:
		return placement.EndpointState_SERVING
	case pick.Suspect, pick.Stale:
		return placement.EndpointState_SUSPECT
	case pick.Lost, pick.Out:
	}
	return placement.EndpointState_OUT
}

// serves returns which requests reach this process; nil if that is reported already.
func (t *reporter) serves(is *placement.DataPlane) *placement.DataPlane {
	if t.plane != nil && proto.Equal(t.plane, is) {
		return nil
	}
	t.plane = is
	return is
}
