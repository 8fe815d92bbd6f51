package fleet

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// point is the share of requests that kept their objectives at a rate.
type point struct{ rate, kept float64 }

// curve is what one policy keeps at the rates that were tried.
type curve struct {
	policy string
	points []point
}

// draw writes a picture of what policies keep at which rates, a PNG, into a folder; its name is that of the workload.
func draw(dir string, w Workload, share float64, curves []curve) (path string, err error) {
	p := plot.New()
	p.Title.Text = w.Name
	p.X.Label.Text, p.Y.Label.Text = "requests a second", "requests that kept their objectives, %"
	p.Y.Min, p.Y.Max = 100*max(0, share-4*(1-share)), 100
	p.Legend.Left = true
	p.Add(plotter.NewGrid())
	for i, c := range curves {
		slices.SortFunc(c.points, func(a, b point) int { return cmp.Compare(a.rate, b.rate) })
		points := make(plotter.XYs, 0, len(c.points))
		for _, is := range c.points {
			if y := 100 * is.kept; y >= p.Y.Min { // far below nobody looks
				points = append(points, plotter.XY{X: is.rate, Y: y})
			}
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return "", fmt.Errorf("cannot draw %s: %w", c.policy, err)
		}
		line.Color, line.Dashes = plotutil.Color(i), plotutil.Dashes(i/7)
		dots.Color, dots.Shape, dots.Radius = line.Color, plotutil.Shape(i), vg.Points(2)
		p.Add(line, dots)
		p.Legend.Add(c.policy, line)
	}
	kept := plotter.NewFunction(func(float64) float64 { return 100 * share })
	kept.Dashes = []vg.Length{vg.Points(4), vg.Points(4)}
	p.Add(kept)
	path = filepath.Join(dir, w.Name+".png")
	return path, p.Save(8*vg.Inch, 5*vg.Inch, path)
}
