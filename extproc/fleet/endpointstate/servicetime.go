package endpointstate

import (
	"slices"
	"sync/atomic"
	"time"
)

// ServiceTime is how long an engine takes for a tokenless request for one model where it has no other: the mean of the middle half of the latest times.
// Each is what a request took, from its last byte to the last of its answer, divided by how many its endpoint had when it was sent, itself among
// them ([pick.Decision.Among]).
//
// It needs no word of engines. For n requests of one model an engine takes n times as long as for one, whether it runs one after the other, or all at
// once and each the slower for it; so do those that run all at once for requests of several models. Where requests of several models wait for each
// other, their paces come nearer to each other than they are: the worst of it is that requests are counted, and not their times. Where an
// engine has room for several, the pace is what one more costs there. What comes after a request is not known when it is sent: in a steady load it
// is as much as what was there.
//
// The first run of a model, a pause of its engine or a client that reads slowly is outside the middle half; a model that changes is known anew
// after some 24 requests. One at a time may have it learn; all may read it meanwhile.
type ServiceTime struct {
	nanoseconds atomic.Int64 // 0 is not known yet
	latest      [paceWindow]int64
	seen        int
}

const (
	// paceWindow is of how many requests the pace is, and fewestPaces of how many at least: there is a middle half of four.
	paceWindow  = 32
	fewestPaces = 4
	// longestPace bounds what is believed, so that sums of paces are numbers.
	longestPace = time.Hour
)

// Learn takes how long a request took by itself. What is not positive tells nothing.
func (p *ServiceTime) Learn(alone time.Duration) {
	if alone <= 0 {
		return
	}
	p.latest[p.seen%paceWindow] = int64(min(alone, longestPace))
	p.seen++
	if p.seen < fewestPaces {
		return
	}
	sorted := p.latest
	all := sorted[:min(p.seen, paceWindow)]
	slices.Sort(all)
	middle := all[len(all)/4 : len(all)-len(all)/4]
	var sum int64
	for _, n := range middle {
		sum += n
	}
	p.nanoseconds.Store(sum / int64(len(middle)))
}

// Nanoseconds is the pace, 0 while it is not known.
func (p *ServiceTime) Nanoseconds() int64 { return p.nanoseconds.Load() }
