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
orders and with another project. It serves nothing: engines are the step model of bench engine, and clients are generated.
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
}

// row is a policy that a part compares.
type row struct {
	name   string
	policy fleet.Policy
	alone  bool    // without the flood
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

// table prints the medians of each row.
func (b *bench) table(title string, rows []row, all map[string]bySeed) {
	fmt.Fprintf(b.out, "%s\n\n", title)
	t := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "policy\tTTFT p50\tp99\tper token p99\ttokens/s\thits\trefused\tinversions\t")
	for _, r := range rows {
		is := all[r.name]
		fmt.Fprintf(t, "%s\t%.2f s\t%.2f s\t%.0f ms\t%.0f\t%.1f %%\t%.1f %%\t%.0f\t\n", r.name,
			is.median(func(f figures) float64 { return f.ttft50 }), is.median(ttft99), 1000*is.median(perToken99), is.median(tokens),
			100*is.median(func(f figures) float64 { return f.hits }), 100*is.median(func(f figures) float64 { return f.refused }),
			is.median(func(f figures) float64 { return float64(f.inversions) }))
	}
	t.Flush()
	fmt.Fprintln(b.out)
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
	f.IntVar(&b.fleet.Endpoints, "endpoints", 16, "number of `ENDPOINTS`")
	queue := f.Float64("gate-queue", pick.DefaultGateQueue, "longest queue of prompts at an endpoint, in `SECONDS`")
	perToken := f.Float64("gate-per-token", pick.DefaultGatePerToken, "longest time per output token without a stated objective, in `SECONDS`")
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
	b.gate = pick.Gate{On: true, Queue: *queue, PerToken: *perToken}
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
