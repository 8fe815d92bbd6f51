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

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/bench/simulated/llm"
)

const usage = `Rolls a fleet on in simulated time, whose endpoints load models and unload them, and judges by which policy models are
placed. Nothing is served: headgate is control's own rules, told at once what happens; the rest is simulated. Equal
flags give equal figures.

Of each policy it prints, as the median of the seeds,
  misses     the share of requests that waited for a load, with the least and the greatest of the seeds
  optimum    how many times the misses of the policy optimum that is, seed by seed
  refused    the share of requests that the policy had fail, which are misses too, and have waited for ever
  wait p99   the 99th percentile of how long all requests waited for loads
  loads/min  how many loads began
  moves      with --join or --leave, how many more loads began in the five minutes after such an event than before, by the
             copies that were loaded then; below 0 where more room has saved loads, so that --cache 1.2 shows it best
  joined     with --join, the requests of that endpoint by the mean of all, in the second five minutes after it came
  max/mean   the requests of the endpoint that got most, by the mean of all
  TTFT p99   where endpoints are engines, the 99th percentile of the time from a request to its first token, the load that it
             waited for among it, with the least and the greatest of the seeds
  known      how many times the TTFT p99 of the policy known that is, seed by seed
The first hour is not measured: caches are cold, and the loads of the beginning say nothing of those an hour later.
With --warm the models of the highest rates are loaded at the start, and ten minutes are enough.

modelmesh is ModelMesh's rules, told of all endpoints at once where ModelMesh's are up to 40 s behind: it has
requests fail where what would have to leave was used less than 100 s ago, and modelmesh-nolimit does not. dynamo is NVIDIA Dynamo's
allocation by rendezvous hashing, where engines let go what they used least recently. all has every model at every
endpoint until these are full.

The policy optimum has those models loaded always whose rate, which it knows, is highest by byte; belady knows all
requests that come and unloads what is asked for last; lru is one cache in the whole fleet; random and first choose an
endpoint, where what was used least recently leaves. known knows the rates of all models, has more copies of those that bear
most as long as there is room, spreads them evenly, and moves none.

Endpoints that are engines, as in the workload hot, are the step model of bench engine, and requests are as long as people's
conversations; each goes to the copy whose endpoint has the fewest. In the workloads of ServeGen the models are its clients, in
turn: beyond these the same ones again, at other moments of the trace; as much faster or slower as --rate says.

Usage:

  bench place [flags]

Examples:

  bench place
  bench place --workload drift --models 1000 --endpoints 100 --cache 0.2
  bench place --workload flash --zipf 1.2 --policy headgate,lru,optimum
  bench place --join 2m --measure 15m
  bench place --cache 0.1,0.2,0.4,0.6 --plots .

Flags:

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

// optimumName is the reference policy for misses, knownName that for the time to first token.
const optimumName, knownName = "optimum", "known"

// workloads lists all workloads with their changes to a World.
var workloads = []struct {
	name, about string
	set         func(*World)
	file        string // ServeGen file in the directory of traces
}{
	{name: "zipf", about: "popularity stays"},
	{"drift", "popularity goes round all models in two hours", func(w *World) { w.Drift = 7200 }, ""},
	{"flash", "from half of the measured time on a cold model gets a fifth of all requests", func(w *World) { w.Flash = 0.2 }, ""},
	{"noise", "the rate of each model is off by up to a tenth, another in each minute", func(w *World) { w.Noise = 0.1 }, ""},
	{"hot", "a model gets three tenths of all requests, and endpoints are engines", setHot, ""},
	{name: "servegen-small", about: "each model is a client of Alibaba's small language model (ServeGen)", file: "servegen/language-m-small.csv.gz"},
	{name: "servegen-reason", about: "each model is a client of DeepSeek-R1 (ServeGen)", file: "servegen/reason-deepseek-r1.csv.gz"},
}

// setHot makes the load of the most popular model need three of ten endpoints.
func setHot(w *World) {
	engine := llm.DefaultProfile()
	w.Hot, w.Engine = 0.3, &engine
}

// Command runs "bench place". traces is the default directory of traces; empty for none. For --help
// it prints the help and returns nil.
func Command(ctx context.Context, args []string, traces string) error {
	return command(ctx, args, traces, os.Stdout, os.Stderr)
}

// config has the flags.
type config struct {
	World
	name, about string
	shares      []float64
	policies    []string
	seeds       int
	plots       string // directory; empty for no plots
}

func command(ctx context.Context, args []string, traces string, out, progress io.Writer) error {
	c, err := parseFlags(args, traces, out)
	if errors.Is(err, pflag.ErrHelp) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("place: %w", err)
	}
	misses := make(map[string][]float64) // by policy, one for each cache size
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
		return fmt.Errorf("place: %w", err)
	}
	fmt.Fprintf(progress, "wrote %s\n", path)
	return nil
}

// table prints the figures of each policy for one cache size and returns those of each seed.
func (c config) table(ctx context.Context, out, progress io.Writer) (map[string][]Figures, error) {
	fmt.Fprintf(out, "%s\n%d models on %d endpoints with room for %.0f %% of their bytes%s, %g requests a second; %d seeds, %.0f s after %.0f s\n\n",
		c.about, c.Models, c.Endpoints, 100*c.Share, c.popular(", Zipf %g"), c.Rate, c.seeds, c.Measured, c.Warmup)
	all := make(map[string][]Figures)
	for _, name := range c.policies {
		began := time.Now()
		var err error
		if all[name], err = c.run(ctx, name); err != nil {
			return nil, fmt.Errorf("place: %s: %w", name, err)
		}
		fmt.Fprintf(progress, "%s: %d seeds in %.1f s\n", name, c.seeds, time.Since(began).Seconds())
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "policy\tmisses\tleast\tgreatest\toptimum\trefused\twait p99\tloads/min\tmoves\tjoined\tmax/mean\tTTFT p99\tleast\tgreatest\tknown\t")
	for _, name := range c.policies {
		middle := func(field func(Figures) float64) float64 { return median(of(all[name], field)) }
		percent := func(f Figures) float64 { return 100 * f.Misses }
		misses := of(all[name], percent)
		fmt.Fprintf(table, "%s\t%.2f %%\t%.2f\t%.2f\t%s", name, median(misses), slices.Min(misses), slices.Max(misses), times(misses, of(all[optimumName], percent)))
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
			fmt.Fprintf(table, "%.2f s\t%.2f\t%.2f\t%s\t", median(first), slices.Min(first), slices.Max(first), times(first, of(all[knownName], seconds)))
		} else {
			fmt.Fprint(table, "\t\t\t\t")
		}
		fmt.Fprintln(table)
	}
	return all, table.Flush()
}

// popular formats the Zipf exponent; empty for client workloads, which have none.
func (c config) popular(format string) string {
	if c.Clients != nil {
		return ""
	}
	return fmt.Sprintf(format, c.Zipf)
}

// times formats the median ratio of two figures by seed; empty if a reference is missing or 0.
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

// of returns one figure of each seed.
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

// policyOf returns the policy with a name, nil if there is none.
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
	f := pflag.NewFlagSet("place", pflag.ContinueOnError)
	f.SortFlags = false
	f.Usage = func() { fmt.Fprint(out, usage, f.FlagUsagesWrapped(100)) }
	var known, kinds []string
	for _, p := range policies {
		known = append(known, p.name)
	}
	for _, w := range workloads {
		kinds = append(kinds, w.name)
	}
	kind := f.String("workload", kinds[0], "send this `WORKLOAD`: "+strings.Join(kinds, ", "))
	dir := f.String("traces", traces, "find traces in this `FOLDER` (default $TRACE_DIR): servegen/language-m-small.csv.gz, servegen/reason-deepseek-r1.csv.gz")
	f.StringSliceVar(&c.policies, "policy", nil, "place by these `POLICIES`: "+strings.Join(known, ", ")+" (default all, but for known, or where endpoints are engines for optimum)")
	f.IntVar(&c.Models, "models", 1000, "have so many `MODELS`")
	f.IntVar(&c.Endpoints, "endpoints", 10, "have so many `ENDPOINTS`")
	f.Float64SliceVar(&c.shares, "cache", []float64{0.6}, "have room in all endpoints for these `SHARES` of the bytes of all models, a table for each")
	f.Float64Var(&c.Zipf, "zipf", 1, "have the model of rank r asked for in proportion to r to the power of minus this `EXPONENT`")
	f.Float64Var(&c.Rate, "rate", 0, "send so many `REQUESTS` a second of all models (default 100 for each 1000 models)")
	load := f.Duration("load", 2*time.Second, "have a load take this `TIME` in the median")
	f.Float64Var(&c.LoadSigma, "load-spread", 0, "have load times of models differ log-normally by this `SIGMA`")
	f.Float64Var(&c.SizeSigma, "size-spread", 0, "have sizes of models differ log-normally by this `SIGMA`")
	f.IntVar(&c.AtOnce, "loads", 2, "have an endpoint load so many `MODELS` at once")
	service := f.Duration("service", 50*time.Millisecond, "have a request take this `TIME` at a copy")
	f.IntVar(&c.seeds, "seeds", 3, "do it for so many `SEEDS`")
	warmup := f.Duration("warmup", time.Hour, "simulate this `TIME` first, which is not measured")
	measured := f.Duration("measure", 10*time.Minute, "measure this `TIME`")
	f.BoolVar(&c.Warm, "warm", false, "have the models of the highest rates loaded at the start")
	join := f.Duration("join", 0, "have an endpoint come this `TIME` after the warm-up")
	leave := f.Duration("leave", 0, "have an endpoint go this `TIME` after the warm-up")
	f.StringVar(&c.plots, "plots", "", "plot the miss ratio of each policy by cache size as SVG into this `DIR`")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	c.Load, c.Service, c.Warmup, c.Measured = load.Seconds(), service.Seconds(), warmup.Seconds(), measured.Seconds()
	c.Join, c.Leave = join.Seconds(), leave.Seconds()
	if !f.Changed("rate") {
		c.Rate = float64(c.Models) / 10
	}
	switch {
	case f.NArg() > 0:
		return c, fmt.Errorf("unexpected argument %q; --help explains", f.Arg(0))
	case len(c.shares) == 0:
		return c, errors.New("--cache names at least one share")
	case c.seeds < 1:
		return c, errors.New("--seeds is at least 1")
	case min(c.Load, c.Service, c.Warmup, c.Join, c.Leave, c.LoadSigma, c.SizeSigma, c.Zipf) < 0 || math.IsNaN(c.Zipf):
		return c, errors.New("no time, spread or exponent is negative")
	}
	for _, name := range c.policies {
		if policyOf(name) == nil {
			return c, fmt.Errorf("--policy: there is no %q: use some of %s", name, strings.Join(known, ", "))
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
	return c, fmt.Errorf("--workload: there is no %q: use one of %s", *kind, strings.Join(kinds, ", "))
}
