package decide

import (
	"cmp"
	"slices"
	"time"
)

// Predicted ends a Predict: with the size, or 0 if the engine could not tell.
func (s *State) Predicted(key CopyKey, bytes int64) {
	c := s.copy(key)
	if c == nil || !c.sizing {
		return
	}
	c.sizing = false
	s.learn(s.models[key.Key], bytes, PredictedSize)
	s.dueEndpoints[key.Endpoint], s.dueModels[key.Key] = true, true
}

// learn takes a size for all copies of a model, if it is better known than before.
func (s *State) learn(m *model, bytes int64, source SizeSource) {
	if bytes <= 0 || source < m.source {
		return
	}
	m.bytes, m.source = bytes, source
	for _, c := range m.copies {
		c.Bytes, c.Source = bytes, source
	}
}

// LoadFailing says that an engine did not load a model in time, or not for sure: it is being unloaded there, and the load
// ends when it is gone. Those who wait for it need not wait for that.
func (s *State) LoadFailing(key CopyKey, words string, now time.Time) {
	c := s.copy(key)
	if c == nil || c.State != Loading || c.doomed {
		return
	}
	c.doomed = true
	s.fail(s.models[key.Key], Failure{key.Endpoint, now, words, LoadFailed})
	s.dueModels[key.Key] = true
}

func (s *State) fail(m *model, f Failure) {
	m.failures = append(m.failures, f)
	s.failing[m.ModelKey] = true
	s.changedModels[m.ModelKey] = true
}

// LoadResult is how a load ended.
type LoadResult struct {
	// Bytes is what the model holds, 0 if the engine does not say.
	Bytes int64
	// Took is how long the load took.
	Took time.Duration
	// Failed says that the engine did not load it, Words why, in its own, and Why what they mean; empty is LoadFailed.
	Failed bool
	Words  string
	Why    Reason
	// Unreached says that the engine took no connection; with Failed.
	Unreached bool
	// Left says that something of the model may be left at the engine; with Failed. Its bytes are leaked until the
	// engine's next life.
	Left bool
}

// LoadEnded says how a load ended. It returns what is to be done about models that the copy's true size leaves no room for.
func (s *State) LoadEnded(key CopyKey, r LoadResult, now time.Time) (todo []Action) {
	c := s.copy(key)
	if c == nil || c.State != Loading {
		return nil
	}
	m, e := s.models[key.Key], s.endpoints[key.Endpoint]
	s.dueEndpoints[e.Address], s.dueModels[m.ModelKey] = true, true
	s.stirAll()
	switch {
	case r.Failed:
		doomed := c.doomed
		if r.Left {
			e.leaked += c.Bytes
		}
		s.drop(c)
		switch {
		case r.Unreached:
			s.Down(e.Address)
		case !doomed:
			s.fail(m, Failure{e.Address, now, r.Words, cmp.Or(r.Why, LoadFailed)})
		}
	case c.doomed:
		c.doomed = false
		s.set(c, Loaded, now)
		return s.dismiss(c, now)
	default:
		s.timesOf(m.Type).add(r.Took)
		c.cut = false
		s.set(c, Loaded, now)
		delete(e.left, c.Key) // it is there again
		s.learn(m, r.Bytes, MeasuredSize)
		m.failures = slices.DeleteFunc(m.failures, func(f Failure) bool { return f.Endpoint == e.Address })
		for _, victim := range e.overfull(s, m) {
			todo = append(todo, s.dismiss(victim, now)...)
		}
	}
	return todo
}

// UnloadEnded says that the engine has unloaded a copy, or, if failed, that it could not be made to: then the copy's
// bytes are leaked until the engine's next life.
func (s *State) UnloadEnded(key CopyKey, failed bool, now time.Time) {
	c := s.copy(key)
	if c == nil || c.State != Unloading {
		return
	}
	e := s.endpoints[key.Endpoint]
	if failed {
		e.leaked += c.Bytes
	}
	s.drop(c)
	e.left[key.Key] = now
	s.dueEndpoints[e.Address] = true
	s.stirAll()
}

// Measured says what a loaded copy holds, by the engine.
func (s *State) Measured(key CopyKey, bytes int64, now time.Time) (todo []Action) {
	c := s.copy(key)
	if c == nil || c.State != Loaded {
		return nil
	}
	m, e := s.models[key.Key], s.endpoints[key.Endpoint]
	s.learn(m, bytes, MeasuredSize)
	for _, victim := range e.overfull(s, m) {
		todo = append(todo, s.dismiss(victim, now)...)
	}
	s.dueModels[m.ModelKey] = true // copies of it that wait elsewhere are as large
	s.dueEndpoints[e.Address] = true
	return todo
}
