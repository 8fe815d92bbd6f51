package endpointstate_test

import (
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

func TestEndpointThatWasNeverScrapedIsOut(t *testing.T) {
	s := newRig(endpointstate.Config{})
	s.see(a, engine.Load{})
	if got := s.states(); got != [2]pick.State{pick.Healthy, pick.Out} {
		t.Errorf("the states are %v", got)
	}
}

func TestRefusalLastsUntilALaterScrape(t *testing.T) {
	s := started()
	before := s.scrape(a)
	s.advance(time.Millisecond)
	s.Refused(a, s.now)
	s.expect(t, "right after the refusal", pick.Out)
	s.advance(time.Millisecond)
	s.ScrapeSucceeded(before, engine.Load{}) // the scrape began before the refusal and ended after it
	s.expect(t, "after an older scrape", pick.Out)
	s.see(a, engine.Load{})
	s.expect(t, "after a new scrape", pick.Healthy)
	s.Refused("10.9.9.9:1", s.now) // this address is no endpoint: nothing happens
}

func TestSilentEndpointBecomesStaleThenLost(t *testing.T) {
	s := started()
	for _, step := range []struct {
		after time.Duration
		want  pick.State
	}{
		{999 * time.Millisecond, pick.Healthy},
		{time.Millisecond, pick.Stale},
		{8999 * time.Millisecond, pick.Stale},
		{time.Millisecond, pick.Lost},
	} {
		s.advance(step.after)
		s.see(b, engine.Load{})
		s.ScrapeFailed(s.scrape(a))
		s.expect(t, step.after.String()+" later", step.want)
	}
}

func TestEndpointOnASilentNodeIsStale(t *testing.T) {
	s := started()
	w := world(thePool.Name)
	w.Pools[thePool].Endpoints[0].NodeSilent = true
	s.SetWorld(w)
	s.expect(t, "while the node is silent", pick.Stale)
	s.SetWorld(world(thePool.Name))
	s.expect(t, "when the node reports again", pick.Healthy)
}

func TestSleepingEndpointIsOut(t *testing.T) {
	s := started()
	s.see(a, engine.Load{Asleep: true})
	s.expect(t, "asleep", pick.Out)
}

func TestSuspectWithoutRequestsRecovers(t *testing.T) {
	s := started()
	s.RequestFailed(a, s.now)
	for _, step := range []struct {
		after time.Duration
		want  pick.State
	}{{9999 * time.Millisecond, pick.Suspect}, {time.Millisecond, pick.Healthy}} {
		s.advance(step.after)
		s.see(a, engine.Load{})
		s.see(b, engine.Load{})
		s.expect(t, step.after.String()+" later", step.want)
	}
}

// A stopping endpoint is out until it has ended, although it still answers scrapes.
func TestStoppingEndpointIsOutUntilItHasEnded(t *testing.T) {
	s := started()
	at := func(when string, want pick.State) {
		t.Helper()
		s.see(b, engine.Load{})
		s.expect(t, when, want)
	}
	s.advance(time.Second)
	began := s.now
	s.Stopping(a, began)
	for range 5 {
		s.advance(time.Second)
		s.see(a, engine.Load{})
		at("while it answers scrapes", pick.Out)
	}
	s.Refused(a, s.now) // a scrape found that the engine has ended
	s.advance(time.Second)
	at("when it has ended", pick.Out)
	s.see(a, engine.Load{})
	at("when it is back", pick.Healthy)
	s.Stopping(a, began.Add(time.Second)) // reported late, when a long request has ended
	at("after an old report", pick.Healthy)

	s.Stopping(a, s.now)
	s.advance(29 * time.Second)
	s.see(a, engine.Load{})
	at("a while after", pick.Out)
	s.advance(2 * time.Second)
	s.see(a, engine.Load{})
	at("long after", pick.Healthy)
	s.Stopping("10.9.9.9:1", s.now) // this address is no endpoint: nothing happens

	// Another process answers at the address before a scrape found that the first process has
	// ended.
	s.see(a, engine.Load{Started: engine.Known(100)})
	s.advance(time.Second)
	s.Stopping(a, s.now)
	at("with a known process", pick.Out)
	s.advance(time.Second)
	s.see(a, engine.Load{Started: engine.Known(100)})
	at("with the same process", pick.Out)
	s.see(a, engine.Load{Started: engine.Known(107)})
	at("with another process", pick.Healthy)
	s.Stopping(a, s.now.Add(-time.Second))
	at("after a report about the process before", pick.Healthy)
}

// Control's report that an endpoint will end has the same effect as an engine's answer to this
// process, until the engine has restarted, another pod has the address, or control reports
// something else.
func TestControlReportsEndpointsThatWillEnd(t *testing.T) {
	s := started()
	at := func(when string, want pick.State) {
		t.Helper()
		s.see(a, engine.Load{})
		s.see(b, engine.Load{})
		s.expect(t, when, want)
	}
	report := func(l endpointstate.Leaving) {
		s.place(endpointstate.PlacementUpdate{Leaving: map[string]endpointstate.Leaving{a: l}})
	}
	s.advance(time.Second)
	report(endpointstate.Leaving{Stopping: s.now})
	s.advance(29 * time.Second)
	at("for a while after control reported that it is stopping", pick.Out)
	s.advance(time.Second)
	at("long after", pick.Healthy)

	report(endpointstate.Leaving{Stopping: s.now})
	at("when control reports it again", pick.Out)
	s.Refused(a, s.now)
	s.advance(time.Second)
	at("when the engine has ended and is back", pick.Healthy)

	report(endpointstate.Leaving{Terminating: true})
	s.advance(time.Hour)
	at("while its pod is being deleted", pick.Out)
	if leaving := s.Leaving(s.now); len(leaving) != 0 {
		t.Errorf("without control's reports, %v will end", leaving)
	}
	s.SetWorld(s.view().World)
	at("with the same pod", pick.Out)
	report(endpointstate.Leaving{})
	at("when it stays", pick.Healthy)
	report(endpointstate.Leaving{Terminating: true})
	s.place(endpointstate.PlacementUpdate{All: true})
	at("when another control does not report it", pick.Healthy)
	report(endpointstate.Leaving{Terminating: true})
	s.SetWorld(objects.Build(podsOf("successor-", "10.0.0.1", "10.0.0.2")))
	at("with another pod at the address", pick.Healthy)
}

// A migrating pod gets only the requests that no other endpoint can serve, until control or the
// objects end the migration.
func TestMigratingPodIsALastResort(t *testing.T) {
	for _, placed := range []bool{true, false} {
		s := newRig(endpointstate.Config{Placed: placed})
		migrate := func() {
			set := podsOf("", "10.0.0.1", "10.0.0.2")
			set.Pods[0].Terminating, set.Pods[0].Migrates = true, s.now.Add(time.Minute)
			s.SetWorld(objects.Build(set))
		}
		migrate()
		s.place(endpointstate.PlacementUpdate{All: true})
		at := func(when string, want pick.State) {
			t.Helper()
			s.see(a, engine.Load{})
			s.see(b, engine.Load{})
			if !placed {
				want = pick.Out
			}
			s.expect(t, when, want)
		}
		at("by the objects", pick.Migrating)
		if got, want := s.Leaving(s.now)[a],
			(endpointstate.Leaving{Terminating: true, Migrates: s.now.Add(time.Minute)}); got != want {
			t.Errorf("control gets %v, want %v", got, want)
		}
		s.advance(time.Minute - 1)
		at("just before the end", pick.Migrating)
		s.advance(1)
		at("at the end", pick.Out)
		migrate()
		s.place(endpointstate.PlacementUpdate{Leaving: map[string]endpointstate.Leaving{a: {Terminating: true}}})
		at("when control ends it", pick.Out)
	}
}
