package planner_test

import (
	"fmt"
	"testing"

	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/control/provision/planner"
)

// From includes replicas that are starting, and does not modify the timetable.
func TestTimetableFrom(t *testing.T) {
	whole := &planner.Timetable{
		Config:  planner.Config{{Replicas: 1}, {Replicas: 7}},
		Changes: [][]estimate.Change{{{At: 10, Replicas: 3}, {At: 20, Replicas: 2}, {At: 30, Replicas: 5}}, nil},
	}
	for _, c := range []struct {
		from, startup float64
		want          string
	}{
		{0, 0, "[{0 0 1} {0 0 7}] [[{10 3} {20 2} {30 5}] []]"},
		{10, 0, "[{0 0 1} {0 0 7}] [[{0 3} {10 2} {20 5}] []]"},
		{25, 0, "[{0 0 2} {0 0 7}] [[{5 5}] []]"},
		{31, 0, "[{0 0 5} {0 0 7}] [[] []]"},
		{25, 15, "[{0 0 1} {0 0 7}] [[{-15 3} {-5 2} {5 5}] []]"},
		{26, 15, "[{0 0 3} {0 0 7}] [[{-6 2} {4 5}] []]"},
		{46, 15, "[{0 0 5} {0 0 7}] [[] []]"},
	} {
		p := planner.Problem{Stages: []planner.Stage{{Startup: c.startup}, {}}}
		is := p.From(whole, c.from)
		if got := fmt.Sprint(is.Config, is.Changes); got != c.want {
			t.Errorf("from %v on, with a startup time of %v: %s, want %s", c.from, c.startup, got, c.want)
		}
	}
}
