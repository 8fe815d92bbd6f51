// Package flow is "bench flow": it simulates a fleet that several tenants share, and compares the
// orders in which requests wait, and what each tenant gets. It uses the simulation of bench fleet.
//
// Equal flags give equal results.
package flow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/headgate/simulated/llm"
	"github.com/headgate/headgate/internal/cli"
)

const usage = `Simulates a fleet that several tenants share, and compares the order in which extproc serves waiting requests with other
orders and with another project. It starts no engines: it uses the step model of bench engine, and generates requests.
Equal flags give equal figures.

It prints a table for each part, and a line for each target. It fails if a target is missed. Figures are medians of the
seeds. Capacity is the rate at which the fleet completes requests while requests wait at every engine.

Usage:

  bench flow [flags]

Examples:

  bench flow
  bench flow --part flood --seeds 1

`

// parts are the parts of the command, in the order of the output.
var parts = []struct {
	name string
	run  func(context.Context, *bench) error
}{
	{"flood", flood},
	{"throughput", throughput},
	{"bands", bands},
	{"stated", stated},
	{"load", load},
	{"jain", jain},
	{"agent", agent},
	{"several", several},
	{"retry", retry},
}

// row is a policy that a part compares.
type row struct {
	name   string
	policy fleet.Policy
	alone  bool    // without the flood
	picker int     // the extproc that gets the flood; 0 for all
	scrape float64 // interval of scrapes in seconds; 0 for that of the fleet
}

func (r row) scrapeInterval(f fleet.Fleet) float64 {
	if r.scrape > 0 {
		return r.scrape
	}
	return f.ScrapeInterval
}

// bench is a run of the command.
type bench struct {
	fleet    fleet.Fleet
	lengths  fleet.Lengths
	capacity float64 // requests per second
	seeds    int
	scale    float64 // of times; below 1 for tests
	gate     pick.Gate
	plot     string // path of a picture of the flood; empty for none

	out, progress io.Writer
	targets       []target
}

// target is a figure and what it must be.
type target struct {
	what         string
	value, limit float64
	atLeast      bool
}

func (t target) met() bool {
	if t.atLeast {
		return t.value >= t.limit
	}
	return t.value <= t.limit
}

func (b *bench) atMost(what string, limit, value float64) {
	b.targets = append(b.targets, target{what, value, limit, false})
}

func (b *bench) atLeast(what string, limit, value float64) {
	b.targets = append(b.targets, target{what, value, limit, true})
}

// scaled returns a time of a part in seconds.
func (b *bench) scaled(seconds float64) float64 { return seconds * b.scale }

// rows returns the policies of most parts.
func (b *bench) rows() []row {
	return []row{
		{name: "alone", policy: fleet.NoFlow, alone: true},
		{name: "no flow", policy: fleet.NoFlow},
		{name: "fair", policy: fleet.Fair(b.gate)},
		{name: "first come", policy: fleet.FirstCome(b.gate)},
		{name: "VTC", policy: fleet.VTC(b.gate)},
		{name: "victims first", policy: fleet.Ahead(b.gate, isOther)},
		{name: "llm-d", policy: fleet.LLMD(false), scrape: fleet.LLMDScrapeInterval},
		{name: "llm-d round robin", policy: fleet.LLMD(true), scrape: fleet.LLMDScrapeInterval},
	}
}

// each runs every row with every seed, as many at once as there are processors.
func (b *bench) each(ctx context.Context, rows []row, run func(seed uint64, r row) (figures, error)) (map[string]bySeed, error) {
	all := make(map[string]bySeed)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	began, done := time.Now(), atomic.Int64{}
	for _, r := range rows {
		all[r.name] = make(bySeed, b.seeds)
	}
	for seed := range b.seeds {
		for _, r := range rows {
			is := all[r.name]
			group.Go(func() (err error) {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if is[seed], err = run(uint64(seed), r); err != nil {
					return fmt.Errorf("%s: %w", r.name, err)
				}
				fmt.Fprintf(b.progress, "%s: %d of %d runs, %.0f s\n", r.name, done.Add(1), b.seeds*len(rows), time.Since(began).Seconds())
				return nil
			})
		}
	}
	return all, group.Wait()
}

// column is a figure in a table.
type column struct {
	name, format string
	of           func(figures) float64
}

// table prints the medians of each row.
func (b *bench) table(title string, rows []row, all map[string]bySeed) {
	b.print(title, rows, all, []column{
		{"TTFT p50", "%.2f s", func(f figures) float64 { return f.ttft50 }},
		{"p99", "%.2f s", ttft99},
		{"per token p99", "%.0f ms", func(f figures) float64 { return 1000 * f.perToken99 }},
		{"tokens/s", "%.0f", tokens},
		{"hits", "%.1f %%", func(f figures) float64 { return 100 * f.hits }},
		{"inversions", "%.0f", func(f figures) float64 { return float64(f.inversions) }},
	})
}

