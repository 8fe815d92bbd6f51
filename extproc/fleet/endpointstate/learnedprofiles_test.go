package endpointstate_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/profile"
)

// taught is a State that has learned from the engines a and b for 200 s; b is twice as slow.
func taught() *endpointstate.State {
	s := endpointstate.New(endpointstate.Config{})
	s.SetWorld(profiled(nil))
	engines{map[string]float64{a: 1, b: 2}, map[string]*[4]float64{}}.scrape(s, start, 200)
	return s
}

// stepAt returns the predicted step time at each endpoint of the pool; nil without predictions.
func stepAt(s *endpointstate.State, now time.Time) (all []float64) {
	for _, e := range view(s, now).Snapshot.Pools["ns/one"].Endpoints {
		if e.Profile != nil {
			all = append(all, e.Profile.StepTime(profile.Work{Sequences: 10, KVTokens: 20_000}))
		}
	}
	return all
}

// A process predicts at once with the profile that another process has learned, whether the profile
// arrives before this process has the pool or while it learns itself.
func TestProfilesLearnedByOthers(t *testing.T) {
	now := start.Add(200 * time.Second)
	s := taught()
	lessons, want := s.Times.LearnedProfiles(now), stepAt(s, now)
	if len(lessons) != 1 || lessons[0].Pool != one || lessons[0].Age < 0 || lessons[0].Age > 3*time.Second || len(lessons[0].Factors) != 2 {
		t.Fatalf("the learned profiles are %+v", lessons)
	}
	later := start.Add(time.Hour) // the clocks of the two processes differ
	for name, hear := range map[string]func(*endpointstate.State){
		"at once": func(s *endpointstate.State) { s.SetWorld(profiled(nil)); s.Times.LearnFromPeers(lessons, later) },
		"first":   func(s *endpointstate.State) { s.Times.LearnFromPeers(lessons, later); s.SetWorld(profiled(nil)) },
		"while it learns": func(s *endpointstate.State) {
			s.SetWorld(profiled(nil))
			engines{map[string]float64{a: 1, b: 2}, map[string]*[4]float64{}}.scrape(s, later.Add(-15*time.Second), 15)
			s.Times.LearnFromPeers(lessons, later)
		},
	} {
		s := endpointstate.New(endpointstate.Config{})
		hear(s)
		got := stepAt(s, later)
		if len(got) != 2 || math.Abs(got[0]/want[0]-1) > 0.05 || math.Abs(got[1]/want[1]-1) > 0.05 {
			t.Errorf("%s: steps take %v, want %v", name, got, want)
		}
		k := s.Times.Known()[0]
		if k.Why != "predictions of another extproc were accurate" || !k.Trusted || k.Since.After(later) ||
			k.Since.Before(later.Add(-time.Minute)) {
			t.Errorf("%s: known is %+v", name, k)
		}
		again := s.Times.LearnedProfiles(later.Add(time.Minute))
		if len(again) != 1 || again[0].Rows != lessons[0].Rows || (again[0].Age-lessons[0].Age-time.Minute).Abs() > time.Second {
			t.Errorf("%s: it shares %+v", name, again)
		}
		// The process's own scrapes refine the adopted profile.
		engines{map[string]float64{a: 1, b: 2}, map[string]*[4]float64{}}.scrape(s, later, 100)
		if got := stepAt(s, later.Add(100*time.Second)); len(got) != 2 || math.Abs(got[0]/want[0]-1) > 0.1 ||
			s.Times.Known()[0].Rows <= lessons[0].Rows {
			t.Errorf("%s: then steps take %v, want %v", name, got, want)
		}
	}
}

// A profile learned by another process is ignored if this process has the profile pinned or
// configured differently, if it is for another accelerator, or if this process has as much data.
func TestUnrelatedProfilesAreIgnored(t *testing.T) {
	now := start.Add(200 * time.Second)
	lessons := taught().Times.LearnedProfiles(now)
	classed := slices.Clone(lessons)
	classed[0].Accelerator = "fast"
	for name, c := range map[string]struct {
		said    *objects.Said
		lessons []endpointstate.LearnedProfile
	}{
		"pinned":              {&objects.Said{Profile: simple, Pinned: true}, lessons},
		"another profile":     {&objects.Said{Profile: simple}, lessons},
		"a class of hardware": {nil, classed},
	} {
		s, w := endpointstate.New(endpointstate.Config{}), profiled(nil)
		if c.said != nil {
			w.Pools[one].Profile, w.Pools[one].Pinned = &c.said.Profile, c.said.Pinned
		}
		s.SetWorld(w)
		if s.Times.LearnFromPeers(c.lessons, now); s.Times.Known()[0].Rows != 0 {
			t.Errorf("%s: known is %+v", name, s.Times.Known()[0])
		}
	}
	s := endpointstate.New(endpointstate.Config{})
	s.SetWorld(profiled(nil))
	engines{map[string]float64{a: 1, b: 2}, map[string]*[4]float64{}}.scrape(s, start, 600)
	was := s.Times.Known()[0].Rows
	if s.Times.LearnFromPeers(lessons, start.Add(600*time.Second)); s.Times.Known()[0].Rows != was || was < 500 {
		t.Errorf("of %d rows %d are kept", was, s.Times.Known()[0].Rows)
	}
}

// Load times are shared even if nothing else was learned.
func TestLoadTimesLearnedByOthers(t *testing.T) {
	s, other := predicted(), predicted()
	view(s, start)
	for range 30 {
		s.Times.AdapterLoaded(one, a, pick.InHost, 0.5)
	}
	other.Times.LearnFromPeers(s.Times.LearnedProfiles(start), start)
	if k := other.Times.Known()[0]; k.Profile.AdapterActivation.Mean != 0.5 || k.Rows != 0 || k.Why != "the pool has a configured profile" {
		t.Errorf("known is %+v", k)
	}
}
