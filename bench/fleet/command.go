package fleet

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

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/headgate/simulated/llm"
	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/profile"
)

const usage = `Simulates a fleet of engines and compares the policies that route requests to endpoints. It serves nothing: pickers
use extproc's own rules, engines the step model of bench engine, and clients are generated. Equal flags give equal
figures.

For each policy it prints
  TTFT       the median and the 99th percentile of the time to first token
  per token  the 99th percentile of the mean time per output token
  met        the share of requests that met both objectives
  hits       the share of prompt tokens that were in a prefix cache
  loads/min  the number of adapter loads into slots per minute
  goodput    with --goodput: the highest rate at which enough requests meet both objectives, as median, lowest and
             highest of the seeds; and its ratio to the first policy by seed, with a 95 % confidence interval
The first tenth of the requests is not measured, because caches are cold. The policy oracle runs only on request: it
simulates each request on copies of all engines and takes minutes.

Usage:

  bench fleet [flags]

Examples:

  bench fleet
  bench fleet --workload adapters --rate 12 --pickers 3
  bench fleet --workload prefixes --policy proposal,leastRequest --goodput --seeds 5
  bench fleet --workload plain --policy latency,proposal --assumed-profile none --fault reset

`

// policies lists all policies in the order of the output.
var policies = []struct {
	name           string
	policy         Policy
	scrapeInterval time.Duration // scrape interval unless a flag sets one; 0 for the flag's default
}{
	{"latency", Headgate(pick.Latency), 0},
	{"proposal", Headgate(pick.Proposal), 0},
	{"leastRequest", Headgate(pick.LeastRequest), 0},
	{"roundRobin", Headgate(pick.RoundRobin), 0},
	{"random", Headgate(pick.Random), 0},
	{"powerOfTwo", leastOfTwo, 0},
	{"scored", Scored(2, 2, 3, 0), scoredInterval},
	{"scored+lora", Scored(2, 2, 3, bestLora), scoredInterval},
	{"dynamo", indexedBy(dynamoCost), 0},
	{"lmetric", indexedBy(lmetricCost), 0},
	{"cacheAware", smg, 0},
	{"sglang-lmetric", byProduct, 0},
	{"rendezvous", byHash, 0},
	{"oracle", newOracle, 0},
}

// made returns the workloads that need no trace. Their prompts and outputs have the given lengths.
func made(of Lengths) []Workload {
	return []Workload{Adapters(200, of), Prefixes(128, 2048, of), Plain(of), Chat(1000, of.messages()), Long(of), Bursts(of), Cancelled(of)}
}

// workloadNamed returns the workload with a name. dir is the directory of traces; empty if there
// are none.
func workloadNamed(name, dir string) (Workload, error) {
	of := Conversation()
	if dir != "" {
		all, err := traces[0].from(dir)
		if err != nil {
			return Workload{}, err
		}
		of = lengths(all)
	}
	for _, w := range made(of) {
		if w.Name == name {
			return w, nil
		}
	}
	for _, t := range traces {
		if t.name == name {
			return t.open(dir)
		}
	}
	return Workload{}, fmt.Errorf("unknown name %q: use one of %s", name, strings.Join(names(), ", "))
}

// names returns the names of all workloads.
func names() (all []string) {
	for _, w := range made(Lengths{{Prompt: 1, Output: 1}}) {
		all = append(all, w.Name)
	}
	for _, t := range traces {
		all = append(all, t.name)
	}
	return all
}

// Command runs "bench fleet". traces is the default directory of traces; empty if there are none.
func Command(ctx context.Context, args []string, traces string, out io.Writer) error {
	return runCommand(ctx, args, traces, out, os.Stderr)
}

// config has the values of the flags.
type config struct {
	Fleet
	workload          Workload
	objectives        Objectives
	plots             string // directory for plots; empty to draw none
	policies          []string
	rate              float64
	requests          int
	seeds             int
	goodput           bool
	scrapeIntervalSet bool // true if a flag sets the scrape interval
}

