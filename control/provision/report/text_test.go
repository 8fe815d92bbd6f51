package report_test

import (
	"strings"
	"testing"

	"github.com/headgate/headgate/control/provision/report"
)

// Compare matches objectives by metric, and lists those that both plans have.
func TestObjectivesAreComparedByMetric(t *testing.T) {
	plan := func(cost float64, kept ...report.Objective) *report.Report {
		return &report.Report{Name: "plan", Found: true, Cost: cost, Planned: &report.Times{Objectives: kept}}
	}
	latency, first := report.Objective{Metric: "latency", Within: 3, Quantile: 0.99, Value: 2},
		report.Objective{Metric: "time to first token", Within: 1, Quantile: 0.9, Value: 0.5}
	got := report.Compare(plan(0, latency), plan(2, first, latency))
	if want := "plan costs 0 per hour, plan 2.\n\n"; !strings.HasPrefix(got, want) {
		t.Errorf("the text begins\n%s\nwant\n%s", got, want)
	}
	if !strings.Contains(got, "latency  2s of 3s  2s of 3s") || strings.Contains(got, "first token") {
		t.Errorf("the text is\n%s", got)
	}
}

// The share of misses refers to the queries that have the metric. The text states their number,
// unless all queries have the metric.
func TestShareOfMisses(t *testing.T) {
	times := &report.Times{Queries: 100, Objectives: []report.Objective{
		{Metric: "latency", Within: 1, Quantile: 0.9, Queries: 100, Missed: 0.2},
		{Metric: "time to first token", Within: 1, Quantile: 0.9, Queries: 20, Missed: 0.05},
		{Metric: "time per token", Within: 1, Quantile: 0.9},
	}, TimeToFirstToken: &report.Percentiles{}, TimePerOutputToken: &report.Percentiles{}}
	got := (&report.Report{Name: "plan", Found: true, Planned: times}).Text()
	for _, want := range []string{"20.00 % (too many)\n", "5.00 % of 20\n", "no such query\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("the text lacks %q:\n%s", want, got)
		}
	}
}
