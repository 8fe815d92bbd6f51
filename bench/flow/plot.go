package flow

import (
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/headgate/headgate/bench/chart"
	"github.com/headgate/headgate/bench/fleet"
)

// plotStep is the interval of a point in seconds.
const plotStep = 10

// plotFlood draws the longest time to first token of the others by the time of arrival, with and
// without flow, for the first seed. The extension of the path is the format.
func (b *bench) plotFlood(path string) error {
	var lines []chart.Line
	for _, r := range []row{{name: "without flow", policy: fleet.NoFlow}, {name: "with flow", policy: fleet.Fair(b.gate)}} {
		f := b.fleet
		o, err := f.Run(0, b.floodOf(0, floodShape{flooded: true}), r.policy)
		if err != nil {
			return err
		}
		lines = append(lines, chart.Line{Name: r.name, Points: longest(o, b.scaled(plotStep))})
	}
	var figure chart.Figure
	p, err := figure.Panel("A tenant floods from 60 s to 300 s", "arrival (s)", "longest time to first token of the others (s)", lines)
	if err != nil {
		return err
	}
	p.Y.Min = 0.1
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	return figure.Save(path, 8*vg.Inch, 4*vg.Inch)
}

// longest returns the longest time to first token of the others by interval of arrival.
func longest(o fleet.Outcome, interval float64) (points plotter.XYs) {
	var all []float64
	for _, r := range o.Results {
		if !isOther(r.Client) {
			continue
		}
		i := int(r.At / interval)
		for len(all) <= i {
			all = append(all, 0)
		}
		all[i] = max(all[i], r.FirstToken-r.At)
	}
	for i, is := range all {
		if is > 0 && !math.IsInf(is, 1) {
			points = append(points, plotter.XY{X: (float64(i) + 0.5) * interval, Y: is})
		}
	}
	return points
}
