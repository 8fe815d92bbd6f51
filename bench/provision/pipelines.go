package provision

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/headgate/headgate/internal/cli"
)

const pipelinesUsage = `Plans the pipelines in docs/plans for several loads, and compares the plans with coarse-grained plans (CG). The
pipelines are those of InferLine, with invented profiles. Coarse-grained plans treat a pipeline as one box: a single batch size, the largest that meets the
objective without queueing, and copies of the whole. Each plan is made on one trace and tested on another by the same
simulator, so the result does not show the accuracy of the simulator.

For each plan it prints the cost per hour and the share of queries that miss the objective in the test, which
may be up to 1 %. none means that no plan was found. The planners are
  search, inferline   those of headgate plan; * means that the limit of simulations was reached, so the plan is the best
                      one until then
  CG-Mean, CG-Peak    copies for the mean rate, or for the peak rate in a window as long as the objective, on the
                      fastest hardware or on the cheapest. Copies get queries in turn; in brackets: with shared queues.
Then it runs search with several objectives. A cost with + is above that of a tighter objective, and one with - is
below that of a lower rate: optimal plans never have the former and hardly ever the latter.

Usage:

  bench provision pipelines [flags]

Examples:

  bench provision pipelines
  bench provision pipelines --rates 100 --cvs 1,4 --trends social-media --plots .

`

// pipelines runs "bench provision pipelines". It prints results to out, and progress to standard
// error.
func pipelines(ctx context.Context, args []string, out io.Writer) error {
	fs := cli.Flags("bench provision pipelines", pipelinesUsage, out)
	dir := fs.String("plans", "docs/plans", "plan the YAML files of this `DIR` except hardware.yaml")
	rates := fs.Float64Slice("rates", []float64{50, 100, 200, 400}, "arrival `RATES` in queries per second")
	cvs := fs.Float64Slice("cvs", []float64{1, 4}, "coefficients of variation, `CVS`, of interarrival times")
	trends := fs.StringSlice("trends", []string{"image-processing"}, "plan these `PIPELINES` with several objectives")
	objectives := fs.DurationSlice("objectives", milliseconds(100, 150, 200, 300, 400, 500), "latency `OBJECTIVES` of these pipelines")
	trendCVs := fs.Float64Slice("trend-cvs", []float64{1, 2, 4}, "coefficients of variation, `CVS`, for these pipelines")
	trendQueries := fs.Int("trend-queries", 4000, "number of `QUERIES` in the traces of these pipelines")
	b := new(Bench)
	fs.IntVar(&b.Queries, "queries", 10_000, "number of `QUERIES` in the other traces")
	fs.IntVar(&b.Tested, "tested", 50_000, "number of `QUERIES` in the test traces")
	fs.IntVar(&b.MaxSimulations, "most", 5000, "limit of `SIMULATIONS` per plan")
	plots := fs.String("plots", "", "plot the costs as SVG into this `DIR`")
	if err := cli.Parse(fs, args, 0); err != nil {
		return err
	}
	slices.Sort(*rates)
	slices.Sort(*objectives)
	switch {
	case len(*rates) == 0 || (*rates)[0] <= 0 || len(*cvs) == 0 || len(*objectives) == 0 || (*objectives)[0] <= 0 || len(*trendCVs) == 0:
		return fs.Wrong(fmt.Errorf("--rates %v, --cvs %v, --objectives %v, --trend-cvs %v: want at least one each, above 0",
			*rates, *cvs, *objectives, *trendCVs))
	case b.Queries < 2 || b.Tested < 2 || *trendQueries < 2 || b.MaxSimulations < 1:
		return fs.Wrong(fmt.Errorf("--queries %d, --tested %d, --trend-queries %d, --most %d: want at least 2 queries, and a simulation",
			b.Queries, b.Tested, *trendQueries, b.MaxSimulations))
	}
	if err := b.read(*dir); err != nil {
		return err
	}
	var chosen []*Asked
	for _, name := range *trends {
		i := slices.IndexFunc(b.Plans, func(a *Asked) bool { return a.Name == name })
		if i < 0 {
			return fs.Wrong(fmt.Errorf("--trends: no plan in %s is called %q", *dir, name))
		}
		chosen = append(chosen, b.Plans[i])
	}
	var loads []Load
	for _, cv := range *cvs {
		for _, rate := range *rates {
			loads = append(loads, Load{rate, cv})
		}
	}
	cells, err := b.Cells(ctx, loads, progress("plans of all planners", len(b.Plans)*len(loads)))
	if err != nil {
		return err
	}
	for i := 0; i < len(cells); i += len(loads) {
		reportCells(out, b.Plans[i/len(loads)], cells[i:i+len(loads)])
	}
	var seconds []float64
	for _, o := range *objectives {
		seconds = append(seconds, o.Seconds())
	}
	b.Queries = *trendQueries
	n := len(chosen) * len(*trendCVs) * len(*rates) * len(seconds)
	all, err := b.Trends(ctx, chosen, *trendCVs, *rates, seconds, progress("plans by objective", n))
	if err != nil {
		return err
	}
	for i := range all {
		reportTrend(out, &all[i])
	}
	if *plots == "" {
		return nil
	}
	path, err := plotCells(*plots, cells)
	for i := 0; err == nil && i < len(all); i += len(*trendCVs) {
		fmt.Fprintln(os.Stderr, path)
		path, err = plotTrends(*plots, all[i:i+len(*trendCVs)])
	}
	fmt.Fprintln(os.Stderr, path)
	return err
}

