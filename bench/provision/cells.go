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

// Load is how queries come: so many a second, whose gaps have a coefficient of variation.
type Load struct{ Rate, CV float64 }

func (l Load) trace(queries int) string {
	return fmt.Sprintf("gamma:rate=%g,cv=%g,queries=%d", l.Rate, l.CV, queries)
}

// Cell is what planners make of one pipeline with one load.
type Cell struct {
	Pipeline string
	Load
	Outcomes []Outcome // by contender
}

// Outcome is what a plan costs, and which share of the queries of another trace of the same load miss its objective.
type Outcome struct {
	Found        bool
	Cost, Missed float64
	// Pooled is that share where copies of boxes share the queues of their stages; of other plans it is Missed.
	Pooled float64
	// Stopped says that the planner had run as many simulations as it may.
	Stopped bool
}

// contenders are those who plan, in the order in which they are listed.
var contenders = []struct {
	name string
	plan func(*planner.Problem) *planner.Plan // or, of those who plan boxes, nil
	// peak plans for the highest rate in a time as long as the objective, and not for the mean; choose takes the cheapest hardware, and not the fastest.
	peak, choose bool
}{
	{name: "search", plan: planner.Search},
	{name: "inferline", plan: planner.InferLine},
	{name: "CG-Mean fastest"},
	{name: "CG-Mean cheapest", choose: true},
	{name: "CG-Peak fastest", peak: true},
	{name: "CG-Peak cheapest", peak: true, choose: true},
}

// Bench is what pipelines are planned with.
type Bench struct {
	Plans []*Asked
	// Queries of the trace that is planned on, and Tested of the one that plans are tried on, which is of another seed.
	Queries, Tested int
	// MaxSimulations is how many simulations a planner may run for one plan: it has what is the best by then.
	MaxSimulations int
}

// plan plans, and reports whether the planner was stopped.
func (b *Bench) plan(ctx context.Context, p *planner.Problem, find func(*planner.Problem) *planner.Plan) (is *planner.Plan, stopped bool, err error) {
	own := *p
	own.Progress = func(simulations int, _ planner.Candidate) bool {
		stopped = simulations >= b.MaxSimulations
		return !stopped && ctx.Err() == nil
	}
	is = find(&own)
	return is, stopped, ctx.Err()
}

// cell plans one pipeline with one load as each contender does, and tries all plans.
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

// Cells plans each pipeline with each load, on all processors. They are in that order.
func (b *Bench) Cells(ctx context.Context, loads []Load, done func()) ([]Cell, error) {
	all := make([]Cell, len(b.Plans)*len(loads))
	err := eachOf(ctx, len(all), done, func(ctx context.Context, i int) (err error) {
		all[i], err = b.cell(ctx, b.Plans[i/len(loads)], loads[i%len(loads)])
		return err
	})
	return all, err
}

// eachOf does n things on all processors, the last ones first, which take longest; done is told of each.
func eachOf(ctx context.Context, n int, done func(), do func(ctx context.Context, i int) error) error {
	var mu sync.Mutex // done is called by one at a time
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
