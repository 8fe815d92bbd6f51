package pick

import (
	"cmp"
	"runtime"
	"slices"
	"sync/atomic"
)

// Place is where the weights of an adapter are in an engine, as far as this process can tell.
type Place uint32

const (
	// InStorage is not in the engine.
	InStorage Place = iota
	// InHost is in host memory.
	InHost
	// InSlot is in a slot of the GPU, and in host memory.
	InSlot
)

// Places are the names of places.
var Places = [...]string{InStorage: "storage", InHost: "host", InSlot: "slot"}

func (p Place) String() string { return Places[p] }

// Place is where the adapter is at its endpoint.
func (c *Count) Place() Place { return Place(c.place.Load()) }

// Resident is which adapters an engine holds where: an estimate, by what was sent there. It evicts as engines do, the adapter that was used
// least recently and has no request. The zero Resident is that of an engine with room for none. It is safe for concurrent use; of two adapters
// that come at once one may be forgotten.
type Resident struct {
	blocks atomic.Pointer[[]float64] // by how many are active

	busy  atomic.Bool // somebody changes the following
	slots places
	host  places // those of the adapters in slots too
}

// alone waits until nobody else changes r, which takes no longer than it takes to go through all places, and returns how to end that.
func (r *Resident) alone() (end func()) {
	for !r.busy.CompareAndSwap(false, true) {
		runtime.Gosched()
	}
	return func() { r.busy.Store(false) }
}

// places are those of adapters; nil is a free one.
type places []*Count

// NewResident returns that of an engine which holds nothing, with so many slots, and room in host memory for so many adapters, those in
// slots among them.
func NewResident(slots, host int) *Resident {
	r := new(Resident)
	r.Resize(slots, host)
	return r
}

// Resize has so many slots be there, and room in host memory for so many adapters. Adapters stay as far as there is room, those that were used
// last.
func (r *Resident) Resize(slots, host int) {
	defer r.alone()()
	if host = max(slots, host); slots == len(r.slots) && host == len(r.host) {
		return
	}
	blocks := make([]float64, slots)
	for active := range blocks {
		blocks[active] = blocked(slots, float64(active+1)) - blocked(slots, float64(active))
	}
	r.blocks.Store(&blocks)
	slotted, there := r.slots.adapters(), r.host.adapters()
	for _, c := range there {
		c.place.Store(uint32(InStorage))
	}
	r.slots, r.host = make(places, slots), make(places, host)
	for _, c := range there[:min(len(there), host)] {
		r.bring(c)
	}
	for _, c := range slotted[:min(len(slotted), slots)] {
		r.use(c)
	}
}

// adapters are those that have a place, the one that was used last first.
func (p places) adapters() (all []*Count) {
	for _, c := range p {
		if c != nil {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *Count) int { return cmp.Compare(b.Last.Load(), a.Last.Load()) })
	return all
}

// Blocks is by how much likelier an adapter finds no slot because of one more that is active, beside so many. R may be nil.
func (r *Resident) Blocks(active int) float64 {
	if r == nil {
		return 0
	}
	if blocks := r.blocks.Load(); blocks != nil && active < len(*blocks) {
		return (*blocks)[active]
	}
	return 0
}

// blocked is Erlang's B formula: how likely one that comes finds all of so many slots taken, where as many as load would be in use had each
// found one.
func blocked(slots int, load float64) float64 {
	b := 1.0
	for n := 1; n <= slots; n++ {
		b = load * b / (float64(n) + load*b)
	}
	return b
}

// Use notes that a request for an adapter goes there. Where each slot has an adapter with requests, it waits in host memory. R may be nil.
func (r *Resident) Use(c *Count) {
	if r == nil || c.Place() == InSlot || !r.busy.CompareAndSwap(false, true) {
		return
	}
	r.use(c)
	r.busy.Store(false)
}

func (r *Resident) use(c *Count) {
	if c.Place() == InSlot {
		return
	}
	r.bring(c)
	if left, ok := r.slots.put(c); ok {
		c.place.Store(uint32(InSlot))
		if left != nil {
			left.place.Store(uint32(InHost))
		}
	}
}

// bring has an adapter be in host memory.
func (r *Resident) bring(c *Count) {
	if c.Place() != InStorage {
		return
	}
	left, ok := r.host.put(c)
	if !ok {
		return
	}
	c.place.Store(uint32(InHost))
	if left != nil {
		left.place.Store(uint32(InStorage))
		r.slots.take(left)
	}
}

// Drop notes that an adapter is there no more. R may be nil.
func (r *Resident) Drop(c *Count) {
	if r == nil || c.Place() == InStorage {
		return
	}
	defer r.alone()()
	c.place.Store(uint32(InStorage))
	r.slots.take(c)
	r.host.take(c)
}

// put has an adapter in a place that is free, or in that of the adapter without requests that was used least recently, which it returns. It
// reports false where there is none.
func (p places) put(c *Count) (left *Count, ok bool) {
	at := -1
	for i, is := range p {
		if is == nil {
			at, left = i, nil
			break
		}
		if is.Load() == 0 && (at < 0 || is.Last.Load() < left.Last.Load()) {
			at, left = i, is
		}
	}
	if at >= 0 {
		p[at] = c
	}
	return left, at >= 0
}

// take frees the place of an adapter, if it has one.
func (p places) take(c *Count) {
	if i := slices.Index(p, c); i >= 0 {
		p[i] = nil
	}
}
