package planner

import (
	"fmt"
	"slices"

	"github.com/headgate/headgate/control/provision/estimate"
)

// Timetable is a configuration whose replicas change as queries come, by stage.
type Timetable struct {
	Config  Config
	Changes [][]estimate.Change
}

// Steady is a configuration whose replicas stay.
func Steady(c Config) *Timetable { return &Timetable{c, make([][]estimate.Change, len(c))} }

// From is a timetable from a time in seconds on, which is 0 then. Replicas that were asked for before and still start have a time below 0.
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

// Scheduled are those of a configuration whose replicas change.
func (p *Problem) Scheduled(t *Timetable) []estimate.Setting {
	all := p.Settings(t.Config)
	for s, changes := range t.Changes {
		all[s].Changes = changes
	}
	return all
}

// Within returns an error where replicas change after the last query has come, at a time in seconds.
func (p *Problem) Within(t *Timetable, last float64) error {
	for s, all := range t.Changes {
		if n := len(all); n > 0 && all[n-1].At > last {
			return fmt.Errorf("replicas of %s change after %.4gs, and the last query comes after %.4gs", p.Stages[s].Name, all[n-1].At, last)
		}
	}
	return nil
}
