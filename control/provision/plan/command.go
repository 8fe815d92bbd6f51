// Package plan is the command "headgate plan". It reads a CapacityPlan with its profiles and a
// trace, searches for the cheapest configuration, and prints the result.
package plan

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/provision/planner"
	"github.com/headgate/headgate/control/provision/problem"
	"github.com/headgate/headgate/control/provision/report"
	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/objects/source"
	"github.com/headgate/headgate/internal/workload"
)

const usage = `headgate plan finds the hardware, the number of replicas and the batch size for each model of a pipeline, so that queries
meet their latency objectives at the least cost. It simulates a trace of queries with one configuration after another, and
balances load as extproc does. It needs no cluster and no traffic.

FILE is YAML with a CapacityPlan: the stages, the hardware choices of each with a latency profile, and the
objectives. Files that it names are relative to it. headgate profile measures profiles; docs/provision.md has
an example.

A trace is one of these:

  azure, mooncake, servegen   a file of these public traces
  rates, prometheus           arrival rates over time: CSV, or the result of a Prometheus range query
  access-log                  an Envoy access log in Headgate's format
  csv                         CSV with the columns at, model, prompt_tokens and output_tokens
  a generator                 such as gamma:rate=100,cv=4,seconds=600

control makes the plan on one trace and tests it on another. For a generator the test uses another seed. For a file the test
uses the part after the first quarter (--split).

Costs are in the currency of the prices. Exit status: 0 with a plan, 3 without one, 1 for any other error.

Usage:

  headgate plan -f FILE [flags]
  headgate plan --objects DIR [flags] [NAME]       plan a CapacityPlan of a directory
  headgate plan --kube [flags] [NAME]              plan a CapacityPlan of an API server
  headgate plan compare A.json B.json              compare two plans that -o json wrote
  headgate plan compare LIST.json                  compare each plan of a list, as --what-if writes it, with the first

Examples:

  headgate plan -f plan.yaml --trace trace.csv
  headgate plan -f plan.yaml --explain --plot plan.svg
  headgate plan -f plan.yaml --current detect=a100:4x8,classify=cpu:6x1
  headgate plan -f plan.yaml --what-if slo=200ms --what-if rate=2x,max.detect=12
  headgate plan -f plan.yaml --current detect=a100:4x8,classify=cpu:6x1 --what-if rate=2x --what-if service-time=1.3x
  headgate plan -f plan.yaml -o json > plan.json

`

const compareUsage = `Compares plans that headgate plan -o json wrote: their costs, their settings, and what limits them.

Usage:

  headgate plan compare A.json B.json     compare two plans
  headgate plan compare LIST.json         compare each plan of a list, as --what-if writes it, with the first
`

// config contains the flags of "headgate plan".
type config struct {
	file, name string
	source     source.Source
	trace      string
	format     string
	split      float64
	seed       int64
	seeded     bool // whether --seed is set
	planner    string
	proofLimit int
	current    string
	whatIf     []string
	explain    bool
	plot       string
	output     string
}

// planners maps the values of --planner to planners.
var planners = map[string]func(*planner.Problem) *planner.Plan{"search": planner.Search, "inferline": planner.InferLine}

// ErrNoPlan is returned by [Command] if no plan was found. Command has then printed the reason.
var ErrNoPlan error = cli.Status{Code: 3, Why: "there is no plan"}

