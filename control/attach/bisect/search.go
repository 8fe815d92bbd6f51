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

// search finds the routes of one route configuration that one Envoy rejects. Later searches find
// routes that only other Envoys reject.
type search struct {
	number   int
	envoy    uint64
	resource Resource
	version  string // rejected version
	routes   []suspect
	known    int // number of routes at the start of the list that an Envoy accepted before
	// out contains the routes that every trial leaves out. rejected contains the routes that this
	// search found.
	out      map[objects.Object]plan.LeftOut
	rejected []suspect
	// low is the largest number of routes, from the start of the list, that Envoy has accepted
	// together; -1 if it has not even accepted an empty list. high is the smallest number that
	// Envoy has rejected, with the error message; len(routes)+1 if it has rejected none. tries is
	// the number of routes in the current trial.
	low, high int
	message   string
	tries     int
	// lesser is true if the current trial keeps the matches of its last route, but answers 500.
	lesser bool
	none   bool // Envoy rejects the configuration even without any route
	// asked is the version of the current trial, empty before the first. since is its start time.
	asked string
	since time.Time
}

// over reports whether the search has ended.
func (s *search) over() bool { return s.none || s.low == len(s.routes) }

// trial returns the routes that the current trial leaves out.
func (s *search) trial() map[objects.Object]plan.LeftOut {
	out := maps.Clone(s.out)
	for _, is := range s.routes[s.tries:] { // trials serve no requests, so dropping a route cannot send any to another rule
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
			s.tries = s.known // a known route is usually valid, so a later one is rejected
		}
	case s.high > len(s.routes): // advance by the average number of good routes per rejected one
		s.tries = min(len(s.routes), s.low+max(1, s.low/max(1, len(s.rejected))))
	case s.high == 0:
		s.none = true
	default:
		last := s.routes[s.high-1].of
		s.tries = s.high
		if _, lesser := s.out[last]; lesser { // its requests already get 500
			s.leaveOut(true)
			return
		}
		s.lesser = true
	}
}

// leaveOut leaves out the last route of the shortest rejected prefix, and continues the search with
// the routes after it.
func (s *search) leaveOut(dropped bool) {
	last := s.routes[s.high-1]
	s.out[last.of] = plan.LeftOut{Message: s.message, Dropped: dropped}
	s.rejected = append(s.rejected, last)
	s.lesser, s.low, s.high = false, s.high, len(s.routes)+1
	s.next()
}
