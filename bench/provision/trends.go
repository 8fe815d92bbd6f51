package provision

import (
	"context"
	"math"

	"github.com/headgate/headgate/control/provision/planner"
)

// Trend is what plans of a pipeline cost, by the rate of its queries and by the objective.
type Trend struct {
	Pipeline string
	CV       float64
	// Rates, in queries a second, and Objectives, in seconds, both in order.
	Rates, Objectives []float64
	// Costs by rate and objective; infinite where no plan was found.
	Costs [][]float64
	// Stopped is how many of the searches had run as many simulations as they may.
	Stopped int
}

// Mark says in which way a cost breaks a trend.
type Mark uint8

// Marks of a cost, which may be both.
const (
	// Looser costs more than a tighter objective: what keeps that keeps this one too, so that the search has missed it.
	Looser Mark = 1 << iota
	// Higher is a rate that costs less than a lower one.
	Higher
)

// Marks are those of the costs, each beside the best of those that it must not be dearer than, or cheaper.
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

// more is by more than what sums of prices are inexact by.
func more(a, b float64) bool { return a > b*(1+1e-9) }

// Trends plans each pipeline by Search with each load and each objective, on all processors: a trend for each pipeline and CV, in that order.
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