// Command runs "headgate plan" with the arguments and prints the result to out.
func Command(ctx context.Context, args []string, out io.Writer) error {
	if len(args) > 0 && args[0] == "compare" {
		return compare(args[1:], out)
	}
	var c config
	fs := cli.Flags("headgate plan", usage, out)
	fs.Group("The plan and its trace")
	fs.StringVarP(&c.file, "file", "f", "", "read the CapacityPlan in this YAML `FILE`")
	fs.StringVar(&c.source.Dir, "objects", "", "read the CapacityPlans in the YAML files of this `DIR`")
	c.source.Kube.Register(fs.FlagSet)
	fs.StringVar(&c.trace, "trace", "",
		"plan on this `TRACE`, a file or a generator such as gamma:rate=100,cv=4,seconds=600, instead of the trace in the plan")
	fs.StringVar(&c.format, "trace-format", "",
		"`FORMAT` of the trace: azure, mooncake, servegen, rates, prometheus, access-log or csv (default: detected)")
	fs.Float64Var(&c.split, "split", 0.25, "plan on the first `SHARE` of the time of a recorded trace, and test on the rest")
	fs.Int64Var(&c.seed, "seed", 0, "random `SEED` of the simulation, instead of the seed in the plan")
	fs.Group("Search")
	fs.StringVar(&c.planner, "planner", "search", "use this `PLANNER`: search, or inferline, the algorithm of the InferLine paper")
	fs.IntVar(&c.proofLimit, "prove", 100_000,
		"prove that the plan is optimal by trying every cheaper configuration, if there are at most `N`; 0 for no proof")
	fs.Group("Questions")
	fs.StringVar(&c.current, "current", "",
		"evaluate the current configuration `STAGE=HARDWARE:REPLICASxBATCH,...` and print the differences from it to the plan. 4x8+2@10m-2@50m adds 2 replicas at 10m of the trace and removes 2 at 50m")
	fs.StringArrayVar(&c.whatIf, "what-if", nil,
		"evaluate the current configuration, or else the plan, with `CHANGES`, and plan again. Changes are slo=200ms (all objectives; slo.2 only the second), rate=2x, service-time=1.3x (all models; service-time.STAGE only one), price.KIND=1.5, maxUnits.KIND=8, max.STAGE=4 and min.STAGE=2. Separate several with commas; repeatable")
	fs.BoolVar(&c.explain, "explain", false, "show the latencies of each step that would lower the cost")
	fs.Group("Output")
	fs.StringVar(&c.plot, "plot", "", "draw the pipeline with its settings and latencies into this SVG `FILE`")
	fs.StringVarP(&c.output, "output", "o", "text",
		"print `text` or json. JSON has all candidates and figures, for programs; with --current or --what-if it is a list of plans")
	if err := cli.Parse(fs, args, 1); err != nil {
		return err
	}
	c.name, c.seeded = fs.Arg(0), fs.Changed("seed")
	err := c.check()
	if err == nil && fs.Changed("prove") && c.planner != "search" {
		err = fmt.Errorf("--prove needs the planner search: --planner %s has no proof", c.planner)
	}
	if err != nil {
		return fs.Wrong(err)
	}
	return c.run(ctx, out)
}

func (c *config) check() error {
	sources := 0
	for _, set := range []bool{c.file != "", c.source.Dir != "", c.source.Kube.On} {
		if set {
			sources++
		}
	}
	if err := c.source.Kube.Check(c.source.Dir); err != nil {
		return err
	}
	switch {
	case sources != 1:
		return errors.New("give exactly one of -f FILE, --objects DIR and --kube")
	case planners[c.planner] == nil:
		return fmt.Errorf("--planner %q: want search or inferline", c.planner)
	case c.output != "text" && c.output != "json":
		return fmt.Errorf("--output %q: want text or json", c.output)
	case !(c.split > 0 && c.split < 1):
		return fmt.Errorf("--split %v: want a share above 0 and below 1", c.split)
	case c.seed < 0:
		return fmt.Errorf("--seed %d: it must not be negative", c.seed)
	case c.proofLimit < 0:
		return fmt.Errorf("--prove %d: it must not be negative", c.proofLimit)
	}
	return nil
}

// request is a CapacityPlan with the contents of the files and traces that the plan needs.
type request struct {
	*v1alpha1.CapacityPlan
	files    problem.Files
	slowdown problem.Slowdown
	planned  queries
	tested   queries
	fault    func(field, words string) error
}

// queries is a trace, or a part of it, with the name of the trace.
type queries struct {
	name string
	all  []workload.Query
	seed uint64
	from float64 // start of this part within the whole trace, in seconds
}

// end returns the time of the last query, in seconds since the start of the whole trace.
func (q *queries) end() float64 {
	if len(q.all) == 0 {
		return 0
	}
	return q.from + q.all[len(q.all)-1].At
}

