package pick

import (
	"cmp"
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

// Place is where the adapter is at its endpoint.
func (c *Count) Place() Place { return Place(c.place.Load()) }

// Resident is which adapters an engine holds where: an estimate, by what was sent there. It evicts as engines do, the adapter that was used
// least recently and has no request. It is safe for concurrent use; of two adapters that come at once one may be forgotten.
type Resident struct {
	slots, host shelf
	blocks      []float64   // by how many are active
	replaced    atomic.Bool // by another
}

// shelf is the places of adapters.
type shelf []atomic.Pointer[Count]

// NewResident returns that of an engine which holds nothing, with so many slots, and room in host memory for so many adapters, those in
// slots among them.
func NewResident(slots, host int) *Resident {
	r := &Resident{slots: make(shelf, slots), host: make(shelf, max(slots, host)), blocks: make([]float64, slots)}
	for active := range r.blocks {
		r.blocks[active] = blocked(slots, float64(active+1)) - blocked(slots, float64(active))
	}
	return r
}

// Room is how many slots there are, and how many adapters host memory has room for. R may be nil.
func (r *Resident) Room() (slots, host int) {
	if r == nil {
		return 0, 0
	}
	return len(r.slots), len(r.host)
}

// Resized returns one of another size, in which adapters stay as far as there is room, those that were used last. It takes the place of r,
// which may be nil.
func (r *Resident) Resized(slots, host int) *Resident {
	n := NewResident(slots, host)
	if r == nil {
		return n
	}
	r.replaced.Store(true)
	slotted, held := r.slots.adapters(), r.host.adapters()
	for _, c := range held {
		c.place.Store(uint32(InStorage))
	}
	for _, c := range held[:min(len(held), len(n.host))] {
		n.Hold(c)
	}
	for _, c := range slotted[:min(len(slotted), len(n.slots))] {
		n.Use(c)
	}
	return n
}

// adapters are those on the shelf, the one that was used last first.
func (s shelf) adapters() (all []*Count) {
	for i := range s {
		if c := s[i].Load(); c != nil {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *Count) int { return cmp.Compare(b.Last.Load(), a.Last.Load()) })
	return all
}

// Blocks is by how much likelier an adapter finds no slot because of one more that is active, beside so many. R may be nil.
func (r *Resident) Blocks(active int) float64 {
	if r == nil || active >= len(r.blocks) {
		return 0
	}
	return r.blocks[active]
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
	if r == nil || r.replaced.Load() || c.Place() == InSlot {
		return
	}
	r.Hold(c)
	if left, ok := r.slots.put(c); ok {
		c.place.Store(uint32(InSlot))
		if left != nil {
			left.place.CompareAndSwap(uint32(InSlot), uint32(InHost))
		}
	}
}

// Hold notes that an adapter is brought into host memory. R may be nil.
func (r *Resident) Hold(c *Count) {
	if r == nil || r.replaced.Load() || c.Place() != InStorage {
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
	c.place.Store(uint32(InStorage))
	if r != nil {
		r.slots.take(c)
		r.host.take(c)
	}
}

// put has an adapter in a place that is free, or in that of the adapter without requests that was used least recently, which it returns. It
// reports false where there is none.
func (s shelf) put(c *Count) (left *Count, ok bool) {
	at := -1
	for i := range s {
		is := s[i].Load()
		if is == nil {
			at, left = i, nil
			break
		}
		if is.Load() == 0 && (at < 0 || is.Last.Load() < left.Last.Load()) {
			at, left = i, is
		}
	}
	return left, at >= 0 && s[at].CompareAndSwap(left, c)
}

// take has an adapter on the shelf no more.
func (s shelf) take(c *Count) {
	for i := range s {
		s[i].CompareAndSwap(c, nil)
	}
}
