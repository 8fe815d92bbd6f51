package belief

import (
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/profile"
)

// What predictions need of endpoints: how long they take, what others have there, and which adapters they hold.

// SetProfile has the endpoints of a pool predicted by a profile; nil means that nothing is to be predicted.
func (s *State) SetProfile(pool objects.Name, p *profile.Profile) {
	if p == nil {
		delete(s.times, pool)
	} else {
		s.times[pool] = p
	}
	if s.world.Pools[pool] != nil {
		s.changed[pool] = true
	}
}

// others is what requests of which nobody tells have at an endpoint, as of the latest look.
type others struct{ requests, tokens int64 }

// othersOf is what they have of what a look found, beside so many that are told of.
func (e *endpoint) othersOf(load engine.Load, told int64) (o others) {
	o.requests = max(0, int64(load.Running.Or(0)+load.Waiting.Or(0))-told)
	if o.requests > 0 {
		o.tokens = max(0, int64(load.KVUsage.Or(0)*load.KVTokens.Or(0))-e.backlog.Held.Load()-e.peers.Held.Load())
	}
	return o
}

// predict adds to what a decision needs of the endpoint what predictions by a profile do, which may be nil.
func (e *endpoint) predict(p *pick.Endpoint, times *profile.Profile) {
	if p.Profile = times; times == nil {
		return
	}
	p.KVTokens = int64(e.load.KVTokens.Or(float64(times.Limits.KVBlocks * times.Limits.BlockSize)))
	p.OthersBeside = times.Decode.PerSequence*float64(e.others.requests) + times.Decode.PerKVToken*float64(e.others.tokens)
	e.makeRoom(int(p.Slots), times.Limits.HostAdapters)
	p.Resident = e.resident
}

// makeRoom makes the endpoint one of so many adapter slots, with host memory for so many adapters. Adapters stay as far as there is room.
func (e *endpoint) makeRoom(slots, host int) {
	had, of := e.resident.Room()
	if slots == had && max(slots, host) == of {
		return
	}
	e.resident = e.resident.Resized(slots, host)
}

// begunAnew forgets which adapters the endpoint holds: another engine is there now.
func (e *endpoint) begunAnew() {
	slots, host := e.resident.Room()
	for _, c := range e.models {
		e.resident.Drop(c)
	}
	e.resident = nil
	e.makeRoom(slots, host)
}

// active notes that the engine reports adapters as active: they are in slots, or wait for one.
func (e *endpoint) active(names []string) {
	for _, name := range names {
		e.resident.Use(e.count(name))
	}
}
