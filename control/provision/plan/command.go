// Package plan is the command control plan: it reads a CapacityPlan, the profiles that it names and a trace, plans, and tells people. It needs no
// cluster and no traffic.
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
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/provision/planner"
	"github.com/headgate/headgate/control/provision/problem"
	"github.com/headgate/headgate/control/provision/report"
	"github.com/headgate/headgate/internal/objects/source"
	"github.com/headgate/headgate/internal/workload"
)

const usage = `control plan finds what hardware, how many replicas and what size of batch each model of a pipeline needs, so that queries keep their
objectives at the least cost. It rolls a trace of queries on with one configuration after the other, in a simulation that sends
queries to replicas as extproc does. It needs no cluster and no traffic.

FILE is YAML with a CapacityPlan: the stages, the hardware that each may run on with a profile of the model's time there, and the
objectives. control profile measures profiles. Files that it names are beside it. docs/provision.md has a whole example.

A trace is a file of Azure, Mooncake or ServeGen, rates by time (CSV, or the answer of Prometheus to a range query), CSV with the
columns at, model, prompt_tokens and output_tokens, Envoy's access log as Headgate writes it, or a text such as
gamma:rate=100,cv=4,seconds=600. The plan is made on one trace and tested on another: of a generated one on another seed, of a
recorded one on what comes after the first quarter (--split).

Usage:

  control plan -f FILE [flags]
  control plan --objects DIR [flags] [NAME]       of the CapacityPlans in a folder
  control plan --kube [flags] [NAME]              of those of an API server
  control plan compare A.json B.json              how two plans differ that were written with -o json
  control plan compare LIST.json                  how each plan of a list differs from its first, as --what-if writes one

Exit status: 0 with a plan, 3 where there is none, 1 for anything else.

Examples:

  control plan -f plan.yaml --trace trace.csv
  control plan -f plan.yaml --explain --picture plan.svg
  control plan -f plan.yaml --given detect=a100:4x8,classify=cpu:6x1     what runs today, and what to change
  control plan -f plan.yaml --what-if slo=200ms --what-if rate=2x,max.detect=12
  control plan -f plan.yaml --given detect=a100:4x8,classify=cpu:6x1 --what-if rate=2x --what-if pace=1.3x
  control plan -f plan.yaml -o json > plan.json

Flags:

`

// config is what the command line says.
type config struct {
	file, name string
	source     source.Source
	trace      string
	format     string
	split      float64
	seed       int64
	seeded     bool // somebody says the seed
	planner    string
	most       int
	given      string
	whatIf     []string
	explain    bool
	picture    string
	output     string
}

// planners by name.
var planners = map[string]func(*planner.Problem) *planner.Plan{"mended": planner.Mended, "strict": planner.Strict}

// ErrNoPlan is returned by [Command] if there is no plan. Command has printed the reason.
var ErrNoPlan = errors.New("there is no plan")

// Command is the command "plan". It prints to out.
func Command(ctx context.Context, args []string, out io.Writer) error {
	if len(args) > 0 && args[0] == "compare" && !slices.Contains(args, "--help") && !slices.Contains(args, "-h") { // one help has both
		return compare(args[1:], out)
	}
	var c config
	fs := pflag.NewFlagSet("plan", pflag.ContinueOnError)
	fs.Usage = func() { fmt.Fprintln(out, usage+fs.FlagUsagesWrapped(100)) }
	fs.SortFlags = false
	fs.StringVarP(&c.file, "file", "f", "", "read the CapacityPlan in this YAML `FILE`")
	fs.StringVar(&c.source.Dir, "objects", "", "read it from the YAML files in this `DIR`")
	c.source.Kube.Register(fs)
	fs.StringVar(&c.trace, "trace", "", "plan on this `TRACE`, a file or a text such as gamma:rate=100,cv=4,seconds=600, in the place of that in the plan")
	fs.StringVar(&c.format, "trace-format", "", "the trace is of this `FORMAT`: azure, mooncake, servegen, rates, prometheus, access-log or csv; found out by what is in it if it is left out")
	fs.Float64Var(&c.split, "split", 0.25, "of a recorded trace plan on the first `SHARE` of the time, and test on the rest")
	fs.Int64Var(&c.seed, "seed", 0, "all that is by chance is of this `SEED`, in the place of that in the plan")
	fs.StringVar(&c.planner, "planner", "mended", "plan as this `PLANNER` does: mended, or strict, which is InferLine's")
	fs.IntVar(&c.most, "prove", 100_000, "try all that is cheaper than the plan where that is no more than `N` configurations: nothing is cheaper then; 0 for none")
	fs.StringVar(&c.given, "given", "", "tell what `STAGE=HARDWARE:REPLICASxBATCH,...` costs and keeps, which runs today, and what to change; with replicas that come and go at times of the trace: 4x8+2@10m-2@50m")
	fs.StringArrayVar(&c.whatIf, "what-if", nil, "tell what the plan, or what runs today, would keep with `CHANGES`, and plan again: slo=200ms (all objectives, or slo.2=… the second), rate=2x, pace=1.3x (all models take so many times as long, or pace.STAGE=… one), price.KIND=1.5, atMost.KIND=8, max.STAGE=4, min.STAGE=2; several with commas; may be repeated")
	fs.BoolVar(&c.explain, "explain", false, "say why nothing is cheaper: what each step that saves something would keep")
	fs.StringVar(&c.picture, "picture", "", "draw the pipeline, with what each stage has and where the time goes, into this SVG `FILE`")
	fs.StringVarP(&c.output, "output", "o", "text", "print `text` or json, which has all that was tried, and what a tuner needs; with --given and --what-if a list of them")
	if err := fs.Parse(args); err != nil {
		return err
	}
	c.name, c.seeded = fs.Arg(0), fs.Changed("seed")
	err := c.check(fs.NArg())
	if err == nil && fs.Changed("prove") && c.planner != "mended" {
		err = fmt.Errorf("--prove is of the planner mended: --planner %s does not take it", c.planner)
	}
	if err != nil {
		return fmt.Errorf("%w; see control plan --help", err)
	}
	return c.run(ctx, out)
}

