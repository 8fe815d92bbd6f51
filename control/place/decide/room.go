package decide

import "time"

// reserve is what of a capacity in bytes is left free, so that a load can begin while what makes
// room for it is still being unloaded: a share of what the loads of an engine take at once
// (ModelMesh's unload buffer: half of it for one or two loads, a quarter for more; 1 % to 10 % of
// the capacity). Where fewer than ten models of the default size have room, to keep that of one of
// them free would cost more than a tenth of them: no more is kept than what they leave over.
func (e *endpoint) reserve() int64 {
	if e.DefaultBytes > e.Bytes/10 {
		return min(e.Bytes%e.DefaultBytes, e.Bytes/10)
	}
	share := int64(4)
	if e.Loads <= 2 {
		share = 2
	}
	loads := e.Bytes / 10
	if e.DefaultBytes <= loads { // else their product is more still, and may be more than there are numbers
		loads = int64(e.Loads) * e.DefaultBytes / share
	}
	return min(max(loads, e.Bytes/100), e.Bytes/10)
}

// keepAgain is how many times as long as that an unload takes before the reserve is kept free
// again, so that it does not come and go.
const keepAgain = 2

// keepReserve decides whether an endpoint keeps its reserve free. It does not if unload time over
// load time is less than reserve over capacity: then one more model saves more load time than
// waiting for unloads costs.
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

// usable is what all models may take that are not on their way out, in bytes.
func (e *endpoint) usable() int64 {
	if e.quick {
		return e.Bytes - e.leaked
	}
	return e.Bytes - e.reserve() - e.leaked
}

// fits says whether so much has room at an endpoint.
func (e *endpoint) fits(a amount) bool {
	return (e.Slots == 0 || a.models <= e.Slots) && (e.Bytes == 0 || a.bytes <= e.usable())
}

// free is the share of an endpoint that is free beside so much, by what it has least of.
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

// remains says whether a copy is not on its way out.
func (c *Copy) remains() bool { return c.State <= Loaded && !c.doomed }

// holds reports whether an engine has room for the bytes of an amount and its leaks.
func (e *endpoint) holds(a amount) bool { return e.Bytes == 0 || sum(a.bytes, e.leaked) <= e.Bytes }

// told reports whether this process or an earlier one told the engine to load a copy.
func (c *Copy) told() bool { return c.State != Queued || c.cut }

// started says whether the engine has room to begin a load now, with everything in it that has not
// left yet.
func (e *endpoint) started(c *Copy) bool {
	held := e.tally().held
	if !c.told() && !e.shares(c, false) {
		held = held.plus(c.room())
	}
	return e.hasRoom(held)
}

// hasRoom reports whether an engine has slots and bytes for an amount and its leaks.
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
