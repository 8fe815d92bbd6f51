package placementserver

import (
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/api/placement"
)

// Limits of the learned profiles that are kept: for this many combinations of pool and accelerator,
// each no larger than what extproc sends.
const (
	maxLessons = 4096
	maxName    = 600 // bytes of a pool's name with its namespace, or of an accelerator
	maxTerms   = 64  // numbers in a list
	maxFactors = 512
	// remembers is the time in seconds in which the weight of a measurement falls to 1/e. enough is
	// the number of measurements beyond which more do not count, as in extproc.
	remembers, enough = 300, 500
	// maxProfilesPerUpdate limits the profiles in one Update.
	maxProfilesPerUpdate = 64
)

// profiles are the learned profiles with the most evidence that extprocs reported. The Server's mu
// guards them.
type profiles map[profileKey]profile

type profileKey struct {
	pool, class string
	prior       uint64
}

type profile struct {
	*placement.Lesson
	from string // the process
	at   time.Time
}

// evidence returns its number of measurements, weighted by their age.
func (l profile) evidence(now time.Time) float64 {
	n := min(l.GetRows(), enough) + uint64(len(l.GetInSlot())+len(l.GetInHost())+len(l.GetInStorage()))
	return float64(n) * math.Exp(-max(0, now.Sub(l.at).Seconds())/remembers)
}

// small reports whether it is within the limits of what extproc sends.
func small(l *placement.Lesson) bool {
	for _, n := range []int{len(l.GetMatrix()), len(l.GetRight()), len(l.GetInSlot()), len(l.GetInHost()), len(l.GetInStorage())} {
		if n > maxTerms {
			return false
		}
	}
	for endpoint := range l.GetFactors() {
		if len(endpoint) > maxName {
			return false
		}
	}
	return len(l.GetPool()) <= maxName && len(l.GetClass()) <= maxName && len(l.GetFactors()) <= maxFactors
}

// learned records the learned profiles that an extproc reports. The caller holds mu.
func (s *Server) learned(p *peer, told []*placement.Lesson, now time.Time) {
	for _, l := range told {
		if !small(l) {
			continue
		}
		key, is := profileKey{l.GetPool(), l.GetClass(), l.GetPrior()}, profile{l, p.process, now}
		if _, there := p.ownEvidence[key]; !there && len(p.ownEvidence) >= maxLessons {
			continue
		}
		p.ownEvidence[key] = is.evidence(now)
		was, there := s.lessons[key]
		if there && was.from != p.process && was.evidence(now) > is.evidence(now) {
			continue
		}
		if !there && len(s.lessons) >= maxLessons {
			s.lessons.forget(now)
		}
		s.lessons[key] = is
		for o := range s.peers {
			if o.lacks(key, is, now) {
				o.lessons[key] = true
				o.wake()
			}
		}
	}
}

// forget removes the profile with the least evidence.
func (all profiles) forget(now time.Time) {
	var worst profileKey
	least := math.Inf(1)
	for key, l := range all {
		if n := l.evidence(now); n < least {
			worst, least = key, n
		}
	}
	delete(all, worst)
}

// lacks reports whether a profile must be sent to an extproc: it was not sent yet, another extproc
// learned it, and it has more evidence than the extproc's own.
func (p *peer) lacks(key profileKey, is profile, now time.Time) bool {
	return !p.sentProfiles[key] && is.from != p.process && is.evidence(now) > p.ownEvidence[key]
}

// profilesFor returns the learned profiles to send to an extproc. The caller holds mu.
func (s *Server) profilesFor(p *peer, now time.Time) (out []*placement.Lesson) {
	for key := range p.lessons {
		if len(out) == maxProfilesPerUpdate {
			break
		}
		delete(p.lessons, key)
		if is, there := s.lessons[key]; there && p.lacks(key, is, now) {
			p.sentProfiles[key] = true
			l := proto.Clone(is.Lesson).(*placement.Lesson)  //nolint:forcetypeassert // it is a clone
			l.AgeMs += uint64(now.Sub(is.at).Milliseconds()) //nolint:gosec // time passes
			out = append(out, l)
		}
	}
	return out
}