func (c *config) check(args int) error {
	sources := 0
	for _, given := range []bool{c.file != "", c.source.Dir != "", c.source.Kube.On} {
		if given {
			sources++
		}
	}
	if err := c.source.Kube.Check(c.source.Dir); err != nil {
		return err
	}
	switch {
	case sources != 1:
		return errors.New("say where the CapacityPlan is: one of -f FILE, --objects DIR and --kube")
	case args > 1:
		return fmt.Errorf("unexpected argument %q", c.name)
	case planners[c.planner] == nil:
		return fmt.Errorf("--planner %q: want mended or strict", c.planner)
	case c.output != "text" && c.output != "json":
		return fmt.Errorf("--output %q: want text or json", c.output)
	case !(c.split > 0 && c.split < 1):
		return fmt.Errorf("--split %v: want a share above 0 and below 1", c.split)
	case c.seed < 0:
		return fmt.Errorf("--seed %d: it must not be negative", c.seed)
	case c.most < 0:
		return fmt.Errorf("--prove %d: it must not be negative", c.most)
	}
	return nil
}

// asked is a plan that is asked for, and what it is planned on.
type asked struct {
	*v1alpha1.CapacityPlan
	files   problem.Files
	slower  problem.Slower
	planned queries
	tested  queries
	fault   func(field, words string) error
}

// queries are those of a trace, and what it is called.
type queries struct {
	name string
	all  []workload.Query
	seed uint64
	from float64 // when they begin in the trace of which they are a part, in seconds
}

// end is when the last query comes, in the trace of which these are a part.
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
	given, changed, err := c.readAsked(a) // before a search that may take minutes
	if err != nil {
		return err
	}
	is, p, found, err := c.answer(ctx, a, a.Name, c.explain)
	if err != nil {
		return err
	}
	if err := c.draw(is); err != nil {
		return err
	}
	all := answers{plan: is, has: planner.Steady(found.Config)}
	if given != nil {
		all.has = given
		if all.today, err = report.Given("today", p, given, a.planned.trace(), a.tested.trace()); err != nil {
			return err
		}
	}
	for i, other := range changed {
		if ctx.Err() != nil { // who stops wants what there is
			all.left = c.whatIf[i:]
			break
		}
		if err := c.ask(ctx, &all, other, c.whatIf[i]); err != nil {
			return fmt.Errorf("--what-if %s: %w", c.whatIf[i], err)
		}
	}
	if c.output == "json" {
		err = all.writeJSON(out)
	} else {
		_, err = io.WriteString(out, all.text())
	}
	if err == nil && !is.Found {
		err = ErrNoPlan
	}
	return err
}

// draw writes the picture of a plan, if one is wanted.
func (c *config) draw(is *report.Answer) error {
	switch {
	case c.picture == "":
		return nil
	case !is.Found:
		fmt.Fprintf(os.Stderr, "--picture %s is not written: there is no plan to draw\n", c.picture)
		return nil
	}
	return os.WriteFile(c.picture, []byte(is.Picture()), 0o644)
}

// ask plans again with changes, and finds what would be kept without.
func (c *config) ask(ctx context.Context, all *answers, changed *asked, text string) error {
	base := cmp.Or(all.today, all.plan)
	then, p, _, err := c.answer(ctx, changed, text, c.explain && (c.output == "json" || !base.Found)) // text that compares does not explain
	if err != nil {
		return err
	}
	pair := [2]*report.Answer{1: then}
	if base.Found {
		if pair[0], err = report.Given(base.Name+" with "+text, p, all.has, changed.planned.trace(), changed.tested.trace()); err != nil {
			return err
		}
	}
	all.asked = append(all.asked, pair)
	return nil
}

