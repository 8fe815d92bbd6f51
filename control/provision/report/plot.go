package report

import (
	"cmp"
	"fmt"
	"html"
	"slices"
	"strings"
)

// Sizes of a picture, in pixels.
const (
	boxWide, boxHigh = 260, 96
	gapWide, gapHigh = 90, 28
	margin           = 24
	headHigh         = 66
	barHigh          = 10
)

// Colours of where the time goes.
const (
	queueColour, fillColour, computeColour = "#c0392b", "#e0a030", "#3a7ca5"
)

// Picture draws the pipeline: each stage with what it has, the time at which most of its queries are done, and where that goes: in red
// in the queue, in yellow while the batch fills, in blue computed. It is SVG.
func (a *Answer) Picture() string {
	at, wide, high := a.layout()
	paths, labels, lowest := a.paths(at)
	high = max(high, lowest+margin)
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", wide, high, wide, high)
	out.WriteString(`<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>` + "\n")
	fmt.Fprintf(&out, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", wide, high)
	text := func(x, y int, weight, anchor, format string, args ...any) {
		fmt.Fprintf(&out, `<text x="%d" y="%d" font-weight="%s" text-anchor="%s" fill="#222">%s</text>`+"\n", x, y, weight, anchor, html.EscapeString(fmt.Sprintf(format, args...)))
	}
	text(margin, margin, "bold", "start", "%s: %.4g an hour", a.Name, a.Cost)
	var kept []string
	for _, o := range a.Planned.Objectives {
		kept = append(kept, fmt.Sprintf("%s: %s of %s", o.Of, Seconds(o.Takes), Seconds(o.Within)))
	}
	text(margin, margin+18, "normal", "start", "%s", strings.Join(kept, "; "))
	x := margin
	for _, is := range []struct{ colour, words string }{{queueColour, "in the queue"}, {fillColour, "until the batch is full"}, {computeColour, "computed"}} {
		fmt.Fprintf(&out, `<rect x="%d" y="%d" width="10" height="10" fill="%s"/>`+"\n", x, margin+28, is.colour)
		text(x+14, margin+37, "normal", "start", "%s", is.words)
		x += 24 + 7*len(is.words)
	}
	for i, e := range a.Edges {
		fmt.Fprintf(&out, `<path d="%s" fill="none" stroke="#555" marker-end="url(#end)"/>`+"\n", paths[i])
		if e.Share < 1 {
			text(labels[i].x, labels[i].y, "normal", "middle", "%.3g %%", 100*e.Share)
		}
	}
	for i := range a.Stages {
		s := &a.Stages[i]
		is := at[s.Name]
		fmt.Fprintf(&out, `<rect x="%d" y="%d" width="%d" height="%d" rx="6" fill="#f5f7fa" stroke="#888"/>`+"\n", is.x, is.y, boxWide, boxHigh)
		text(is.x+12, is.y+20, "bold", "start", "%s", s.Name)
		text(is.x+boxWide-12, is.y+20, "normal", "end", "%.4g/h", s.Cost)
		text(is.x+12, is.y+38, "normal", "start", "%d x %s, batches of %d", s.Replicas, s.Hardware, s.Batch)
		text(is.x+12, is.y+56, "normal", "start", "P50 %s, P99 %s", Seconds(s.Latency.P50), Seconds(s.Latency.P99))
		text(is.x+boxWide-12, is.y+38, "normal", "end", "busy %.0f %%", 100*s.Busy)
		sum, left := s.Queue+s.Fill+s.Compute, float64(is.x+12)
		for _, part := range []struct {
			colour  string
			seconds float64
		}{{queueColour, s.Queue}, {fillColour, s.Fill}, {computeColour, s.Compute}} {
			width := (boxWide - 24) * part.seconds / max(sum, 1e-12)
			fmt.Fprintf(&out, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"><title>%s</title></rect>`+"\n", left, is.y+70, width, barHigh, part.colour, Seconds(part.seconds))
			left += width
		}
	}
	out.WriteString("</svg>\n")
	return out.String()
}

// paths are those of edges, with where their shares are written, and how low the lowest goes. One that passes columns goes below the boxes there.
func (a *Answer) paths(at map[string]point) (paths []string, labels []point, lowest int) {
	bottom := make(map[int]int) // of the lowest box, by the column's x
	for _, is := range at {
		bottom[is.x] = max(bottom[is.x], is.y+boxHigh)
	}
	detours := 0
	for _, e := range a.Edges {
		from, to := at[e.From], at[e.To]
		x0, y0, x1, y1 := from.x+boxWide, from.y+boxHigh/2, to.x, to.y+boxHigh/2
		if to.x == from.x+boxWide+gapWide {
			middle := (x0 + x1) / 2
			paths = append(paths, fmt.Sprintf("M%d %dC%d %d %d %d %d %d", x0, y0, middle, y0, middle, y1, x1, y1))
			labels = append(labels, point{middle, (y0+y1)/2 - 6})
			continue
		}
		lane := 0
		for x := from.x + boxWide + gapWide; x < to.x; x += boxWide + gapWide {
			lane = max(lane, bottom[x])
		}
		lane += gapHigh/2 + 8*detours
		detours++
		paths = append(paths, fmt.Sprintf("M%d %dC%d %d %d %d %d %dL%d %dC%d %d %d %d %d %d", x0, y0, x0+gapWide/2, y0, x0+gapWide/2, lane, x0+gapWide, lane,
			x1-gapWide, lane, x1-gapWide/2, lane, x1-gapWide/2, y1, x1, y1))
		labels = append(labels, point{x0 + gapWide + 24, lane - 4})
		lowest = max(lowest, lane)
	}
	return paths, labels, lowest
}

// point is where a box begins.
type point struct{ x, y int }

// layout puts each stage into the column behind the last one that leads to it, and those of a column below each other.
func (a *Answer) layout() (at map[string]point, wide, high int) {
	column := make(map[string]int)
	for _, s := range a.Stages { // in the order in which queries pass them
		for _, e := range a.Edges {
			if e.To == s.Name {
				column[s.Name] = max(column[s.Name], column[e.From]+1)
			}
		}
	}
	stages := slices.Clone(a.Stages)
	slices.SortStableFunc(stages, func(a, b Stage) int { return cmp.Compare(column[a.Name], column[b.Name]) })
	at = make(map[string]point)
	rows := make(map[int]int)
	for _, s := range stages {
		c := column[s.Name]
		is := point{margin + c*(boxWide+gapWide), margin + headHigh + rows[c]*(boxHigh+gapHigh)}
		rows[c]++
		at[s.Name] = is
		wide, high = max(wide, is.x+boxWide+margin), max(high, is.y+boxHigh+margin)
	}
	return at, max(wide, 480), high
}
