package decide

import (
	"maps"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// A leak is a model that an engine may still have although it has no copy: its unload failed, its
// load ended without a clear answer, or an engine without a model list answered that it lacks the
// model. A leak occupies room at its endpoint until the engine restarts, lists its models without
// the leaked one, unloads it after all, or loads it again as a copy. That copy uses the room of the
// leak. If the engine has no list, control repeats the unload after the next successful scrape, and
// then once per leakPause.

const (
	// leakPause is the time between a repeated unload that failed and its next repetition.
	leakPause = time.Minute
	// leakTimeout is the time limit of a repeated unload.
	leakTimeout = 30 * time.Second
)

// leak is a model that the engine may still have although it has no copy.
type leak struct {
	key   Key
	bytes int64
	// since is when the last unload failed.
	since time.Time
	// due: a scrape has succeeded since then, so the unload must be repeated. asked: a repeated
	// unload is in progress. again: the unload was repeated at least once.
	due, asked, again bool
	// wasLoaded: the model had been loaded. If it is queued to be loaded again, the unload is not
	// repeated: if the engine still has the model, an unload would end its requests.
	wasLoaded bool
}

// addLeak records that the engine may still have the model of a removed copy.
func addLeak(s *State, c *Copy, now time.Time) {
	e := c.endpoint
	forgetLeak(s, e, c.ID) // replaces a leak of the same model from another pool
	e.leaks[c.ID] = &leak{key: c.ModelKey, bytes: c.Bytes, since: now, wasLoaded: c.State == Loaded}
	sumLeaks(s, e)
}

// room returns how many bytes a model of this size needs at an endpoint in addition to its leak
// there.
func (e *endpoint) room(id string, size int64) int64 {
	if is := e.leaks[id]; is != nil {
		return max(0, size-is.bytes)
	}
	return size
}

// room returns how many bytes a copy needs in addition to the leak of its model at the endpoint.
func (c *Copy) room() int64 { return c.endpoint.room(c.ID, c.Bytes) }

// clearLeak removes the leak of a model, if there is one.
func clearLeak(s *State, e *endpoint, id string) {
	if forgetLeak(s, e, id) {
		sumLeaks(s, e)
	}
}

// forgetLeak removes the leak of a model, and reports whether there was one. The caller must then
// call sumLeaks.
func forgetLeak(s *State, e *endpoint, id string) bool {
	is := e.leaks[id]
	if is == nil {
		return false
	}
	delete(e.leaks, id)
	s.noteRecord(CopyKey{ModelKey: is.key, Endpoint: e.Address})
	return true
}

// mayBeAt reports whether an engine may have a model or parts of it: the engine was told to load
// the copy, or there is a leak of the model.
func mayBeAt(s *State, key CopyKey) bool {
	e := s.endpoints[key.Endpoint]
	if e == nil {
		return false
	}
	c, is := e.copies[key.ModelKey], e.leaks[key.ID]
	return c != nil && c.loadRequested() || is != nil && is.key == key.ModelKey
}

// clearLeaks removes all leaks of an endpoint whose engine has restarted.
func clearLeaks(s *State, e *endpoint) {
	for id := range e.leaks {
		forgetLeak(s, e, id)
	}
	sumLeaks(s, e)
}

// sumLeaks updates the sum of an endpoint's leaks. As a result, the endpoint may have room for
// models that had no place.
func sumLeaks(s *State, e *endpoint) {
	e.leaked = 0
	for _, l := range e.leaks {
		e.leaked = sum(e.leaked, l.bytes)
	}
	s.noteEndpoint(roomChanged, e)
}

// checkLeaks compares the leaks of an endpoint with a scrape. Call it after models that the scrape
// lists as loaded have become copies.
func checkLeaks(s *State, e *endpoint, l ScrapeResult) {
	for id, is := range e.leaks {
		switch {
		case !is.since.Before(l.Began): // the scrape may have begun before the leak
		case l.Lists && !slices.Contains(l.InTransition, id):
			clearLeak(s, e, id)
		case !l.Lists && !is.asked && (!is.again || l.Began.Sub(is.since) >= leakPause):
			is.due = true
			s.noteEndpoint(turnCame, e)
		}
	}
}

// repeatUnloads repeats the unloads of leaks that are due. It skips models with a copy that is
// loading or loaded there, whose leaks end soon, and models that had been loaded and are queued
// there again.
func repeatUnloads(e *endpoint) (todo []Action) {
	for _, id := range slices.Sorted(maps.Keys(e.leaks)) {
		is := e.leaks[id]
		if !is.due || isKnownToEngine(e, id) || is.wasLoaded && e.queued(id) {
			continue
		}
		is.due, is.asked, is.again = false, true, true
		a := Action{Kind: Unload, Endpoint: e.Address, Timeout: leakTimeout}
		a.Model.ModelKey = is.key
		todo = append(todo, a)
	}
	return todo
}

// isKnownToEngine reports whether an endpoint has a copy of a model, in any of its pools, that its
// engine was told to load.
func isKnownToEngine(e *endpoint, id string) bool {
	for _, p := range e.pools {
		if c := e.copies[Key{Pool: p, ID: id}]; c != nil && c.State != Queued {
			return true
		}
	}
	return false
}

// queued reports whether a copy of a model is queued at an endpoint, in any of its pools.
func (e *endpoint) queued(id string) bool {
	return slices.ContainsFunc(e.pools, func(p objects.Name) bool {
		c := e.copies[Key{Pool: p, ID: id}]
		return c != nil && c.State == Queued
	})
}

// endRepeatedUnload records the outcome of a repeated unload.
func endRepeatedUnload(s *State, e *endpoint, id string, failed bool, now time.Time) {
	switch is := e.leaks[id]; {
	case is == nil:
	case failed && is.asked:
		is.asked, is.since = false, now
		sumLeaks(s, e)
	case !failed && !isKnownToEngine(e, id):
		clearLeak(s, e, id)
	}
}

// unconfirmedLeaks returns how many of the leaked bytes may become free after the next scrape, or
// after the answer to a repeated unload.
func (e *endpoint) unconfirmedLeaks() (bytes int64) {
	for _, is := range e.leaks {
		if is.asked || !is.again {
			bytes = sum(bytes, is.bytes)
		}
	}
	return min(bytes, e.leaked)
}