// answer plans what is asked for, and says why nothing is cheaper where that is wanted.
func (c *config) answer(ctx context.Context, a *asked, name string, explain bool) (*report.Answer, *planner.Problem, *planner.Plan, error) {
	p, err := a.problem()
	if err != nil {
		return nil, nil, nil, err
	}
	p.Seed, p.Most = a.planned.seed, c.most
	var done func()
	p.Told, done = progress(ctx, name)
	found := planners[c.planner](p)
	is, err := report.Of(name, c.planner, p, found, a.planned.trace(), a.tested.trace())
	done()
	if err == nil && explain && found.Found && !found.Stopped {
		err = is.Explain(p, found.Config, func() bool { return ctx.Err() == nil })
	}
	return is, p, found, err
}

func (q queries) trace() report.Trace {
	return report.Trace{Name: q.name, Queries: problem.Queries(q.all), Seed: q.seed, From: q.from}
}

// progress reports the progress of a search on standard error: on a terminal every 0.1 s in the same line, otherwise every 10 s in a new line. The
// search stops when the context ends.
func progress(ctx context.Context, name string) (told func(int, planner.Candidate) bool, done func()) {
	terminal := term.IsTerminal(int(os.Stderr.Fd()))
	every, begin, end := 10*time.Second, "", "\n"
	if terminal {
		every, begin, end = 100*time.Millisecond, "\r\x1b[K", ""
	}
	began := time.Now()
	last := began
	told = func(simulations int, best planner.Candidate) bool {
		if now := time.Now(); now.Sub(last) > every {
			last = now
			words := "nothing keeps the objectives yet"
			if best.Keeps {
				words = fmt.Sprintf("the best plan costs %.4g an hour", best.Cost)
			}
			fmt.Fprintf(os.Stderr, "%s%s: %d simulations in %.0f s, %s (Ctrl-C takes it)%s", begin, name, simulations, now.Sub(began).Seconds(), words, end)
		}
		return ctx.Err() == nil
	}
	return told, func() {
		if terminal {
			fmt.Fprint(os.Stderr, "\r\x1b[K")
		}
	}
}

// readAsked reads what is asked beside the plan: it returns what runs today, nil if that is not given, and what is asked for with the changes of each
// --what-if.
func (c *config) readAsked(a *asked) (given *planner.Timetable, changed []*asked, err error) {
	if given, err = c.readGiven(a); err != nil {
		return nil, nil, err
	}
	for _, text := range c.whatIf {
		other, err := a.changed(text)
		if err == nil {
			_, err = c.readGiven(other) // models may be too slow then, and of faster queries the last may come before replicas change
		}
		if err != nil {
			return nil, nil, fmt.Errorf("--what-if %s: %w", text, err)
		}
		changed = append(changed, other)
	}
	return given, changed, nil
}

// readGiven reads what runs today, nil if that is not given, for the problem that is asked, which it checks.
func (c *config) readGiven(a *asked) (*planner.Timetable, error) {
	p, err := a.problem()
	if err != nil || c.given == "" {
		return nil, err
	}
	given, err := problem.Given(p, c.given)
	if err != nil {
		return nil, fmt.Errorf("--given %w", err)
	}
	if err := p.Within(given, max(a.planned.end(), a.tested.end())); err != nil {
		return nil, fmt.Errorf("--given: %w", err)
	}
	return given, nil
}

// problem is what is asked for, as planners have it.
func (a *asked) problem() (*planner.Problem, error) {
	p, err := problem.Of(a.CapacityPlan, a.files, a.slower, a.planned.all, a.tested.all)
	return p, a.located(err)
}

// located has a Fault say where its field is written.
func (a *asked) located(err error) error {
	if wrong, ok := errors.AsType[*problem.Fault](err); ok {
		return a.fault(wrong.Field, wrong.Words)
	}
	return err
}

// compare is the command "plan compare".
func compare(args []string, out io.Writer) error {
	if len(args) != 1 && len(args) != 2 {
		return errors.New("plan compare wants two files that control plan -o json wrote, or one with several plans")
	}
	var all []*report.Answer
	for _, file := range args {
		some, err := written(file)
		if err != nil {
			return err
		}
		all = append(all, some...)
	}
	if len(all) < 2 {
		return fmt.Errorf("there is one plan in %s: name another file, with what it is to be compared with", args[0])
	}
	for i, is := range all[1:] {
		if i > 0 {
			fmt.Fprintln(out)
		}
		if _, err := io.WriteString(out, report.Compare(all[0], is)); err != nil {
			return err
		}
	}
	return nil
}

// written are the answers in a file that control plan -o json wrote: one, which is called as its file, or a list.
func written(file string) (all []*report.Answer, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")) {
		err = json.Unmarshal(text, &all)
	} else {
		one := &report.Answer{}
		err = json.Unmarshal(text, one)
		one.Name = strings.TrimSuffix(file, ".json")
		all = []*report.Answer{one}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: want what control plan -o json wrote", file, err)
	}
	for _, is := range all {
		if is == nil || is.Found && is.Planned == nil || !is.Found && len(is.Why) == 0 {
			return nil, fmt.Errorf("%s is no plan: want what control plan -o json wrote", file)
		}
	}
	return all, nil
}
