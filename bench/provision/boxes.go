package provision

import (
	"math"
	"slices"

	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/control/provision/planner"
)

// Boxes is a coarse-grained plan (CG in InferLine's paper). A box is a copy of the whole pipeline
// with one replica of each stage; all stages have one batch size.
type Boxes struct {
	Hardware      []int // by stage: index of its hardware
	Batch, Copies int
}

// Coarse plans boxes for a rate in queries per second. It chooses the largest batch that meets the
// objective without queueing, and as many copies as the slowest stage needs. If choose is false, it
// uses the fastest hardware; if true, the hardware with the lowest total cost. ok is false if no
// batch meets the objective.
func Coarse(p *planner.Problem, rate float64, choose bool) (best Boxes, ok bool) {
	all := [][]int{fastest(p)}
	if choose {
		all = choices(p.Stages)
	}
	shares := p.Pipeline.Shares()
	for _, hardware := range all {
		b := Boxes{Hardware: hardware, Batch: largest(p, hardware)}
		if b.Batch == 0 {
			continue
		}
		b.Copies = max(1, int(math.Ceil(rate/b.throughput(p, shares)-1e-9)))
		if !ok || p.Cost(b.Config()) < p.Cost(best.Config()) {
			best, ok = b, true
		}
	}
	return best, ok
}

// fastest returns for each stage the hardware with the lowest latency for one query; the first one
// if several are equal.
func fastest(p *planner.Problem) []int {
	all := make([]int, len(p.Stages))
	for i := range p.Stages {
		h := p.Stages[i].Hardware
		for j := range h {
			if h[j].Times.MeanTime(1) < h[all[i]].Times.MeanTime(1) {
				all[i] = j
			}
		}
	}
	return all
}

// choices returns all combinations of one hardware for each stage.
func choices(stages []planner.Stage) [][]int {
	all := [][]int{nil}
	for _, s := range stages {
		var longer [][]int
		for _, before := range all {
			for h := range s.Hardware {
				longer = append(longer, append(slices.Clip(before), h))
			}
		}
		all = longer
	}
	return all
}

// largest returns the largest batch size in all profiles with which the longest path meets the
// objective without queueing; 0 if there is none. It ignores which sizes plans permit.
func largest(p *planner.Problem, hardware []int) (size int) {
	sizes := []int{1}
	most := math.MaxInt
	for stage, h := range hardware {
		times := p.Stages[stage].Hardware[h].Times
		most = min(most, times.MaxBatch())
		for _, b := range times.Batches {
			sizes = append(sizes, b.Size)
		}
	}
	for _, b := range sizes {
		takes := func(stage int) float64 { return p.Stages[stage].Hardware[hardware[stage]].Times.MeanTime(b) }
		if b > size && b <= most && p.Pipeline.ServiceTime(takes) <= p.Objectives[0].Seconds {
			size = b
		}
	}
	return size
}

// throughput returns the queries per second that one copy can serve. The slowest stage limits it:
// the throughput of a stage is divided by the share of queries that pass it.
func (b *Boxes) throughput(p *planner.Problem, shares []float64) float64 {
	least := math.Inf(1)
	for i, share := range shares {
		least = min(least, p.Stages[i].Hardware[b.Hardware[i]].Times.Throughput(b.Batch)/share)
	}
	return least
}

// Config returns the boxes as a configuration.
func (b *Boxes) Config() planner.Config {
	var c planner.Config
	for _, h := range b.Hardware {
		c = append(c, planner.Setting{Hardware: h, Batch: b.Batch, Replicas: b.Copies})
	}
	return c
}

// Late returns the number of queries that miss the objective. Copies get queries round-robin,
// whatever their load.
func (b *Boxes) Late(p *planner.Problem) (late int, err error) {
	one := Boxes{b.Hardware, b.Batch, 1}
	for i := range min(b.Copies, len(p.Queries)) {
		own := *p
		own.Queries, own.Seed = nil, p.Seed+uint64(i)
		for q := i; q < len(p.Queries); q += b.Copies {
			own.Queries = append(own.Queries, p.Queries[q])
		}
		n, err := Late(&own, one.Config())
		if err != nil {
			return 0, err
		}
		late += n
	}
	return late, nil
}

// Late returns the number of queries that miss the objective with a configuration.
func Late(p *planner.Problem, c planner.Config) (late int, err error) {
	_, err = estimate.Run(p.Pipeline, p.Settings(c), p.Queries, p.Seed, func(_ int, took estimate.QueryTimes) bool {
		if took.Latency > p.Objectives[0].Seconds {
			late++
		}
		return true
	})
	return late, err
}

// Peak returns the highest arrival rate in any window of the given length in seconds.
func Peak(queries []estimate.Query, seconds float64) float64 {
	return float64(estimate.MaxArrivals(queries, seconds)) / seconds
}
