// Package chart draws the line charts of bench, with one legend to the right of all panels.
package chart

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Line is one line of a panel. Infinite values of y leave a gap.
type Line struct {
	Name   string
	Points plotter.XYs
}

// Figure is a grid of panels with one legend.
type Figure struct {
	rows   [][]*plot.Plot
	styles map[string]int // style of a line by its name: a line looks alike in all panels
	legend plot.Legend
}

// NewRow starts a row of panels. All rows must have the same number of panels.
func (f *Figure) NewRow() { f.rows = append(f.rows, nil) }

// Panel adds a panel to the last row. x and y are the labels of its axes, which name the units.
func (f *Figure) Panel(title, x, y string, lines []Line) (*plot.Plot, error) {
	if f.styles == nil {
		f.styles, f.legend = make(map[string]int), plot.NewLegend()
		f.legend.Top, f.legend.Left, f.legend.Padding = true, true, vg.Points(3)
	}
	if len(f.rows) == 0 {
		f.NewRow()
	}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Y.Min = 0
	p.Add(plotter.NewGrid())
	for _, l := range lines {
		style, known := f.styles[l.Name]
		if !known {
			style = len(f.styles)
			f.styles[l.Name] = style
		}
		var points plotter.XYs
		for _, at := range l.Points {
			if !math.IsInf(at.Y, 0) {
				points = append(points, at)
			}
		}
		if len(points) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, fmt.Errorf("cannot draw %s: %w", l.Name, err)
		}
		line.Color, line.Dashes = plotutil.Color(style), plotutil.Dashes(style/7)
		dots.Color, dots.Shape, dots.Radius = line.Color, plotutil.Shape(style), vg.Points(2)
		p.Add(line, dots)
		if !known {
			f.legend.Add(l.Name, line, dots)
		}
	}
	last := len(f.rows) - 1
	f.rows[last] = append(f.rows[last], p)
	return p, nil
}

// Save writes the figure to a file. The extension of the path is the format, such as .svg. width
// and height are the size of each panel without the legend.
func (f *Figure) Save(path string, width, height vg.Length) error {
	const gap = 12 // points between panels
	tiles := draw.Tiles{
		Rows: len(f.rows), Cols: len(f.rows[0]), PadX: vg.Points(gap), PadY: vg.Points(gap),
		PadTop: vg.Points(4), PadBottom: vg.Points(4), PadLeft: vg.Points(4), PadRight: vg.Points(gap),
	}
	// wider is the factor on the width of the legend, because browsers may replace its font by a
	// wider one. A first canvas measures the width of its text.
	const wider = 1.25
	format := strings.TrimPrefix(filepath.Ext(path), ".")
	width, height = width*vg.Length(tiles.Cols), height*vg.Length(tiles.Rows)
	canvas, err := draw.NewFormattedCanvas(width, height, format)
	if err != nil {
		return err
	}
	legend := wider*f.legend.Rectangle(draw.New(canvas)).Size().X + vg.Points(gap)
	if canvas, err = draw.NewFormattedCanvas(width+legend, height, format); err != nil {
		return err
	}
	whole := draw.New(canvas)
	whole.SetColor(color.White)
	whole.Fill(whole.Path())
	f.legend.Draw(draw.Crop(whole, width, 0, 0, -vg.Points(gap)))
	for r, row := range plot.Align(f.rows, tiles, draw.Crop(whole, 0, -legend, 0, 0)) {
		for c, at := range row {
			f.rows[r][c].Draw(at)
		}
	}
	var image bytes.Buffer
	if _, err := canvas.WriteTo(&image); err != nil {
		return err
	}
	drawn := image.Bytes()
	if format == "svg" { // gonum names only one font, which few computers have
		drawn = bytes.ReplaceAll(drawn, []byte("font-family:Liberation Serif"), []byte("font-family:Liberation Serif,Times New Roman,serif"))
	}
	return os.WriteFile(path, drawn, 0o644) //nolint:gosec // a picture to show
}
