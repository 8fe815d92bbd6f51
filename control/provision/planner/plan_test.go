package planner_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/bench/provision"
	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/control/provision/planner"
	"github.com/headgate/headgate/internal/profile"
)

// The test compares Search with exhaustive search. Search finds a plan whenever one exists, and its
// claims about optimality are correct. Every plan meets the objective, and no single step of
// InferLine makes a plan cheaper.
func TestPlansBesideTheOptimum(t *testing.T) {
	for _, c := range []struct {
		stages, instances, queries int
		share                      float64
	}{{1, 12, 300, 0.99}, {2, 8, 300, 0.99}, {2, 8, 50, 0.9}} {
		var inferline, search, proven provision.Gaps
		for i := range c.instances {
			p := provision.Instance(uint64(i), c.stages, c.queries, []float64{1, 4}[i%2])
			p.Objectives[0].Share = c.share
			best, simulations := provision.Optimum(p)
			a, b := planner.InferLine(p), planner.Search(p)
			p.ProofLimit = 100_000
			all := planner.Search(p)
			inferline.Add(p, a, best, simulations)
			search.Add(p, b, best, simulations)
			proven.Add(p, all, best, simulations)
			for name, is := range map[string]*planner.Plan{"inferline": a, "search": b, "proven": all} {
				if is.Found {
					noCheaper(t, p, name, is)
				}
				if !is.Found && is.Reason == "" {
					t.Errorf("instance %d: %s gives no reason why there is no plan", i, name)
				}
			}
		}
		t.Logf("%d stages: inferline %+v, search %+v", c.stages, inferline, search)
		if inferline.Wrong+search.Wrong+proven.Wrong+search.None+proven.None > 0 {
			t.Errorf("%d stages: inferline %+v, search %+v, proven %+v", c.stages, inferline, search, proven)
		}
		if feasible := c.instances - proven.Infeasible; proven.Optimal != feasible || proven.Proven != feasible || search.Proven != 0 {
			t.Errorf("%d stages: of %d plans, %d are optimal, and %d are proven to be", c.stages, feasible, proven.Optimal, proven.Proven)
		}
		if feasible := c.instances - search.Infeasible; 10*search.Optimal < 9*feasible {
			t.Errorf("%d stages: search is optimal for %d of %d", c.stages, search.Optimal, feasible)
		}
		if inferline.Optimal >= search.Optimal {
			t.Errorf("%d stages: inferline is optimal %d times, search %d times: the instances show nothing", c.stages, inferline.Optimal,
				search.Optimal)
		}
	}
}

// noCheaper fails the test if a cheaper configuration still meets the objective. It tries one
// replica less, and cheaper hardware with every batch size and number of replicas that cost less.
func noCheaper(t *testing.T, p *planner.Problem, name string, is *planner.Plan) {
	t.Helper()
	if !provision.Keeps(p, is.Config) || math.Abs(is.Cost-p.Cost(is.Config)) > 1e-9 || is.Values[0] > p.Objectives[0].Seconds {
		t.Errorf("%s's plan %+v does not keep %v, or does not cost what it says", name, is.Candidate, p.Objectives)
	}
	for s := range is.Config {
		less := slices.Clone(is.Config)
		if less[s].Replicas--; less[s].Replicas >= p.Stages[s].MinReplicas && provision.Keeps(p, less) {
			t.Errorf("%s: the plan %v keeps the objective even with a replica less at stage %d", name, is.Config, s)
		}
	}
}

