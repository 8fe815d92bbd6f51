package learn

import (
	"math"
	"slices"

	"github.com/headgate/headgate/internal/profile"
)

// Adapter load times and frontend overhead are learned from times to first token: by how much the
// first token is later than everything else predicts. Requests that need no load show the frontend
// overhead; the others take a load longer.

// Place is where a request's adapter was when the request was sent.
type Place uint8

const (
	// InSlot needs no load.
	InSlot Place = iota
	// InHost means that it is loaded from host memory into a slot.
	InHost
	// InStorage means that it is first loaded into host memory.
	InStorage
	places
)

const (
	// recent is how many requests of each place are kept. The error of their median is a tenth of
	// their spread.
	recent = 63
	// said is the weight of the initial value, in requests.
	said = 3
	// latest limits how late or early a first token may be, in seconds.
	latest = 300
)

// loads has what was learned about load times and frontend overhead.
type loads struct {
	late [places]ring
	// The learned values in seconds; made says that there are any.
	frontendOverhead, slot, load float64
	made                         bool
}

// ring keeps the last values.
type ring struct {
	values [recent]float64
	n      int // number of values so far
}

// Began reports that a first token came late seconds after its prediction, which excluded the
// frontend overhead and the load, for a request whose adapter was at a place. A request for the
// base model needs no load, like one whose adapter is in a slot. NaN is ignored.
func (l *Learner) Began(e *Engine, at Place, late float64) {
	if l.pinned || at >= places || math.IsNaN(late) {
		return
	}
	if at != InSlot {
		e.prompts = interval{} // the engine counts the load as prefill
	}
	r := &l.loads.late[at]
	r.values[r.n%recent] = min(max(late/l.Slower(e), -latest), latest)
	r.n++
	l.loads.made = false
}

// tell sets the learned values in a profile; before any are learned, the initial ones stay.
func (l *loads) tell(p *profile.Profile) {
	if !l.made {
		l.make(p.FrontendOverhead, p.AdapterActivation.Mean, p.AdapterLoad.Mean)
	}
	p.FrontendOverhead, p.AdapterActivation.Mean, p.AdapterLoad.Mean = l.frontendOverhead, l.slot, l.load
}

// make computes the values from all first tokens and the initial values.
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

// median is the median of the values and of one value with a weight.
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
