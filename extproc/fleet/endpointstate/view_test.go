package endpointstate_test

import (
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/engine"
)

// A state that ends by the passage of time alone changes in the first view from then on, although
// the endpoint was evaluated a moment before and nothing was reported since.
func TestStatesEndOnTime(t *testing.T) {
	patient := settings.Default()
	patient.StaleAfter, patient.LostAfter = 2*time.Minute, 4*time.Minute
	migrates := endpointstate.Leaving{Terminating: true, Migrates: start.Add(7 * time.Second)}
	for name, c := range map[string]struct {
		begin     func(s *rig)
		after     time.Duration
		was, then pick.State
	}{
		"stale":   {func(*rig) {}, patient.StaleAfter, pick.Healthy, pick.Stale},
		"lost":    {func(*rig) {}, patient.LostAfter, pick.Stale, pick.Lost},
		"failed":  {func(s *rig) { s.RequestFailed(a, s.now) }, 10 * time.Second, pick.Suspect, pick.Healthy},
		"full":    {func(s *rig) { s.Full(a, s.now) }, time.Second, pick.Suspect, pick.Healthy},
		"stopped": {func(s *rig) { s.Stopping(a, s.now) }, 30 * time.Second, pick.Out, pick.Healthy},
		"stopped, as control reports": {func(s *rig) {
			s.place(endpointstate.PlacementUpdate{Leaving: map[string]endpointstate.Leaving{a: {Stopping: s.now}}})
		}, 30 * time.Second, pick.Out, pick.Healthy},
		"migrated, as control reports": {func(s *rig) {
			s.place(endpointstate.PlacementUpdate{Leaving: map[string]endpointstate.Leaving{a: migrates}})
		}, 7 * time.Second, pick.Migrating, pick.Out},
		"migrated": {func(s *rig) {
			w := world(thePool.Name)
			e := &w.Pools[thePool].Endpoints[0]
			e.Terminating, e.Migrates = true, migrates.Migrates
			s.SetWorld(w)
		}, 7 * time.Second, pick.Migrating, pick.Out},
	} {
		s := newRig(endpointstate.Config{Placed: true, Settings: patient})
		s.see(a, engine.Load{})
		s.see(b, engine.Load{})
		c.begin(s)
		for _, at := range []struct {
			after time.Duration
			want  pick.State
		}{{c.after - 900*time.Millisecond, c.was}, {c.after - 1, c.was}, {c.after, c.then}} {
			s.now = start.Add(at.after)
			if got := s.states()[0]; got != at.want {
				t.Errorf("%s: after %v it is %v, want %v", name, at.after, got, at.want)
			}
		}
	}
}
