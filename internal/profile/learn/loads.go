package learn

import (
	"math"
	"slices"

	"github.com/headgate/headgate/internal/profile"
)

// A Learner learns adapter load times and frontend overhead from times to first token: from how
// much later a first token is than everything else predicts. For requests that need no load, this
// delay is the frontend overhead. For other requests, the delay also includes the load.

// Place is where a request's adapter was when the request was sent.
type Place uint8

const (
	// InSlot means that the adapter was in a GPU slot, or that the request needed none.
	InSlot Place = iota
	// InHost means that the engine had to load the adapter from host memory into a slot.
	InHost
	// InStorage means that the engine had to load the adapter from storage into host memory first.
	InStorage
	places
)

const (
	// recent is how many requests are kept for each place. The error of their median is about a
	// tenth of their spread.
	recent = 63
	// said is the weight of the initial value in a median, as a number of requests.
	said = 3
	// latest is the largest delay of a first token in seconds, in both directions.
	latest = 300
)

// loads contains what was learned about adapter loads and frontend overhead.
type loads struct {
	late [places]ring
	// The learned values in seconds. made is true if they are up to date.
	frontendOverhead, slot, load float64
	made                         bool
}

// ring keeps the latest values.
type ring struct {
	values [recent]float64
	n      int // total number of values added
}

// Began records that the first token of a request came late seconds after its prediction, where the
// prediction includes neither frontend overhead nor adapter load. at is where the request's adapter
// was; for a request to the base model it is InSlot. NaN is ignored.
func (l *Learner) Began(e *Engine, at Place, late float64) {
	if l.pinned || at >= places || math.IsNaN(late) {
		return
	}
	if at != InSlot {
		e.prompts = interval{} // the engine's prefill times would include the load
	}
	r := &l.loads.late[at]
	r.values[r.n%recent] = min(max(late/l.Slower(e), -latest), latest)
	r.n++
	l.loads.made = false
}

// tell sets the learned values in a profile. Values that have not been learned keep their initial
// value.
func (l *loads) tell(p *profile.Profile) {
	if !l.made {
		l.make(p.FrontendOverhead, p.AdapterActivation.Mean, p.AdapterLoad.Mean)
	}
	p.FrontendOverhead, p.AdapterActivation.Mean, p.AdapterLoad.Mean = l.frontendOverhead, l.slot, l.load
}

// make computes the learned values from all recorded delays. Its arguments are the initial values.
func (l *loads) make(frontendOverhead, slot, load float64) {
	usually := l.late[InSlot].median(0, 0)
	l.frontendOverhead, l.slot, l.load, l.made = frontendOverhead, slot, load, true
	if l.late[InSlot].n > 0 {
		l.frontendOverhead = max(0, l.late[InSlot].median(frontendOverhead, said))
	}
	if l.late[InHost].n > 0 {
		l.slot = max(0, l.late[InHost].median(usually+slot, said)-usually)
	}
	if l.late[InStorage].n > 0 {
		l.load = max(0, l.late[InStorage].median(usually+slot+load, said)-usually-l.slot)
	}
}

// median returns the median of the values in the ring, with the given value added weight times.
func (r *ring) median(value float64, weight int) float64 {
	var all [recent + said]float64
	n := copy(all[:], r.values[:min(r.n, recent)])
	for range weight {
		all[n] = value
		n++
	}
	if n == 0 {
		return value
	}
	slices.Sort(all[:n])
	return (all[(n-1)/2] + all[n/2]) / 2
}
