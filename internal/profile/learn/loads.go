package learn

import (
	"math"
	"slices"

	"github.com/headgate/headgate/internal/profile"
)

// How long loads of adapters take, and what is before an engine's queue, is learned of first tokens: by how much later they came than all else
// was predicted to. Requests that need no load show what is before the queue, where they are late, and the others take a load longer than those.

// Place is where the adapter of a request was when the request was sent.
type Place uint8

const (
	// InSlot needs no load.
	InSlot Place = iota
	// InHost is brought from host memory into a slot.
	InHost
	// InStorage is brought into host memory first.
	InStorage
	places
)

const (
	// recent is how many requests of each place are remembered: a median of these is off by a tenth of their spread.
	recent = 63
	// said is as how many of them what was said in the beginning counts.
	said = 3
	// latest is by how many seconds a first token is late at most, or early.
	latest = 300
)

// loads is what is known of loads, and of what is before an engine's queue.
type loads struct {
	late [places]ring
	// intake, slot and load are what follows of it, in seconds; made says that they do.
	intake, slot, load float64
	made               bool
}

// ring is the latest of many values.
type ring struct {
	values [recent]float64
	n      int // how many there were
}

// Began tells that a first token came so many seconds later than predicted, but for the intake and for what a load takes, of a request whose
// adapter was at a place; one for the model itself needs no load, as one for an adapter in a slot. What is no number teaches nothing.
func (l *Learner) Began(e *Engine, at Place, late float64) {
	if l.pinned || at >= places || math.IsNaN(late) {
		return
	}
	if at != InSlot {
		e.prompts = interval{} // an engine counts the load as a part of the prefill
	}
	r := &l.loads.late[at]
	r.values[r.n%recent] = min(max(late/l.Slower(e), -latest), latest)
	r.n++
	l.loads.made = false
}

// tell puts into a profile what is known by now. It says before what was said in the beginning.
func (l *loads) tell(p *profile.Profile) {
	if !l.made {
		l.make(p.Intake, p.Slot.Mean, p.Load.Mean)
	}
	p.Intake, p.Slot.Mean, p.Load.Mean = l.intake, l.slot, l.load
}

// make is what follows of all first tokens, and of what was said in the beginning.
func (l *loads) make(intake, slot, load float64) {
	usually := l.late[InSlot].median(0, 0)
	l.intake, l.slot, l.load, l.made = intake, slot, load, true
	if l.late[InSlot].n > 0 {
		l.intake = max(0, l.late[InSlot].median(intake, said))
	}
	if l.late[InHost].n > 0 {
		l.slot = max(0, l.late[InHost].median(usually+slot, said)-usually)
	}
	if l.late[InStorage].n > 0 {
		l.load = max(0, l.late[InStorage].median(usually+slot+load, said)-usually-l.slot)
	}
}

// median is that of the values, and of one that counts as so many of them.
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
