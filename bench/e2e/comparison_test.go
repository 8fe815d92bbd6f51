package e2e

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/test/times"
)

// round contains the times of one run of a cell's queries.
type round struct {
	sent   []float64 // when each query was sent, in seconds
	took   times.Times
	there  times.Times       // time spent at servers; 0 if a server does not report it
	stages [][]time.Duration // by query: the latency at each model, including the gateway
	late   times.Times       // how late each query was sent
	slower []float64         // by model: slowdown of the machine since its profile was measured; nil if not measured
}

// slowness returns the slowdown of the machine for a model since its profile was measured.
func (r round) slowness(model int) float64 {
	if r.slower == nil {
		return 1
	}
	return r.slower[model]
}

// figures are the compared statistics, in seconds.
type figures struct{ mean, p90, p99 float64 }

func figuresOf(all times.Times) figures {
	var sum time.Duration
	for _, took := range all {
		sum += took
	}
	return figures{(sum / time.Duration(len(all))).Seconds(), all.Percentile(90).Seconds(), all.Percentile(99).Seconds()}
}

// each returns the three figures as an array.
func (f figures) each() [3]float64 { return [3]float64{f.mean, f.p90, f.p99} }

// wrong are factors that scale the service times for the estimates. The first is right; the others
// show the effect of wrong service times.
var wrong = [3]float64{1, 0.8, 1.2}

// cell compares measurements and estimates for one chain, load and coefficient of variation.
type cell struct {
	replicas int
	cv, load float64
	hops     float64 // gateway overhead of a query, in seconds
	rounds   []round

	measured  []figures              // measured latencies, by round
	there     []figures              // measured time at servers, by round
	ofStages  []estimate.StageResult // estimates of the last round, with the right service times
	estimated [len(wrong)][]figures  // by round, for right and wrong service times
	missed    [len(wrong)][]float64  // by round: share of queries slower than the estimated P99 plus gateway overhead
}

// add adds a round and its estimates to the cell.
func (c *cell) add(r round, hops float64, estimated func(scale float64) times.Times) {
	c.hops = hops
	c.measured = append(c.measured, figuresOf(r.took))
	c.there = append(c.there, figuresOf(r.there))
	for i, scale := range wrong {
		f := figuresOf(estimated(scale))
		c.estimated[i] = append(c.estimated[i], f)
		over := 0
		for _, took := range r.took {
			if took.Seconds() > f.p99+hops {
				over++
			}
		}
		c.missed[i] = append(c.missed[i], float64(over)/float64(len(r.took)))
	}
}