// print prints the median of each column in each row.
func (b *bench) print(title string, rows []row, all map[string]bySeed, columns []column) {
	fmt.Fprintf(b.out, "%s\n\n", title)
	t := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "policy\t")
	for _, c := range columns {
		fmt.Fprintf(t, "%s\t", c.name)
	}
	fmt.Fprintln(t)
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t", r.name)
		for _, c := range columns {
			fmt.Fprintf(t, c.format+"\t", all[r.name].median(c.of))
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	fmt.Fprintln(b.out)
}

// run simulates requests under a policy. It returns the figures of the clients that which selects,
// of requests that arrive from the beginning of a flood until its end.
func (b *bench) run(seed uint64, r row, requests iter.Seq[fleet.Request], which func(fleet.Client) bool) (figures, error) {
	return b.runFor(seed, r, requests, which, b.scaled(floodFrom), b.scaled(floodUntil))
}

// runFor is run for requests that arrive in an interval.
func (b *bench) runFor(seed uint64, r row, requests iter.Seq[fleet.Request], which func(fleet.Client) bool, from, until float64,
) (figures, error) {
	f := b.fleet
	f.SampleInterval, f.ScrapeInterval = 1, r.scrapeInterval(f)
	o, err := f.Run(seed, requests, r.policy)
	if err != nil {
		return figures{}, err
	}
	is := figuresOf(o, func(r fleet.Result) bool { return which(r.Client) && r.At >= from && r.At < until })
	is.tokens, is.inversions = tokensPerSecond(o, from, until), o.Inversions
	is.unused = o.Unused
	return is, nil
}

// capacityOf returns the capacity of the fleet for a stream, in requests per second.
func (b *bench) capacityOf(s fleet.Stream) (float64, error) {
	if b.scale < 1 {
		return b.capacity / 2, nil // a test has no time to measure it
	}
	return b.fleet.Capacity(s)
}

// errMissed means that a target is missed.
var errMissed = errors.New("targets were missed")

// verdict prints a line for each target.
func (b *bench) verdict() error {
	t := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	missed := 0
	for _, is := range b.targets {
		relation, met := "at most", "met"
		if is.atLeast {
			relation = "at least"
		}
		if !is.met() {
			met = "MISSED"
			missed++
		}
		fmt.Fprintf(t, "%s\t%s\t%.3f\t%s %g\n", met, is.what, is.value, relation, is.limit)
	}
	t.Flush()
	if missed > 0 {
		return fmt.Errorf("%d of %d %w", missed, len(b.targets), errMissed)
	}
	return nil
}

// Command runs "bench flow".
func Command(ctx context.Context, args []string, out io.Writer) error {
	return runCommand(ctx, args, out, os.Stderr)
}

func runCommand(ctx context.Context, args []string, out, progress io.Writer) error {
	b := &bench{lengths: fleet.Conversation(), scale: 1, out: out, progress: progress}
	b.fleet = fleet.Fleet{Profile: llm.DefaultProfile(), Pickers: 1, ScrapeInterval: 0.2, AdapterSync: 1, BacklogSync: 0.02}
	f := cli.Flags("bench flow", usage, out)
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = p.name
	}
	chosen := f.StringSlice("part", names, "run these `PARTS`: "+strings.Join(names, ", "))
	f.IntVar(&b.seeds, "seeds", 5, "number of `SEEDS`; figures are medians")
	f.StringVar(&b.plot, "plot", "", "draw the flood with and without flow into this `FILE`, such as flow.svg")
	f.IntVar(&b.fleet.Endpoints, "endpoints", 16, "number of `ENDPOINTS`")
	queue := f.Float64("gate-queue", pick.DefaultGateQueue, "longest time that queued prompts take at an endpoint, in `SECONDS`")
	perToken := f.Float64("gate-per-token", pick.DefaultGatePerToken, "longest time per output token without a stated objective, in `SECONDS`")
	headroom := f.Float64("gate-headroom", pick.DefaultHeadroom,
		"`SHARE` of the batch and of the KV cache that requests leave free if others of their flow wait")
	if err := cli.Parse(f, args, 0); err != nil {
		return err
	}
	if b.seeds < 1 || b.fleet.Endpoints < 1 {
		return f.Wrong(errors.New("--seeds and --endpoints must be at least 1"))
	}
	for _, name := range *chosen {
		if !slices.Contains(names, name) {
			return f.Wrong(fmt.Errorf("--part: unknown name %q: use some of %s", name, strings.Join(names, ", ")))
		}
	}
	b.gate = pick.Gate{On: true, Queue: *queue, PerToken: *perToken, Headroom: *headroom}
	var err error
	if b.capacity, err = b.fleet.Capacity(fleet.Stream{Lengths: b.lengths}); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d endpoints of %s; capacity %.1f requests per second; %d seeds\n\n", b.fleet.Endpoints, b.fleet.Profile.Name, b.capacity,
		b.seeds)
	for _, p := range parts {
		if slices.Contains(*chosen, p.name) {
			if err := p.run(ctx, b); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	return b.verdict()
}
