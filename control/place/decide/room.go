package decide

import "time"

// reserve returns how many bytes of an endpoint stay free, so that a load can begin while evicted
// models are still being unloaded. It is half of what the concurrent loads need if there are at
// most two, and a quarter if there are more (ModelMesh's unload buffer), within 1 % to 10 % of the
// capacity. If fewer than ten models of the default size have room, a reserve for one model would
// cost more than a tenth of them; then only the remainder that fits no model is kept free.
func (e *endpoint) reserve() int64 {
	if e.DefaultBytes > e.Bytes/10 {
		return min(e.Bytes%e.DefaultBytes, e.Bytes/10)
	}
	share := int64(4)
	if e.Loads <= 2 {
		share = 2
	}
	loads := e.Bytes / 10
	if e.DefaultBytes <= loads { // a larger size reaches the maximum anyway, and the product may overflow
		loads = int64(e.Loads) * e.DefaultBytes / share
	}
	return min(max(loads, e.Bytes/100), e.Bytes/10)
}

// keepAgain is the hysteresis of [keepReserve]: after the reserve was given up, it is kept again
// only if an unload takes this many times the limit.
const keepAgain = 2

// keepReserve decides whether an endpoint keeps its reserve free. It does not if the unload time
// relative to the load time is less than the reserve relative to the capacity: then one more model
// saves more load time than waiting for unloads costs.
func keepReserve(s *State, e *endpoint) {
	limit := e.loadTime.median * float64(e.reserve())
	if e.quick {
		limit *= keepAgain
	}
	quick := e.unloadTime.known() && e.loadTime.known() && e.unloadTime.median*float64(e.Bytes) < limit
	if quick == e.quick {
		return
	}
	e.quick = quick
	s.noteEndpoint(roomChanged, e)
}

// usable returns how many bytes all models together may need, without models that are being
// removed.
func (e *endpoint) usable() int64 {
	if e.quick {
		return e.Bytes - e.leaked
	}
	return e.Bytes - e.reserve() - e.leaked
}

// fits reports whether the models of an amount have room at an endpoint.
func (e *endpoint) fits(a amount) bool {
	return (e.Slots == 0 || a.models <= e.Slots) && (e.Bytes == 0 || a.bytes <= e.usable())
}

// free returns the share of the endpoint's scarcest resource that is left free by an amount.
func (e *endpoint) free(a amount) float64 {
	free := 1.0
	if e.Slots > 0 {
		free = min(free, float64(e.Slots-a.models)/float64(e.Slots))
	}
	if e.Bytes > 0 {
		free = min(free, float64(e.usable()-a.bytes)/float64(e.Bytes))
	}
	return free
}

// remains reports whether a copy is not being removed.
func (c *Copy) remains() bool { return c.State <= Loaded && !c.doomed }

// holds reports whether an engine has memory for an amount in addition to the leaks there.
func (e *endpoint) holds(a amount) bool { return e.Bytes == 0 || sum(a.bytes, e.leaked) <= e.Bytes }

// loadRequested reports whether this process or an earlier one told the engine to load a copy.
func (c *Copy) loadRequested() bool { return c.State != Queued || c.interrupted }

// started reports whether the engine has room to begin a load now, in addition to all models that
// have not been unloaded yet.
func (e *endpoint) started(c *Copy) bool {
	held := e.tally().held
	if !c.loadRequested() && !e.shares(c, false) {
		held = held.plus(c.room())
	}
	return e.hasRoom(held)
}

// hasRoom reports whether an engine has slots and memory for an amount in addition to the leaks
// there.
func (e *endpoint) hasRoom(held amount) bool {
	return (e.Slots == 0 || held.models <= e.Slots) && e.holds(held)
}

// sooner returns the earlier of two times; the zero time means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
