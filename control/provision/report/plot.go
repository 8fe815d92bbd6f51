package report

import (
	"cmp"
	"fmt"
	"html"
	"slices"
	"strings"
)

// Sizes in the plot, in pixels.
const (
	boxWide, boxHigh = 260, 96
	gapWide, gapHigh = 90, 28
	margin           = 24
	headHigh         = 66
	barHigh          = 10
)

// Colours of the parts of a latency in the plot.
const (
	queueColour, batchingColour, serviceColour = "#c0392b", "#e0a030", "#3a7ca5"
)

// Plot draws the pipeline as SVG. For each stage it shows the setting, the latency, and a bar with
// the mean queue time, batching delay and service time.
func (r *Report) Plot() string {
	at, wide, high := r.layout()
	paths, labels, lowest := r.paths(at)
	high = max(high, lowest+margin)
	var out strings.Builder
	fmt.Fprintf(&out,
		`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n",
		wide, high,
		wide, high)
	out.WriteString(`<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>` + "\n")
	fmt.Fprintf(&out, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", wide, high)
	text := func(x, y int, weight, anchor, format string, args ...any) {
		fmt.Fprintf(&out, `<text x="%d" y="%d" font-weight="%s" text-anchor="%s" fill="#222">%s</text>`+"\n", x, y, weight, anchor,
			html.EscapeString(fmt.Sprintf(format, args...)))
	}
	text(margin, margin, "bold", "start", "%s: cost %.4g per hour (in the currency of the prices)", r.Name, r.Cost)
	var objectives []string
	for _, o := range r.Planned.Objectives {
		objectives = append(objectives, fmt.Sprintf("P%.4g %s: %s, objective %s", 100*o.Quantile, o.Metric, Seconds(o.Value),
			Seconds(o.Within)))
	}
	text(margin, margin+18, "normal", "start", "%s", strings.Join(objectives, "; "))
	x := margin
	for _, part := range []struct{ colour, name string }{
		{queueColour, "mean queue time"}, {batchingColour, "mean batching delay"}, {serviceColour, "mean service time"},
	} {
		fmt.Fprintf(&out, `<rect x="%d" y="%d" width="10" height="10" fill="%s"/>`+"\n", x, margin+28, part.colour)
		text(x+14, margin+37, "normal", "start", "%s", part.name)
		x += 24 + 7*len(part.name)
	}
	for i, e := range r.Edges {
		fmt.Fprintf(&out, `<path d="%s" fill="none" stroke="#555" marker-end="url(#end)"/>`+"\n", paths[i])
		if e.Share < 1 {
			text(labels[i].x, labels[i].y, "normal", "middle", "%.3g %%", 100*e.Share)
		}
	}
	for i := range r.Stages {
		s := &r.Stages[i]
		is := at[s.Name]
		fmt.Fprintf(&out, `<rect x="%d" y="%d" width="%d" height="%d" rx="6" fill="#f5f7fa" stroke="#888"/>`+"\n", is.x, is.y, boxWide,
			boxHigh)
		text(is.x+12, is.y+20, "bold", "start", "%s", s.Name)
		text(is.x+boxWide-12, is.y+20, "normal", "end", "%.4g per hour", s.Cost)
		text(is.x+12, is.y+38, "normal", "start", "%d x %s, batch %d", s.Replicas, s.Hardware, s.Batch)
		text(is.x+12, is.y+56, "normal", "start", "P50 %s, P99 %s", Seconds(s.Latency.P50), Seconds(s.Latency.P99))
		text(is.x+boxWide-12, is.y+38, "normal", "end", "utilization %.0f %%", 100*s.Utilization)
		sum, left := s.QueueTime+s.BatchingDelay+s.ServiceTime, float64(is.x+12)
		for _, part := range []struct {
			colour  string
			seconds float64
		}{{queueColour, s.QueueTime}, {batchingColour, s.BatchingDelay}, {serviceColour, s.ServiceTime}} {
			width := (boxWide - 24) * part.seconds / max(sum, 1e-12)
			fmt.Fprintf(&out, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"><title>%s</title></rect>`+"\n", left, is.y+70,
				width, barHigh, part.colour, Seconds(part.seconds))
			left += width
		}
	}
	out.WriteString("</svg>\n")
	return out.String()
}

// paths returns the SVG path of each edge, the position of each edge's label, and the lowest y
// coordinate. An edge that skips columns passes below the boxes of these columns.
func (r *Report) paths(at map[string]point) (paths []string, labels []point, lowest int) {
	bottom := make(map[int]int) // x of a column -> y of the bottom of its lowest box
	for _, is := range at {
		bottom[is.x] = max(bottom[is.x], is.y+boxHigh)
	}
	detours := 0
	for _, e := range r.Edges {
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
		paths = append(paths, fmt.Sprintf("M%d %dC%d %d %d %d %d %dL%d %dC%d %d %d %d %d %d", x0, y0, x0+gapWide/2, y0, x0+gapWide/2, lane,
			x0+gapWide, lane,
			x1-gapWide, lane, x1-gapWide/2, lane, x1-gapWide/2, y1, x1, y1))
		labels = append(labels, point{x0 + gapWide + 24, lane - 4})
		lowest = max(lowest, lane)
	}
	return paths, labels, lowest
}

// point is the top left corner of a box.
type point struct{ x, y int }

// layout returns the position of each stage's box, and the size of the plot. Each stage is in the
// column after its last predecessor. The stages of a column are below each other.
func (r *Report) layout() (at map[string]point, wide, high int) {
	column := make(map[string]int)
	for _, s := range r.Stages { // stages are in topological order
		for _, e := range r.Edges {
			if e.To == s.Name {
				column[s.Name] = max(column[s.Name], column[e.From]+1)
			}
		}
	}
	stages := slices.Clone(r.Stages)
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
