package pick

import (
	"cmp"
	"runtime"
	"slices"
	"sync/atomic"
)

// Place is where an engine has the weights of an adapter, as far as this process knows.
type Place uint32

const (
	// InStorage means that the weights are not in the engine.
	InStorage Place = iota
	// InHost means host memory.
	InHost
	// InSlot means a slot of the GPU, and host memory too.
	InSlot
)

// Places are the names of places.
var Places = [...]string{InStorage: "storage", InHost: "host", InSlot: "slot"}

func (p Place) String() string { return Places[p] }

// Place returns where the adapter's weights are at its endpoint.
func (c *Count) Place() Place { return Place(c.place.Load()) }

// Resident estimates which adapters an engine holds in its slots and in host memory, from the
// requests sent to it. Like engines, it evicts the least recently used adapter without requests.
// The zero Resident has no room. It is safe for concurrent use; of two adapters that arrive at once
// it may miss one.
type Resident struct {
	blocks atomic.Pointer[[]float64] // by number of active adapters

	busy  atomic.Bool // locks the following
	slots places
	host  places // includes the adapters in slots
}

// alone locks r and returns the function that unlocks it. The wait is as short as a pass over all
// places.
func (r *Resident) alone() (end func()) {
	for !r.busy.CompareAndSwap(false, true) {
		runtime.Gosched()
	}
	return func() { r.busy.Store(false) }
}

// places holds adapters; nil is a free place.
type places []*Count

// NewResident returns the Resident of an empty engine with so many slots. Host is its room in host
// memory, which includes the adapters in slots.
func NewResident(slots, host int) *Resident {
	r := new(Resident)
	r.Resize(slots, host)
	return r
}

// Resize changes the numbers of slots and places in host memory. The most recently used adapters
// stay.
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

// adapters returns the adapters that have a place, the most recently used first.
func (p places) adapters() (all []*Count) {
	for _, c := range p {
		if c != nil {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *Count) int { return cmp.Compare(b.Last.Load(), a.Last.Load()) })
	return all
}

// Blocks returns by how much one more active adapter raises the probability that an adapter finds
// no free slot. R may be nil.
func (r *Resident) Blocks(active int) float64 {
	if r == nil {
		return 0
	}
	if blocks := r.blocks.Load(); blocks != nil && active < len(*blocks) {
		return (*blocks)[active]
	}
	return 0
}

// blocked returns the probability by Erlang's B formula that a new arrival finds all slots occupied
// at an offered load.
func blocked(slots int, load float64) float64 {
	b := 1.0
	for n := 1; n <= slots; n++ {
		b = load * b / (float64(n) + load*b)
	}
	return b
}

// Use records a request for an adapter. If every slot has an adapter with requests, the adapter
// waits in host memory. R may be nil.
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

// bring puts an adapter into host memory.
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

// Drop records that the engine no longer has an adapter. R may be nil.
func (r *Resident) Drop(c *Count) {
	if r == nil || c.Place() == InStorage {
		return
	}
	defer r.alone()()
	c.place.Store(uint32(InStorage))
	r.slots.take(c)
	r.host.take(c)
}

// put places an adapter, if necessary in place of the least recently used adapter without requests,
// which it returns. It reports false if no place can be freed.
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
