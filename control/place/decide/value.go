package decide

import (
	"container/heap"
	"math"
	"time"
)

// The model with the lowest eviction value is evicted first. The eviction value is the number of
// seconds of loads that are expected if the model is evicted, relative to the room that it needs.
// Uses of a model are counted. The count decays, and so does the value of an unused model:
//
// 	value = last use + decay * ln(count * seconds per miss / room, relative to other models)
//
// The value is a time: with a count of one it is the time of the last use, and the order is LRU.
// Between uses, count and time decay together, so the order of two models changes only if one of
// them is used (forward decay: Cormode et al., ICDE 2009).
//
// With this rule alone, a model that was used a lot and then not any more would stay for a long
// time. So each tick lowers the value of a model that has been unused for more than silenceFactor
// times its usual interval: it becomes the value of a model that is used about silenceFactor times
// in a period as long as the present silence.
//
// The best decay is not known in advance: slow if popularity is stable, fast if past use soon says
// little about the future. So two ghost lists simulate caches of the pool's capacity, with a decay
// twice as slow and twice as fast, and record their misses. When the misses of one list cost
// clearly fewer seconds of loads, the decay moves toward the decay of that list.

const (
	// firstDecay is the initial decay time of use counts. minDecay and maxDecay are its limits.
	firstDecay = 5 * 60.0 // seconds
	minDecay   = 20.0
	maxDecay   = 30 * 24 * 3600.0
	// decayStep is the factor by which the decay time changes at once. ghostSpread is the factor
	// between the decay time and those of the ghost lists.
	decayStep   = 1.5
	ghostSpread = 2.0
	// minMisses is the number of misses by only one of the ghost lists that must be recorded before
	// the decay may change. minDeviations is the number of standard deviations by which the
	// difference in seconds of loads must differ from zero.
	minMisses     = 50
	minDeviations = 3
	// silenceFactor: a model that is unused for this many mean intervals is taken to be out of use.
	// In a Poisson process, an interval is that long with probability e^-3.
	silenceFactor = 3
	// maxLoadCost limits the logarithm of the relative load cost of a model: to a factor of ten.
	maxLoadCost = 2.3
)

// usage is how often a model was used: a decaying count, and the time in seconds to which it has
// decayed.
type usage struct{ count, at float64 }

// after returns the usage after some requests at the time at. If requests is 0, they were not
// counted, and the count becomes at least one.
func (u usage) after(requests int, at, decayTime float64) usage {
	count := u.count * math.Exp(min(0, u.at-at)/decayTime)
	more := float64(requests) * math.Exp(min(0, at-u.at)/decayTime)
	if requests == 0 {
		return usage{max(count, 1), max(u.at, at)}
	}
	return usage{count + more, max(u.at, at)}
}

// rescaled converts the usage to a decay time that is longer by the factor slower.
func (u usage) rescaled(slower float64) usage {
	if u.count > 1 {
		u.count = 1 + (u.count-1)*slower
	}
	return u
}

// value returns the eviction value of a model with that usage. loadCost is the logarithm of its
// relative load cost. A model that was never used has the lowest value.
func (u usage) value(decayTime, loadCost float64) float64 {
	if u.count == 0 {
		return math.Inf(-1)
	}
	return u.at + decayTime*(math.Log(u.count)+loadCost)
}

// valueAt returns the eviction value at the time now. A long time without use lowers it.
func (u usage) valueAt(now, decayTime, loadCost float64) float64 {
	worth, silence := u.value(decayTime, loadCost), now-u.at
	if u.count == 0 || silence <= 0 {
		return worth
	}
	return min(worth, now+decayTime*(math.Log(silenceFactor*decayTime/silence)+loadCost))
}

// decayTuner finds the best decay time of use counts.
type decayTuner struct {
	decayTime  float64
	ghostLists [2]ghostList // with fast and with slow decay
	// missed is how many more seconds of loads the misses of the fast list cost than those of the
	// slow list. squares is the sum of the squares of the differences. differ is the number of uses
	// that only one list missed. All three are counted since the last change of the decay time.
	missed, squares float64
	differ          int
}

func newDecayTuner() *decayTuner {
	f := &decayTuner{}
	f.update(firstDecay)
	return f
}

// update sets the decay time and resets the sums of misses.
func (f *decayTuner) update(decayTime float64) {
	f.decayTime, f.missed, f.squares, f.differ = decayTime, 0, 0, 0
	for i := range f.ghostLists {
		f.ghostLists[i].update(i, f.of(i))
	}
}

// of returns the decay time of the ghost list with index i.
func (f *decayTuner) of(i int) float64 {
	if i == 0 {
		return f.decayTime / ghostSpread
	}
	return f.decayTime * ghostSpread
}

