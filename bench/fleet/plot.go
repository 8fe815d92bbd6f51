package fleet

import (
	"cmp"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/headgate/headgate/bench/chart"
)

// point is the share of requests that met their objectives at a rate.
type point struct{ rate, attained float64 }

// curve has the points of one policy.
type curve struct {
	policy string
	points []point
}

// plotCurves draws the SLO attainment of each policy by rate. It returns the path of the PNG file,
// which is named after the workload.
func plotCurves(dir string, w Workload, share float64, curves []curve) (path string, err error) {
	lowest := 100 * max(0, share-4*(1-share))
	var lines []chart.Line
	for _, c := range curves {
		slices.SortFunc(c.points, func(a, b point) int { return cmp.Compare(a.rate, b.rate) })
		line := chart.Line{Name: c.policy}
		for _, is := range c.points {
			if y := 100 * is.attained; y >= lowest {
				line.Points = append(line.Points, plotter.XY{X: is.rate, Y: y})
			}
		}
		lines = append(lines, line)
	}
	var figure chart.Figure
	p, err := figure.Panel(w.Name, "request rate (requests/s)", "requests that meet their objectives (%)", lines)
	if err != nil {
		return "", err
	}
	p.Y.Min, p.Y.Max = lowest, 100
	objective := plotter.NewFunction(func(float64) float64 { return 100 * share })
	objective.Dashes = []vg.Length{vg.Points(4), vg.Points(4)}
	p.Add(objective)
	path = filepath.Join(dir, w.Name+".png")
	return path, figure.Save(path, 8*vg.Inch, 5*vg.Inch)
}
