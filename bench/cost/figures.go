package cost

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/headgate/headgate/bench/pace"
)

// sample has the figures of one variant in one cell and one round. CPU times and latencies are in
// seconds, CPU times per request.
type sample struct {
	envoy, server   float64
	p50, p99        float64
	rate            float64 // requests per second
	engines, client float64
	others          float64 // cores that all other processes of the machine used
}

// both returns the CPU time of Envoy and the server.
func (s sample) both() float64 { return s.envoy + s.server }

// reading has CPU times of processes, and of the whole machine.
type reading struct{ envoy, server, engines, client, machine time.Duration }

// minus returns the difference between two readings.
func (u reading) minus(before reading) reading {
	return reading{
		u.envoy - before.envoy, u.server - before.server, u.engines - before.engines, u.client - before.client,
		u.machine - before.machine,
	}
}

// others returns the cores that other processes used in a time.
func (u reading) others(wall time.Duration) float64 {
	return max(0, (u.machine-u.envoy-u.server-u.engines-u.client).Seconds()/wall.Seconds())
}

// cores has the cores that the processes of an idle gateway use.
type cores struct{ envoy, server float64 }

// without returns the sample without what the processes use when idle, such as for scrapes. Where
// that is more than requests cost, a result may be negative: cutting it off at zero would make the
// median of the rounds too high.
func (s sample) without(idle cores) sample {
	s.envoy -= idle.envoy / s.rate
	s.server -= idle.server / s.rate
	return s
}

// sampleOf returns the figures of requests that took some times, all of them together wall. It
// sorts the times.
func sampleOf(used reading, wall time.Duration, took []time.Duration) sample {
	n, seconds := float64(len(took)), wall.Seconds()
	slices.Sort(took)
	return sample{
		envoy:   used.envoy.Seconds() / n,
		server:  used.server.Seconds() / n,
		p50:     pace.Quantile(took, 0.5).Seconds(),
		p99:     pace.Quantile(took, 0.99).Seconds(),
		rate:    n / seconds,
		engines: used.engines.Seconds() / n,
		client:  used.client.Seconds() / n,
		others:  used.others(wall),
	}
}

// spread is the median of some rounds, with the lowest and the highest.
type spread struct{ median, low, high float64 }

// spreadOf returns the spread of values; of none it is zero.
func spreadOf(all []float64) spread {
	if len(all) == 0 {
		return spread{}
	}
	sorted := slices.Sorted(slices.Values(all))
	n := len(sorted)
	return spread{(sorted[(n-1)/2] + sorted[n/2]) / 2, sorted[0], sorted[n-1]}
}

// text formats a spread in a unit. Zero means that there is nothing to measure.
func (s spread) text(format string, unit float64) string {
	if s == (spread{}) {
		return "–"
	}
	of := func(v float64) string { return fmt.Sprintf(format, v/unit) }
	if s.low == s.high {
		return of(s.median)
	}
	return of(s.median) + " (" + of(s.low) + "–" + of(s.high) + ")"
}

// column is a figure in a table of samples.
type column[T any] struct {
	name, format string
	unit         float64
	of           func(T) float64
}

const (
	micro = 1e-6
	milli = 1e-3
)

var columns = []column[sample]{
	{"Envoy, µs", "%.0f", micro, func(s sample) float64 { return s.envoy }},
	{"server, µs", "%.0f", micro, func(s sample) float64 { return s.server }},
	{"both, µs", "%.0f", micro, sample.both},
	{"p50, ms", "%.2f", milli, func(s sample) float64 { return s.p50 }},
	{"p99, ms", "%.2f", milli, func(s sample) float64 { return s.p99 }},
	{"requests/s", "%.0f", 1, func(s sample) float64 { return s.rate }},
}

// results has the samples by name of the cell and of the variant, in the order of the rounds.
type results map[string]map[string][]sample

// without returns the results without the median of what each variant uses when idle.
func (r results) without(idle map[string][]cores) results {
	less := make(results)
	for cell, variants := range r {
		for name, all := range variants {
			rest := medianOf(idle[name])
			for _, s := range all {
				less.add(cell, name, s.without(rest))
			}
		}
	}
	return less
}

// medianOf returns the medians.
func medianOf(all []cores) cores {
	var envoy, server []float64
	for _, c := range all {
		envoy, server = append(envoy, c.envoy), append(server, c.server)
	}
	return cores{spreadOf(envoy).median, spreadOf(server).median}
}

