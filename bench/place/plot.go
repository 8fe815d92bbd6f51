package place

import (
	"fmt"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// draw writes a picture of how often policies miss with which share of room, an SVG, into the folder for pictures; its name is that of the
// workload, and what it is sent to. Misses are in percent, one for each share.
func (c config) draw(misses map[string][]float64) (path string, err error) {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("%s: %d models on %d endpoints%s", c.name, c.Models, c.Endpoints, c.popular(", Zipf %g"))
	p.X.Label.Text, p.Y.Label.Text = "room for this share of the models' bytes, %", "requests that found no copy, %"
	p.Y.Min = 0
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	for i, name := range c.policies {
		points := make(plotter.XYs, len(c.shares))
		for j, share := range c.shares {
			points[j] = plotter.XY{X: 100 * share, Y: misses[name][j]}
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return "", fmt.Errorf("cannot draw %s: %w", name, err)
		}
		line.Color, line.Dashes = plotutil.Color(i), plotutil.Dashes(i/7)
		dots.Color, dots.Shape, dots.Radius = line.Color, plotutil.Shape(i), vg.Points(2)
		p.Add(line, dots)
		p.Legend.Add(name, line)
	}
	path = filepath.Join(c.plots, fmt.Sprintf("place-%s-%dx%d%s.svg", c.name, c.Models, c.Endpoints, c.popular("-zipf%g")))
	return path, p.Save(8*vg.Inch, 5*vg.Inch, path)
}
