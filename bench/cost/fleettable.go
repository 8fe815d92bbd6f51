package cost

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// fleetResults are the samples with engines of one kind: by program, then by number of endpoints,
// then by round.
type fleetResults struct {
	kind fleetKind
	of   map[string][][]fleetSample
}

// fleetColumn is a figure of fleetSample in the table.
type fleetColumn struct {
	column[fleetSample]
	compared bool // with --base
}

var fleetColumns = []fleetColumn{
	{column[fleetSample]{"scraping, cores", "%.3f", 1, func(s fleetSample) float64 { return s.cores }}, true},
	{column[fleetSample]{"µs a scrape", "%.0f", micro, fleetSample.each}, true},
	{column[fleetSample]{"scrapes/s of each", "%.1f", 1, func(s fleetSample) float64 { return s.scrapes }}, false},
	{column[fleetSample]{"worst age, s", "%.2f", 1, func(s fleetSample) float64 { return s.age }}, false},
	{column[fleetSample]{"memory, MB", "%.1f", 1e6, func(s fleetSample) float64 { return s.memory }}, true},
	{column[fleetSample]{"engines, cores", "%.3f", 1, func(s fleetSample) float64 { return s.engines }}, false},
	{column[fleetSample]{"p50, ms", "%.2f", milli, func(s fleetSample) float64 { return s.p50 }}, true},
	{column[fleetSample]{"p99, ms", "%.2f", milli, func(s fleetSample) float64 { return s.p99 }}, true},
	{column[fleetSample]{"worst age, s", "%.2f", 1, func(s fleetSample) float64 { return s.loadedAge }}, false},
}

// each returns the CPU time of a scrape in seconds.
func (s fleetSample) each() float64 {
	if s.scrapes == 0 {
		return 0
	}
	return s.cores / s.scrapes / float64(s.n)
}

// fleetTable prints the figures of the programs with these titles.
func fleetTable(w io.Writer, all []fleetResults, programs []string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i, is := range all {
		fmt.Fprintf(t, "page of %s\tendpoints\t", is.kind.title)
		for _, c := range fleetColumns {
			fmt.Fprintf(t, "%s\t", c.name)
		}
		fmt.Fprintln(t)
		for _, p := range programs {
			for _, rounds := range is.of[p] {
				fmt.Fprintf(t, "  %s\t%d\t", p, rounds[0].n)
				for _, c := range fleetColumns {
					fmt.Fprintf(t, "%s\t", spreadOf(figures(rounds, c.of)).text(c.format, c.unit))
				}
				fmt.Fprintln(t)
			}
			is.growth(t, p)
		}
		if len(programs) > 1 {
			is.ratios(t, programs[0], programs[1])
		}
		if i < len(all)-1 {
			fmt.Fprintln(t)
		}
	}
	t.Flush()
	fmt.Fprintf(w, "\nThe last three columns are from %d requests a second, which bench ext sends without Envoy. Medians of %d rounds.\n\n",
		fleetRate, len(all[0].of[programs[0]][0]))
}

// growth prints what each further endpoint costs, and the ratio of latencies with many endpoints to
// those with few.
func (f fleetResults) growth(w io.Writer, program string) {
	fewest, most := f.of[program][0], f.of[program][len(f.of[program])-1]
	more := float64(most[0].n - fewest[0].n)
	fmt.Fprintf(w, "  %s, each further endpoint, %d / %d\t\t", program, most[0].n, fewest[0].n)
	for _, c := range fleetColumns {
		few, many := spreadOf(figures(fewest, c.of)).median, spreadOf(figures(most, c.of)).median
		switch {
		case c.name == "scraping, cores":
			fmt.Fprintf(w, "%.5f\t", (many-few)/more)
		case c.name == "memory, MB":
			fmt.Fprintf(w, "%.3f\t", (many-few)/more/c.unit)
		case (c.name == "p50, ms" || c.name == "p99, ms") && few > 0:
			fmt.Fprintf(w, "%.2f ×\t", many/few)
		default:
			fmt.Fprint(w, "\t")
		}
	}
	fmt.Fprintln(w)
}

// ratios prints the ratios of a program's figures to those of another in the same round.
func (f fleetResults) ratios(w io.Writer, program, base string) {
	for i, rounds := range f.of[program] {
		fmt.Fprintf(w, "  %s / %s\t%d\t", program, base, rounds[0].n)
		for _, c := range fleetColumns {
			text := ""
			if c.compared {
				text = ratioOf(figures(rounds, c.of), figures(f.of[base][i], c.of)).text("%.2f", 1)
			}
			fmt.Fprintf(w, "%s\t", text)
		}
		fmt.Fprintln(w)
	}
}
