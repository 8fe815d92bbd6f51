package probe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/headgate/headgate/control/profile/survey"
)

// tells is the minimum time between two progress reports: computing a report takes as long as a
// short request.
const tells = 200 * time.Millisecond

// Probe measures a point. Each call of Measure takes one measurement.
type Probe interface {
	Measure(ctx context.Context, at survey.Point) (survey.Row, error)
}

// Run carries out the plan of a survey.
type Run struct {
	Plan   survey.Plan
	Probe  Probe
	WarmUp int // number of warm-up requests of each point
	// Keep is called with each new row. Tell is called with the progress; its argument ended is
	// true if the current point is finished.
	Keep func(survey.Row) error
	Tell func(p survey.Progress, ended bool)
}

// Measure takes the measurements that are not in rows. It returns all rows, and messages about the
// points that the server rejects, which are left out. It returns an error when ctx ends.
func (r Run) Measure(ctx context.Context, rows []survey.Row) (all []survey.Row, left []string, err error) {
	var refused []survey.Point
	var told time.Time
	for i, at := range r.Plan.Points {
		if beyond(at, refused) {
			continue
		}
		values := survey.Of(rows, at)
		if r.Plan.Enough(at, survey.Summarize(values)) {
			continue
		}
		warm := r.WarmUp
		if at.Outputs > 1 || at.Batch > 1 && at.Asked > 0 {
			warm = min(warm, 1)
		}
		for n := 0; ; n++ {
			s := survey.Summarize(values)
			ended := r.Plan.Enough(at, s)
			if ended || time.Since(told) > tells {
				r.Tell(survey.Progress{
					Done: r.Plan.Done(rows), Points: len(r.Plan.Points), At: at, Summary: s,
					Left: r.Plan.Left(rows, i),
				}, ended)
				told = time.Now()
			}
			if ended {
				break
			}
			row, err := r.Probe.Measure(ctx, at)
			_, apart := errors.AsType[*apart](err)
			switch {
			case ctx.Err() != nil:
				return rows, left, ctx.Err()
			case (tooMuch(err) || apart) && at != r.Plan.Points[0]:
				refused, left = append(refused, at), append(left, fmt.Sprintf("Left out are %s and more: %v.", at, err))
				if !apart { // delete rows only if the server rejected the point
					rows = slices.DeleteFunc(slices.Clone(rows), func(r survey.Row) bool { return beyond(r.Point, refused) })
				}
			case err != nil:
				return rows, left, fmt.Errorf("%s: %w", at, err)
			case n < warm:
				continue
			default:
				if err := r.Keep(row); err != nil {
					return rows, left, err
				}
				rows, values = append(rows, row), append(values, row.Seconds)
				continue
			}
			break
		}
	}
	return rows, left, nil
}

// beyond reports whether a point is at least as large as a rejected point. A point of decode steps
// is also beyond if its prompt alone was rejected.
func beyond(at survey.Point, refused []survey.Point) bool {
	for _, r := range refused {
		alike := at.Outputs == r.Outputs && at.Mixed() == r.Mixed() || r.Outputs == 1
		if alike && at.Batch >= r.Batch && at.Beside >= r.Beside && at.Asked >= r.Asked {
			return true
		}
	}
	return false
}
