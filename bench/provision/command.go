package provision

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/headgate/headgate/control/provision/planner"
	"github.com/headgate/headgate/internal/cli"
)

const usage = `Plans random pipelines and compares the plans with the cheapest feasible configuration, which exhaustive search
finds. A pipeline is a chain of stages, each with two kinds of hardware, four batch sizes and at most 6 replicas. Half
of the traces are Poisson (CV 1), half are bursty (CV 4). The same simulator decides what is feasible, so the result
is about planning and not about the accuracy of the simulator.

For each planner it prints
  none        the number of feasible instances without a plan
  optimal     the share of plans with the optimal cost
  within 5 %  the share of plans with at most 5 % extra cost
  worst       the extra cost of the worst plan
  simulations the number of simulations relative to exhaustive search
  proven      the share of plans that it reports as optimal
  wrong       the number of wrong reports
inferline is InferLine's planner, search continues where that one stops, and proven is search with --prove.

Usage:

  bench provision [flags]
  bench provision pipelines [flags]     InferLine's pipelines, beside plans of the whole; see its --help

Examples:

  bench provision
  bench provision --stages 3 --instances 100

`

// planners are the compared planners in the order of the output.
var planners = []struct {
	name string
	plan func(*planner.Problem) *planner.Plan
}{
	{"inferline", planner.InferLine},
	{"search", planner.Search},
	{"proven", func(p *planner.Problem) *planner.Plan {
		all := *p
		all.ProofLimit = 100_000
		return planner.Search(&all)
	}},
}

// Gaps compares the plans of a planner with the optimum.
type Gaps struct {
	Instances, Infeasible int
	// None is the number of feasible instances without a plan. Wrong is the number of false claims:
	// a plan that claims to be optimal and is not, no plan although there is one, or a plan that
	// misses the objective.
	None, Wrong, Optimal, Near, Proven int
	Worst                              float64 // relative extra cost of the worst plan
	Simulations, Exhaustive            int
}

// Add records the plan of an instance and compares it with the optimum, which is nil if the
// instance is infeasible.
func (g *Gaps) Add(p *planner.Problem, is *planner.Plan, best planner.Config, exhaustive int) {
	g.Instances++
	g.Simulations += is.Simulations
	g.Exhaustive += exhaustive
	if best == nil {
		g.Infeasible++
		if is.Found {
			g.Wrong++
		}
		return
	}
	if !is.Found {
		g.None++
		if is.Optimal {
			g.Wrong++
		}
		return
	}
	more := p.Cost(is.Config)/p.Cost(best) - 1
	optimal := more < 1e-9
	if !Keeps(p, is.Config) || is.Optimal && !optimal {
		g.Wrong++
	}
	if optimal {
		g.Optimal++
	}
	if more <= 0.05 {
		g.Near++
	}
	if is.Optimal {
		g.Proven++
	}
	g.Worst = max(g.Worst, more)
}

// Measure runs each planner on a number of instances, on all processors. It calls progress after
// each instance.
func Measure(ctx context.Context, stages, instances, queries int, progress func(done int)) ([]Gaps, error) {
	done := 0
	each := make([][]Gaps, instances)
	err := eachOf(ctx, instances, func() { done++; progress(done) }, func(_ context.Context, i int) error {
		p := Instance(uint64(i), stages, queries, []float64{1, 4}[i%2])
		if err := p.Check(); err != nil {
			return fmt.Errorf("instance %d: %w", i, err)
		}
		best, simulations := Optimum(p)
		each[i] = make([]Gaps, len(planners))
		for j, planner := range planners {
			each[i][j].Add(p, planner.plan(p), best, simulations)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	sums := make([]Gaps, len(planners))
	for _, all := range each {
		for j, g := range all {
			sums[j].sum(g)
		}
	}
	return sums, nil
}

func (g *Gaps) sum(o Gaps) {
	for _, pair := range [][2]*int{
		{&g.Instances, &o.Instances},
		{&g.Infeasible, &o.Infeasible},
		{&g.None, &o.None},
		{&g.Wrong, &o.Wrong},
		{&g.Optimal, &o.Optimal},
		{&g.Near, &o.Near},
		{&g.Proven, &o.Proven},
		{&g.Simulations, &o.Simulations},
		{&g.Exhaustive, &o.Exhaustive},
	} {
		*pair[0] += *pair[1]
	}
	g.Worst = max(g.Worst, o.Worst)
}

// Command runs "bench provision". It prints results to standard output, and progress to standard
// error.
func Command(ctx context.Context, args []string, out io.Writer) error {
	if len(args) > 0 && args[0] == "pipelines" {
		return pipelines(ctx, args[1:], out)
	}
	fs := cli.Flags("bench provision", usage, out)
	stages := fs.IntSlice("stages", []int{2, 3}, "numbers of `STAGES` of the pipelines")
	instances := fs.IntSlice("instances", []int{400, 100}, "number of `PIPELINES` for each number of stages")
	queries := fs.Int("queries", 2000, "length of the sample trace in `QUERIES`")
	if err := cli.Parse(fs, args, 0); err != nil {
		return err
	}
	switch {
	case len(*stages) != len(*instances):
		return fs.Wrong(fmt.Errorf("--stages %v, --instances %v: give a number of instances for each number of stages", *stages, *instances))
	case slices.Min(*stages) < 1 || slices.Max(*stages) > 3 || slices.Min(*instances) < 1 || *queries < 2:
		return fs.Wrong(fmt.Errorf("--stages %v, --instances %v, --queries %d: want 1 to 3 stages, since exhaustive search takes too long for more, at least 1 instance and 2 queries",
			*stages,
			*instances,
			*queries))
	}
	for i, n := range *stages {
		began := time.Now()
		all, err := Measure(ctx, n, (*instances)[i], *queries, func(done int) {
			fmt.Fprintf(os.Stderr, "\r%d of %d pipelines of %d stages", done, (*instances)[i], n)
		})
		fmt.Fprintln(os.Stderr)
		if err != nil {
			return err
		}
		report(out, n, all)
		fmt.Fprintf(os.Stderr, "%.0f s\n", time.Since(began).Seconds())
	}
	return nil
}

func report(out io.Writer, stages int, all []Gaps) {
	fmt.Fprintf(out, "%d pipelines of %d stages, of which %d have no plan; exhaustive search ran %d simulations\n\n",
		all[0].Instances, stages, all[0].Infeasible, all[0].Exhaustive)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "planner\tnone\toptimal\twithin 5 %\tworst\tsimulations\tproven\twrong")
	for i, g := range all {
		feasible := float64(max(1, g.Instances-g.Infeasible))
		percent := func(n int) string { return fmt.Sprintf("%.1f %%", 100*float64(n)/feasible) }
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t+%.0f %%\t1/%.1f\t%s\t%d\n", planners[i].name, g.None, percent(g.Optimal), percent(g.Near),
			100*g.Worst,
			float64(g.Exhaustive)/float64(max(1, g.Simulations)), percent(g.Proven), g.Wrong)
	}
	_ = w.Flush()
	fmt.Fprintln(out)
}