// used records a use of a model in both ghost lists. seconds is the load time of the model.
func (f *decayTuner) used(m *model, requests int, at, seconds, loadCost float64) {
	var missed [2]bool
	for i := range f.ghostLists {
		missed[i] = f.ghostLists[i].used(m, i, requests, at, loadCost)
	}
	switch {
	case missed[0] == missed[1]:
		return
	case missed[1]:
		seconds = -seconds
	}
	f.missed += seconds
	f.squares += seconds * seconds
	f.differ++
}

// move returns the decay time that the misses of the ghost lists suggest, and whether it differs
// from the current one.
func (f *decayTuner) move() (decayTime float64, moves bool) {
	if f.differ < minMisses || f.missed*f.missed < minDeviations*minDeviations*f.squares {
		return f.decayTime, false
	}
	decayTime = f.decayTime * decayStep
	if f.missed < 0 {
		decayTime = f.decayTime / decayStep
	}
	decayTime = min(max(decayTime, minDecay), maxDecay)
	return decayTime, decayTime != f.decayTime
}

// ghostList simulates which models the pool would have with another decay time.
type ghostList struct {
	decayTime float64
	capacity  amount // 0 means no limit
	has       amount
	held      ghostHeap
}

// ghostEntry is a model's entry in a ghost list.
type ghostEntry struct {
	usage
	value, loadCosts float64
	takes            int64 // the model's bytes in the list
	held             bool
	at               int // the entry's index in the heap
}

func (s *ghostList) update(i int, decayTime float64) {
	slower := 1.0
	if s.decayTime > 0 {
		slower = decayTime / s.decayTime
	}
	s.decayTime, s.held.shadow = decayTime, i
	for _, m := range s.held.models {
		g := &m.ghosts[i]
		g.usage = g.rescaled(slower)
		g.value = g.usage.value(decayTime, g.loadCosts)
	}
	heap.Init(&s.held)
}

// used records a use of a model, and reports whether the model was missing from the list.
func (s *ghostList) used(m *model, i, requests int, at, loadCost float64) (missed bool) {
	g := &m.ghosts[i]
	g.usage, g.loadCosts = g.after(requests, at, s.decayTime), loadCost
	g.value = g.usage.value(s.decayTime, loadCost)
	if g.held {
		heap.Fix(&s.held, g.at)
		return false
	}
	for len(s.held.models) > 0 && !s.fits(s.has.models+1, sum(s.has.bytes, m.bytes)) {
		s.forget(s.held.models[0], i)
	}
	g.held, g.takes = true, m.bytes
	s.has = s.has.plus(g.takes)
	heap.Push(&s.held, m)
	return true
}

// tick updates the eviction values in the list.
func (s *ghostList) tick(now float64) {
	changed := false
	for _, m := range s.held.models {
		g := &m.ghosts[s.held.shadow]
		if worth := g.valueAt(now, s.decayTime, g.loadCosts); worth != g.value {
			g.value, changed = worth, true
		}
	}
	if changed {
		heap.Init(&s.held)
	}
}

func (s *ghostList) fits(models int, bytes int64) bool {
	return (s.capacity.models == 0 || models <= s.capacity.models) && (s.capacity.bytes == 0 || bytes <= s.capacity.bytes)
}

// forget removes a model from the list.
func (s *ghostList) forget(m *model, i int) {
	if g := &m.ghosts[i]; g.held {
		heap.Remove(&s.held, g.at)
		s.has = s.has.minus(g.takes)
		g.held = false
	}
}

// ghostHeap is a heap of the models in a ghost list, the lowest eviction value first.
type ghostHeap struct {
	shadow int
	models []*model
}

func (h *ghostHeap) Len() int { return len(h.models) }

func (h *ghostHeap) Less(i, j int) bool {
	a, b := h.models[i], h.models[j]
	if x, y := a.ghosts[h.shadow].value, b.ghosts[h.shadow].value; x != y {
		return x < y
	}
	return a.Compare(b.ModelKey) < 0
}

func (h *ghostHeap) Swap(i, j int) {
	h.models[i], h.models[j] = h.models[j], h.models[i]
	h.models[i].ghosts[h.shadow].at, h.models[j].ghosts[h.shadow].at = i, j
}

func (h *ghostHeap) Push(x any) {
	m := x.(*model)
	m.ghosts[h.shadow].at = len(h.models)
	h.models = append(h.models, m)
}

func (h *ghostHeap) Pop() any {
	last := len(h.models) - 1
	m := h.models[last]
	h.models[last] = nil
	h.models = h.models[:last]
	return m
}

// seconds converts a time to seconds; the zero time becomes the smallest number.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return math.Inf(-1)
	}
	return float64(t.UnixNano()) / 1e9
}
