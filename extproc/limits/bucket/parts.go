package bucket

import "time"

// Settled is how long after a change a process waits until it uses what it did not use before. By
// then, the other processes have heard of the change.
const Settled = time.Second

// Parts are the parts of a process as control divides limits among processes. A process gives up at
// once what a new part lacks, and uses what is new after Settled. So two processes never use the
// same part of a limit, as long as each hears of a change within Settled. The zero Parts is an
// empty part: a new process has none until control has reported one. It is not safe for concurrent
// use.
type Parts struct {
	now, next Part
	due       time.Duration
}

// Hear records a new part at a time.
func (p *Parts) Hear(next Part, at time.Duration) {
	p.At(at)
	p.now = Part{max(p.now.From, next.From), min(p.now.To, next.To)}
	if p.now.To < p.now.From {
		p.now = Part{}
	}
	p.next, p.due = next, at+Settled
}

// At returns the part at a time.
func (p *Parts) At(now time.Duration) Part {
	if now >= p.due {
		p.now = p.next
	}
	return p.now
}
