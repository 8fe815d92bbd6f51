package endpointstate

import (
	"time"

	"github.com/headgate/headgate/internal/profile/learn"
)

// Lesson is what a process has learned of how long the engines of a pool take that are of one class of hardware, as processes tell each other. Its
// At is by no clock: Age says when it was.
type Lesson struct {
	ClassKey
	learn.Lesson
	// Age is how long ago the latest row was.
	Age time.Duration
	// Factors are the logarithms of how many times as long single engines take, by address.
	Factors map[string]float64
}

// maxLessons bounds of how many classes of hardware what others gave is kept.
const maxLessons = 4096

// Lessons is what this process can teach others at a time, in order of pools and classes of hardware.
func (s *ServiceTimes) Lessons(now time.Time) []Lesson {
	var all []Lesson
	for _, key := range s.classKeys() {
		c := s.times[key.Pool].classes[key.Class]
		is, any := c.Teach()
		if !any {
			continue
		}
		l := Lesson{ClassKey: key, Lesson: is, Factors: make(map[string]float64)}
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
func (s *ServiceTimes) moment(at float64) time.Time {
	return s.origin.Add(time.Duration(at * float64(time.Second)))
}

// HearLessons takes what others have learned, at a time, of what this process knows less of. What is of a pool or a class of hardware that is not
// known yet is kept until it is; what cannot be is refused.
func (s *ServiceTimes) HearLessons(told []Lesson, now time.Time) {
	if s.origin.IsZero() {
		s.origin = now
	}
	for _, l := range told {
		if _, there := s.lessons[l.ClassKey]; !there && len(s.lessons) >= maxLessons {
			continue
		}
		l.At = now.Add(-l.Age).Sub(s.origin).Seconds()
		s.lessons[l.ClassKey] = l
		s.take(l.ClassKey)
	}
}

// take has a class of hardware go on from what others gave, if it is there and knows less.
func (s *ServiceTimes) take(k ClassKey) {
	l, given := s.lessons[k]
	t := s.times[k.Pool]
	if !given || t == nil || t.classes[k.Class] == nil {
		return
	}
	delete(s.lessons, k)
	c := t.classes[k.Class]
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
