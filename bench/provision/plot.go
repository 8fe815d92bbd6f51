package provision

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// curve is a line of a picture: points whose y is infinite are left out.
type curve struct {
	name string
	xy   plotter.XYs
}

// panel makes one picture of several, which have their legend in the first.
func panel(title, x, y string, first bool, curves []curve) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Y.Min = 0
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	for i, c := range curves {
		var points plotter.XYs
		for _, at := range c.xy {
			if !math.IsInf(at.Y, 1) {
				points = append(points, at)
			}
		}
		if len(points) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, fmt.Errorf("cannot draw %s: %w", c.name, err)
		}
		line.Color, line.Dashes = plotutil.Color(i), plotutil.Dashes(i/2)
		dots.Color, dots.Shape, dots.Radius = line.Color, plotutil.Shape(i), vg.Points(2)
		p.Add(line, dots)
		if first {
			p.Legend.Add(c.name, line, dots)
		}
	}
	return p, nil
}

// drawCells draws what plans cost by rate: a row for each CV, a column for each pipeline. It returns the file, an SVG in a folder.
func drawCells(dir string, cells []Cell) (string, error) {
	var rows [][]*plot.Plot
	var cvs []float64
	var pipelines []string
	curves := make(map[[2]int][]curve)
	for _, c := range cells {
		at := [2]int{index(&cvs, c.CV), index(&pipelines, c.Pipeline)}
		if curves[at] == nil {
			curves[at] = make([]curve, len(contenders))
		}
		for i, o := range c.Outcomes {
			cost := math.Inf(1)
			if o.Found {
				cost = o.Cost
			}
			curves[at][i].name = contenders[i].name
			curves[at][i].xy = append(curves[at][i].xy, plotter.XY{X: c.Rate, Y: cost})
		}
	}
	for row, cv := range cvs {
		rows = append(rows, nil)
		for column, name := range pipelines {
			p, err := panel(fmt.Sprintf("%s, CV %g", name, cv), "queries a second", "cost an hour", row+column == 0, curves[[2]int{row, column}])
			if err != nil {
				return "", err
			}
			rows[row] = append(rows[row], p)
		}
	}
	return save(filepath.Join(dir, "provision-pipelines.svg"), rows)
}

// index is where a value is among others. It is added where it is not.
func index[T comparable](all *[]T, value T) int {
	for i, is := range *all {
		if is == value {
			return i
		}
	}
	*all = append(*all, value)
	return len(*all) - 1
}

// drawTrends draws what plans of one pipeline cost by objective: a panel for each CV, which is that of a trend.
func drawTrends(dir string, all []Trend) (string, error) {
	var row []*plot.Plot
	for n, t := range all {
		var curves []curve
		for i, rate := range slices.Backward(t.Rates) { // as they lie above each other
			c := curve{name: fmt.Sprintf("%g a second", rate)}
			for j, seconds := range t.Objectives {
				c.xy = append(c.xy, plotter.XY{X: 1000 * seconds, Y: t.Costs[i][j]})
			}
			curves = append(curves, c)
		}
		p, err := panel(fmt.Sprintf("%s, CV %g", t.Pipeline, t.CV), "objective, ms", "cost an hour", n == 0, curves)
		if err != nil {
			return "", err
		}
		p.Legend.Left = false
		row = append(row, p)
	}
	return save(filepath.Join(dir, "provision-"+all[0].Pipeline+".svg"), [][]*plot.Plot{row})
}

// save writes pictures in rows into one file.
func save(path string, rows [][]*plot.Plot) (string, error) {
	const width, height = 3.6 * vg.Inch, 3.2 * vg.Inch
	tiles := draw.Tiles{
		Rows: len(rows), Cols: len(rows[0]), PadX: vg.Points(12), PadY: vg.Points(12),
		PadTop: vg.Points(4), PadBottom: vg.Points(4), PadLeft: vg.Points(4), PadRight: vg.Points(8),
	}
	svg := vgsvg.New(width*vg.Length(tiles.Cols), height*vg.Length(tiles.Rows))
	for r, canvases := range plot.Align(rows, tiles, draw.New(svg)) {
		for c, canvas := range canvases {
			rows[r][c].Draw(canvas)
		}
	}
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	if _, err := svg.WriteTo(f); err != nil {
		_ = f.Close()
		return "", err
	}
	return path, f.Close()
}
