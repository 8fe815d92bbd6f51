package planner

import (
	"fmt"
	"slices"

	"github.com/headgate/headgate/control/provision/estimate"
)

// Timetable is a configuration whose replicas change over time.
type Timetable struct {
	Config  Config
	Changes [][]estimate.Change
}

// Steady returns a timetable without changes.
func Steady(c Config) *Timetable { return &Timetable{c, make([][]estimate.Change, len(c))} }

// From returns the part of a timetable from a time in seconds on, which becomes time 0. Changes
// whose replicas still start then have a negative time.
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

// Scheduled converts a timetable for [estimate.Run].
func (p *Problem) Scheduled(t *Timetable) []estimate.Setting {
	all := p.Settings(t.Config)
	for s, changes := range t.Changes {
		all[s].Changes = changes
	}
	return all
}

// Within returns an error if replicas change after the last query, whose arrival is given in
// seconds.
func (p *Problem) Within(t *Timetable, last float64) error {
	for s, all := range t.Changes {
		if n := len(all); n > 0 && all[n-1].At > last {
			return fmt.Errorf("replicas of %s change at %.4gs, after the last query at %.4gs", p.Stages[s].Name, all[n-1].At, last)
		}
	}
	return nil
}
