package bucket

import "time"

// Settled is how long a process waits after a change before it uses what it gains. It applies only
// if control does not report that the other processes have heard of the change.
const Settled = time.Second

// Parts is the part of each limit that a process may use, as control assigns it. When the part
// changes, the process gives up at once what it loses. It uses what it gains when control reports
// that all processes have heard of the change, or after Settled if control does not report that.
// The zero Parts is an empty part: a new process has none until control has reported one. It is not
// safe for concurrent use.
type Parts struct {
	now, next Part
	due       time.Duration
	waits     bool // for Grow
}

// Hear records a new part at a time.
func (p *Parts) Hear(next Part, at time.Duration) {
	p.At(at)
	p.shrink(next)
	p.due, p.waits = at+Settled, false
}

// Shrink records a new part, which Grow will put in force.
func (p *Parts) Shrink(next Part) {
	p.shrink(next)
	p.waits = true
}

func (p *Parts) shrink(next Part) {
	p.now = Part{max(p.now.From, next.From), min(p.now.To, next.To)}
	if p.now.To <= p.now.From {
		p.now = Part{}
	}
	p.next = next
}

// Grow puts the last part in force.
func (p *Parts) Grow() { p.now, p.waits = p.next, false }

// At returns the part at a time.
func (p *Parts) At(now time.Duration) Part {
	if !p.waits && now >= p.due {
		p.now = p.next
	}
	return p.now
}