// two creates a pipeline with two stages for calculations by hand. A query arrives every 100 ms.
// The stages take 50 ms and 120 ms on fast hardware, which costs 3 per hour. They take twice as
// long on slow hardware, which costs 1 per hour.
func two() *planner.Problem {
	stage := func(seconds float64) planner.Stage {
		of := func(name string, price, seconds float64) planner.Hardware {
			return planner.Hardware{
				Name: name, Price: price, Batches: []int{1, 2},
				Times: profile.NewBatches(name, profile.Batch{Size: 1, Mean: seconds}, profile.Batch{Size: 2, Mean: 1.2 * seconds}),
			}
		}
		return planner.Stage{MinReplicas: 1, Central: true, Hardware: []planner.Hardware{of("fast", 3, seconds), of("slow", 1, 2*seconds)}}
	}
	p := &planner.Problem{
		Pipeline: &estimate.Pipeline{Stages: 2, Edges: []estimate.Edge{{From: 0, To: 1, Share: 1}}},
		Stages:   []planner.Stage{stage(0.05), stage(0.12)}, Objectives: []planner.Objective{{Seconds: 0.2, Share: 0.99}},
	}
	for i := range 200 {
		p.Queries = append(p.Queries, estimate.Query{At: float64(i) / 10})
	}
	return p
}

func text(is *planner.Plan) string {
	if !is.Found {
		return is.Reason
	}
	return fmt.Sprintf("%v at %v, %.3gs", is.Config, is.Cost, is.Values[0])
}

// The plans of both planners are as computed by hand.
func TestPlans(t *testing.T) {
	for _, c := range []struct {
		name              string
		change            func(*planner.Problem)
		inferline, search string
	}{
		{
			// On fast hardware a query takes 170 ms. The second stage needs two replicas, because
			// it computes 120 ms for each query and a query arrives every 100 ms. With one stage on
			// slow hardware a query would take 220 or 290 ms. Larger batches have no cost, although
			// they never fill.
			"fast hardware alone keeps it", func(*planner.Problem) {},
			"[{0 2 1} {0 2 2}] at 9, 0.17s", "[{0 2 1} {0 2 2}] at 9, 0.17s",
		},
		{
			// An objective of 230 ms lets the first stage use slow hardware. The first stage then
			// needs two replicas: one replica with batches of 1 would have a traffic intensity of
			// 1.
			"one stage may be slow", func(p *planner.Problem) { p.Objectives[0].Seconds = 0.23 },
			"[{1 2 1} {0 2 2}] at 7, 0.22s", "[{1 2 1} {0 2 2}] at 7, 0.22s",
		},
		{
			"both may be slow", func(p *planner.Problem) { p.Objectives[0].Seconds = 0.35 },
			"[{1 2 1} {1 2 3}] at 4, 0.34s", "[{1 2 1} {1 2 3}] at 4, 0.34s",
		},
		{
			"no hardware is fast enough", func(p *planner.Problem) { p.Objectives[0].Seconds = 0.165 },
			"a query that never waits takes 0.17s on the fastest hardware, and the objective is 0.165s",
			"with one replica per query on the fastest hardware, the latency is 0.17s and the objective 0.165s",
		},
		{
			"too few replicas", func(p *planner.Problem) { p.Stages[1].MaxReplicas = 1 },
			"stage 1 is the bottleneck and has all of its 1 replicas", "no plan was found, and not every configuration was tried",
		},
		{
			"too few replicas, and all were tried", func(p *planner.Problem) {
				p.Stages[0].MaxReplicas, p.Stages[1].MaxReplicas, p.ProofLimit = 3, 1, 1000
			},
			"stage 1 is the bottleneck and has all of its 1 replicas", "no configuration meets the objectives: all were tried",
		},
		{
			// One replica takes 144 ms for a batch of two queries, and two queries arrive in 200
			// ms.
			"batches in the place of replicas", func(p *planner.Problem) { p.Stages[1].MaxReplicas, p.Objectives[0].Seconds = 1, 0.35 },
			"stage 1 is the bottleneck and has all of its 1 replicas", "[{0 2 1} {0 2 1}] at 6, 0.314s",
		},
		{
			"at least so many replicas", func(p *planner.Problem) { p.Stages[0].MinReplicas = 4; p.Objectives[0].Seconds = 0.35 },
			"[{1 2 4} {1 2 3}] at 7, 0.34s", "[{1 2 4} {1 2 3}] at 7, 0.34s",
		},
	} {
		p := two()
		c.change(p)
		if err := p.Check(); err != nil {
			t.Fatal(err)
		}
		a, b := planner.InferLine(p), planner.Search(p)
		if text(a) != c.inferline || text(b) != c.search {
			t.Errorf("%s:\ninferline %s\nwant    %s\nsearch    %s\nwant    %s", c.name, text(a), c.inferline, text(b), c.search)
		}
		if again := planner.Search(p); fmt.Sprint(again) != fmt.Sprint(b) {
			t.Errorf("%s: a second search returns another plan", c.name)
		}
		p.ProofLimit = 100_000
		if all := planner.Search(p); b.Found && (!all.Optimal || all.Cost != b.Cost) {
			t.Errorf("%s: an exhaustive search finds %v, optimal: %v", c.name, all.Config, all.Optimal)
		}
		for _, tried := range b.Tried {
			keeps := tried.Values[0] <= p.Objectives[0].Seconds && slices.Max(p.TrafficIntensity(tried.Config)) < 1
			if tried.Feasible != keeps || tried.Step == "" {
				t.Errorf("%s: tried %+v", c.name, tried)
			}
		}
	}
}

