package decide

import (
	"maps"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// A model that an engine may have without a copy is a leak: one that could not be unloaded, one that may be left over from a load without a clear answer,
// or one that an engine without a list answered not to have. It occupies room at its endpoint until one of these happens: the engine begins a new life; its
// list lacks the model; it unloads the model after all; or the model is loaded there again, as a copy, in the room of the leak.
// Where the engine gives no list, control repeats the unload after the next look that succeeds, and then once per leakPause.

const (
	// leakPause is how long after a repeated unload has failed the next one follows.
	leakPause = time.Minute
	// leakTimeout bounds a repeated unload.
	leakTimeout = 30 * time.Second
)

// leak is a model that may be left at an engine, without a copy.
type leak struct {
	key   Key
	bytes int64
	// since is when the last unload failed.
	since time.Time
	// due: a look has succeeded since, and the unload is to be repeated. Asked: it is being repeated. Again: it was.
	due, asked, again bool
	// whole: it was loaded. A load needs no unload before it, which would end requests if the engine has it still.
	whole bool
}

// leak adds what may be left of a copy.
func (s *State) leak(c *Copy, now time.Time) {
	e := c.endpoint
	s.forget(e, c.ID) // of another pool
	e.leaks[c.ID] = &leak{key: c.Key, bytes: c.Bytes, since: now, whole: c.State == Loaded}
	s.sumLeaks(e)
}

// room is how many bytes a model of a size takes at an endpoint beyond what may be left of it there.
func (e *endpoint) room(id string, size int64) int64 {
	if is := e.leaks[id]; is != nil {
		return max(0, size-is.bytes)
	}
	return size
}

// room is how many bytes a copy takes beyond what may be left of its model there.
func (c *Copy) room() int64 { return c.endpoint.room(c.ID, c.Bytes) }

// seal removes the leak of a model, if there is one.
func (s *State) seal(e *endpoint, id string) {
	if s.forget(e, id) {
		s.sumLeaks(e)
	}
}

// forget removes the leak of a model, and reports whether there was one. The caller sums the leaks.
func (s *State) forget(e *endpoint, id string) bool {
	is := e.leaks[id]
	if is == nil {
		return false
	}
	delete(e.leaks, id)
	s.changedRecords[CopyKey{is.key, e.Address}] = true
	return true
}

// mayBeAt reports whether an engine may have something of a copy: it was told to load it, or it leaks.
func (s *State) mayBeAt(key CopyKey) bool {
	e := s.endpoints[key.Endpoint]
	if e == nil {
		return false
	}
	c, is := e.copies[key.Key], e.leaks[key.ID]
	return c != nil && c.told() || is != nil && is.key == key.Key
}

// sealAll removes the leaks of an endpoint whose engine has begun a new life.
func (s *State) sealAll(e *endpoint) {
	for id := range e.leaks {
		s.forget(e, id)
	}
	s.sumLeaks(e)
}

// sumLeaks updates the sum of an endpoint's leaks, and looks again for places there.
func (s *State) sumLeaks(e *endpoint) {
	e.leaked = 0
	for _, l := range e.leaks {
		e.leaked = sum(e.leaked, l.bytes)
	}
	e.counted = false
	s.dueEndpoints[e.Address], s.helped[e.Address] = true, true
	s.unsettle(e)
}

// checkLeaks compares the leaks of an endpoint with what a look found there. What it lists as loaded is a copy by now.
func (s *State) checkLeaks(e *endpoint, l Sight) {
	for id, is := range e.leaks {
		switch {
		case !is.since.Before(l.Began): // the look may have been too early
		case l.Lists && !slices.Contains(l.Passing, id):
			s.seal(e, id)
		case !l.Lists && !is.asked && (!is.again || l.Began.Sub(is.since) >= leakPause):
			is.due = true
			s.dueEndpoints[e.Address] = true
		}
	}
}

// repeatUnloads unloads again what may be left at an engine. A model that is being loaded there, or is loaded, is no leak for long; a whole one
// neither if it is about to be.
func (s *State) repeatUnloads(e *endpoint) (todo []Action) {
	for _, id := range slices.Sorted(maps.Keys(e.leaks)) {
		is := e.leaks[id]
		if !is.due || s.began(e, id) || is.whole && e.queued(id) {
			continue
		}
		is.due, is.asked, is.again = false, true, true
		a := Action{Kind: Unload, Endpoint: e.Address, Timeout: leakTimeout}
		a.Model.ModelKey = is.key
		todo = append(todo, a)
	}
	return todo
}

// began reports whether an endpoint has a copy of a model of which its engine was told, for any of its pools.
func (s *State) began(e *endpoint, id string) bool {
	for _, p := range e.pools {
		if c := e.copies[Key{Pool: p, ID: id}]; c != nil && c.State != Queued {
			return true
		}
	}
	return false
}

// queued reports whether a model waits to be loaded at an endpoint, for any of its pools.
func (e *endpoint) queued(id string) bool {
	return slices.ContainsFunc(e.pools, func(p objects.Name) bool {
		c := e.copies[Key{Pool: p, ID: id}]
		return c != nil && c.State == Queued
	})
}

// repeated ends a repeated unload.
func (s *State) repeated(e *endpoint, id string, failed bool, now time.Time) {
	switch is := e.leaks[id]; {
	case is == nil:
	case failed && is.asked:
		is.asked, is.since = false, now
		s.sumLeaks(e)
	case !failed && !s.began(e, id):
		s.seal(e, id)
	}
}

// unclear is how much of the leaked bytes the next look, or the answer to a repeated unload, may free.
func (e *endpoint) unclear() (bytes int64) {
	for _, is := range e.leaks {
		if is.asked || !is.again {
			bytes = sum(bytes, is.bytes)
		}
	}
	return min(bytes, e.leaked)
}
