package endpointstate

import (
	"time"

	"github.com/headgate/headgate/internal/profile/learn"
)

// LearnedProfile is what one process has learned of the engines of a pool on one accelerator, in
// the form that processes exchange. Clocks of processes differ, so Age replaces the profile's At.
type LearnedProfile struct {
	AcceleratorKey
	learn.Lesson
	// Age is the age of the latest measurement.
	Age time.Duration
	// Factors are, by address, the logarithms of the factors by which single engines take longer.
	Factors map[string]float64
}

// maxLearnedProfiles bounds the profiles that wait for their accelerator.
const maxLearnedProfiles = 4096

// LearnedProfiles returns what this process has learned, to be sent to its peers. It is sorted by
// pool and accelerator.
func (s *EngineTimes) LearnedProfiles(now time.Time) []LearnedProfile {
	var all []LearnedProfile
	for _, key := range s.acceleratorKeys() {
		c := s.times[key.Pool].accelerators[key.Accelerator]
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

// moment converts the seconds that learners use to a time.
func (s *EngineTimes) moment(at float64) time.Time {
	return s.origin.Add(time.Duration(at * float64(time.Second)))
}

// LearnFromPeers adopts profiles from other processes for accelerators with which this process has
// less experience. It keeps profiles for unknown pools and accelerators until these exist, and
// rejects invalid profiles.
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

// take adopts the waiting profile of an accelerator if there is one and it has more data than this
// process.
func (s *EngineTimes) take(k AcceleratorKey) {
	l, given := s.waiting[k]
	t := s.times[k.Pool]
	if !given || t == nil || t.accelerators[k.Accelerator] == nil {
		return
	}
	delete(s.waiting, k)
	c := t.accelerators[k.Accelerator]
	trusted := c.Trusted()
	rows, late := c.Take(&l.Lesson)
	if !rows && !late {
		return
	}
	if c.Trusted() != trusted {
		c.since, c.fromPeer = s.moment(l.At), true
	}
	for address, e := range s.members(k.Pool, c) {
		e.made = time.Time{} // so that the next view predicts with the adopted profile
		e.touch()
		if factor, told := l.Factors[address]; told && rows {
			c.Meet(&e.Engine, factor)
		}
	}
	s.changed[k.Pool] = true
}
