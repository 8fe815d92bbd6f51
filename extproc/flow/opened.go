package flow

import (
	"time"

	"github.com/headgate/headgate/extproc/flow/turns"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// This file lets requests try again at once when endpoints open to this process: because no request
// waits in other processes any more, or because shares have changed.

// changes applies changes to what waits in this process and in others, all at the same time.
type changes struct {
	turns  *Turns
	now    time.Duration
	opened []objects.Name // pools with an endpoint that the changes opened
}

// change calls a function that changes pools. Then requests whose endpoints have opened try again.
func (t *Turns) change(all func(c *changes)) {
	t.mu.Lock()
	c := changes{turns: t, now: t.now()}
	all(&c)
	t.mu.Unlock()
	for _, name := range c.opened {
		if t.opened != nil {
			t.opened(name)
		}
	}
}

// change calls a function that changes a pool. Only endpoints for which requests asked lately count
// as opened.
func (c *changes) change(name objects.Name, p *shared, change func()) {
	t := c.turns
	turn := t.clock.At(c.now)
	asked := p.of != nil && c.now-p.asked <= sweep // waiting requests ask more often
	before := p.closed                             // what these requests know
	change()
	t.changed(name, p)
	if !asked {
		p.of, p.closed = nil, nil
		return
	}
	p.closed, p.until = p.closedAt(p.of, turn, c.now), c.now+turns.Slot-turn%turns.Slot
	if opens(before, p.closed) {
		c.opened = append(c.opened, name)
	}
}

// opens reports whether an endpoint was closed for some band and is not any more.
func opens(before, after pick.ClosedFor) bool {
	for n, highest := range before {
		if highest > pick.NoBand && (after == nil || after[n] < highest) {
			return true
		}
	}
	return false
}

// opened lets requests of a pool that wait for room try again, because endpoints belong to this
// process now.
func (f *Flow) opened(name objects.Name) {
	if f.queued.Load() == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pools[name]
	if p == nil {
		return
	}
	now := time.Now()
	for _, l := range p.lines {
		if l.ready || l.why == Room {
			p.retry(l, now)
		}
	}
	p.call()
}
