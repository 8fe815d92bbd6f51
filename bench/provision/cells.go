package provision

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/control/provision/planner"
)

// Load is an arrival rate per second and the coefficient of variation of interarrival times.
type Load struct{ Rate, CV float64 }

func (l Load) trace(queries int) string {
	return fmt.Sprintf("gamma:rate=%g,cv=%g,queries=%d", l.Rate, l.CV, queries)
}

// Cell has the results of all contenders for one pipeline and load.
type Cell struct {
	Pipeline string
	Load
	Outcomes []Outcome // one outcome for each of the contenders
}

// Outcome has the cost of a plan, and the share of queries that miss the objective on another
// trace.
type Outcome struct {
	Found        bool
	Cost, Missed float64
	// Pooled is that share if the copies of boxes share one queue for each stage. For other plans
	// it equals Missed.
	Pooled float64
	// Stopped is true if the planner reached its limit of simulations.
	Stopped bool
}

// contenders are the planners in the order of the output.
var contenders = []struct {
	name string
	plan func(*planner.Problem) *planner.Plan // the planner; nil for boxes
	// peak is true to plan boxes for the peak rate; false for the mean rate. choose is true for the
	// cheapest hardware; false for the fastest.
	peak, choose bool
}{
	{name: "search", plan: planner.Search},
	{name: "inferline", plan: planner.InferLine},
	{name: "CG-Mean fastest"},
	{name: "CG-Mean cheapest", choose: true},
	{name: "CG-Peak fastest", peak: true},
	{name: "CG-Peak cheapest", peak: true, choose: true},
}

// Bench configures the experiments.
type Bench struct {
	Plans []*Asked
	// Queries is the length of the trace that is planned for. Tested is the length of the trace
	// that tests the plan. The traces have different seeds.
	Queries, Tested int
	// MaxSimulations limits the simulations of a planner for one plan.
	MaxSimulations int
}

// plan runs a planner. stopped reports whether the planner reached its limit of simulations.
func (b *Bench) plan(ctx context.Context, p *planner.Problem, find func(*planner.Problem) *planner.Plan) (is *planner.Plan, stopped bool,
	err error,
) {
	own := *p
	own.Progress = func(simulations int, _ planner.Candidate) bool {
		stopped = simulations >= b.MaxSimulations
		return !stopped && ctx.Err() == nil
	}
	is = find(&own)
	return is, stopped, ctx.Err()
}

// cell runs all contenders on one pipeline and load and tests the plans.
func (b *Bench) cell(ctx context.Context, a *Asked, l Load) (is Cell, err error) {
	is = Cell{Pipeline: a.Name, Load: l, Outcomes: make([]Outcome, len(contenders))}
	p, err := a.Problem(l.trace(b.Queries), 0)
	if err != nil {
		return is, err
	}
	tested, err := a.Problem(l.trace(b.Tested), 1)
	if err != nil {
		return is, err
	}
	share := func(late int) float64 { return float64(late) / float64(len(tested.Queries)) }
	for i, c := range contenders {
		o := &is.Outcomes[i]
		if c.plan != nil {
			found, stopped, err := b.plan(ctx, p, c.plan)
			if err != nil {
				return is, err
			}
			if o.Found, o.Stopped = found.Found, stopped; !o.Found {
				continue
			}
			late, err := Late(tested, found.Config)
			if err != nil {
				return is, err
			}
			o.Cost, o.Missed, o.Pooled = found.Cost, share(late), share(late)
			continue
		}
		rate := estimate.Rate(p.Queries)
		if c.peak {
			rate = Peak(p.Queries, p.Objectives[0].Seconds)
		}
		boxes, ok := Coarse(p, rate, c.choose)
		if o.Found = ok; !ok {
			continue
		}
		late, err := boxes.Late(tested)
		if err != nil {
			return is, err
		}
		pooled, err := Late(tested, boxes.Config())
		if err != nil {
			return is, err
		}
		o.Cost, o.Missed, o.Pooled = p.Cost(boxes.Config()), share(late), share(pooled)
	}
	return is, nil
}

// Cells returns the cells of all pipelines and loads, in that order. It uses all processors.
func (b *Bench) Cells(ctx context.Context, loads []Load, done func()) ([]Cell, error) {
	all := make([]Cell, len(b.Plans)*len(loads))
	err := eachOf(ctx, len(all), done, func(ctx context.Context, i int) (err error) {
		all[i], err = b.cell(ctx, b.Plans[i/len(loads)], loads[i%len(loads)])
		return err
	})
	return all, err
}

// eachOf calls do for n numbers on all processors, in descending order because the last ones take
// longest. It calls done after each.
func eachOf(ctx context.Context, n int, done func(), do func(ctx context.Context, i int) error) error {
	var mu sync.Mutex // serializes calls of done
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i := n - 1; i >= 0; i-- {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := do(ctx, i); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			done()
			return nil
		})
	}
	return group.Wait()
}