func runCommand(ctx context.Context, args []string, traces string, out, progress io.Writer) error {
	c, err := parseFlags(args, traces, out)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %s\n%d endpoints of %s; %d pickers, scrape interval %v\n", c.workload.Name, c.workload.About, c.Endpoints,
		c.Profile.Name, c.Pickers, seconds(c.ScrapeInterval))
	fmt.Fprintf(out, "%d requests for each of %d seeds, at %g per second\n\n", c.requests, c.seeds, c.rate)
	if n, beyond := c.beyond(); beyond > 0 {
		fmt.Fprintf(progress,
			"%.1f %% of the prompts are longer than the %d tokens of the profile (longest: %d tokens): their times are extrapolated\n",
			100*beyond, c.Profile.Prefill.MaxMeasuredTokens, n)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	head := "policy\tTTFT p50\tp99\tper token p99\tmet\thits\tloads/min\t"
	if c.goodput {
		head += "goodput\tlowest\thighest\tvs first\t"
	}
	fmt.Fprintln(table, head)
	var first []float64
	var curves []curve
	for _, name := range c.policies {
		goodputs, curve, err := c.row(ctx, table, progress, name, first)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if first == nil {
			first = goodputs
		}
		curves = append(curves, curve)
	}
	if c.plots != "" {
		path, err := plotCurves(c.plots, c.workload, c.objectives.Share, curves)
		if err != nil {
			return err
		}
		fmt.Fprintf(progress, "wrote %s\n", path)
	}
	return table.Flush()
}

// beyond returns the length of the longest prompt of the first seed, and the share of prompts that
// are longer than any with which the profile was measured.
func (c config) beyond() (longest int, share float64) {
	for q := range c.workload.Requests(0, c.rate, c.requests) {
		n := len(q.Prompt)
		longest = max(longest, n)
		if c.Profile.Prefill.Beyond(n) {
			share += 1 / float64(c.requests)
		}
	}
	return longest, share
}

