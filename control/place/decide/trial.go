package decide

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// An endpoint is on trial while nothing holds its pod back from requests but that nobody has said
// yet that models load there: a few of those that are loaded elsewhere are loaded there, too, the
// most recently used first. So a roll to a version at which loads fail stands still, before it has
// replaced what loads.

const (
	// trialLoads is how many models have to be loaded for an endpoint to pass, if there are so
	// many, and trialFailures how many that are loaded elsewhere have to fail for it to fail
	// (ModelMesh 0.12, MM_FAILFAST_UPGRADE_ENABLED: more than two).
	trialLoads    = 3
	trialFailures = 3
)

// Trial is how an endpoint on trial does. It goes on while it has neither passed nor failed.
type Trial struct {
	// Passed says that models load there, or that there is none to load; Failed that they do not.
	// Both last for as long as the engine lives; in its next life failures count for as long as
	// any.
	Passed, Failed bool
	// Loaded is how many models were loaded when it had passed or failed.
	Loaded int
	// Failures are the loads that failed of models that are loaded elsewhere, one for each model.
	Failures []TrialFailure
}

// TrialFailure is a load that failed, in the engine's words.
type TrialFailure struct {
	Key
	Words string
}

// Trial returns how an endpoint on trial does, and whether it is on trial.
func (s *State) Trial(address string) (Trial, bool) {
	e := s.endpoints[address]
	if e == nil || e.trial == nil {
		return Trial{}, false
	}
	return *e.trial, true
}

// setTrial begins a trial, or ends it. What was to be tried there and has not begun is not loaded
// for that any more.
func setTrial(s *State, e *endpoint, begins bool) {
	for _, c := range e.sorted() {
		if c.State == Queued && c.claim.purpose == ForTrial && !c.cut {
			s.drop(c)
		}
	}
	if e.trial = nil; begins {
		e.trial = new(Trial)
	}
	s.noteEndpoint(trialChanged, e)
}

// runTrial has an endpoint on trial load what it is to be tried with, until it has passed or
// failed. What nobody has looked at yet may be loaded elsewhere: it waits for that.
func runTrial(s *State, e *endpoint, now time.Time) (todo []Action) {
	t := e.trial
	if t == nil || t.Passed || t.Failed || e.state != up || e.Is() || s.unseen > 0 {
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
	default: // of those that could be tried all failed, or not
		t.Failed = loaded == 0 && len(t.Failures) > 0
		t.Passed = !t.Failed
	}
	t.Loaded = loaded
	s.noteEndpoint(trialChanged, e)
	return todo
}

// loadedElsewhere are the models that requests find loaded at other endpoints, and that were used
// of late, the most recently used first.
func loadedElsewhere(s *State, e *endpoint, now time.Time) (all []*model) {
	for _, m := range s.models {
		if slices.Contains(e.pools, m.Pool) && now.Sub(m.lastUsed) < movedIfUsed && loadedCopies(s, m.ModelKey) > 0 {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b *model) int { return cmp.Or(b.lastUsed.Compare(a.lastUsed), a.Compare(b.ModelKey)) })
	return all
}

// note notes that a load of a model failed at an endpoint on trial, if it did. That lasts longer
// than the failure does.
func (t *Trial) note(m *model, e *endpoint) {
	if slices.ContainsFunc(t.Failures, func(f TrialFailure) bool { return f.Key == m.ModelKey }) {
		return
	}
	for _, f := range m.failures {
		if f.Endpoint == e.Address {
			t.Failures = append(t.Failures, TrialFailure{m.ModelKey, f.Words})
			return
		}
	}
}