// middle returns the median. For an even number of values it is the mean of the middle two.
func middle(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// pickOf returns one figure of each round. The index which is 0 for the mean, 1 for P90 and 2 for
// P99.
func pickOf(all []figures, which int) []float64 {
	var is []float64
	for _, f := range all {
		is = append(is, f.each()[which])
	}
	return is
}

// spread returns half the difference between the largest and the smallest value, relative to the
// median.
func spread(all []float64) float64 { return (slices.Max(all) - slices.Min(all)) / 2 / middle(all) }

// errors returns the relative errors of the estimates of a figure: plain without the gateway
// overhead, and hops with it.
func (c *cell) errors(which int) (plain, hops float64) {
	is, want := middle(pickOf(c.estimated[0], which)), middle(pickOf(c.measured, which))
	return is/want - 1, (is+c.hops)/want - 1
}

func (c *cell) String() string {
	var late times.Times
	for _, r := range c.rounds {
		late = append(late, r.late...)
	}
	plain, hops := c.errors(2)
	var stages strings.Builder
	for i, is := range c.ofStages {
		var took times.Times
		for _, q := range c.rounds[len(c.rounds)-1].stages {
			took = append(took, q[i])
		}
		f := figuresOf(took)
		fmt.Fprintf(&stages, "\nstage %d: mean %.1f ms, estimated %.1f ms; P99 %.1f ms, estimated %.1f ms, in batches of %.1f",
			i, 1e3*f.mean, 1e3*is.Latency.Mean(), 1e3*f.p99, 1e3*is.Latency.Quantile(0.99), float64(is.Queries)/float64(is.Batches))
	}
	return fmt.Sprintf("replicas %d, CV %v, load %v: P99 %.1f ms, estimated to %+.1f %%, with hops %+.1f %%; the driver was late: %v%s",
		c.replicas, c.cv, c.load, 1e3*middle(pickOf(c.measured, 2)), 100*plain, 100*hops, late, stages.String())
}

// header returns the first two lines of a Markdown table.
func header(columns ...string) string {
	return "| " + strings.Join(columns, " | ") + " |\n|" + strings.Repeat("---|", len(columns)) + "\n"
}

// comparison is a list of cells, formatted as tables.
type comparison []*cell

// String returns the tables in Markdown.
func (all comparison) String() string {
	var b strings.Builder
	b.WriteString(header("replicas", "CV", "load", "mean, ms", "estimated", "error", "P90, ms", "estimated", "error", "P99, ms",
		"estimated", "error"))
	for _, c := range all {
		fmt.Fprintf(&b, "| %d | %v | %.0f %% ", c.replicas, c.cv, 100*c.load)
		for which := range 3 {
			m := pickOf(c.measured, which)
			_, e := c.errors(which)
			fmt.Fprintf(&b, "| %.1f ± %.0f %% | %.1f | %+.1f %% ", 1e3*middle(m), 100*spread(m),
				1e3*(middle(pickOf(c.estimated[0], which))+c.hops), 100*e)
		}
		b.WriteString("|\n")
	}
	b.WriteString("\n" + header("median of absolute errors", "mean", "P90", "P99"))
	for i, of := range []string{"as it is", "with the gateway's hops"} {
		fmt.Fprintf(&b, "| %s ", of)
		for which := range 3 {
			fmt.Fprintf(&b, "| %.1f %% ", 100*all.median(which, i == 1))
		}
		b.WriteString("|\n")
	}
	b.WriteString("\n" + header("replicas", "CV", "load", "P99, ms", "estimated, times −20 %", "missed", "right", "missed", "+20 %",
		"missed"))
	for _, c := range all {
		fmt.Fprintf(&b, "| %d | %v | %.0f %% | %.1f ", c.replicas, c.cv, 100*c.load, 1e3*middle(pickOf(c.measured, 2)))
		for _, i := range []int{1, 0, 2} {
			fmt.Fprintf(&b, "| %.1f | %.2f %% ", 1e3*(middle(pickOf(c.estimated[i], 2))+c.hops), 100*middle(c.missed[i]))
		}
		b.WriteString("|\n")
	}
	if middle(pickOf(all[0].there, 0)) > 0 {
		all.atServers(&b)
	}
	return b.String()
}

// atServers writes a table of the time that queries spend at the servers.
func (all comparison) atServers(b *strings.Builder) {
	b.WriteString("\n" + header("replicas", "CV", "load", "mean at the servers, ms", "estimated", "error", "mean on the way, ms", "alone"))
	for _, c := range all {
		there, is := middle(pickOf(c.there, 0)), middle(pickOf(c.estimated[0], 0))
		way := middle(pickOf(c.measured, 0)) - there
		fmt.Fprintf(b, "| %d | %v | %.0f %% | %.1f | %.1f | %+.1f %% | %.1f | %.1f |\n",
			c.replicas, c.cv, 100*c.load, 1e3*there, 1e3*is, 100*(is/there-1), 1e3*way, 1e3*c.hops)
	}
}

// median returns the median absolute error of a figure over all cells.
func (all comparison) median(which int, withHops bool) float64 {
	var is []float64
	for _, c := range all {
		e, hops := c.errors(which)
		if withHops {
			e = hops
		}
		is = append(is, math.Abs(e))
	}
	return middle(is)
}

func TestComparison(t *testing.T) {
	runs(t)
	var took times.Times
	for i := range 100 {
		took = append(took, time.Duration(i+1)*time.Millisecond)
	}
	c := &cell{replicas: 1, cv: 4, load: 0.5}
	for _, more := range []time.Duration{0, 2 * time.Millisecond, 10 * time.Millisecond} {
		var r round
		for _, is := range took {
			r.took, r.there = append(r.took, is+more), append(r.there, is)
		}
		c.add(r, 0.002, func(scale float64) times.Times {
			var all times.Times
			for _, is := range took {
				all = append(all, time.Duration(scale*float64(is)))
			}
			return all
		})
	}
	want := comparison{c}.String()
	for _, line := range []string{
		"| 1 | 4 | 50 % | 52.5 ± 10 % | 52.5 | +0.0 % | 92.0 ± 5 % | 92.0 | +0.0 % | 101.0 ± 5 % | 101.0 | +0.0 % |",
		"| as it is | 3.8 % | 2.2 % | 2.0 % |",
		"| 1 | 4 | 50 % | 50.5 | 50.5 | +0.0 % | 2.0 | 2.0 |",
		"| 1 | 4 | 50 % | 101.0 | 81.2 | 21.00 % | 101.0 | 1.00 % | 120.8 | 0.00 % |",
	} {
		if !strings.Contains(want, line+"\n") {
			t.Errorf("there is no %q in\n%s", line, want)
		}
	}
	if m := middle([]float64{4, 1, 3, 2}); m != 2.5 {
		t.Errorf("the median is %v", m)
	}
}