// Of three kinds of hardware, the planner tries the next cheaper kind, not the cheapest. It does
// not choose a larger batch that has no benefit.
func TestNextCheaperHardware(t *testing.T) {
	of := func(name string, price, seconds float64) planner.Hardware {
		return planner.Hardware{
			Name: name, Price: price, Batches: []int{1, 2},
			Times: profile.NewBatches(name, profile.Batch{Size: 1, Mean: seconds}, profile.Batch{Size: 2, Mean: 2.5 * seconds}),
		}
	}
	p := two()
	p.Pipeline, p.Objectives[0].Seconds = &estimate.Pipeline{Stages: 1}, 0.08
	p.Stages = []planner.Stage{{MinReplicas: 1, Hardware: []planner.Hardware{
		of("slow", 1, 0.09), of("fast", 3, 0.05),
		of("middle", 2, 0.07),
	}}}
	for name, is := range map[string]*planner.Plan{"inferline": planner.InferLine(p), "search": planner.Search(p)} {
		if text(is) != "[{2 1 1}] at 2, 0.07s" {
			t.Errorf("%s: %s", name, text(is))
		}
	}
}

// Search proves a plan optimal only if there are at most ProofLimit cheaper configurations. Here
// there are 8 times 4, for two stages with three replicas and two batch sizes.
func TestProofLimit(t *testing.T) {
	for most, optimal := range map[int]bool{32: true, 31: false} {
		p := two()
		for s := range p.Stages {
			p.Stages[s].Hardware = p.Stages[s].Hardware[1:]
			p.Stages[s].Hardware[0].Times = profile.NewBatches("x", profile.Batch{Size: 1, Mean: 0.1}, profile.Batch{Size: 2, Mean: 0.199})
			p.Stages[s].MaxReplicas = 3
		}
		p.Queries = nil
		for i := range 300 { // three queries arrive at the same time
			p.Queries = append(p.Queries, estimate.Query{At: float64(i / 3)})
		}
		p.Objectives[0].Seconds, p.ProofLimit = 0.2001, most
		if is := planner.Search(p); is.Optimal != optimal || is.Config[0].Replicas != 3 || is.Config[1].Replicas != 3 {
			t.Errorf("with a limit of %d plans: %s, optimal: %v", most, text(is), is.Optimal)
		}
	}
}

// The bottleneck is the stage with the lowest throughput relative to its share of queries. Here it
// is the first stage, because few queries pass the second.
func TestBottleneckIsByShare(t *testing.T) {
	p := two()
	p.Pipeline.Edges[0].Share = 0.3
	p.Queries = nil
	for i := range 200 {
		p.Queries = append(p.Queries, estimate.Query{At: float64(i) / 25})
	}
	for _, tried := range planner.InferLine(p).Tried {
		if strings.Contains(tried.Step, "add a replica") {
			if tried.Step != "stage 0: add a replica" {
				t.Errorf("the first step that adds replicas is %q", tried.Step)
			}
			return
		}
	}
	t.Error("no replica was added")
}

