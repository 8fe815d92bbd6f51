package decide

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// An endpoint is on trial while its pod is ready except for the proof that models load there. A few
// models that are loaded elsewhere are loaded there, too, the most recently used first. So the
// rollout of a version that cannot load models stops before that version has replaced one that can.

const (
	// trialLoads is the number of models that must be loaded for a trial to pass, or fewer if not
	// that many can be tried. trialFailures is the number of models that must fail to load for a
	// trial to fail, counting only models that are loaded elsewhere (ModelMesh 0.12,
	// MM_FAILFAST_UPGRADE_ENABLED: more than two).
	trialLoads    = 3
	trialFailures = 3
)

// Trial is the progress of a trial. A trial ends when Passed or Failed becomes true.
type Trial struct {
	// Passed: models load at the endpoint, or there is no model to load. Failed: models do not load
	// there. Both remain until the engine restarts. Failed loads from before the restart still
	// expire only at their normal time.
	Passed, Failed bool
	// Loaded is the number of models that were loaded when the trial passed or failed.
	Loaded int
	// Failures are the failed loads of models that are loaded elsewhere, at most one for each
	// model.
	Failures []TrialFailure
}

// TrialFailure is a failed load during a trial, with the engine's message.
type TrialFailure struct {
	Key
	Message string
}

// Trial returns the progress of an endpoint's trial, and whether the endpoint is on trial.
func (s *State) Trial(address string) (Trial, bool) {
	e := s.endpoints[address]
	if e == nil || e.trial == nil {
		return Trial{}, false
	}
	return *e.trial, true
}

// setTrial begins or ends a trial of an endpoint. In both cases it removes queued loads of an
// earlier trial.
func setTrial(s *State, e *endpoint, begins bool) {
	for _, c := range e.sorted() {
		if c.State == Queued && c.claim.purpose == ForTrial && !c.interrupted {
			s.drop(c)
		}
	}
	if e.trial = nil; begins {
		e.trial = new(Trial)
	}
	s.noteEndpoint(trialChanged, e)
}

// runTrial starts loads at an endpoint on trial until the trial has passed or failed. It waits
// until every other endpoint has been scraped, since models may be loaded at endpoints not scraped
// yet.
func runTrial(s *State, e *endpoint, now time.Time) (todo []Action) {
	t := e.trial
	if t == nil || t.Passed || t.Failed || e.state != up || e.Is() || s.unscraped > 0 {
		return nil
	}
	loaded, coming := 0, 0
	for _, c := range e.copies {
		loaded += truth(c.State == Loaded && !c.model.foreign)
		coming += truth(c.State < Loaded)
	}
	all := loadedElsewhere(s, e, now)
	for _, m := range all {
		t.note(m, e)
	}
	by := claim{purpose: ForTrial, below: math.Inf(-1)}
	for _, m := range all {
		if loaded+coming >= trialLoads || len(t.Failures) >= trialFailures {
			break
		}
		if hasPlace(s, e, m, by) {
			todo = append(todo, putCopy(s, m, e, by, now)...)
			coming++
		}
	}
	switch {
	case len(t.Failures) >= trialFailures:
		t.Failed = true
	case coming > 0:
		return todo
	default: // all possible loads have failed, or no load was possible
		t.Failed = loaded == 0 && len(t.Failures) > 0
		t.Passed = !t.Failed
	}
	t.Loaded = loaded
	s.noteEndpoint(trialChanged, e)
	return todo
}

// loadedElsewhere returns the recently used models that are loaded at other endpoints, the most
// recently used first.
func loadedElsewhere(s *State, e *endpoint, now time.Time) (all []*model) {
	for _, m := range s.models {
		if slices.Contains(e.pools, m.Pool) && now.Sub(m.lastUsed) < movedIfUsed && loadedCopies(s, m.ModelKey) > 0 {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b *model) int { return cmp.Or(b.lastUsed.Compare(a.lastUsed), a.Compare(b.ModelKey)) })
	return all
}

// note records a failed load at an endpoint on trial, if there was one. The record remains after
// the failure has expired.
func (t *Trial) note(m *model, e *endpoint) {
	if slices.ContainsFunc(t.Failures, func(f TrialFailure) bool { return f.Key == m.ModelKey }) {
		return
	}
	for _, f := range m.failures {
		if f.Endpoint == e.Address {
			t.Failures = append(t.Failures, TrialFailure{m.ModelKey, f.Message})
			return
		}
	}
}
