package bisect

import (
	"maps"
	"time"

	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/objects"
)

// suspect is a route with its content at the start of the search.
type suspect struct {
	of      objects.Object
	content string
}

// search finds the routes of one route configuration that one Envoy rejects. Other Envoys may
// reject other routes; a later search finds these.
type search struct {
	number   int
	envoy    uint64
	resource Resource
	version  string // the rejected one
	routes   []suspect
	known    int // how many of the routes an Envoy accepted before
	// out has the routes that every trial leaves out, and rejected those of them that this search
	// found.
	out      map[objects.Object]plan.LeftOut
	rejected []suspect
	// Envoy accepts the first low routes, and rejects the first high with this error. low is -1
	// while even the empty list may be rejected. high is one more than the number of routes while
	// no list is known to be rejected. tries is the length of the current trial.
	low, high int
	message   string
	tries     int
	// lesser is true if the last route of the current trial answers 500 instead of its rules.
	lesser bool
	none   bool // it rejects the rest, even without any route
	// asked is the version of the trial, empty before there is one; since is its time.
	asked string
	since time.Time
}

// over reports whether the search has ended.
func (s *search) over() bool { return s.none || s.low == len(s.routes) }

// trial returns the routes to leave out now.
func (s *search) trial() map[objects.Object]plan.LeftOut {
	out := maps.Clone(s.out)
	for _, is := range s.routes[s.tries:] { // no request can reach the wrong rule, since trials serve none
		out[is.of] = plan.LeftOut{Dropped: true}
	}
	if s.lesser {
		out[s.routes[s.tries-1].of] = plan.LeftOut{}
	}
	return out
}

// took records that the Envoy accepts the trial.
func (s *search) took() {
	if s.lesser {
		s.leaveOut(false)
		return
	}
	s.low = s.tries
	s.next()
}

// refused records that the Envoy rejects the trial, with its error.
func (s *search) refused(words string) {
	if s.lesser {
		s.leaveOut(true)
		return
	}
	s.high, s.message = s.tries, words
	s.next()
}

// next chooses the next trial.
func (s *search) next() {
	switch {
	case s.over():
	case s.high-s.low > 1 && s.high <= len(s.routes):
		s.tries = (s.low + s.high) / 2
		if max(s.low, 0) < s.known && s.known < s.high {
			s.tries = s.known // these are usually valid, and a later route is not
		}
	case s.high > len(s.routes): // the average number of good routes per rejected one
		s.tries = min(len(s.routes), s.low+max(1, s.low/max(1, len(s.rejected))))
	case s.high == 0:
		s.none = true
	default:
		last := s.routes[s.high-1].of
		s.tries = s.high
		if _, lesser := s.out[last]; lesser { // it answers 500 already
			s.leaveOut(true)
			return
		}
		s.lesser = true
	}
}

// leaveOut leaves out the last route of the shortest rejected prefix, and continues with the routes
// after it.
func (s *search) leaveOut(dropped bool) {
	last := s.routes[s.high-1]
	s.out[last.of] = plan.LeftOut{Message: s.message, Dropped: dropped}
	s.rejected = append(s.rejected, last)
	s.lesser, s.low, s.high = false, s.high, len(s.routes)+1
	s.next()
}
