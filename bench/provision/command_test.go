package provision

import (
	"context"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// Arrivals have the requested rate and variation.
func TestGamma(t *testing.T) {
	for _, cv := range []float64{0.5, 1, 4} {
		all := Gamma(rand.NewPCG(1, 2), 400_000, 50, cv)
		sum, squares, last := 0.0, 0.0, 0.0
		for _, at := range all {
			between := at - last
			sum, squares, last = sum+between, squares+between*between, at
		}
		n := float64(len(all))
		mean := sum / n
		if deviation := math.Sqrt(squares/n-mean*mean) / mean; math.Abs(mean*50-1) > 0.03 || math.Abs(deviation/cv-1) > 0.03 {
			t.Errorf("with a CV of %v times in between are %v in the mean, with a CV of %v", cv, mean, deviation)
		}
	}
}

// Each planner plans each pipeline, and none makes a wrong claim.
func TestMeasure(t *testing.T) {
	told := 0
	all, err := Measure(t.Context(), 1, 6, 200, func(done int) { told = done })
	if err != nil || told != 6 || len(all) != len(planners) {
		t.Fatalf("%d of 6 are done, %v, %v", told, all, err)
	}
	for i, g := range all {
		if g.Instances != 6 || g.Wrong != 0 || g.Simulations == 0 || g.Exhaustive != all[0].Exhaustive || g.Optimal+
			g.None > 6-g.Infeasible {
			t.Errorf("%s: %+v", planners[i].name, g)
		}
	}
	var out strings.Builder
	report(&out, 1, all)
	for _, want := range []string{"6 pipelines of 1 stages", "inferline", "search", "proven"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q is in\n%s", want, out.String())
		}
	}
}

func TestCommandRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"x":                          `unexpected argument "x"; see bench provision --help`,
		"--stages 2":                 "--stages [2], --instances [400 100]: give a number of instances for each number of stages",
		"--stages 4 --instances 1":   "want 1 to 3 stages",
		"--stages 2 --instances 0":   "at least 1 instance",
		"--stages 1,2,3 --queries 1": "give a number of instances",
	} {
		if err := Command(context.Background(), strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
}
