package place

import (
	"fmt"
	"path/filepath"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/headgate/headgate/bench/chart"
)

// plot draws the miss ratio of each policy by cache size and returns the path of the SVG file.
// misses has for each policy the miss ratio in percent at each cache size.
func (c config) plot(misses map[string][]float64) (path string, err error) {
	var lines []chart.Line
	for _, name := range c.policies {
		points := make(plotter.XYs, len(c.shares))
		for i, share := range c.shares {
			points[i] = plotter.XY{X: 100 * share, Y: misses[name][i]}
		}
		lines = append(lines, chart.Line{Name: name, Points: points})
	}
	var figure chart.Figure
	title := fmt.Sprintf("%s: %d models on %d endpoints%s", c.name, c.Models, c.Endpoints, c.popular(", Zipf %g"))
	if _, err := figure.Panel(title, "cache size (% of all model bytes)", "miss ratio (% of requests)", lines); err != nil {
		return "", err
	}
	path = filepath.Join(c.plots, fmt.Sprintf("place-%s-%dx%d%s.svg", c.name, c.Models, c.Endpoints, c.popular("-zipf%g")))
	return path, figure.Save(path, 8*vg.Inch, 5*vg.Inch)
}
