package pick

import (
	"cmp"
	"runtime"
	"slices"
	"sync/atomic"
)

// Place is where an engine stores the weights of an adapter, as far as this process knows.
type Place uint32

const (
	// InStorage means that the engine has not loaded the weights.
	InStorage Place = iota
	// InHost means that the weights are in host memory.
	InHost
	// InSlot means that the weights are in a slot of the GPU and in host memory.
	InSlot
)

// Places are the names of the values of Place.
var Places = [...]string{InStorage: "storage", InHost: "host", InSlot: "slot"}

func (p Place) String() string { return Places[p] }

// Place returns where the adapter's weights are at its endpoint.
func (c *Count) Place() Place { return Place(c.place.Load()) }

// Resident estimates, from the requests sent to an engine, which adapters are in its slots and in
// its host memory. Like engines, it evicts the least recently used adapter without requests. The
// zero Resident has no room. It is safe for concurrent use, but if two adapters are first used at
// the same time, the Resident may miss one of the two.
type Resident struct {
	blocks atomic.Pointer[[]float64] // result of Blocks, by number of active adapters

	busy  atomic.Bool // spin lock of slots and host
	slots places
	host  places // also contains the adapters in slots
}

// alone locks r and returns the function that unlocks it. The wait for the lock is short: its
// holder only loops over all places.
func (r *Resident) alone() (end func()) {
	for !r.busy.CompareAndSwap(false, true) {
		runtime.Gosched()
	}
	return func() { r.busy.Store(false) }
}

// places contains one adapter for each place; nil means that the place is free.
type places []*Count

// NewResident returns the Resident of an empty engine. Slots is its number of adapter slots. Host
// is the number of adapters that fit into host memory, including those in slots.
func NewResident(slots, host int) *Resident {
	r := new(Resident)
	r.Resize(slots, host)
	return r
}

// Resize changes the number of slots and the number of places in host memory. If there are fewer,
// the most recently used adapters stay.
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

// Blocks returns the increase in the probability that an adapter finds no free slot, if one more
// adapter than active has requests. R may be nil.
func (r *Resident) Blocks(active int) float64 {
	if r == nil {
		return 0
	}
	if blocks := r.blocks.Load(); blocks != nil && active < len(*blocks) {
		return (*blocks)[active]
	}
	return 0
}

// blocked returns the probability that a new arrival finds all slots occupied at an offered load,
// by Erlang's B formula.
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

// Drop records that the engine has removed an adapter from its memory. R may be nil.
func (r *Resident) Drop(c *Count) {
	if r == nil || c.Place() == InStorage {
		return
	}
	defer r.alone()()
	c.place.Store(uint32(InStorage))
	r.slots.take(c)
	r.host.take(c)
}

// put gives an adapter a place. If no place is free, it evicts the least recently used adapter
// without requests, and returns the evicted adapter. It returns false if every adapter has
// requests.
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

// take frees the place of an adapter, if the adapter has a place.
func (p places) take(c *Count) {
	if i := slices.Index(p, c); i >= 0 {
		p[i] = nil
	}
}
