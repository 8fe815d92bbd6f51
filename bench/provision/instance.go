// Package provision is "bench provision": it compares plans with the optimum, which it finds by
// exhaustive search. Equal flags give equal figures, except for times.
package provision

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/control/provision/planner"
	"github.com/headgate/headgate/internal/profile"
)

// Gamma returns n arrivals with a mean rate per second. Interarrival times have a gamma
// distribution: with a coefficient of variation of 1 arrivals are Poisson, with a higher one
// bursty.
func Gamma(source rand.Source, n int, rate, cv float64) []float64 {
	shape := 1 / cv / cv
	between := distuv.Gamma{Alpha: shape, Beta: shape * rate, Src: source}
	all, at := make([]float64, n), 0.0
	for i := range all {
		at += between.Rand()
		all[i] = at
	}
	return all
}

// sizes are the permitted batch sizes of random instances.
var sizes = []int{1, 2, 4, 8}

// linear returns the profile of an engine whose batches take a base time plus a time per query.
func linear(base, each float64) *profile.Batches {
	var all []profile.Batch
	for _, size := range sizes {
		all = append(all, profile.Batch{Size: size, Mean: base + each*float64(size)})
	}
	return profile.NewBatches("linear", all...)
}

// Instance returns a random problem: a chain of stages with at most 6 replicas each, on two kinds
// of hardware. The more expensive hardware is faster, except that in a third of the stages the
// cheaper hardware is faster for large batches. Each stage has one queue, as in InferLine.
func Instance(seed uint64, stages, queries int, cv float64) *planner.Problem {
	random := rand.New(rand.NewPCG(seed, uint64(stages))) //nolint:gosec // no secret
	p := &planner.Problem{Pipeline: &estimate.Pipeline{Stages: stages}, Seed: seed}
	least := 0.0
	for s := range stages {
		if s > 0 {
			p.Pipeline.Edges = append(p.Pipeline.Edges, estimate.Edge{From: s - 1, To: s, Share: 1})
		}
		base, each := 0.005+0.03*random.Float64(), 0.001+0.01*random.Float64()
		slower := 1.5 + 2*random.Float64()
		slow := linear(base*slower, each*slower)
		if random.IntN(3) == 0 {
			slow = linear(base*slower, each/slower)
		}
		p.Stages = append(p.Stages, planner.Stage{MinReplicas: 1, MaxReplicas: 6, Central: true, Hardware: []planner.Hardware{
			{Name: "fast", Price: 1 + 2*random.Float64(), Times: linear(base, each), Batches: sizes},
			{Name: "slow", Price: 0.2 + 0.8*random.Float64(), Times: slow, Batches: sizes},
		}})
		least += base + each
	}
	p.Objectives = []planner.Objective{{Seconds: least * (1.5 + 4*random.Float64()), Share: 0.99}}
	p.Queries = estimate.Arrivals(Gamma(random, queries, 20+100*random.Float64(), cv))
	return p
}

// Keeps returns true if a configuration meets the only objective of a problem.
func Keeps(p *planner.Problem, c planner.Config) bool {
	o := p.Objectives[0]
	misses, most := 0, (1-o.Share)*float64(len(p.Queries))+1e-6
	_, err := estimate.Run(p.Pipeline, p.Settings(c), p.Queries, p.Seed, func(_ int, took estimate.QueryTimes) bool {
		if took.Latency > o.Seconds {
			misses++
		}
		return float64(misses) <= most
	})
	return err == nil && float64(misses) <= most && hasRoom(p, c)
}

// hasRoom reports whether every stage has a throughput above its arrival rate, or as many replicas
// as there are queries.
func hasRoom(p *planner.Problem, c planner.Config) bool {
	shares := p.Pipeline.Shares()
	for s, is := range c {
		computed := float64(is.Replicas*is.Batch) / p.Stages[s].Hardware[is.Hardware].Times.MeanTime(is.Batch)
		if is.Replicas < len(p.Queries) && computed <= shares[s]*estimate.Rate(p.Queries) {
			return false
		}
	}
	return true
}

// Optimum returns the cheapest configuration that meets the objective; nil if there is none. It
// tries all configurations in order of cost, so replicas must be bounded.
func Optimum(p *planner.Problem) (best planner.Config, simulations int) {
	all := []planner.Config{nil}
	for _, s := range p.Stages {
		var longer []planner.Config
		for _, c := range all {
			for h := range s.Hardware {
				for _, size := range s.Hardware[h].Batches {
					for n := s.MinReplicas; n <= s.MaxReplicas; n++ {
						longer = append(longer, append(slices.Clip(c), planner.Setting{Hardware: h, Batch: size, Replicas: n}))
					}
				}
			}
		}
		all = longer
	}
	slices.SortStableFunc(all, func(a, b planner.Config) int { return cmp.Compare(p.Cost(a), p.Cost(b)) })
	for i, c := range all {
		if Keeps(p, c) {
			return c, i + 1
		}
	}
	return nil, len(all)
}
