package place

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/headgate/simulated/llm"
	"github.com/headgate/headgate/internal/cli"
)

const usage = `Simulates endpoints that load and unload models, and compares placement policies. It serves nothing: headgate is
control's own rules with immediate notifications; the rest is simulated. Equal flags give equal figures.

For each policy it prints, as the median of the seeds,
  misses     the share of requests that waited for a load, with the lowest and highest of the seeds
  optimum    the ratio to the misses of the policy optimum, by seed
  refused    the share of requests that the policy rejected; they are also misses with an infinite wait
  wait p99   the 99th percentile of the time that all requests waited for loads
  loads/min  the number of loads per minute
  moves      with --join or --leave: the additional loads in the five minutes after such an event, relative to the
             loaded copies; below 0 if more room saved loads, so --cache 1.2 shows it best
  joined     with --join: the requests of the new endpoint relative to the mean, from five to ten minutes after it
             joined
  max/mean   the requests of the busiest endpoint relative to the mean
  TTFT p99   if endpoints are engines: the 99th percentile of the time to first token, including loads, with the
             lowest and highest of the seeds
  known      the ratio to the TTFT p99 of the policy known, by seed
The first hour is not measured, because caches are cold. With --warm the most popular models are loaded at the start,
and ten minutes are enough.

modelmesh follows ModelMesh's rules with current information, where real instances are up to 40 s behind. It rejects
requests if the model to evict was used less than 100 s ago; modelmesh-nolimit does not. dynamo is NVIDIA Dynamo's
allocation by rendezvous hashing with LRU eviction in each engine. all loads every model on every endpoint until
these are full.

The policy optimum always has the models with the highest true rate per byte loaded. belady knows all requests and
evicts the model that is needed last. lru is one cache over the whole fleet. random and first choose an endpoint and
evict its least recently used model. known knows all rates: it gives more copies to the models with the most load
while there is room, balances them, and moves none.

Endpoints that are engines, as in the workload hot, use the step model of bench engine, and requests have the lengths
of conversations; each goes to the copy on the least loaded endpoint. In the ServeGen workloads each model is a client
of the trace; further models are the same clients at other times. --rate scales all of them.

Usage:

  bench place [flags]

Examples:

  bench place
  bench place --workload drift --models 1000 --endpoints 100 --cache 0.2
  bench place --workload flash --zipf 1.2 --policy headgate,lru,optimum
  bench place --join 2m --measure 15m
  bench place --cache 0.1,0.2,0.4,0.6 --plots .

`

// policies lists all policies in the order of the output.
var policies = []struct {
	name string
	make func() Policy
}{
	{"headgate", Headgate},
	{"headgate-lru", HeadgateLRU},
	{"modelmesh", ModelMesh},
	{"modelmesh-nolimit", ModelMeshNoLimit},
	{"dynamo", Dynamo},
	{"all", All},
	{"lru", LRU},
	{"first", First},
	{"random", Random},
	{"belady", Belady},
	{optimumName, Optimum},
	{knownName, Known},
}

// optimumName is the policy with which misses are compared. knownName is the policy with which
// times to first token are compared.
const optimumName, knownName = "optimum", "known"

// workloads lists all workloads. Each changes a World.
var workloads = []struct {
	name, about string
	set         func(*World)
	file        string // ServeGen file in the directory of traces
}{
	{name: "zipf", about: "constant popularity"},
	{"drift", "popularity rotates over all models in two hours", func(w *World) { w.Drift = 7200 }, ""},
	{"flash", "a cold model gets a fifth of all requests from half of the measured time on", func(w *World) { w.Flash = 0.2 }, ""},
	{"noise", "the rate of each model varies by up to a tenth from minute to minute", func(w *World) { w.Noise = 0.1 }, ""},
	{"hot", "one model gets 30 % of all requests, and endpoints are engines", setHot, ""},
	{
		name: "servegen-small", about: "each model is a client of Alibaba's small language model (ServeGen)",
		file: "servegen/language-m-small.csv.gz",
	},
	{name: "servegen-reason", about: "each model is a client of DeepSeek-R1 (ServeGen)", file: "servegen/reason-deepseek-r1.csv.gz"},
}

// setHot gives the most popular model so much load that it needs three of ten endpoints.
func setHot(w *World) {
	engine := llm.DefaultProfile()
	w.Hot, w.Engine = 0.3, &engine
}

// Command runs "bench place". traces is the default directory of traces; empty if there are none.
func Command(ctx context.Context, args []string, traces string, out io.Writer) error {
	return runCommand(ctx, args, traces, out, os.Stderr)
}

// config has the values of the flags.
type config struct {
	World
	name, about string
	shares      []float64
	policies    []string
	seeds       int
	plots       string // directory for plots; empty to draw none
}