// add adds the sample of a round.
func (r results) add(cell, variant string, s sample) {
	if r[cell] == nil {
		r[cell] = make(map[string][]sample)
	}
	r[cell][variant] = append(r[cell][variant], s)
}

// figures returns a figure of all rounds.
func figures[T any](all []T, of func(T) float64) []float64 {
	is := make([]float64, len(all))
	for i, s := range all {
		is[i] = of(s)
	}
	return is
}

// ratioOf returns the spread of the ratios of figures in the same round, because a busy machine
// slows both. It leaves out rounds that one of them did not measure.
func ratioOf(all, base []float64) spread {
	var is []float64
	for i := range min(len(all), len(base)) {
		if base[i] > 0 {
			is = append(is, all[i]/base[i])
		}
	}
	return spreadOf(is)
}

// table prints the figures.
func (r results) table(w io.Writer, cells []cell, shown []variant) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range cells {
		if len(r[c.name]) == 0 {
			continue
		}
		fmt.Fprintf(t, "%s\t", c.title)
		for _, col := range columns {
			fmt.Fprintf(t, "%s\t", col.name)
		}
		fmt.Fprintln(t)
		for _, v := range shown {
			all := r[c.name][v.name]
			if len(all) == 0 {
				continue
			}
			fmt.Fprintf(t, "  %s\t", v.title)
			for _, col := range columns {
				fmt.Fprintf(t, "%s\t", spreadOf(figures(all, col.of)).text(col.format, col.unit))
			}
			fmt.Fprintln(t)
		}
		fmt.Fprintln(t)
	}
	t.Flush()
}

// ratio compares a figure of two variants.
type ratio struct {
	name         string
	of, to       string // variants
	figure, base func(sample) float64
}

func envoyOf(s sample) float64  { return s.envoy }
func serverOf(s sample) float64 { return s.server }
func p50Of(s sample) float64    { return s.p50 }

var ratios = []ratio{
	{"both / floor", "gateway", "floor", sample.both, sample.both},
	{"both / smg", "gateway", "smg", sample.both, sample.both},
	{"p50 / floor", "gateway", "floor", p50Of, p50Of},
	{"Envoy / floor's", "gateway", "floor", envoyOf, envoyOf},
	{"extproc / no-op", "gateway", "config", serverOf, serverOf},
	{"Envoy / alone", "gateway", "alone", envoyOf, envoyOf},
	{"both / base", "gateway", "base", sample.both, sample.both},
}

// spread returns the spread of the ratio in the rounds of a cell; zero if a variant was not
// measured.
func (q ratio) spread(all map[string][]sample) spread {
	return ratioOf(figures(all[q.of], q.figure), figures(all[q.to], q.base))
}

// ratioTable prints the ratios.
func (r results) ratioTable(w io.Writer, cells []cell) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "whole gateway\t")
	for _, q := range ratios {
		fmt.Fprintf(t, "%s\t", q.name)
	}
	fmt.Fprintln(t)
	for _, c := range cells {
		fmt.Fprintf(t, "%s\t", c.title)
		for _, q := range ratios {
			fmt.Fprintf(t, "%s\t", q.spread(r[c.name]).text("%.2f", 1))
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	fmt.Fprintln(w)
}

// sides prints what the engines and the client cost, what was subtracted of the whole gateway, and
// how busy the machine was besides.
func (r results) sides(w io.Writer, cells []cell, idle map[string][]cores) {
	var others []float64
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "not counted above\tengines, µs\tclient, µs\tidle Envoy, µs\tidle extproc, µs\t")
	for _, c := range cells {
		var engines, client []float64
		for _, all := range r[c.name] {
			engines = append(engines, figures(all, func(s sample) float64 { return s.engines })...)
			client = append(client, figures(all, func(s sample) float64 { return s.client })...)
			others = append(others, figures(all, func(s sample) float64 { return s.others })...)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t", c.title, spreadOf(engines).text("%.0f", micro), spreadOf(client).text("%.0f", micro))
		rate := spreadOf(figures(r[c.name]["gateway"], func(s sample) float64 { return s.rate })).median
		for _, of := range []func(cores) float64{func(c cores) float64 { return c.envoy }, func(c cores) float64 { return c.server }} {
			fmt.Fprintf(t, "%s\t", spreadOf(figures(idle["gateway"], of)).text("%.0f", micro*max(rate, 1)))
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	fmt.Fprintf(w, "\nOther processes of this machine used %s cores meanwhile.\n\n", spreadOf(others).text("%.2f", 1))
}
