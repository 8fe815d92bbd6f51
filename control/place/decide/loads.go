package decide

import (
	"cmp"
	"slices"
	"time"
)

// Predicted reports the result of a Predict: the size, or 0 if the engine cannot predict the size.
func (s *State) Predicted(key CopyKey, bytes int64) {
	c := s.copy(key)
	if c == nil || !c.predicting {
		return
	}
	c.predicting = false
	learnSize(s, s.models[key.ModelKey], bytes, PredictedSize)
	s.noteCopy(sizeKnown, c)
}

// learnSize sets the size of all copies of a model, unless a more reliable size is known.
func learnSize(s *State, m *model, bytes int64, source SizeSource) {
	if bytes <= 0 || source < m.source {
		return
	}
	m.bytes, m.source = bytes, source
	m.updateValue(s.pool(m.Pool))
	for _, c := range m.copies {
		if bytes < c.Bytes {
			s.noteCopy(copyShrank, c)
		}
		c.Bytes, c.Source = bytes, source
		// If the models now exceed the memory, nothing is evicted at once. The next load there
		// evicts, or the next tick.
		s.noteCopy(copySized, c)
	}
}

// LoadFailing reports that an engine did not load a model in time, or that the outcome is unclear.
// The engine is then told to unload the model, and the load ends when the model is gone. Waiting
// requests get their answer at once. The next load at the engine begins without waiting for the
// unload, unless it needs the room.
func (s *State) LoadFailing(key CopyKey, words string, why Reason, now time.Time) {
	c := s.copy(key)
	if c == nil || c.State != Loading || c.overdue {
		return
	}
	dismissed := c.doomed
	c.overdue = true
	s.noteCopy(loadSlow, c)
	doomCopy(s, c)
	if dismissed {
		return // an abandoned load does not count as failed
	}
	addFailure(s, s.models[key.ModelKey], Failure{Endpoint: key.Endpoint, At: now, Message: words, Why: cmp.Or(why, LoadFailed)})
}

// RestoreFailure records a load that failed in an earlier process; call it after [State.Restore].
// The failure expires when it would have expired there. If the engine may have kept a part of the
// model, that part is unloaded.
func (s *State) RestoreFailure(key Key, f Failure, now time.Time) {
	m := s.models[key]
	if m == nil || m.gone {
		return
	}
	if f.Why = cmp.Or(f.Why, LoadFailed); f.At.After(now) { // the clock of the earlier process was ahead
		f.At = now
	}
	addFailure(s, m, f)
	if c := s.copy(CopyKey{ModelKey: key, Endpoint: f.Endpoint}); c != nil && c.interrupted {
		dismissCopy(s, c, now)
	}
}

func addFailure(s *State, m *model, f Failure) {
	if f.Why == LoadRetried {
		if f.At.Sub(m.retried) >= failureExpiry { // the failures before it have expired
			m.retries = 0
		}
		f.counts = min(minRetry<<min(m.retries, 10), maxRetry)
		m.retries, m.retried = m.retries+1, f.At
	}
	m.failures = append(m.failures, f)
	s.noteModel(loadFailed, m)
}

// LoadResult is the outcome of a load.
type LoadResult struct {
	// Bytes is the size of the loaded model; 0 if the engine does not report it.
	Bytes int64
	// Limit is the maximum number of concurrent requests of the copy; 0 means no limit.
	Limit int
	// Took is how long the load took.
	Took time.Duration
	// Failed: the engine did not load the model. Message is the engine's error message. Why is the
	// reason that control derived from it; empty means LoadFailed.
	Failed  bool
	Message string
	Why     Reason
	// Unreached: the engine accepted no connection. It is set only with Failed.
	Unreached bool
	// Left: the engine may have kept a part of the model. It is set only with Failed. The bytes of
	// the copy are treated as leaked until the engine is found not to have the model.
	Left bool
}

// LoadEnded reports the outcome of a load.
func (s *State) LoadEnded(key CopyKey, r LoadResult, now time.Time) {
	c := s.copy(key)
	if c == nil || c.State != Loading {
		s.noteRecord(key)
		return
	}
	m, e := s.models[key.ModelKey], s.endpoints[key.Endpoint]
	s.noteCopy(loadEnded, c)
	switch {
	case r.Failed:
		doomed := c.doomed
		if r.Left {
			addLeak(s, c, now)
		}
		s.drop(c)
		switch {
		case r.Unreached:
			s.Down(e.Address)
		case !doomed:
			addFailure(s, m, Failure{Endpoint: e.Address, At: now, Message: r.Message, Why: cmp.Or(r.Why, LoadFailed)})
		}
	case c.doomed:
		learnSize(s, m, r.Bytes, MeasuredSize)
		c.doomed, c.overdue = false, false
		s.set(c, Loaded, now)
		dismissCopy(s, c, now)
	default:
		clearLeak(s, e, c.ID)
		s.pool(m.Pool).timesOf(m.Type).add(r.Took.Seconds())
		e.loadTime.add(r.Took.Seconds())
		keepReserve(s, e)
		c.interrupted, c.Limit = false, r.Limit
		s.set(c, Loaded, now)
		delete(e.left, c.ModelKey) // the removal before this load no longer matters
		learnSize(s, m, r.Bytes, MeasuredSize)
		learnLoadTime(s, m, r.Took)
		releasePredecessor(s, c, now)
		m.failures = slices.DeleteFunc(m.failures, func(f Failure) bool { return f.Endpoint == e.Address })
		m.retries = 0
	}
}

// UnloadEnded reports the end of an unload. If it failed, the engine may still have the model, and
// the bytes of the copy are treated as leaked until the engine is found not to have the model.
func (s *State) UnloadEnded(key CopyKey, failed bool, now time.Time) {
	c, e := s.copy(key), s.endpoints[key.Endpoint]
	if e != nil && (c == nil || c.State != Unloading) {
		endRepeatedUnload(s, e, key.ID, failed, now)
	}
	if c == nil || c.State != Unloading {
		s.noteRecord(key)
		return
	}
	if failed {
		addLeak(s, c, now)
	} else {
		clearLeak(s, e, c.ID)
		if !c.leaving.IsZero() {
			e.unloadTime.add(now.Sub(c.leaving).Seconds())
			keepReserve(s, e)
		}
	}
	s.drop(c)
	e.left[key.ModelKey] = now
}

// Measured reports the size of a loaded copy as the engine measured it.
func (s *State) Measured(key CopyKey, bytes int64) {
	if c := s.copy(key); c != nil && c.State == Loaded {
		learnSize(s, c.model, bytes, MeasuredSize)
		s.noteCopy(sizeKnown, c) // also the size of copies queued elsewhere
	}
}
