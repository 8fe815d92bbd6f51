// Package cost is "bench cost": it measures the CPU time and the latency of a request through the
// whole gateway, and compares them with less of it and with another gateway.
package cost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/cli"
)

const usage = `Measures what requests, endpoints, routes and models cost: CPU time, memory, latencies and throughput. It compares the
whole gateway with less of it, and with another gateway:

  alone     Envoy with one route to the engines
  floor     Envoy with only the filter ext_proc, and a server that decides nothing (a no-op)
  config    our envoy.yaml, with the same no-op
  gateway   our envoy.yaml and extproc
  smg       smg from PyPI, which is installed into the cache once
  base      gateway, built from the revision of --base

Each runs with one Envoy worker, as processes on loopback addresses. In each round all variants take turns in each cell, and
the processes of the others are stopped meanwhile. The command prints medians of the rounds, with the lowest and the highest.
Run it in the repository's folder, after make build, on a machine that does nothing else. It has these parts:

  requests   the variants in each cell
  endpoints  what extproc costs that scrapes 8, 64 and 1,000 endpoints, and what these add to the latency of requests
  memory     memory of extproc per route, registered model, request in flight and queued request
  decisions  requests to extproc without Envoy, with more bytes, concurrency, endpoints, routes and models
  switches   the whole gateway with other settings
  llm-d      the load for which llm-d has published the cost of its picker
  envoy      the whole gateway without one part of envoy.yaml each, and without all of these

Usage:

  bench cost [flags]
  bench cost engines [flags]     serve answers that are made in advance; the other command starts it

Examples:

  bench cost --short
  bench cost --variant floor,gateway --cell 1KB-32
  bench cost --base v0.1.0
  bench cost --part endpoints --base v0.1.0

`

// bench is a run of the command.
type bench struct {
	self     string // path of this program
	headgate string // path of headgate
	cache    string // folder of downloads
	base     string // revision, or empty
	flags    []string

	variants []string
	cells    []cell
	parts    []string
	rounds   int
	began    time.Time
	short    bool
	limit    time.Duration // for everything
	budget   time.Duration // for the rounds of the part requests
	rest     time.Duration // an idle process is measured for this time

	out, progress io.Writer
}

// parts are the parts of the command, in the order of the output.
var parts = []string{"requests", "endpoints", "memory", "decisions", "switches", "llm-d", "envoy"}

// part is a part of the command.
type part struct {
	name  string
	run   func(context.Context, *rigs) error
	takes time.Duration // on two cores
}

// all returns all parts.
func (b *bench) all() []part {
	programs := time.Duration(1)
	if b.base != "" {
		programs = 2
	}
	if b.short {
		return []part{
			{"requests", b.requests, b.budget},
			{"endpoints", b.endpoints, programs * 45 * time.Second},
			{"memory", b.memory, programs * 50 * time.Second},
			{"decisions", b.decisions, 45 * time.Second},
			{"switches", b.switches, 30 * time.Second},
			{"llm-d", b.shape, 15 * time.Second},
			{"envoy", b.removed, 40 * time.Second},
		}
	}
	return []part{
		{"requests", b.requests, b.budget},
		{"endpoints", b.endpoints, programs*3*time.Minute + 90*time.Second},
		{"memory", b.memory, programs * time.Minute},
		{"decisions", b.decisions, 3 * time.Minute},
		{"switches", b.switches, 160 * time.Second},
		{"llm-d", b.shape, 70 * time.Second},
		{"envoy", b.removed, 110 * time.Second},
	}
}

// Command runs "bench cost". It prints results to out, and progress to standard error.
func Command(ctx context.Context, args []string, out io.Writer) error {
	if len(args) > 0 && args[0] == "engines" {
		return enginesCommand(ctx, args[1:], out)
	}
	return runCommand(ctx, args, out, os.Stderr)
}

