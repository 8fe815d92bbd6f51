package decide

import (
	"slices"
	"time"
)

// startLoads starts loads that are queued at an endpoint, in the order of [Copy.compareTurn], up to
// the number of concurrent loads that the engine accepts.
func startLoads(s *State, e *endpoint, now time.Time) (todo []Action) {
	if e.state != up || e.Is() {
		return nil
	}
	todo = repeatUnloads(e)
	t := e.tally()
	if len(t.queue) == 0 {
		return todo
	}
	loading, queue := e.turns(), slices.Clone(t.queue)
	slices.SortFunc(queue, (*Copy).compareTurn)
	todo = append(todo, prepareRoom(s, e, queue, now)...)
	for _, c := range queue {
		if loading >= max(1, e.Loads) {
			return todo
		}
		if e.copies[c.ModelKey] != c || c.State != Queued {
			continue // prepareRoom has removed the copy
		}
		if is := e.leaks[c.ID]; c.predicting || is != nil && is.asked {
			continue // its size is being predicted, or its leak is being unloaded
		}
		if !e.started(c) { // copies later in the queue must not get the room of its victims
			if c.waitsForRoomSince.IsZero() {
				c.waitsForRoomSince = now
				s.noteCopy(copyTimed, c)
			}
			return todo
		}
		loading++
		m := c.model
		kind := Load
		if c.interrupted {
			kind = Reload
		}
		stalled := now.Sub(c.asked)
		s.set(c, Loading, now)
		if e.Overlap > e.Loads {
			c.slowAt = now.Add(slowAfter(s, m))
			s.noteCopy(copyTimed, c)
		}
		a := Action{Kind: kind, Endpoint: e.Address, Model: m.Entry, For: c.claim.purpose, Timeout: loadTimeout(s, e, m), Stalled: stalled}
		if since := m.since(); !since.IsZero() {
			a.Waited = now.Sub(since)
		}
		todo = append(todo, a)
		if e.unloadTime.known() { // evictions for the next load begin shortly before this one ends
			s.noteCopy(loadBegan, c)
		}
	}
	return todo
}

// dismissCopy removes a copy: it drops, cancels or drains it, depending on its state.
func dismissCopy(s *State, c *Copy, now time.Time) []Action {
	switch c.State {
	case Queued:
		if c.interrupted { // the engine may have the model
			drainCopy(s, c, now)
			return nil
		}
		s.drop(c)
	case Loading:
		if !c.doomed {
			doomCopy(s, c)
			return []Action{{Kind: Cancel, Endpoint: c.Endpoint, Model: c.model.Entry}}
		}
	case Loaded:
		drainCopy(s, c, now)
	}
	return nil
}

// drainCopy stops new requests to a copy; its requests in flight may end.
func drainCopy(s *State, c *Copy, now time.Time) {
	s.set(c, Draining, now)
}

// doomCopy marks a loading copy as doomed: it is unloaded as soon as its load ends.
func doomCopy(s *State, c *Copy) {
	c.doomed = true
	s.noteCopy(copyDoomed, c)
}

// unloadCopy ends the drain of a copy and begins to unload it.
func unloadCopy(s *State, c *Copy, now time.Time) Action {
	s.set(c, Unloading, now)
	return Action{Kind: Unload, Endpoint: c.Endpoint, Model: c.model.Entry}
}