// Misses returns how many of n queries may be above a quantile.
func TestMisses(t *testing.T) {
	for _, c := range []struct {
		share   float64
		n, want int
	}{{0.99, 100, 1}, {0.99, 2000, 20}, {0.99, 99, 0}, {1, 1000, 0}, {0.5, 3, 1}, {0.9, 10, 1}, {0.999, 10_000, 10}} {
		if got := (planner.Objective{Seconds: 1, Share: c.share}).Misses(c.n); got != c.want {
			t.Errorf("%v of %d allows %d misses, want %d", c.share, c.n, got, c.want)
		}
	}
}

func TestErrorsOfProblems(t *testing.T) {
	for want, change := range map[string]func(*planner.Problem){
		"edge 0 leads from stage 1 to stage 0: it leads to a later one, of 2": func(p *planner.Problem) {
			p.Pipeline.Edges[0] = estimate.Edge{From: 1, Share: 1}
		},
		"there are choices for 1 of 2 stages": func(p *planner.Problem) { p.Stages = p.Stages[:1] },
		"the objective is a latency of 0s for a share of 0.99: want a time above 0, and a share above 0 up to 1": func(p *planner.Problem) {
			p.Objectives[0].Seconds = 0
		},
		"the objective is a latency of NaNs for a share of 0.99: want a time above 0, and a share above 0 up to 1": func(p *planner.Problem) {
			p.Objectives[0].Seconds = math.NaN()
		},
		"the objective is a latency of 0.2s for a share of 99: want a time above 0, and a share above 0 up to 1": func(p *planner.Problem) {
			p.Objectives[0].Share = 99
		},
		"the trace needs two queries at different times": func(p *planner.Problem) {
			p.Queries = estimate.Arrivals([]float64{1, 1})
		},
		"query 1 arrives at 1: want finite times from 0 on, in ascending order": func(p *planner.Problem) {
			p.Queries = estimate.Arrivals([]float64{2, 1, 3})
		},
		"stage 1: it has no hardware": func(p *planner.Problem) { p.Stages[1].Hardware = nil },
		"stage 0: replicas are 0 to 0: want at least 1, and no more than the maximum": func(p *planner.Problem) {
			p.Stages[0].MinReplicas = 0
		},
		"stage 0: replicas are 3 to 2: want at least 1, and no more than the maximum": func(p *planner.Problem) {
			p.Stages[0].MinReplicas, p.Stages[0].MaxReplicas = 3, 2
		},
		"stage 0: want exactly one profile for slow": func(p *planner.Problem) {
			p.Stages[0].Hardware[1].Times = nil
		},
		"stage 0: slow costs 0: want a price above 0": func(p *planner.Problem) {
			p.Stages[0].Hardware[1].Price = 0
		},
		"stage 0: batches on slow are [2 1]: want ascending sizes from 1 on": func(p *planner.Problem) {
			p.Stages[0].Hardware[1].Batches = []int{2, 1}
		},
		"stage 0: the profile for slow has no batches above 2: leave out 4": func(p *planner.Problem) {
			p.Stages[0].Hardware[1].Batches = []int{1, 4}
		},
		"stage 0: its batch wait is -1s: want a time that is finite and not negative": func(p *planner.Problem) { p.Stages[0].Wait = -1 },
	} {
		p := two()
		change(p)
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// If the service time on some hardware exceeds the objective, the search does not try this hardware
// with thousands of replicas.
func TestHopelessHardwareIsNotTried(t *testing.T) {
	for share, optimal := range map[float64]bool{1: true, 0.005: false} {
		p := two()
		p.ProofLimit, p.Pipeline.Edges[0].Share = 1000, share
		slow := profile.NewBatches("snail", profile.Batch{Size: 1, Mean: 1}, profile.Batch{Size: 2, Mean: 0.9})
		p.Stages[1].Hardware = append(p.Stages[1].Hardware,
			planner.Hardware{Name: "snail", Price: 0.001, Times: slow, Batches: []int{1, 2}})
		is := planner.Search(p)
		if !is.Found || is.Optimal != optimal && share == 1 || share == 1 && is.Config[1].Hardware == 2 {
			t.Errorf("with a share of %v: %s, optimal: %v", share, text(is), is.Optimal)
		}
		if share < 1 && is.Config[1].Hardware != 2 { // so few queries pass the stage that all of them may exceed the objective
			t.Errorf("with a share of %v: %s, but the slow hardware is cheapest", share, text(is))
		}
	}
}

// on creates hardware with a service time of base seconds per batch plus each seconds per query.
func on(name string, price, base, each float64, sizes ...int) planner.Hardware {
	var all []profile.Batch
	for size := 1; size <= sizes[len(sizes)-1]; size *= 2 {
		all = append(all, profile.Batch{Size: size, Mean: base + each*float64(size)})
	}
	return planner.Hardware{Name: name, Price: price, Batches: sizes, Times: profile.NewBatches(name, all...)}
}

// A plan respects the maximum number of replicas, even if more replicas on cheaper hardware would
// cost less.
func TestReplicasAreBounded(t *testing.T) {
	p := two()
	p.Pipeline, p.Objectives[0].Seconds, p.ProofLimit = &estimate.Pipeline{Stages: 1}, 0.3, 1000
	p.Queries = nil
	for i := range 2000 {
		p.Queries = append(p.Queries, estimate.Query{At: float64(i) / 100})
	}
	p.Stages = []planner.Stage{{
		MinReplicas: 1, MaxReplicas: 4,
		Hardware: []planner.Hardware{on("gpu", 3, 0, 0.01, 1), on("cpu", 0.1, 0, 0.05, 1)},
	}}
	for name, is := range map[string]*planner.Plan{"inferline": planner.InferLine(p), "search": planner.Search(p)} {
		if !is.Found || !p.InBounds(is.Config) || is.Config[0].Hardware != 0 {
			t.Errorf("%s: %s", name, text(is))
		}
	}
	p.Stages[0].MaxReplicas = 0
	// Five replicas serve exactly the arrival rate, so that six are needed.
	if is := planner.Search(p); text(is) != "[{1 1 6}] at 0.6000000000000001, 0.05s" {
		t.Error(text(is))
	}
}

// With a batching delay, more replicas may make queries slower, so perhaps no number of replicas
// meets the objective. The search still ends.
func TestSearchTerminates(t *testing.T) {
	for name, find := range map[string]func(*planner.Problem) *planner.Plan{"inferline": planner.InferLine, "search": planner.Search} {
		for _, sizes := range [][]int{{1, 2, 4, 8}, {8}} {
			p := two()
			p.Pipeline, p.Objectives[0].Seconds = &estimate.Pipeline{Stages: 1}, 0.07
			p.Queries = nil
			for i := range 300 {
				p.Queries = append(p.Queries, estimate.Query{At: float64(i) / 1000})
			}
			p.Stages = []planner.Stage{{MinReplicas: 1, Wait: 0.1, Hardware: []planner.Hardware{on("gpu", 1, 0.017, 0.003, sizes...)}}}
			simulations := 0
			p.Progress = func(n int, _ planner.Candidate) bool {
				simulations = n
				return n < 5000
			}
			if is := find(p); is.Stopped {
				t.Errorf("%s with batches of %v did not end after %d simulations: %s", name, sizes, simulations, text(is))
			}
		}
	}
}

// An objective on token times applies only to queries that pass an LLM, even if these are few.
func TestTokenObjectives(t *testing.T) {
	engine := profile.Profile{
		Prefill: profile.Prefill{Base: 0.05}, Decode: profile.Decode{Base: 0.02, PerSequence: 0.002},
		Limits: profile.Limits{MaxSequences: 4, MaxBatchedTokens: 1000, KVBlocks: 1000, BlockSize: 16},
	}
	p := two()
	p.Pipeline = &estimate.Pipeline{Stages: 2, Edges: []estimate.Edge{{From: 0, To: 1, Share: 0.02}}}
	p.Stages = []planner.Stage{
		{MinReplicas: 1, Hardware: []planner.Hardware{on("cpu", 0.1, 0, 0.001, 1)}},
		{MinReplicas: 1, Hardware: []planner.Hardware{{Name: "gpu", Price: 1, Engine: &engine, Batches: []int{4}}}},
	}
	p.Queries, p.ProofLimit = nil, 1000
	for i := range 4000 {
		p.Queries = append(p.Queries, estimate.Query{At: float64(i) / 300, Prompt: 10, Output: 20})
	}
	p.Objectives = []planner.Objective{{Metric: planner.FirstToken, Seconds: 0.15, Share: 0.95}}
	missed := func(c planner.Config) float64 {
		all, late := 0, 0
		if _, err := estimate.Run(p.Pipeline, p.Settings(c), p.Queries, p.Seed, func(_ int, took estimate.QueryTimes) bool {
			if took.FirstToken > 0 {
				all++
				if took.FirstToken > 0.15 {
					late++
				}
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
		return float64(late) / float64(all)
	}
	for name, is := range map[string]*planner.Plan{"inferline": planner.InferLine(p), "search": planner.Search(p)} {
		if !is.Found || is.Config[1].Replicas < 2 || missed(is.Config) > 0.05 {
			t.Errorf("%s: plan %s misses %v", name, text(is), missed(is.Config))
		}
		fewer := slices.Clone(is.Config)
		if fewer[1].Replicas--; missed(fewer) <= 0.05 {
			t.Errorf("%s: plan %s is too large: with a replica less it misses %v", name, text(is), missed(fewer))
		}
	}
}

// If the objective is longer than the trace, no query misses it. The plan must still have enough
// throughput for the arrival rate. If that is impossible, the planner names the overloaded stage.
func TestPlanKeepsUpWithTheLoad(t *testing.T) {
	p := two() // 10 queries per second arrive, for 20 s
	p.Objectives[0].Seconds, p.ProofLimit = 3600, 1000
	for name, is := range map[string]*planner.Plan{"inferline": planner.InferLine(p), "search": planner.Search(p)} {
		if !is.Found || slices.Max(p.TrafficIntensity(is.Config)) >= 1 {
			t.Errorf("%s: plan %s has the traffic intensities %.3g", name, text(is), p.TrafficIntensity(is.Config))
		}
	}
	p.Stages[1].MaxReplicas = 1
	p.Stages[1].Hardware = p.Stages[1].Hardware[1:] // on this hardware one replica computes 2 queries in 288 ms
	for name, is := range map[string]*planner.Plan{"inferline": planner.InferLine(p), "search": planner.Search(p)} {
		if is.Found || !strings.Contains(is.Reason, "stage 1 can serve at most 6.944 queries/s, with 1 replicas on slow, and 10 arrive") {
			t.Errorf("%s: %s", name, text(is))
		}
	}
}

// The trace may end before the first query has been computed. A plan then has at most as many
// replicas as there are queries.
func TestShortTrace(t *testing.T) {
	p := two()
	p.Queries, p.ProofLimit = estimate.Arrivals([]float64{0, 0.001, 0.002}), 1000
	for name, is := range map[string]*planner.Plan{"inferline": planner.InferLine(p), "search": planner.Search(p)} {
		if !is.Found || is.Config[0].Replicas > 3 || is.Config[1].Replicas > 3 {
			t.Errorf("%s: %s", name, text(is))
		}
	}
}
