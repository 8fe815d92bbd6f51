package placementserver

import (
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/api/placement"
)

// Limits of the learned profiles that control keeps: how many, and how large each may be. No
// extproc sends a larger one.
const (
	maxLessons = 4096
	maxName    = 600 // bytes of a pool's name with its namespace, or of an accelerator's name
	maxTerms   = 64  // numbers in each list of a profile
	maxFactors = 512
	// remembers is the time in seconds in which the weight of a measurement falls to 1/e. enough is
	// the number of measurements above which further ones add no evidence. Both are as in extproc.
	remembers, enough = 300, 500
	// maxProfilesPerUpdate limits the profiles in one Update.
	maxProfilesPerUpdate = 64
)

// profiles contains, for each key, the learned profile with the most evidence that any extproc
// reported. The Server's mu guards it.
type profiles map[profileKey]profile

type profileKey struct {
	pool, class string
	prior       uint64
}

type profile struct {
	*placement.Lesson
	from string // extproc process that learned the profile
	at   time.Time
}

// evidence returns the profile's number of measurements, weighted by age.
func (l profile) evidence(now time.Time) float64 {
	n := min(l.GetRows(), enough) + uint64(len(l.GetInSlot())+len(l.GetInHost())+len(l.GetInStorage()))
	return float64(n) * math.Exp(-max(0, now.Sub(l.at).Seconds())/remembers)
}

// small reports whether a profile is no larger than what an extproc sends.
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

// lacks reports whether a profile must be sent to this extproc. That is so if the profile was not
// sent to it yet, was learned by another extproc, and has more evidence than the extproc's own.
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