func milliseconds(all ...int) (is []time.Duration) {
	for _, n := range all {
		is = append(is, time.Duration(n)*time.Millisecond)
	}
	return is
}

// read reads all plan files of a directory in order of their names.
func (b *Bench) read(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if filepath.Base(file) == "hardware.yaml" {
			continue
		}
		a, err := Read(file)
		if err != nil {
			return err
		}
		b.Plans = append(b.Plans, a)
	}
	if len(b.Plans) == 0 {
		return fmt.Errorf("--plans: there is no plan in %s", dir)
	}
	return nil
}

// progress returns a function that counts one of n things as done and reports the count on standard
// error.
func progress(of string, n int) (done func()) {
	began, so := time.Now(), 0
	return func() {
		so++
		fmt.Fprintf(os.Stderr, "\r%s: %d of %d in %.0f s", of, so, n, time.Since(began).Seconds())
		if so == n {
			fmt.Fprintln(os.Stderr)
		}
	}
}

// reportCells prints the results for one pipeline.
func reportCells(out io.Writer, a *Asked, cells []Cell) {
	fmt.Fprintf(out, "%s, %v: cost an hour, and queries that miss it on another trace\n\n", a.Name, a.Spec.Objectives[0].Within.Duration)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "rate\tCV")
	for _, c := range contenders {
		fmt.Fprintf(w, "\t%s\t", c.name)
	}
	fmt.Fprintln(w)
	for _, c := range cells {
		fmt.Fprintf(w, "%g\t%g", c.Rate, c.CV)
		for i, o := range c.Outcomes {
			switch {
			case !o.Found:
				fmt.Fprintf(w, "\tnone%s\t", star(o.Stopped))
			case contenders[i].plan != nil:
				fmt.Fprintf(w, "\t%.2f%s\t%.2f %%", o.Cost, star(o.Stopped), 100*o.Missed)
			default:
				fmt.Fprintf(w, "\t%.2f\t%.2f %% (%.2f %%)", o.Cost, 100*o.Missed, 100*o.Pooled)
			}
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush()
	fmt.Fprintln(out)
}

func star(stopped bool) string {
	if stopped {
		return "*"
	}
	return ""
}

// reportTrend prints how the cost of plans changes, for one pipeline and coefficient of variation.
func reportTrend(out io.Writer, t *Trend) {
	fmt.Fprintf(out, "%s, CV %g: cost an hour by rate and objective; %d of %d searches had run as many simulations as they may\n\n",
		t.Pipeline, t.CV, t.Stopped, len(t.Rates)*len(t.Objectives))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "rate")
	for _, seconds := range t.Objectives {
		fmt.Fprintf(w, "\t%.0f ms", 1000*seconds)
	}
	fmt.Fprintln(w)
	marks := t.Marks()
	for i, rate := range t.Rates {
		fmt.Fprintf(w, "%g", rate)
		for j, cost := range t.Costs[i] {
			text := "none"
			if !math.IsInf(cost, 1) {
				text = fmt.Sprintf("%.2f", cost)
			}
			fmt.Fprintf(w, "\t%s%s", text, [...]string{"", "+", "-", "+-"}[marks[i][j]])
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush()
	fmt.Fprintln(out)
}
