package provision

import (
	"context"
	"math"

	"github.com/headgate/headgate/control/provision/planner"
)

// Trend is the cost of plans of a pipeline by arrival rate and objective.
type Trend struct {
	Pipeline string
	CV       float64
	// Rates are in queries per second and Objectives in seconds, both ascending.
	Rates, Objectives []float64
	// Costs are the costs by rate and objective; infinite where no plan exists.
	Costs [][]float64
	// Stopped is the number of searches that reached their limit.
	Stopped int
}

// Mark tells how a cost violates the expected order of costs.
type Mark uint8

// Marks are bits, which may be combined.
const (
	// Looser marks a cost above that of a tighter objective, so the search missed the cheaper plan.
	Looser Mark = 1 << iota
	// Higher marks a cost below that of a lower rate.
	Higher
)

// Marks returns the marks of each cost, by rate and objective.
func (t *Trend) Marks() [][]Mark {
	all := make([][]Mark, len(t.Rates))
	for i := range all {
		all[i] = make([]Mark, len(t.Objectives))
		tightest := math.Inf(1)
		for j, cost := range t.Costs[i] {
			if more(cost, tightest) {
				all[i][j] |= Looser
			}
			tightest = min(tightest, cost)
			for lower := range i {
				if more(t.Costs[lower][j], cost) {
					all[i][j] |= Higher
				}
			}
		}
	}
	return all
}

// more returns true if a exceeds b by more than a floating-point error.
func more(a, b float64) bool { return a > b*(1+1e-9) }

// Trends runs the planner Search for each pipeline, load and objective, on all processors. It
// returns a trend for each pipeline and CV, in that order.
func (b *Bench) Trends(ctx context.Context, plans []*Asked, cvs, rates, objectives []float64, done func()) ([]Trend, error) {
	var all []Trend
	for _, a := range plans {
		for _, cv := range cvs {
			t := Trend{Pipeline: a.Name, CV: cv, Rates: rates, Objectives: objectives}
			for range rates {
				t.Costs = append(t.Costs, make([]float64, len(objectives)))
			}
			all = append(all, t)
		}
	}
	each := len(cvs) * len(rates) * len(objectives)
	stopped := make([]bool, len(plans)*each)
	err := eachOf(ctx, len(stopped), done, func(ctx context.Context, i int) error {
		t := &all[i/len(rates)/len(objectives)]
		rate, objective := i/len(objectives)%len(rates), i%len(objectives)
		p, err := plans[i/each].Problem(Load{rates[rate], t.CV}.trace(b.Queries), 0)
		if err != nil {
			return err
		}
		p.Objectives[0].Seconds = objectives[objective]
		is, early, err := b.plan(ctx, p, planner.Search)
		if err != nil {
			return err
		}
		cost := math.Inf(1)
		if is.Found {
			cost = is.Cost
		}
		t.Costs[rate][objective], stopped[i] = cost, early
		return nil
	})
	for i, early := range stopped {
		if early {
			all[i/len(rates)/len(objectives)].Stopped++
		}
	}
	return all, err
}
