package endpointstate_test

import (
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
)

// standing returns the standing of a after a new view.
func (s *rig) standing() endpointstate.Standing {
	s.view()
	return s.Endpoints(s.now)[0].Standing
}

// Each state has a reason, and lasts since it began, not since its latest view.
func TestStandingHasSinceAndReason(t *testing.T) {
	s := newRig(endpointstate.Config{Placed: true})
	expect := func(when string, state pick.State, since time.Time, why endpointstate.Reason) {
		t.Helper()
		want := endpointstate.Standing{State: state, Since: since, Reason: why}
		if got := s.standing(); got != want {
			t.Errorf("%s: %+v, want %+v", when, got, want)
		}
	}
	see := func() {
		s.see(a, engine.Load{})
		s.see(b, engine.Load{})
	}
	began := s.now
	expect("at the start", pick.Out, began, endpointstate.NeverAnswered)
	s.advance(time.Second)
	s.Refused(a, s.now)
	expect("still out", pick.Out, began, endpointstate.ConnectionRefused)
	s.advance(time.Second)
	see()
	healthy := s.now
	expect("answers", pick.Healthy, healthy, "")
	s.advance(time.Second)
	see()
	expect("answers again", pick.Healthy, healthy, "")
	s.RequestFailed(a, s.now)
	expect("a request failed", pick.Suspect, s.now, endpointstate.RequestsFail)
	s.advance(time.Second)
	see()
	s.RequestServed(a, s.now)
	s.Full(a, s.now)
	expect("full", pick.Suspect, s.now.Add(-time.Second), endpointstate.QueueFull)
	s.advance(time.Minute)
	s.see(b, engine.Load{})
	expect("silent", pick.Lost, s.now, endpointstate.ScrapesUnanswered)
	s.advance(time.Second)
	see()
	s.ConnectionBroken(a, s.now)
	expect("a connection broke", pick.Stale, s.now, endpointstate.ConnectionReset)
	s.advance(time.Second)
	s.see(a, engine.Load{Asleep: true})
	expect("asleep", pick.Out, s.now, endpointstate.EngineAsleep)
	s.advance(time.Second)
	see()
	s.place(endpointstate.PlacementUpdate{
		Leaving: map[string]endpointstate.Leaving{a: {Terminating: true, Migrates: s.now.Add(time.Minute)}},
	})
	expect("drains", pick.Migrating, s.now, endpointstate.Terminating)
	s.place(endpointstate.PlacementUpdate{Leaving: map[string]endpointstate.Leaving{a: {Terminating: true}}})
	expect("is drained", pick.Out, s.now, endpointstate.Terminating)
}

// Suspect endpoints that a pool uses because most are suspect are shown as the policy sees them.
func TestStandingIsThatOfTheView(t *testing.T) {
	s := started()
	s.RequestFailed(a, s.now)
	s.RequestFailed(b, s.now)
	if got := s.standing(); got.State != pick.Healthy || got.Reason != "" {
		t.Errorf("the pool fails open, and a is %+v", got)
	}
	if got := s.Endpoints(s.now)[0].State; got != pick.Suspect {
		t.Errorf("its own state is %v", got)
	}
}

// A new label of the accelerator, and objects that stay, keep the state.
func TestStandingSurvivesNewObjects(t *testing.T) {
	s := started()
	since := s.standing().Since
	s.advance(time.Second)
	w := world(thePool.Name)
	w.Pools[thePool].Endpoints[0].Class = "another"
	s.SetWorld(w)
	s.see(a, engine.Load{})
	if got := s.standing().Since; got != since {
		t.Errorf("since %v, was %v", got, since)
	}
}

func TestLatestFaultIsKept(t *testing.T) {
	s := started()
	endpointstate.Faulted(s.State, a, endpointstate.Fault{At: s.now, Kind: "error", Status: 500})
	last := endpointstate.Fault{At: s.now.Add(time.Second), Kind: "error", Status: 503, Type: "server_error"}
	endpointstate.Faulted(s.State, a, last)
	endpointstate.Faulted(s.State, "10.9.9.9:1", last) // this address is no endpoint: nothing happens
	all := s.Endpoints(s.now)
	if all[0].Fault != last || all[1].Fault != (endpointstate.Fault{}) {
		t.Errorf("%+v", all)
	}
}
