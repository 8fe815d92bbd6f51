package provision

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/headgate/headgate/bench/chart"
)

// Size of a panel, and the label of the cost axis: prices in docs/plans are in dollars.
const (
	panelWidth, panelHeight = 3.6 * vg.Inch, 3.2 * vg.Inch
	costLabel               = "cost ($ per hour)"
)

// plotCells draws the cost of plans by rate, with a row for each pipeline and a column for each CV.
// It returns the path of the SVG file.
func plotCells(dir string, cells []Cell) (string, error) {
	var cvs []float64
	var pipelines []string
	lines := make(map[[2]int][]chart.Line)
	for _, c := range cells {
		at := [2]int{index(&pipelines, c.Pipeline), index(&cvs, c.CV)}
		if lines[at] == nil {
			lines[at] = make([]chart.Line, len(contenders))
		}
		for i, o := range c.Outcomes {
			cost := math.Inf(1)
			if o.Found {
				cost = o.Cost
			}
			l := &lines[at][i]
			l.Name, l.Points = contenders[i].name, append(l.Points, plotter.XY{X: c.Rate, Y: cost})
		}
	}
	var figure chart.Figure
	for row, name := range pipelines {
		figure.NewRow()
		for column, cv := range cvs {
			title := fmt.Sprintf("%s, CV %g", name, cv)
			if _, err := figure.Panel(title, "rate (queries/s)", costLabel, lines[[2]int{row, column}]); err != nil {
				return "", err
			}
		}
	}
	path := filepath.Join(dir, "provision-pipelines.svg")
	return path, figure.Save(path, panelWidth, panelHeight)
}

// index returns the index of a value in a list. It appends the value if it is missing.
func index[T comparable](all *[]T, value T) int {
	if i := slices.Index(*all, value); i >= 0 {
		return i
	}
	*all = append(*all, value)
	return len(*all) - 1
}

// plotTrends draws the cost of plans of one pipeline by objective, with a panel for each CV. It
// returns the path of the SVG file.
func plotTrends(dir string, all []Trend) (string, error) {
	var figure chart.Figure
	for _, t := range all {
		var lines []chart.Line
		for i, rate := range slices.Backward(t.Rates) { // highest rate first: the legend has the order of the lines from top to bottom
			l := chart.Line{Name: fmt.Sprintf("%g queries/s", rate)}
			for j, seconds := range t.Objectives {
				l.Points = append(l.Points, plotter.XY{X: 1000 * seconds, Y: t.Costs[i][j]})
			}
			lines = append(lines, l)
		}
		if _, err := figure.Panel(fmt.Sprintf("%s, CV %g", t.Pipeline, t.CV), "latency objective (ms)", costLabel, lines); err != nil {
			return "", err
		}
	}
	path := filepath.Join(dir, "provision-"+all[0].Pipeline+".svg")
	return path, figure.Save(path, panelWidth, panelHeight)
}