func (c *config) run(ctx context.Context, out io.Writer) error {
	a, err := c.read(ctx)
	if err != nil {
		return err
	}
	current, changed, err := c.readAlternatives(a) // report invalid flags now, not after a search that takes minutes
	if err != nil {
		return err
	}
	r, p, found, err := c.report(ctx, a, a.Name, c.explain)
	if err != nil {
		return err
	}
	if err := c.writePlot(r); err != nil {
		return err
	}
	all := reports{plan: r, config: planner.Steady(found.Config)}
	if current != nil {
		all.config = current
		if all.current, err = report.OfConfig("current", p, current, a.planned.trace(), a.tested.trace()); err != nil {
			return err
		}
	}
	for i, other := range changed {
		if ctx.Err() != nil { // interrupted: print the results that are ready
			all.skipped = c.whatIf[i:]
			break
		}
		if err := c.addWhatIf(ctx, &all, other, c.whatIf[i]); err != nil {
			return fmt.Errorf("--what-if %s: %w", c.whatIf[i], err)
		}
	}
	if c.output == "json" {
		err = all.writeJSON(out)
	} else {
		_, err = io.WriteString(out, all.text())
	}
	if err == nil && !r.Found {
		err = ErrNoPlan
	}
	return err
}

// writePlot writes the plot of a plan to the file of --plot. It does nothing if --plot is not set.
func (c *config) writePlot(r *report.Report) error {
	switch {
	case c.plot == "":
		return nil
	case !r.Found:
		fmt.Fprintf(os.Stderr, "--plot %s: not written, because there is no plan\n", c.plot)
		return nil
	}
	return os.WriteFile(c.plot, []byte(r.Plot()), 0o644)
}

// addWhatIf plans the changed request of a --what-if, and also simulates the base configuration
// with these changes. It appends both results to all.
func (c *config) addWhatIf(ctx context.Context, all *reports, changed *request, text string) error {
	base := cmp.Or(all.current, all.plan)
	// Text output compares plans and does not explain them, unless there is no base plan.
	then, p, _, err := c.report(ctx, changed, text, c.explain && (c.output == "json" || !base.Found))
	if err != nil {
		return err
	}
	pair := [2]*report.Report{1: then}
	if base.Found {
		if pair[0], err = report.OfConfig(base.Name+" with "+text, p, all.config, changed.planned.trace(),
			changed.tested.trace()); err != nil {
			return err
		}
	}
	all.whatIf = append(all.whatIf, pair)
	return nil
}

// report plans a request and returns the report. If explain is true, the report lists cheaper
// configurations and their results.
func (c *config) report(ctx context.Context, a *request, name string, explain bool) (*report.Report, *planner.Problem, *planner.Plan,
	error,
) {
	p, err := a.problem()
	if err != nil {
		return nil, nil, nil, err
	}
	p.Seed, p.ProofLimit = a.planned.seed, c.proofLimit
	var done func()
	p.Progress, done = progress(ctx, name)
	found := planners[c.planner](p)
	r, err := report.New(name, c.planner, p, found, a.planned.trace(), a.tested.trace())
	done()
	if err == nil && explain && found.Found && !found.Stopped {
		err = r.Explain(p, found.Config, func() bool { return ctx.Err() == nil })
	}
	return r, p, found, err
}

func (q queries) trace() report.Trace {
	return report.Trace{Name: q.name, Queries: problem.Queries(q.all), Seed: q.seed, From: q.from}
}

