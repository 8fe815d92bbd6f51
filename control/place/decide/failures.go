package decide

import (
	"slices"
	"time"

	"github.com/headgate/headgate/api/wire"
)

// Reason is the reason why a model cannot be loaded for now.
type Reason string

const (
	// LoadFailed: engines failed to load the model.
	LoadFailed Reason = wire.LoadFailed
	// RankTooLarge: the engines refused the adapter because of its rank.
	RankTooLarge Reason = wire.RankTooLarge
	// FilesMissing: the engines did not find the model's files.
	FilesMissing Reason = wire.FilesMissing
	// LoadRetried: the load failed with a transient error, and control retries it soon. Retries end
	// after maxRetries failed loads in a row, but not while requests wait or the model must have a
	// copy.
	LoadRetried Reason = "load_retried"
	// NoEndpoint: control can reach no endpoint that could load the model.
	NoEndpoint Reason = wire.NoEndpoint
	// CannotLoad: the engines of the pool cannot load models while they run, or cannot load models
	// of this kind.
	CannotLoad Reason = wire.CannotLoad
	// NoRoom: every model at the endpoints is pinned, must stay, or has a higher eviction value.
	NoRoom Reason = wire.NoRoom
	// NoLabels: the pool's constraints exclude every existing endpoint.
	NoLabels Reason = wire.NoLabels
	// TooLarge: the model is larger than the memory of every endpoint.
	TooLarge Reason = wire.TooLarge
	// UnknownModel: the model is not in the catalogue.
	UnknownModel Reason = wire.UnknownModel
)

var messages = map[Reason]string{
	LoadFailed:   "engines failed to load it; control retries when the failures are old",
	RankTooLarge: "its rank is larger than the engines take; control retries when the failures are old",
	FilesMissing: "engines find no files of it at its source; control retries when the failures are old",
	LoadRetried:  "the engine reported a transient error; control retries the load soon",
	NoEndpoint:   "control reaches no endpoint that could load it",
	CannotLoad:   "no engine of its pool loads such models while it runs",
	NoRoom:       "there is no room: every other model is pinned, has no copy to spare, or was used more recently",
	NoLabels:     "no endpoint has the labels that the pool's constraints require for its type",
	TooLarge:     "it is larger than any endpoint",
	UnknownModel: "requests ask for it, and no object says what it is",
}

// Message explains a reason to operators; empty for the empty reason.
func (r Reason) Message() string { return messages[r] }

// Failure is a failed load.
type Failure struct {
	Endpoint string    `json:"endpoint"`
	At       time.Time `json:"at"`
	Why      Reason    `json:"reason"` // LoadFailed, or a more specific reason
	Message  string    `json:"words"`  // the engine's error message
	// counts is how long until the failure expires; 0 means the pool's failure expiry.
	counts time.Duration
}

// Failures reports whether the reason comes from engines that failed to load the model.
func (r Reason) Failures() bool {
	return r == LoadFailed || r == RankTooLarge || r == FilesMissing || r == LoadRetried
}

// The names in capitals are the corresponding constants of ModelMesh 0.12 (kserve/modelmesh,
// ModelMesh.java).
const (
	// maxFailures is the number of failed loads, each at a different endpoint, after which control
	// stops trying until one of them expires (MAX_LOAD_FAILURES).
	maxFailures = 3
	// failureExpiry is the default time after which a failed load expires (LOAD_FAILURE_EXPIRY).
	// For a model in use it is half of that.
	failureExpiry = 15 * time.Minute
	// minRetry is the time until a transient failure is retried. It doubles with each failure in a
	// row, up to maxRetry.
	minRetry, maxRetry = time.Second, 30 * time.Second
	// unloadLimit is how long other copies wait for an unload before control evicts something else.
	unloadLimit = 30 * time.Second
	// maxRetries is the number of transient failures in a row after which the failure is treated as
	// permanent if no request waits: a minute of backoff, plus the time of the loads.
	maxRetries = 7
	// inUse: a model is in use if its last use was at most this long ago.
	inUse = 3 * time.Minute
	// roomWait is how long a load waits for evictions. ModelMesh waits as long
	// (MAX_WAIT_FOR_SPACE).
	roomWait = 3 * time.Minute
)

// forgive forgets expired failures.
func forgive(s *State, now time.Time) {
	if now.Before(s.due.expiry) {
		return
	}
	for key := range s.clock.failing {
		m := s.models[key]
		was := len(m.failures)
		m.failures = slices.DeleteFunc(m.failures, func(f Failure) bool { return now.Sub(f.At) >= failureCounts(s, m, f, now) })
		if len(m.failures) < was {
			s.noteModel(failureExpired, m)
			unblockModel(s, m)
		}
	}
	s.due.expiry = nextExpiry(s, now)
}

// nextExpiry returns when the first failure expires; zero if there is no failure.
func nextExpiry(s *State, now time.Time) (first time.Time) {
	for key := range s.clock.failing {
		m := s.models[key]
		if len(m.failures) == 0 {
			delete(s.clock.failing, key)
		}
		for _, f := range m.failures {
			first = sooner(first, f.At.Add(failureCounts(s, m, f, now)))
		}
	}
	return first
}

// isTransient reports whether a failure is transient and will be retried soon. Such a failure alone
// is no reason to give up on the model.
func (m *model) isTransient(f Failure) bool { return f.Why == LoadRetried && !m.exhausted() }

// exhausted reports whether maxRetries loads in a row have failed with transient errors and no
// request waits. The failure is then treated as permanent.
func (m *model) exhausted() bool { return m.retries >= maxRetries && len(m.wants) == 0 }

// whyFailed returns the reason why loads of a model failed if it was the same at all engines, and
// LoadFailed otherwise. It returns an empty reason if all failures are transient.
func (m *model) whyFailed() (why Reason) {
	for _, f := range m.failures {
		if m.isTransient(f) {
			continue
		}
		is := f.Why
		if is == LoadRetried {
			is = LoadFailed
		}
		if why != "" && is != why {
			return LoadFailed
		}
		why = is
	}
	return why
}
