package estimate

import (
	"fmt"
	"math"
)

// Change sets the number of replicas of a stage at a time.
type Change struct {
	At       float64 // seconds; may be negative: the replicas were requested before time 0
	Replicas int     // new number of replicas, at least 1
}

// pods tracks the replicas of a stage while their number changes.
type pods struct {
	stage    *stage
	wanted   int    // number of replicas that are requested
	leaving  int    // number of removed replicas that still compute queries
	starting []*pod // replicas that do not accept queries yet, in order of request
	since    float64
}

// pod is a replica that is starting.
type pod struct{ removed bool }

// CheckChanges returns an error if the changes of a stage are invalid.
func CheckChanges(all []Change) error {
	for i, c := range all {
		switch {
		case math.IsNaN(c.At) || math.IsInf(c.At, 0) || i > 0 && c.At < all[i-1].At:
			return fmt.Errorf("its replicas change at %vs: want finite times in ascending order", c.At)
		case c.Replicas < 1 || c.Replicas == Unbounded:
			return fmt.Errorf("from %vs on it has %d replicas: want at least 1, and a bound", c.At, c.Replicas)
		}
	}
	return nil
}

// schedule sets timers for the changes in the number of a stage's replicas.
func (s *stage) schedule() {
	s.pods = pods{stage: s, wanted: s.Replicas}
	for _, c := range s.Changes {
		s.run.loop.At(max(0, c.At), func() { s.pods.have(c.Replicas, c.At+s.Startup) })
	}
}

// have sets the number of replicas. New replicas accept queries only after the time until. If the
// number falls, the latest replicas are removed first.
func (p *pods) have(replicas int, until float64) {
	s := p.stage
	p.pay()
	for ; p.wanted < replicas; p.wanted++ {
		is := new(pod)
		p.starting = append(p.starting, is)
		s.run.loop.At(max(s.run.loop.Now(), until), func() {
			if !is.removed { // this pod is the first in starting, since all take equally long to start
				p.starting = p.starting[1:]
				s.grow()
			}
		})
	}
	for ; p.wanted > replicas; p.wanted-- {
		last := len(p.starting) - 1
		if last < 0 {
			if s.shrink() {
				p.leaving++
			}
			continue
		}
		p.starting[last].removed = true
		p.starting = p.starting[:last]
	}
}

// pay adds the replica time since the last call of pay to the result.
func (p *pods) pay() {
	now := p.stage.run.loop.Now()
	p.stage.result.Paid += float64(p.wanted+p.leaving) * (now - p.since)
	p.since = now
}

// left records that a removed replica has finished its last query.
func (p *pods) left() {
	p.pay()
	p.leaving--
}

// grow adds a replica, which accepts queries immediately.
func (s *stage) grow() {
	if s.picker == nil {
		l := s.lanes[0]
		if !l.hasRoom() {
			l.free = s.run.loop.Now()
		}
		l.most++
		l.dispatch()
		return
	}
	n := s.picker.grow(s.Engine)
	if s.Engine != nil {
		s.newEngine()
		return
	}
	s.addLane(n)
}

// shrink removes a replica. It reports whether that replica still has queries to finish.
func (s *stage) shrink() (busy bool) {
	if s.picker == nil {
		l := s.lanes[0]
		l.most--
		switch {
		case l.made-l.leaving <= l.most: // the removed replica had not been created yet
		case len(l.idle) > 0:
			l.idle = l.idle[1:]
			l.made--
		default:
			l.leaving++
			busy = true
		}
		return busy
	}
	return s.picker.shrink()
}
