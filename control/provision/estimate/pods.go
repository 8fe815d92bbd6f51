package estimate

import (
	"fmt"
	"math"
)

// Change sets the number of replicas of a stage from a time on.
type Change struct {
	At       float64 // seconds; below 0 for replicas that were requested before the first query
	Replicas int     // at least 1
}

// pods counts the replicas of a stage while their number changes.
type pods struct {
	stage    *stage
	wanted   int    // requested replicas
	leaving  int    // removed replicas that still compute
	starting []*pod // requested replicas that do not accept queries yet, in order
	since    float64
}

// pod is a starting replica.
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

// schedule schedules the changes of replicas of a stage.
func (s *stage) schedule() {
	s.pods = pods{stage: s, wanted: s.Replicas}
	for _, c := range s.Changes {
		s.run.loop.At(max(0, c.At), func() { s.pods.have(c.Replicas, c.At+s.Startup) })
	}
}

// have sets the number of replicas. New ones start until a time; the latest are removed first.
func (p *pods) have(replicas int, until float64) {
	s := p.stage
	p.pay()
	for ; p.wanted < replicas; p.wanted++ {
		is := new(pod)
		p.starting = append(p.starting, is)
		s.run.loop.At(max(s.run.loop.Now(), until), func() {
			if !is.removed { // all take equally long to start, so it is the first
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

// pay adds the replica time up to now.
func (p *pods) pay() {
	now := p.stage.run.loop.Now()
	p.stage.result.Paid += float64(p.wanted+p.leaving) * (now - p.since)
	p.since = now
}

// left records that a removed replica has ended its last query.
func (p *pods) left() {
	p.pay()
	p.leaving--
}

// grow adds a replica that accepts queries.
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

// shrink removes a replica. It reports whether the replica still has queries.
func (s *stage) shrink() (busy bool) {
	if s.picker == nil {
		l := s.lanes[0]
		l.most--
		switch {
		case l.made-l.leaving <= l.most: // it was never created
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
