package estimate

import (
	"fmt"
	"math"
)

// Pipeline is stages that queries pass, and the edges by which they pass them: a graph without cycles. Stages are numbers from 0 on, in
// topological order: an edge leads to a later stage. A query begins at all stages that no edge leads to, and ends where all that it passes
// have ended. A stage that several edges lead to waits for those that the query has taken.
type Pipeline struct {
	Stages int
	Edges  []Edge
}

// Edge is taken by a query once the stage that it comes from has ended.
type Edge struct {
	From, To int
	// Share of the queries at From that take it, by chance.
	Share float64
	// Choice is 0 for an edge that is taken or not whatever others are; of the edges of one stage with the same number a query takes one at
	// most, so that their shares are 1 together at most.
	Choice int
}

// Check returns what is wrong with a pipeline, nil if nothing is.
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

// Certain says that every query passes every stage.
func (p *Pipeline) Certain() bool { return newWay(p).certain }

// Shares are of the queries that come to the pipeline those that pass each stage: what InferLine calls scale factors (s_m).
func (p *Pipeline) Shares() []float64 {
	// A stage is passed where any edge to it is taken. Whether two edges are taken may hang together, by a choice or by a stage before: so
	// it is counted, not computed, over queries that are the same each time.
	const queries = 1 << 16
	passed := make([]int, p.Stages)
	w := newWay(p)
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

// way is by which stages and edges a query goes.
type way struct {
	pipeline *Pipeline
	certain  bool   // every edge is taken, always
	passes   []bool // by stage
	waits    []int32
	taken    []bool // by edge
}

func newWay(p *Pipeline) *way {
	w := &way{pipeline: p, certain: true, passes: make([]bool, p.Stages), waits: make([]int32, p.Stages), taken: make([]bool, len(p.Edges))}
	for _, e := range p.Edges {
		w.certain = w.certain && e.Share == 1
	}
	return w
}

// of finds the way of a query: the same one whatever replicas and batches there are. It sets for how many edges each stage waits.
func (w *way) of(seed, query uint64) {
	for s := range w.waits {
		w.waits[s] = 0
		w.passes[s] = true
	}
	for _, e := range w.pipeline.Edges {
		w.passes[e.To] = false
	}
	// Stages are in topological order, and edges need not be: an edge counts when its stage is reached.
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

func (w *way) takes(seed, query uint64, number int, e *Edge) bool {
	if e.Share == 1 {
		return true
	}
	if e.Choice == 0 {
		return chance(seed, query, uint64(number)) < e.Share
	}
	at := chance(seed, query, chosen+uint64(e.From)<<16+uint64(e.Choice))
	before := 0.0
	for _, other := range w.pipeline.Edges[:number] {
		if other.From == e.From && other.Choice == e.Choice {
			before += other.Share
		}
	}
	return at >= before && at < before+e.Share
}

// What chances are of: edges by their number, choices by their stage and number, and the times of a stage.
const chosen, drawn = 1 << 32, 1 << 48

// chance is a number from 0 to 1 that a seed, a query and what it is for say, in any order of asking: two configurations of a pipeline see
// the same chances, so that what differs between them is their own. It is splitmix64 (Steele, Lea and Flood, OOPSLA 2014), chained.
func chance(seed, query, of uint64) float64 {
	return float64(mixed(mixed(mixed(seed)^query)^of)>>11) / (1 << 53)
}

func mixed(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// ServiceTime is the time of a query that waits nowhere, by the mean time of each stage: of the longest way through all edges.
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
