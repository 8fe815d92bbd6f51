package estimate

import (
	"fmt"
	"math"

	"github.com/headgate/headgate/internal/hash"
)

// Pipeline is an acyclic graph of stages. Stages are numbered in topological order: each edge leads
// to a stage with a higher number. A query starts at all stages that have no incoming edge, and
// ends when all stages on its path have ended. A stage waits for all incoming edges that the query
// takes.
type Pipeline struct {
	Stages int
	Edges  []Edge
}

// Edge leads from the stage From to the stage To. A query may take it when From has ended.
type Edge struct {
	From, To int
	// Share is the probability that a query that passes From takes the edge.
	Share float64
	// Choice is 0 for an independent edge. A query takes at most one of the edges that leave the
	// same stage with the same nonzero Choice, so the shares of these edges add up to at most 1.
	Choice int
}

// Check returns an error if the pipeline is invalid.
func (p *Pipeline) Check() error {
	if p.Stages < 1 {
		return fmt.Errorf("a pipeline has at least one stage, not %d", p.Stages)
	}
	choices := make(map[[2]int]float64)
	for i, e := range p.Edges {
		switch {
		case e.From < 0 || e.To >= p.Stages || e.From >= e.To:
			return fmt.Errorf("edge %d leads from stage %d to stage %d: it leads to a later one, of %d", i, e.From, e.To, p.Stages)
		case !(e.Share > 0 && e.Share <= 1):
			return fmt.Errorf("edge %d has the share %v: it is above 0, and at most 1", i, e.Share)
		case e.Choice != 0:
			at := [2]int{e.From, e.Choice}
			if choices[at] += e.Share; choices[at] > 1+1e-9 {
				return fmt.Errorf("edge %d makes the shares of a choice %v together: 1 is the most", i, choices[at])
			}
		}
	}
	return nil
}

// Certain reports whether every query passes every stage.
func (p *Pipeline) Certain() bool { return newPath(p).certain }

// Shares returns, for each stage, the share of queries that pass the stage. InferLine calls these
// scale factors s_m.
func (p *Pipeline) Shares() []float64 {
	// Edges may be correlated by a choice or by an earlier stage, so shares are not simply products
	// of edge shares. They are counted over a fixed set of random queries.
	const queries = 1 << 16
	passed := make([]int, p.Stages)
	w := newPath(p)
	for q := range uint64(queries) {
		w.of(0, q)
		for s := range passed {
			if w.passes[s] {
				passed[s]++
			}
		}
	}
	shares := make([]float64, p.Stages)
	for s := range shares {
		shares[s] = float64(passed[s]) / queries
	}
	return shares
}

// path contains the stages and edges that a query takes.
type path struct {
	pipeline *Pipeline
	certain  bool   // whether every query takes every edge
	passes   []bool // for each stage, whether the query passes it
	waits    []int32
	taken    []bool // for each edge, whether the query takes it
}

func newPath(p *Pipeline) *path {
	w := &path{
		pipeline: p, certain: true, passes: make([]bool, p.Stages), waits: make([]int32, p.Stages),
		taken: make([]bool, len(p.Edges)),
	}
	for _, e := range p.Edges {
		w.certain = w.certain && e.Share == 1
	}
	return w
}

// of computes the path of a query, and the number of incoming edges that the query takes at each
// stage. The path does not depend on replicas or batches.
func (w *path) of(seed, query uint64) {
	for s := range w.waits {
		w.waits[s] = 0
		w.passes[s] = true
	}
	for _, e := range w.pipeline.Edges {
		w.passes[e.To] = false
	}
	// The list of edges need not be in topological order, so handle them stage by stage.
	for s := range w.passes {
		for i, e := range w.pipeline.Edges {
			if e.From != s {
				continue
			}
			if w.taken[i] = w.passes[s] && w.takes(seed, query, i, &e); w.taken[i] {
				w.passes[e.To] = true
				w.waits[e.To]++
			}
		}
	}
}

func (w *path) takes(seed, query uint64, number int, e *Edge) bool {
	if e.Share == 1 {
		return true
	}
	if e.Choice == 0 {
		return chance(seed, query, uint64(number)) < e.Share
	}
	at := chance(seed, query, choiceHash+uint64(e.From)<<16+uint64(e.Choice))
	before := 0.0
	for _, other := range w.pipeline.Edges[:number] {
		if other.From == e.From && other.Choice == e.Choice {
			before += other.Share
		}
	}
	return at >= before && at < before+e.Share
}

// choiceHash and timeHash are added to hash inputs, so that edges, choices and service times get
// different random numbers.
const choiceHash, timeHash = 1 << 32, 1 << 48

// chance returns a random number in [0, 1) that depends only on its arguments: the seed, the number
// of the query, and the purpose (of). All configurations of a pipeline therefore see the same
// random numbers, and their results differ only because of their settings. It chains splitmix64
// (Steele, Lea and Flood, OOPSLA 2014).
func chance(seed, query, of uint64) float64 {
	return float64(splitmix(splitmix(splitmix(seed)^query)^of)>>11) / (1 << 53)
}

func splitmix(x uint64) uint64 { return hash.Mix(x + hash.Gamma) }

// ServiceTime returns the latency of a query that takes all edges and never waits. This is the
// length of the longest path through the pipeline. The function mean returns the service time of
// each stage.
func (p *Pipeline) ServiceTime(mean func(stage int) float64) float64 {
	ends := make([]float64, p.Stages)
	longest := 0.0
	for s := range ends {
		ends[s] += mean(s)
		longest = math.Max(longest, ends[s])
		for _, e := range p.Edges {
			if e.From == s {
				ends[e.To] = math.Max(ends[e.To], ends[s])
			}
		}
	}
	return longest
}