func runCommand(ctx context.Context, args []string, out, progress io.Writer) error {
	b := &bench{out: out, progress: progress}
	all := names(cells, func(c cell) string { return c.name })
	known := names(variants, func(v variant) string { return v.name })
	f := cli.Flags("bench cost", usage, out)
	f.BoolVar(&b.short, "short", false, "take less than five minutes: fewer requests in each round")
	f.IntVar(&b.rounds, "rounds", 5, "number of `ROUNDS`; figures are medians")
	f.StringVar(&b.base, "base", "", "also measure the gateway of this `REVISION`, such as v0.1.0 or HEAD~3")
	f.StringSliceVar(&b.variants, "variant", known, "measure these `VARIANTS`: "+strings.Join(known, ", "))
	chosen := f.StringSlice("cell", all, "measure these `CELLS`: "+strings.Join(all, ", "))
	f.StringSliceVar(&b.parts, "part", parts, "run these `PARTS`: "+strings.Join(parts, ", "))
	f.StringArrayVar(&b.flags, "extproc-flag", nil, "start extproc of the variant gateway with this `FLAG` too; may be repeated")
	f.StringVar(&b.headgate, "headgate", "", "path of the `PROGRAM` headgate; default beside this program")
	f.StringVar(&b.cache, "cache", ".cache", "`FOLDER` for a downloaded Envoy and smg")
	if err := cli.Parse(f, args, 0); err != nil {
		return err
	}
	if b.rounds < 1 {
		return f.Wrong(errors.New("--rounds must be at least 1"))
	}
	for _, list := range []struct {
		flag         string
		given, known []string
	}{{"variant", b.variants, known}, {"cell", *chosen, all}, {"part", b.parts, parts}} {
		for _, name := range list.given {
			if !slices.Contains(list.known, name) {
				return f.Wrong(fmt.Errorf("--%s: unknown name %q: use some of %s", list.flag, name, strings.Join(list.known, ", ")))
			}
		}
	}
	b.began, b.limit, b.budget, b.rest = time.Now(), 29*time.Minute, 12*time.Minute, 3*time.Second
	if b.short {
		b.limit, b.budget, b.rest = 290*time.Second, 90*time.Second, 800*time.Millisecond
	}
	if b.base != "" {
		b.budget -= b.budget / 12
	}
	for _, c := range cells {
		if slices.Contains(*chosen, c.name) {
			if b.short {
				c.requests /= shorter
			}
			b.cells = append(b.cells, c)
		}
	}
	if err := b.find(); err != nil {
		return err
	}
	return b.run(ctx)
}

// names returns a name of each element.
func names[T any](all []T, of func(T) string) []string {
	var is []string
	for _, one := range all {
		is = append(is, of(one))
	}
	return is
}

// find finds the programs, and checks that the working directory is the repository.
func (b *bench) find() (err error) {
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	if b.headgate == "" {
		b.headgate = filepath.Join(filepath.Dir(b.self), "headgate")
	}
	for path, what := range map[string]string{
		b.headgate: "run make build, or set --headgate",
		pageLoaded: "run bench cost in the folder of Headgate's repository",
	} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("%w: %s", err, what)
		}
	}
	if b.cache, err = filepath.Abs(b.cache); err != nil {
		return err
	}
	return nil
}

// report prints a line of progress, with the seconds since the command began.
func (b *bench) report(format string, args ...any) {
	fmt.Fprintf(b.progress, "%4.0f s  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}

// has reports whether a part was chosen.
func (b *bench) has(part string) bool { return slices.Contains(b.parts, part) }

// run runs the chosen parts.
func (b *bench) run(ctx context.Context) error {
	if err := os.MkdirAll(b.cache, 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "cost-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r, err := b.prepare(ctx, dir)
	if err != nil {
		return err
	}
	defer r.close()
	fmt.Fprintln(b.out, machine())
	for _, p := range b.all() {
		if !b.has(p.name) {
			continue
		}
		if left := b.limit - time.Since(b.began); left < p.takes {
			fmt.Fprintf(b.out, "%s is left out: it takes %v, and of %v are left %v\n\n", p.name, p.takes, b.limit, left.Round(time.Second))
			continue
		}
		if err := p.run(ctx, r); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}