// progress returns two functions. report prints the progress of a search to standard error: on a
// terminal every 0.1 s in the same line, otherwise every 10 s in a new line. When ctx ends, report
// returns false, which stops the search. done clears the line on a terminal.
func progress(ctx context.Context, name string) (report func(int, planner.Candidate) bool, done func()) {
	terminal := term.IsTerminal(int(os.Stderr.Fd()))
	every, begin, end := 10*time.Second, "", "\n"
	if terminal {
		every, begin, end = 100*time.Millisecond, "\r\x1b[K", ""
	}
	began := time.Now()
	last := began
	report = func(simulations int, best planner.Candidate) bool {
		if now := time.Now(); now.Sub(last) > every {
			last = now
			words := "no plan yet"
			if best.Feasible {
				words = fmt.Sprintf("best plan %.4g per hour", best.Cost)
			}
			fmt.Fprintf(os.Stderr, "%s%s: %d simulations in %.0f s, %s (Ctrl-C stops the search)%s", begin, name, simulations,
				now.Sub(began).Seconds(), words, end)
		}
		return ctx.Err() == nil
	}
	return report, func() {
		if terminal {
			fmt.Fprint(os.Stderr, "\r\x1b[K")
		}
	}
}

// readAlternatives returns the configuration of --current, nil if it is not set, and one changed
// request for each --what-if.
func (c *config) readAlternatives(a *request) (current *planner.Timetable, changed []*request, err error) {
	if current, err = c.readCurrent(a); err != nil {
		return nil, nil, err
	}
	for _, text := range c.whatIf {
		other, err := a.changed(text)
		if err == nil {
			_, err = c.readCurrent(other) // a what-if change may make the current configuration invalid
		}
		if err != nil {
			return nil, nil, fmt.Errorf("--what-if %s: %w", text, err)
		}
		changed = append(changed, other)
	}
	return current, changed, nil
}

// readCurrent parses --current and checks it against a request. It returns nil if --current is not
// set.
func (c *config) readCurrent(a *request) (*planner.Timetable, error) {
	p, err := a.problem()
	if err != nil || c.current == "" {
		return nil, err
	}
	current, err := problem.ParseCurrent(p, c.current)
	if err != nil {
		return nil, fmt.Errorf("--current %w", err)
	}
	if err := p.Within(current, max(a.planned.end(), a.tested.end())); err != nil {
		return nil, fmt.Errorf("--current: %w", err)
	}
	return current, nil
}

// problem converts the request to the input of planners.
func (a *request) problem() (*planner.Problem, error) {
	p, err := problem.New(a.CapacityPlan, a.files, a.slowdown, a.planned.all, a.tested.all)
	return p, a.located(err)
}

// located adds the position in the file to an error that is a Fault.
func (a *request) located(err error) error {
	if wrong, ok := errors.AsType[*problem.Fault](err); ok {
		return a.fault(wrong.Field, wrong.Words)
	}
	return err
}

// compare runs "headgate plan compare" with the arguments.
func compare(args []string, out io.Writer) error {
	fs := cli.Flags("headgate plan compare", compareUsage, out)
	if err := cli.Parse(fs, args, 2); err != nil {
		return err
	}
	if args = fs.Args(); len(args) == 0 {
		return fs.Wrong(errors.New("plan compare needs two files that headgate plan -o json wrote, or one with several plans"))
	}
	var all []*report.Report
	for _, file := range args {
		some, err := readReports(file)
		if err != nil {
			return err
		}
		all = append(all, some...)
	}
	if len(all) < 2 {
		return fmt.Errorf("%s has a single plan: name another file to compare it with", args[0])
	}
	for i, r := range all[1:] {
		if i > 0 {
			fmt.Fprintln(out)
		}
		if _, err := io.WriteString(out, report.Compare(all[0], r)); err != nil {
			return err
		}
	}
	return nil
}

// readReports reads a file that "headgate plan -o json" wrote. The file has either a single report,
// to which readReports gives the name of the file, or a list.
func readReports(file string) (all []*report.Report, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")) {
		err = json.Unmarshal(text, &all)
	} else {
		one := &report.Report{}
		err = json.Unmarshal(text, one)
		one.Name = strings.TrimSuffix(file, ".json")
		all = []*report.Report{one}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: want the output of headgate plan -o json", file, err)
	}
	for _, r := range all {
		if r == nil || r.Found && r.Planned == nil || !r.Found && len(r.Reasons) == 0 {
			return nil, fmt.Errorf("%s has no plan: want the output of headgate plan -o json", file)
		}
	}
	return all, nil
}