// row prints the figures of a policy: the median of the seeds, which run in parallel, and the
// goodputs relative to first, those of the first policy. It returns the goodputs by seed, and the
// SLO attainment of the first seed at each rate that the search tried.
func (c config) row(ctx context.Context, table, progress io.Writer, name string, first []float64) (goodputs []float64, tried curve,
	err error,
) {
	all, goodputs := make([]Figures, c.seeds), make([]float64, c.seeds)
	tried.policy = name
	began, tokens, done, trusts := time.Now(), atomic.Int64{}, atomic.Int64{}, make([]int, c.seeds)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for seed := range c.seeds {
		group.Go(func() error {
			figures := func(rate float64) (Figures, error) {
				if ctx.Err() != nil {
					return Figures{}, ctx.Err()
				}
				f, policy := c.under(name)
				o, err := f.Run(uint64(seed), c.workload.Requests(uint64(seed), rate, c.requests), policy)
				tokens.Add(int64(o.Tokens))
				trusts[seed] = max(trusts[seed], o.Trusts)
				figures := FiguresOf(o, c.Profile, c.objectives)
				if seed == 0 {
					tried.points = append(tried.points, point{rate, figures.Kept})
				}
				return figures, err
			}
			var err error
			if all[seed], err = figures(c.rate); err != nil || !c.goodput {
				return err
			}
			goodputs[seed], err = Goodput(c.rate, func(rate float64) (float64, error) {
				if rate == c.rate {
					return all[seed].Kept, nil
				}
				f, err := figures(rate)
				return f.Kept, err
			}, c.objectives)
			fmt.Fprintf(progress, "%s: goodput of %d of %d seeds\n", name, done.Add(1), c.seeds)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, tried, err
	}
	took := time.Since(began)
	fmt.Fprintf(progress, "%s: %d tokens in %.1f s, %.1f million per second\n", name, tokens.Load(), took.Seconds(),
		float64(tokens.Load())/took.Seconds()/1e6)
	if n := slices.Max(trusts); n > 0 {
		fmt.Fprintf(progress, "%s: predictions gained or lost trust at most %d times in a run\n", name, n)
	}
	of := func(field func(Figures) float64) float64 {
		values := make([]float64, len(all))
		for i, f := range all {
			values[i] = field(f)
		}
		return quantile(values, 0.5)
	}
	fmt.Fprintf(table, "%s\t%.3f s\t%.3f s\t%.0f ms\t%.2f %%\t%.1f %%\t%.1f\t", name,
		of(func(f Figures) float64 { return f.TTFT50 }), of(func(f Figures) float64 { return f.TTFT99 }),
		1000*of(func(f Figures) float64 { return f.PerToken99 }),
		100*of(func(f Figures) float64 { return f.Kept }), 100*of(func(f Figures) float64 { return f.Hits }),
		of(func(f Figures) float64 { return f.SlotLoads }))
	if c.goodput {
		fmt.Fprintf(table, "%.2f/s\t%.2f\t%.2f\t", quantile(goodputs, 0.5), slices.Min(goodputs), slices.Max(goodputs))
		if first != nil {
			mean, within := ratio(goodputs, first)
			fmt.Fprintf(table, "%.3f ± %.1f %%", mean, 100*within)
		}
		fmt.Fprint(table, "\t")
	}
	fmt.Fprintln(table)
	return goodputs, tried, nil
}

// under returns the policy with a name and the fleet for it. The policy is nil if no policy has the
// name.
func (c config) under(name string) (Fleet, Policy) {
	f := c.Fleet
	for _, p := range policies {
		if p.name != name {
			continue
		}
		if p.scrapeInterval > 0 && !c.scrapeIntervalSet {
			f.ScrapeInterval = p.scrapeInterval.Seconds()
		}
		return f, p.policy
	}
	return f, nil
}

// parseFlags reads the command line. Help goes to out.
func parseFlags(args []string, traces string, out io.Writer) (c config, err error) {
	f := cli.Flags("bench fleet", usage, out)
	var known []string
	for _, p := range policies {
		known = append(known, p.name)
	}
	of := f.String("workload", names()[0], "send this `WORKLOAD`: "+strings.Join(names(), ", "))
	dir := f.String("traces", traces,
		"read traces from this `DIR` (default $TRACE_DIR): azure/conv-2023.csv, which also gives generated workloads their lengths, azure/code-2023.csv, mooncake/conversation.jsonl, mooncake/synthetic.jsonl")
	f.StringSliceVar(&c.policies, "policy", slices.DeleteFunc(slices.Clone(known), func(name string) bool { return name == "oracle" }),
		"compare these `POLICIES`: "+strings.Join(known, ", "))
	f.Float64Var(&c.rate, "rate", 10, "mean rate in `REQUESTS` per second")
	f.IntVar(&c.requests, "requests", 5000, "number of `REQUESTS`")
	f.IntVar(&c.seeds, "seeds", 1, "number of `SEEDS`; figures are medians")
	f.BoolVar(&c.goodput, "goodput", false,
		"find the highest rate at which 99 % of the requests (azure-code: 90 %) meet their objectives: a first token within 1 s plus twice the unloaded prefill time, and 100 ms per token")
	f.IntVar(&c.Endpoints, "endpoints", 16, "number of `ENDPOINTS`")
	slow := f.Int("slow-endpoints", 0, "run this many of the `ENDPOINTS` at half speed, without telling pickers")
	assumed := f.String("assumed-profile", "true",
		"give extproc this `PROFILE` of the endpoints: true, none, or x10 or x0.1 (wrong by a factor of ten), so that it has to learn")
	fault := f.String("fault", "none", "inject this `FAULT`: "+strings.Join(faultNames[:], ", ")+
		" (nan: engine counters are NaN; missing: counters are missing; reset: counters restart; clock: the clock of extproc jumps; half: half of the engines report running and waiting requests only)")
	f.Float64Var(&c.TokenError, "token-error", 0,
		"largest relative error of the prompt tokens that extproc estimates from bytes, as a `SHARE` such as 0.3")
	file := f.String("profile", "",
		"profile of the endpoints, a YAML `FILE` (default: a 70B model on four A100 GPUs, for Mooncake's traces an 8B model on two)")
	f.IntVar(&c.Pickers, "pickers", 1, "number of `EXTPROCS` that route requests")
	f.StringVar(&c.plots, "plots", "",
		"with --goodput: plot the share of requests that meet their objectives by rate, as PNG into this `DIR`")
	interval := f.Duration("scrape-interval", 200*time.Millisecond,
		"scrape each endpoint at this `INTERVAL`; if this is not set, scored and scored+lora use 50ms as their project does")
	syncInterval := f.Duration("sync-interval", 20*time.Millisecond,
		"share the requests in flight among pickers at this `INTERVAL`, and those of adapters each second; 0 for never")
	if err := cli.Parse(f, args, 0); err != nil {
		return c, err
	}
	switch {
	case c.Endpoints < 1 || c.Pickers < 1 || c.seeds < 1:
		return c, f.Wrong(errors.New("--endpoints, --pickers and --seeds must be at least 1"))
	case c.requests < 10:
		return c, f.Wrong(errors.New("--requests must be at least 10: the first tenth is not measured"))
	case c.rate <= 0:
		return c, f.Wrong(errors.New("--rate must be above 0"))
	case *interval < 0 || *syncInterval < 0:
		return c, f.Wrong(errors.New("intervals must not be negative"))
	case !(c.TokenError >= 0 && c.TokenError < 1):
		return c, f.Wrong(errors.New("--token-error must be from 0 to below 1"))
	}
	if *slow < 0 || *slow > c.Endpoints {
		return c, f.Wrong(errors.New("--slow-endpoints must be from 0 to --endpoints"))
	}
	if *slow > 0 {
		c.Speeds = make([]float64, c.Endpoints)
		for i := range c.Speeds {
			if c.Speeds[i] = 1; i < *slow {
				c.Speeds[i] = 0.5
			}
		}
	}
	if c.plots != "" && !c.goodput {
		return c, f.Wrong(errors.New("--plots needs --goodput"))
	}
	c.ScrapeInterval, c.BacklogSync, c.scrapeIntervalSet = interval.Seconds(), syncInterval.Seconds(), f.Changed("scrape-interval")
	if *syncInterval > 0 {
		c.AdapterSync = max(1, c.BacklogSync)
	}
	for _, name := range c.policies {
		if _, policy := c.under(name); policy == nil {
			return c, f.Wrong(fmt.Errorf("--policy: unknown name %q: use some of %s", name, strings.Join(known, ", ")))
		}
	}
	if c.Fault, err = parseFault(*fault); err != nil {
		return c, f.Wrong(fmt.Errorf("--fault: %w", err))
	}
	if c.Assumed, err = parseAssumed(*assumed); err != nil {
		return c, f.Wrong(fmt.Errorf("--assumed-profile: %w", err))
	}
	if c.workload, err = workloadNamed(*of, *dir); err != nil {
		return c, f.Wrong(fmt.Errorf("--workload: %w", err))
	}
	c.objectives = DefaultObjectives
	if c.workload.Share > 0 {
		c.objectives.Share = c.workload.Share
	}
	c.Adapters, c.Profile = c.workload.Adapters, llm.DefaultProfile()
	if c.workload.Profile != nil {
		c.Profile = *c.workload.Profile
	}
	if *file != "" {
		text, err := os.ReadFile(*file)
		if err != nil {
			return c, fmt.Errorf("--profile: %w", err)
		}
		if c.Profile, err = profile.Parse(text); err != nil {
			return c, fmt.Errorf("--profile %s: %w", *file, err)
		}
	}
	return c, nil
}
