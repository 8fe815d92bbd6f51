package endpointstate

import (
	"time"

	"github.com/headgate/headgate/internal/profile/learn"
)

// LearnedProfile is what a process has learned of how long the engines of a pool take that are of one class of hardware, as processes tell each other. Its
// At is by no clock: Age says when it was.
type LearnedProfile struct {
	AcceleratorKey
	learn.Lesson
	// Age is how long ago the latest row was.
	Age time.Duration
	// Factors are the logarithms of how many times as long single engines take, by address.
	Factors map[string]float64
}

// maxLearnedProfiles bounds of how many classes of hardware what others gave is kept.
const maxLearnedProfiles = 4096

// Lessons is what this process can teach others at a time, in order of pools and classes of hardware.
func (s *EngineTimes) LearnedProfiles(now time.Time) []LearnedProfile {
	var all []LearnedProfile
	for _, key := range s.acceleratorKeys() {
		c := s.times[key.Pool].accelerators[key.Class]
		is, any := c.Teach()
		if !any {
			continue
		}
		l := LearnedProfile{AcceleratorKey: key, Lesson: is, Factors: make(map[string]float64)}
		if is.Rows > 0 {
			l.Age = max(0, now.Sub(s.moment(is.At)))
		}
		for address, e := range s.members(key.Pool, c) {
			if factor, known := e.Known(); known {
				l.Factors[address] = factor
			}
		}
		all = append(all, l)
	}
	return all
}

// moment is when it was, by seconds as learners have them.
func (s *EngineTimes) moment(at float64) time.Time {
	return s.origin.Add(time.Duration(at * float64(time.Second)))
}

// HearLessons takes what others have learned, at a time, of what this process knows less of. What is of a pool or a class of hardware that is not
// known yet is kept until it is; what cannot be is refused.
func (s *EngineTimes) LearnFromPeers(told []LearnedProfile, now time.Time) {
	if s.origin.IsZero() {
		s.origin = now
	}
	for _, l := range told {
		if _, there := s.waiting[l.AcceleratorKey]; !there && len(s.waiting) >= maxLearnedProfiles {
			continue
		}
		l.At = now.Add(-l.Age).Sub(s.origin).Seconds()
		s.waiting[l.AcceleratorKey] = l
		s.take(l.AcceleratorKey)
	}
}

// take has a class of hardware go on from what others gave, if it is there and knows less.
func (s *EngineTimes) take(k AcceleratorKey) {
	l, given := s.waiting[k]
	t := s.times[k.Pool]
	if !given || t == nil || t.accelerators[k.Class] == nil {
		return
	}
	delete(s.waiting, k)
	c := t.accelerators[k.Class]
	trusted := c.Trusted()
	rows, late := c.Take(&l.Lesson)
	if !rows && !late {
		return
	}
	if c.Trusted() != trusted {
		c.since, c.heard = s.moment(l.At), true
	}
	for address, e := range s.members(k.Pool, c) {
		e.made = time.Time{} // the next view predicts with the profile taken over
		if factor, told := l.Factors[address]; told && rows {
			c.Meet(&e.Engine, factor)
		}
	}
	s.changed[k.Pool] = true
}
