package estimate

import (
	"fmt"
	"math"
)

// Change is how many replicas a stage is to have from a time on.
type Change struct {
	At       float64 // seconds; below 0 of replicas that were asked for before the first query and may still start
	Replicas int     // at least 1
}

// pods are the replicas of a stage, as somebody asks for more of them and for fewer.
type pods struct {
	stage    *stage
	asked    int    // how many are to be there
	leaving  int    // of those that are to go how many have not ended what they have
	starting []*pod // those that take no query yet, in the order in which they were asked for
	since    float64
}

// pod is one that starts.
type pod struct{ gone bool }

// CheckChanges returns what is wrong with changes of replicas, nil if nothing is.
func CheckChanges(all []Change) error {
	for i, c := range all {
		switch {
		case math.IsNaN(c.At) || math.IsInf(c.At, 0) || i > 0 && c.At < all[i-1].At:
			return fmt.Errorf("its replicas change at %vs: times are finite, and do not go back", c.At)
		case c.Replicas < 1 || c.Replicas == Unbounded:
			return fmt.Errorf("from %vs on it has %d replicas: there is at least 1, and a bound", c.At, c.Replicas)
		}
	}
	return nil
}

// schedule has the replicas of a stage change when they are to.
func (s *stage) schedule() {
	s.pods = pods{stage: s, asked: s.Replicas}
	for _, c := range s.Changes {
		s.run.loop.At(max(0, c.At), func() { s.pods.have(c.Replicas, c.At+s.Startup) })
	}
}

// have asks for so many replicas. Those that come start first, until a time. Of those that are too many the latest go first.
func (p *pods) have(replicas int, until float64) {
	s := p.stage
	p.pay()
	for ; p.asked < replicas; p.asked++ {
		is := new(pod)
		p.starting = append(p.starting, is)
		s.run.loop.At(max(s.run.loop.Now(), until), func() {
			if !is.gone { // all take as long to start: it is the first of those
				p.starting = p.starting[1:]
				s.grow()
			}
		})
	}
	for ; p.asked > replicas; p.asked-- {
		last := len(p.starting) - 1
		if last < 0 {
			if s.shrink() {
				p.leaving++
			}
			continue
		}
		p.starting[last].gone = true
		p.starting = p.starting[:last]
	}
}

// pay counts what replicas cost until now.
func (p *pods) pay() {
	now := p.stage.run.loop.Now()
	p.stage.seen.Paid += float64(p.asked+p.leaving) * (now - p.since)
	p.since = now
}

// left has one be gone that was to go.
func (p *pods) left() {
	p.pay()
	p.leaving--
}

// grow has one more replica take queries.
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

// shrink has one replica less take queries. It says whether that has yet to end what it has.
func (s *stage) shrink() (busy bool) {
	if s.picker == nil {
		l := s.lanes[0]
		l.most--
		switch {
		case l.made-l.leaving <= l.most: // it was never needed
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
