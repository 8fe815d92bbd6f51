package bisect

import (
	"maps"
	"time"

	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/objects"
)

// suspect is a route with the content that it had when the search began.
type suspect struct {
	of      objects.Object
	content string
}

// search looks for the routes that one Envoy refuses of one route configuration. It goes by what that Envoy says alone: another may refuse
// others, and is asked after it.
type search struct {
	number   int
	envoy    uint64
	resource Resource
	version  string // that was refused
	routes   []suspect
	known    int // of the row, those that an Envoy has taken before
	// out are the routes that are left out of every trial, and rejected those of them that the search has found.
	out      map[objects.Object]plan.LeftOut
	rejected []suspect
	// The Envoy takes the first low of the row, of which -1 is nothing, that it need not be asked about; it refuses the first high,
	// with these words. One more than there are: it is not known to refuse any. tries is what it is asked now.
	low, high int
	words     string
	tries     int
	// lesser says that it is asked about the first high with 500 for the last of them.
	lesser bool
	none   bool // it refuses the rest, without any route
	// asked is the version of the trial, empty before there is one, and since when it is asked.
	asked string
	since time.Time
}

// over says whether the search has ended.
func (s *search) over() bool { return s.none || s.low == len(s.routes) }

// trial is what to leave out now.
func (s *search) trial() map[objects.Object]plan.LeftOut {
	out := maps.Clone(s.out)
	for _, is := range s.routes[s.tries:] { // where nothing is in force, no request falls to a rule that is not meant for it
		out[is.of] = plan.LeftOut{Dropped: true}
	}
	if s.lesser {
		out[s.routes[s.tries-1].of] = plan.LeftOut{}
	}
	return out
}

// took notes that the Envoy takes what it tries.
func (s *search) took() {
	if s.lesser {
		s.leaveOut(false)
		return
	}
	s.low = s.tries
	s.next()
}

// refused notes that it refuses that, and why.
func (s *search) refused(words string) {
	if s.lesser {
		s.leaveOut(true)
		return
	}
	s.high, s.words = s.tries, words
	s.next()
}

// on chooses what to try next.
func (s *search) next() {
	switch {
	case s.over():
	case s.high-s.low > 1 && s.high <= len(s.routes):
		s.tries = (s.low + s.high) / 2
		if max(s.low, 0) < s.known && s.known < s.high {
			s.tries = s.known // mostly these are fine, and one of the others is not
		}
	case s.high > len(s.routes): // as many more as there were for each that is rejected
		s.tries = min(len(s.routes), s.low+max(1, s.low/max(1, len(s.rejected))))
	case s.high == 0:
		s.none = true
	default:
		last := s.routes[s.high-1].of
		s.tries = s.high
		if _, lesser := s.out[last]; lesser { // it gets 500 already
			s.leaveOut(true)
			return
		}
		s.lesser = true
	}
}

// blame leaves out the last route of the shortest beginning that is refused, and goes on with those after it.
func (s *search) leaveOut(dropped bool) {
	last := s.routes[s.high-1]
	s.out[last.of] = plan.LeftOut{Words: s.words, Dropped: dropped}
	s.rejected = append(s.rejected, last)
	s.lesser, s.low, s.high = false, s.high, len(s.routes)+1
	s.next()
}
