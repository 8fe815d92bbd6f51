package endpointstate_test

import (
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// Conditions reports the state of an endpoint and why it is not healthy, and nothing before the
// first scrape.
func TestConditionsSayWhy(t *testing.T) {
	for _, c := range []struct {
		what   string
		do     func(s *rig)
		state  pick.State
		reason endpointstate.Reason
	}{
		{"healthy", func(*rig) {}, pick.Healthy, ""},
		{"refused", func(s *rig) { s.Refused(a, s.now) }, pick.Out, endpointstate.ConnectionRefused},
		{"stopping", func(s *rig) { s.Stopping(a, s.now.Add(time.Millisecond)) }, pick.Out, endpointstate.EngineStopping},
		{"full", func(s *rig) { s.Full(a, s.now) }, pick.Suspect, endpointstate.QueueFull},
		{"failed", func(s *rig) { s.RequestFailed(a, s.now) }, pick.Suspect, endpointstate.RequestsFail},
		{"broken", func(s *rig) { s.ConnectionBroken(a, s.now) }, pick.Stale, endpointstate.ConnectionReset},
		{"late", func(s *rig) { s.advance(2 * time.Second) }, pick.Stale, endpointstate.ScrapesUnanswered},
		{"silent", func(s *rig) { s.advance(20 * time.Second) }, pick.Lost, endpointstate.ScrapesUnanswered},
		{"asleep", func(s *rig) { s.see(a, engine.Load{Asleep: true}) }, pick.Out, endpointstate.EngineAsleep},
		{"unready", func(s *rig) { s.declare(func(e *objects.Endpoint) { e.Ready = false }) }, pick.Out, endpointstate.NotReady},
		{"silent node", func(s *rig) { s.declare(func(e *objects.Endpoint) { e.NodeSilent = true }) }, pick.Stale, endpointstate.NodeSilent},
	} {
		s := started()
		c.do(s)
		want := endpointstate.Condition{Endpoint: a, Known: true, State: c.state, Reason: c.reason}
		if got := s.condition(a); got != want {
			t.Errorf("%s: it is %+v, want %+v", c.what, got, want)
		}
	}
	s := newRig(endpointstate.Config{})
	if got := s.condition(a); got.Known {
		t.Errorf("before the first scrape it is %+v", got)
	}
	s.ScrapeFailed(s.scrape(a))
	if got := s.condition(a); !got.Known || got.State != pick.Out || got.Reason != endpointstate.NeverAnswered {
		t.Errorf("after a failed scrape it is %+v", got)
	}
}

// declare changes the endpoint a in the objects.
func (s *rig) declare(change func(*objects.Endpoint)) {
	w := world(thePool.Name)
	change(&w.Pools[thePool].Endpoints[0])
	s.SetWorld(w)
}

// condition returns the condition of an endpoint; zero if there is none.
func (s *rig) condition(address string) (found endpointstate.Condition) {
	endpointstate.Conditions(s.State, s.now, func(c endpointstate.Condition) {
		if c.Endpoint == address {
			found = c
		}
	})
	return found
}
