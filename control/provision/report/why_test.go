package report_test

import (
	"testing"

	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/control/provision/planner"
	"github.com/headgate/headgate/control/provision/report"
	"github.com/headgate/headgate/internal/profile"
)

// When goOn returns false, Explain stops and keeps the results so far.
func TestExplainStopsWhenTold(t *testing.T) {
	slow := profile.NewBatches("m", profile.Batch{Size: 1, Mean: 0.1})
	p := &planner.Problem{
		Pipeline: &estimate.Pipeline{Stages: 1},
		Stages: []planner.Stage{{
			Name: "m", MinReplicas: 1,
			Hardware: []planner.Hardware{
				{Name: "a", Price: 3, Times: slow, Batches: []int{1}},
				{Name: "b", Price: 1, Times: slow, Batches: []int{1}},
			},
		}},
		Queries:    estimate.Arrivals([]float64{0, 0.1, 0.2}),
		Objectives: []planner.Objective{{Seconds: 1, Share: 0.99}},
	}
	for _, c := range []struct{ steps, told int }{{0, 0}, {1, 1}, {2, 2}, {9, 2}} {
		var a report.Report
		left := c.steps
		err := a.Explain(p, planner.Config{{Hardware: 0, Batch: 1, Replicas: 2}}, func() bool {
			left--
			return left >= 0
		})
		if err != nil || len(a.Cheaper) != c.told || a.Partial != (c.steps < 2) {
			t.Errorf("after %d steps the cheaper plans are %+v, %v", c.steps, a.Cheaper, err)
		}
	}
}