func runCommand(ctx context.Context, args []string, traces string, out, progress io.Writer) error {
	c, err := parseFlags(args, traces, out)
	if err != nil {
		return err
	}
	misses := make(map[string][]float64) // by policy: one value for each cache size
	for i, share := range c.shares {
		c.Share = share
		if i > 0 {
			fmt.Fprintln(out)
		}
		all, err := c.table(ctx, out, progress)
		if err != nil {
			return err
		}
		for _, name := range c.policies {
			misses[name] = append(misses[name], median(of(all[name], func(f Figures) float64 { return 100 * f.Misses })))
		}
	}
	if c.plots == "" {
		return nil
	}
	path, err := c.plot(misses)
	if err != nil {
		return err
	}
	fmt.Fprintf(progress, "wrote %s\n", path)
	return nil
}

// table prints the figures of each policy for one cache size. It returns the figures of each seed
// by policy.
func (c config) table(ctx context.Context, out, progress io.Writer) (map[string][]Figures, error) {
	fmt.Fprintf(out,
		"%s\n%d models on %d endpoints with room for %.0f %% of their bytes%s, %g requests/s; %d seeds, %.0f s after %.0f s\n\n",
		c.about, c.Models, c.Endpoints, 100*c.Share, c.popular(", Zipf %g"), c.Rate, c.seeds, c.Measured, c.Warmup)
	all := make(map[string][]Figures)
	for _, name := range c.policies {
		began := time.Now()
		var err error
		if all[name], err = c.run(ctx, name); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		fmt.Fprintf(progress, "%s: %d seeds in %.1f s\n", name, c.seeds, time.Since(began).Seconds())
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table,
		"policy\tmisses\tleast\tgreatest\toptimum\trefused\twait p99\tloads/min\tmoves\tjoined\tmax/mean\tTTFT p99\tleast\tgreatest\tknown\t")
	for _, name := range c.policies {
		middle := func(field func(Figures) float64) float64 { return median(of(all[name], field)) }
		percent := func(f Figures) float64 { return 100 * f.Misses }
		misses := of(all[name], percent)
		fmt.Fprintf(table, "%s\t%.2f %%\t%.2f\t%.2f\t%s", name, median(misses), slices.Min(misses), slices.Max(misses),
			times(misses, of(all[optimumName], percent)))
		fmt.Fprintf(table, "\t%.2f %%\t%.2f s\t%.1f\t", 100*middle(func(f Figures) float64 { return f.Refused }),
			middle(func(f Figures) float64 { return f.Wait99 }), middle(func(f Figures) float64 { return f.Loads }))
		if c.Join > 0 || c.Leave > 0 {
			fmt.Fprintf(table, "%.1f %%", 100*middle(func(f Figures) float64 { return f.Moves }))
		}
		fmt.Fprint(table, "\t")
		if c.Join > 0 {
			fmt.Fprintf(table, "%.2f", middle(func(f Figures) float64 { return f.Joined }))
		}
		fmt.Fprintf(table, "\t%.2f\t", middle(func(f Figures) float64 { return f.Imbalance }))
		if c.Engine != nil {
			seconds := func(f Figures) float64 { return f.FirstToken99 }
			first := of(all[name], seconds)
			fmt.Fprintf(table, "%.2f s\t%.2f\t%.2f\t%s\t", median(first), slices.Min(first), slices.Max(first),
				times(first, of(all[knownName], seconds)))
		} else {
			fmt.Fprint(table, "\t\t\t\t")
		}
		fmt.Fprintln(table)
	}
	return all, table.Flush()
}

// popular formats the Zipf exponent. It returns an empty string for client workloads, which have no
// exponent.
func (c config) popular(format string) string {
	if c.Clients != nil {
		return ""
	}
	return fmt.Sprintf(format, c.Zipf)
}

// times formats the median over seeds of is[i]/others[i]. It returns an empty string if a value of
// others is missing or 0.
func times(is, others []float64) string {
	if len(others) == 0 || slices.Contains(others, 0) {
		return ""
	}
	ratios := make([]float64, len(is))
	for i := range ratios {
		ratios[i] = is[i] / others[i]
	}
	return fmt.Sprintf("%.2f×", median(ratios))
}

// of returns one field of the figures of each seed.
func of(all []Figures, field func(Figures) float64) (values []float64) {
	for _, f := range all {
		values = append(values, field(f))
	}
	return values
}

// run simulates the World under a policy for each seed.
func (c config) run(ctx context.Context, name string) ([]Figures, error) {
	all := make([]Figures, c.seeds)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for seed := range c.seeds {
		group.Go(func() (err error) {
			if err = ctx.Err(); err == nil {
				all[seed], err = Run(c.World, uint64(seed), policyOf(name)())
			}
			return err
		})
	}
	return all, group.Wait()
}

