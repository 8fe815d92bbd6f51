package pick

import (
	"math"
	"runtime"
	"sync/atomic"
)

// Objectives counts an endpoint's requests by priority band and stated objective for time per
// output token. Its size is the largest number of different pairs at the same time, which routes
// determine. The zero Objectives is empty. It is safe for concurrent use, and reading takes no
// lock.
type Objectives struct {
	busy    atomic.Bool // spin lock of changes; it is held only while a few entries are compared
	entries atomic.Pointer[[]stated]
}

// stated is the number of requests with one pair of band and objective.
type stated struct {
	key      atomic.Uint64 // result of keyOf
	requests atomic.Int64
}

// bandSign maps bands to unsigned numbers of the same order.
const bandSign = 1 << 31

// keyOf packs a band and an objective, in seconds, into one number. The objective is rounded to
// microseconds, and lies between 1 microsecond and about 71 minutes.
func keyOf(band int32, perToken float64) uint64 {
	micros := min(max(perToken*1e6, 1), math.MaxUint32)
	return uint64(uint32(band)^bandSign)<<32 | uint64(uint32(micros+0.5)) //nolint:gosec // in range
}

// tightest returns the shortest objective, in seconds, of requests of at least this band; infinite
// if there are none.
func (o *Objectives) tightest(band int32) float64 {
	entries := o.entries.Load()
	if entries == nil {
		return math.Inf(1)
	}
	least := uint32(math.MaxUint32)
	for i := range *entries {
		is := &(*entries)[i]
		if is.requests.Load() <= 0 {
			continue
		}
		key := is.key.Load()
		if objective := uint32(key); uint32(key>>32) >= uint32(band)^bandSign && objective < least { //nolint:gosec // halves of key
			least = objective
		}
	}
	if least == math.MaxUint32 {
		return math.Inf(1)
	}
	return float64(least) * 1e-6
}

// add adds n requests with a key. Key 0 means that the request states no objective.
func (o *Objectives) add(key uint64, n int64) {
	if key == 0 {
		return
	}
	for !o.busy.CompareAndSwap(false, true) {
		runtime.Gosched()
	}
	defer o.busy.Store(false)
	entries, free := o.entries.Load(), -1
	if entries != nil {
		for i := range *entries {
			is := &(*entries)[i]
			switch {
			case is.requests.Load() <= 0:
				free = i
			case is.key.Load() == key:
				is.requests.Add(n)
				return
			}
		}
	}
	if n <= 0 {
		return
	}
	if free < 0 {
		free = o.grow(entries)
		entries = o.entries.Load()
	}
	is := &(*entries)[free]
	is.key.Store(key)
	is.requests.Store(n)
}

// grow doubles the room for entries, and returns the index of a free one.
func (o *Objectives) grow(entries *[]stated) (free int) {
	var old []stated
	if entries != nil {
		old = *entries
	}
	larger := make([]stated, max(2, 2*len(old)))
	for i := range old {
		larger[i].key.Store(old[i].key.Load())
		larger[i].requests.Store(old[i].requests.Load())
	}
	o.entries.Store(&larger)
	return len(old)
}

// Len returns the number of different pairs of band and objective that requests have.
func (o *Objectives) Len() (n int) {
	if entries := o.entries.Load(); entries != nil {
		for i := range *entries {
			if (*entries)[i].requests.Load() > 0 {
				n++
			}
		}
	}
	return n
}
