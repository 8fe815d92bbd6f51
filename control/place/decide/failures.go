package decide

import (
	"slices"
	"time"

	"github.com/headgate/headgate/api/wire"
)

// Reason is why a model cannot be loaded for now.
type Reason string

const (
	// LoadFailed: engines failed to load it.
	LoadFailed Reason = wire.LoadFailed
	// RankTooLarge: the engines that were asked take no adapter of its rank.
	RankTooLarge Reason = wire.RankTooLarge
	// FilesMissing: the engines that were asked find no files of it.
	FilesMissing Reason = wire.FilesMissing
	// LoadRetried: its load failed with a transient error, and control retries it soon. While
	// requests wait, or it must have a copy, the retries do not end; otherwise they end after
	// maxRetries failed loads in a row.
	LoadRetried Reason = "load_retried"
	// NoEndpoint: control reaches no endpoint that could load it.
	NoEndpoint Reason = wire.NoEndpoint
	// CannotLoad: the engines of its pool load no models while they run, or none of its kind.
	CannotLoad Reason = wire.CannotLoad
	// NoRoom: what the endpoints hold is pinned, must stay, or was used more recently.
	NoRoom Reason = wire.NoRoom
	// NoLabels: the pool's constraints let it be loaded at no endpoint that there is.
	NoLabels Reason = wire.NoLabels
	// TooLarge: it is larger than any endpoint.
	TooLarge Reason = wire.TooLarge
	// UnknownModel: it is not in the catalogue.
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

// Message says a reason in words for operators; empty if there is none.
func (r Reason) Message() string { return messages[r] }

// Failure is a load that failed.
type Failure struct {
	Endpoint string
	At       time.Time
	Words    string // the engine's own
	Why      Reason // LoadFailed, or one of those that say more
	// counts is how long it counts; 0: as the pool's failures do.
	counts time.Duration
}

// Failures says whether it is for what engines said to a load that the model cannot be loaded.
func (r Reason) Failures() bool {
	return r == LoadFailed || r == RankTooLarge || r == FilesMissing || r == LoadRetried
}

// ModelMesh 0.12 (kserve/modelmesh, ModelMesh.java).
const (
	// maxFailures is how many places are tried: MAX_LOAD_FAILURES.
	maxFailures = 3
	// failureExpiry is how long a failed load counts where nobody says: LOAD_FAILURE_EXPIRY; half
	// of it for a model in use.
	failureExpiry = 15 * time.Minute
	// minRetry is how long a failure counts that may pass, twice as long each time, up to maxRetry.
	minRetry, maxRetry = time.Second, 30 * time.Second
	// unloadLimit bounds how long other copies wait for an unload before control evicts something
	// else.
	unloadLimit = 30 * time.Second
	// maxRetries is after how many transient load failures in a row a model counts as failed if no
	// request waits: a minute of backoff plus the loads.
	maxRetries = 7
	// inUse is how recently a model was used that is in use.
	inUse = 3 * time.Minute
	// roomWait is how long a load waits for what leaves to make room: MAX_WAIT_FOR_SPACE, 3 minutes
	// there too.
	roomWait = 3 * time.Minute
)

// forgive forgets failures that are old.
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

// nextExpiry returns when the first failure will be old enough to be forgotten; zero if there is
// none.
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

// mayPass reports whether a failure is transient and its load is retried soon. Until then it is no
// reason to give up the model.
func (m *model) mayPass(f Failure) bool { return f.Why == LoadRetried && !m.exhausted() }

// exhausted reports whether maxRetries loads in a row have failed with transient errors and no
// request waits. This counts as a permanent failure. While requests wait it is false.
func (m *model) exhausted() bool { return m.retries >= maxRetries && len(m.wants) == 0 }

// whyFailed is why loads of a model failed: what all engines say that were asked, if that is the
// same. It is empty where all of it may pass.
func (m *model) whyFailed() (why Reason) {
	for _, f := range m.failures {
		if m.mayPass(f) {
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