// policyOf returns the constructor of the policy with a name; nil if no policy has it.
func policyOf(name string) func() Policy {
	for _, p := range policies {
		if p.name == name {
			return p.make
		}
	}
	return nil
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// parseFlags reads the command line. Help goes to out.
func parseFlags(args []string, traces string, out io.Writer) (c config, err error) {
	f := cli.Flags("bench place", usage, out)
	var known, kinds []string
	for _, p := range policies {
		known = append(known, p.name)
	}
	for _, w := range workloads {
		kinds = append(kinds, w.name)
	}
	kind := f.String("workload", kinds[0], "send this `WORKLOAD`: "+strings.Join(kinds, ", "))
	dir := f.String("traces", traces,
		"read traces from this `DIR` (default $TRACE_DIR): servegen/language-m-small.csv.gz, servegen/reason-deepseek-r1.csv.gz")
	f.StringSliceVar(&c.policies, "policy", nil, "compare these `POLICIES`: "+strings.Join(known, ", ")+
		" (default: all except known, or except optimum if endpoints are engines)")
	f.IntVar(&c.Models, "models", 1000, "number of `MODELS`")
	f.IntVar(&c.Endpoints, "endpoints", 10, "number of `ENDPOINTS`")
	f.Float64SliceVar(&c.shares, "cache", []float64{0.6}, "total capacity as `SHARES` of the bytes of all models, with a table for each")
	f.Float64Var(&c.Zipf, "zipf", 1, "Zipf `EXPONENT` of the popularity of models")
	f.Float64Var(&c.Rate, "rate", 0, "total rate in `REQUESTS` per second (default 100 per 1000 models)")
	load := f.Duration("load", 2*time.Second, "median `TIME` of a load")
	f.Float64Var(&c.LoadSigma, "load-spread", 0, "`SIGMA` of log-normal load times")
	f.Float64Var(&c.SizeSigma, "size-spread", 0, "`SIGMA` of log-normal model sizes")
	f.IntVar(&c.AtOnce, "loads", 2, "number of `MODELS` that an endpoint loads in parallel")
	service := f.Duration("service", 50*time.Millisecond, "service `TIME` of a request")
	f.IntVar(&c.seeds, "seeds", 3, "number of `SEEDS`")
	warmup := f.Duration("warmup", time.Hour, "simulate this `TIME` before measuring")
	measured := f.Duration("measure", 10*time.Minute, "measure this `TIME`")
	f.BoolVar(&c.Warm, "warm", false, "start with the most popular models loaded")
	join := f.Duration("join", 0, "add an endpoint at this `TIME` after the warm-up")
	leave := f.Duration("leave", 0, "remove an endpoint at this `TIME` after the warm-up")
	f.StringVar(&c.plots, "plots", "", "plot the miss ratio of each policy by cache size as SVG into this `DIR`")
	if err := cli.Parse(f, args, 0); err != nil {
		return c, err
	}
	c.Load, c.Service, c.Warmup, c.Measured = load.Seconds(), service.Seconds(), warmup.Seconds(), measured.Seconds()
	c.Join, c.Leave = join.Seconds(), leave.Seconds()
	if !f.Changed("rate") {
		c.Rate = float64(c.Models) / 10
	}
	switch {
	case len(c.shares) == 0:
		return c, f.Wrong(errors.New("--cache needs at least one share"))
	case c.seeds < 1:
		return c, f.Wrong(errors.New("--seeds must be at least 1"))
	case min(c.Load, c.Service, c.Warmup, c.Join, c.Leave, c.LoadSigma, c.SizeSigma, c.Zipf) < 0 || math.IsNaN(c.Zipf):
		return c, f.Wrong(errors.New("times, spreads and exponents must not be negative"))
	}
	for _, name := range c.policies {
		if policyOf(name) == nil {
			return c, f.Wrong(fmt.Errorf("--policy: unknown name %q: use some of %s", name, strings.Join(known, ", ")))
		}
	}
	for _, w := range workloads {
		if w.name != *kind {
			continue
		}
		c.name, c.about = w.name, w.name+": "+w.about
		if w.set != nil {
			w.set(&c.World)
		}
		if w.file != "" {
			if c.Clients, err = openClients(*dir, w.file); err != nil {
				return c, fmt.Errorf("--workload: %w", err)
			}
		}
		if !f.Changed("policy") {
			bound := knownName
			if c.Engine != nil {
				bound = optimumName
			}
			c.policies = slices.DeleteFunc(known, func(name string) bool { return name == bound })
		}
		return c, nil
	}
	return c, f.Wrong(fmt.Errorf("--workload: unknown name %q: use one of %s", *kind, strings.Join(kinds, ", ")))
}
