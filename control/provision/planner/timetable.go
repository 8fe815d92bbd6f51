package planner

import (
	"fmt"
	"slices"

	"github.com/headgate/headgate/control/provision/estimate"
)

// Timetable is an initial configuration, and the later changes in the number of replicas.
type Timetable struct {
	Config  Config
	Changes [][]estimate.Change
}

// Steady returns a timetable in which the number of replicas never changes.
func Steady(c Config) *Timetable { return &Timetable{c, make([][]estimate.Change, len(c))} }

// From returns the part of a timetable that begins at a given time in seconds. That time becomes 0.
// Earlier changes are applied, except if their replicas are still starting: they then have a
// negative time.
func (p *Problem) From(t *Timetable, at float64) *Timetable {
	is := Steady(slices.Clone(t.Config))
	for s, all := range t.Changes {
		for _, c := range all {
			if c.At+p.Stages[s].Startup < at && is.Changes[s] == nil {
				is.Config[s].Replicas = c.Replicas
				continue
			}
			c.At -= at
			is.Changes[s] = append(is.Changes[s], c)
		}
	}
	return is
}

// Scheduled converts a timetable to the settings for [estimate.Run].
func (p *Problem) Scheduled(t *Timetable) []estimate.Setting {
	all := p.Settings(t.Config)
	for s, changes := range t.Changes {
		all[s].Changes = changes
	}
	return all
}

// Within returns an error if the number of replicas changes after last, the arrival time of the
// last query in seconds.
func (p *Problem) Within(t *Timetable, last float64) error {
	for s, all := range t.Changes {
		if n := len(all); n > 0 && all[n-1].At > last {
			return fmt.Errorf("replicas of %s change at %.4gs, after the last query at %.4gs", p.Stages[s].Name, all[n-1].At, last)
		}
	}
	return nil
}
