package status

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/display"
)

const (
	// maxRows is the number of endpoints and of models to print without --all.
	maxRows = 50
	// maxCopies is the number of copies to print for each endpoint and state.
	maxCopies = 12
	// maxMessage is the number of characters to print of an engine's message.
	maxMessage = 300
)

// key identifies a model.
type key struct{ pool, id string }

// at is a copy with its endpoint.
type at struct {
	decide.CopyView
	endpoint string
}

// page is the output.
type page struct {
	decide.View // control's view; zero without control
	choice
	placed     bool // there is a control
	all        bool
	copies     map[key][]at // copies of each model, also at endpoints that were not selected
	extprocs   []Extproc
	rows       []row
	conditions []admin.Condition
	notes      []string
}

func newPage(s State, c choice, all bool, copies map[key][]at) page {
	p := page{choice: c, all: all, copies: copies, conditions: s.Conditions, notes: s.Notes}
	if s.Placement != nil {
		p.View, p.placed = *s.Placement, true
	}
	for _, x := range s.Extprocs {
		if x.Error != "" {
			continue
		}
		if p.extprocs = append(p.extprocs, x); x.At.After(p.At) {
			p.At = x.At
		}
	}
	p.rows = rowsOf(p.extprocs, p.Endpoints)
	return p
}

// copiesOf returns the copies of each model, sorted by endpoint.
func copiesOf(v decide.View) map[key][]at {
	copies := make(map[key][]at)
	for _, e := range v.Endpoints {
		for _, c := range e.Copies {
			k := key{c.Pool, c.ID}
			copies[k] = append(copies[k], at{c, e.Address})
		}
	}
	return copies
}

// text formats the page.
func (p page) text() string {
	var out strings.Builder
	for _, note := range p.notes {
		out.WriteString("! " + oneLine(note) + "\n")
	}
	if p.Paused {
		out.WriteString("! control loads and unloads nothing: it cannot renew its Lease, so another control may be the leader\n")
	}
	p.writeFallbacks(&out)
	if out.Len() > 0 {
		out.WriteString("\n")
	}
	before := out.Len()
	p.writeEndpoints(&out)
	p.writeHeld(&out)
	if p.placed && out.Len() > before {
		out.WriteString("\n")
	}
	if p.placed {
		p.writePools(&out)
		p.writeModels(&out)
		p.writeVModels(&out)
	}
	p.writeConditions(&out)
	return out.String()
}

func (p page) writePools(out *strings.Builder) {
	if len(p.Pools) == 0 {
		out.WriteString("There are no pools.\n")
		return
	}
	type sums struct{ endpoints, ready, models, placed, loaded, queued int }
	of := make(map[string]*sums)
	for _, q := range p.Pools {
		of[q.Name] = new(sums)
	}
	for _, e := range p.Endpoints {
		for _, q := range e.Pools {
			if s := of[q]; s != nil {
				s.endpoints++
				if e.State == decide.Ready {
					s.ready++
				}
			}
		}
	}
	for _, m := range p.Models {
		s := of[m.Pool]
		if s == nil {
			continue
		}
		s.models++
		s.queued += m.Queued
		if n := p.loaded(m); n > 0 {
			s.placed++
			s.loaded += n
		}
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "POOL\tENDPOINTS READY\tMODELS LOADED\tCOPIES LOADED\tFREE\tWARM WINDOW\tQUEUED REQUESTS")
	for _, q := range p.Pools {
		s := of[q.Name]
		fmt.Fprintf(t, "%s\t%d of %d\t%d of %d\t%d\t%.0f %%\t%s\t%d\n", q.Name, s.ready, s.endpoints, s.placed, s.models, s.loaded,
			math.Floor(100*q.Free), warmWindow(q), s.queued)
	}
	_ = t.Flush() // a write to memory does not fail
	if len(p.models) > 0 || p.endpoint != "" {
		out.WriteString("(counts cover the selection only; FREE and WARM WINDOW cover the whole pool)\n")
	}
}

// warmWindow formats the warm window of a pool.
func warmWindow(q decide.PoolView) string {
	if q.WarmWindowSeconds == nil {
		return "all"
	}
	return (time.Duration(*q.WarmWindowSeconds) * time.Second).String()
}

func state(e decide.EndpointView) string {
	return e.State.String()
}

// stateReasons explain the states of endpoints that are not ready.
var stateReasons = map[decide.EndpointState]string{
	decide.Starting:    "control has not scraped it yet",
	decide.Silent:      "it accepts connections but does not answer: control loads nothing there until it does",
	decide.Down:        "it refused a connection: control does not use its copies until it answers",
	decide.Doubtful:    "it may have restarted and lost its models: control cannot check before a request needs one",
	decide.Terminating: "its pod is being deleted: control neither loads nor unloads models there",
	decide.Migrating:   "its pod is being deleted: its models serve until other endpoints have copies; control neither loads nor unloads models there",
	decide.Stopping:    "its engine reports that it is stopping: control neither loads nor unloads models there",
	decide.Unready:     "its pod is not ready: control neither loads models there nor uses its copies",
	decide.OnTrial:     "its pod becomes ready when models that are loaded elsewhere are loaded there too; kubectl describe pod shows the progress",
}

// why explains what limits an endpoint; empty if nothing does.
func why(e decide.EndpointView) string {
	var all []string
	switch words := stateReasons[e.State]; {
	case e.Drained && e.State == decide.Migrating:
		all = append(all, "headgate drain takes it out of use: its models serve until other endpoints have copies")
	case e.Drained && e.State == decide.Terminating:
		all = append(all, "headgate drain took it out of use: stop its engine, or run headgate drain --undo "+e.Address)
	case words != "":
		all = append(all, words)
	}
	if e.Fault != "" {
		all = append(all, "last scrape: "+oneLine(e.Fault))
	}
	if e.Static {
		all = append(all, "its engine cannot load models at run time")
	}
	if e.GPUAdapters > 0 && e.GPUBusy > float64(e.GPUAdapters) {
		all = append(all,
			fmt.Sprintf("on average %.1f adapters have requests at the same time, but the GPU has %d adapter slots: some requests wait for a slot",
				e.GPUBusy,
				e.GPUAdapters))
	}
	if e.HostAdapters > 0 && e.HostUsed > e.HostAdapters {
		all = append(all, fmt.Sprintf("%d adapters are in use, but host memory has room for %d: the engine rereads some from storage",
			e.HostUsed, e.HostAdapters))
	}
	if e.LeakedBytes > 0 {
		all = append(all, size(e.LeakedBytes)+" are still in use by models that could not be unloaded")
	}
	return strings.Join(all, "; ")
}

// used formats how much of an endpoint its models use.
func used(e decide.EndpointView) string {
	var all []string
	if e.Slots > 0 {
		all = append(all, fmt.Sprintf("%d of %d adapter slots", e.Models, e.Slots))
	}
	if e.UsableBytes > 0 {
		all = append(all, size(e.UsedBytes)+" of "+size(e.UsableBytes))
	}
	return strings.Join(all, ", ")
}

func loads(e decide.EndpointView) string {
	if e.Loads == 0 && e.Loading == 0 {
		return ""
	}
	if e.Loads == 0 {
		return strconv.Itoa(e.Loading)
	}
	return fmt.Sprintf("%d of %d", e.Loading, e.Loads)
}

// writeCopies prints the copies of an endpoint by state, loaded ones last.
func (p page) writeCopies(out *strings.Builder, e decide.EndpointView) {
	for _, state := range []decide.CopyState{decide.Loading, decide.Queued, decide.Draining, decide.Unloading, decide.Loaded} {
		var some []string
		n := 0
		for _, c := range e.Copies {
			if c.State != state {
				continue
			}
			if n++; n <= maxCopies || p.all {
				some = append(some, p.copy(e, c))
			}
		}
		if n == 0 {
			continue
		}
		if n > len(some) {
			some = append(some, fmt.Sprintf("and %d more", n-len(some)))
		}
		fmt.Fprintf(out, "  %-9s  %s\n", state, strings.Join(some, ", "))
	}
}

// copy formats a copy at an endpoint.
func (p page) copy(e decide.EndpointView, c decide.CopyView) string {
	text := display.Name(c.ID)
	if len(e.Pools) > 1 {
		text += " of " + c.Pool
	}
	about := p.about(c)
	if len(about) == 0 {
		return text
	}
	return text + " (" + strings.Join(about, ", ") + ")"
}

// about describes a copy. For a copy that is not loaded, it says since when, and for what the copy
// is loaded. It also gives the number of requests in flight.
func (p page) about(c decide.CopyView) (about []string) {
	if c.State != decide.Loaded {
		about = append(about, p.ago(c.Since))
	}
	switch coming := c.State == decide.Loading || c.State == decide.Queued; {
	case c.Doomed:
		about = append(about, "unloads when loaded")
	case coming && c.For != "":
		about = append(about, "for "+c.For)
	}
	if c.Misplaced {
		about = append(about, "violates its constraints")
	}
	if c.InFlight > 0 {
		about = append(about, fmt.Sprintf("%d in flight", c.InFlight))
	}
	return about
}

func (p page) writeModels(out *strings.Builder) {
	var all []decide.ModelView
	for _, m := range p.Models {
		if len(p.models) > 0 || p.short(m) {
			all = append(all, m)
		}
	}
	if len(all) == 0 {
		out.WriteString("\nNo model is short of copies.\n")
		return
	}
	// The model whose requests have waited longest is first. Models without queued requests are
	// last; of these, those with a reason are first.
	slices.SortStableFunc(all, func(a, b decide.ModelView) int {
		return cmp.Or(queuedSince(a).Compare(queuedSince(b)), -cmp.Compare(a.Reason, b.Reason))
	})
	shown := all
	if !p.all && len(p.models) == 0 && len(all) > maxRows {
		shown = all[:maxRows]
	}
	if len(p.models) > 0 {
		out.WriteString("\nMODELS\n")
	} else {
		out.WriteString("\nMODELS SHORT OF COPIES\n")
	}
	for _, m := range shown {
		p.writeModel(out, m)
	}
	if n := len(all) - len(shown); n > 0 {
		fmt.Fprintf(out, "and %d more models; --all shows them\n", n)
	}
}

// writeVModels prints the VModels that do not serve their target, or all if models were selected.
func (p page) writeVModels(out *strings.Builder) {
	var lines []string
	for _, v := range p.VModels {
		if len(p.models) > 0 || v.Reason != v1alpha1.ReasonDefined {
			lines = append(lines, fmt.Sprintf("%s of %s: %s (%s)\n", display.Name(v.ID), v.Pool, oneLine(v.Message), v.Reason))
		}
	}
	if len(lines) == 0 {
		return
	}
	if len(p.models) > 0 {
		out.WriteString("\nVMODELS\n")
	} else {
		out.WriteString("\nVMODELS THAT DO NOT SERVE THEIR TARGET\n")
	}
	shown := lines
	if !p.all && len(p.models) == 0 && len(lines) > maxRows {
		shown = lines[:maxRows]
	}
	out.WriteString(strings.Join(shown, ""))
	if n := len(lines) - len(shown); n > 0 {
		fmt.Fprintf(out, "and %d more VModels; --all shows them\n", n)
	}
}

// queuedSince returns since when requests are queued for a model; far in the future if none is.
func queuedSince(m decide.ModelView) time.Time {
	if !m.Since.IsZero() {
		return m.Since
	}
	return time.Unix(math.MaxInt32, 0)
}

// short reports whether a model has too few copies.
func (p page) short(m decide.ModelView) bool {
	return m.Queued > 0 || m.Reason != "" || p.loaded(m) < m.Least
}

// loaded counts the loaded copies of a model.
func (p page) loaded(m decide.ModelView) (n int) {
	for _, c := range p.copies[key{m.Pool, m.ID}] {
		if c.State == decide.Loaded {
			n++
		}
	}
	return n
}

func (p page) writeModel(out *strings.Builder, m decide.ModelView) {
	loaded := p.loaded(m)
	fmt.Fprintf(out, "%s of %s: ", display.Name(m.ID), m.Pool)
	fmt.Fprintf(out, "%d loaded", loaded)
	if m.Least > 0 {
		fmt.Fprintf(out, " of at least %d", m.Least)
	}
	if m.Queued > 0 {
		fmt.Fprintf(out, ", %s queued", display.Count(m.Queued, "request"))
		if !m.Since.IsZero() {
			out.WriteString(" for " + p.ago(m.Since))
		}
	}
	out.WriteString("\n")
	if m.Message != "" {
		fmt.Fprintf(out, "  %s (%s)\n", m.Message, m.Reason)
	}
	for _, c := range p.copies[key{m.Pool, m.ID}] {
		about := p.about(c.CopyView)
		if c.State == decide.Loaded {
			if len(p.models) == 0 {
				continue
			}
			about = slices.Insert(about, 0, p.ago(c.Since))
		}
		fmt.Fprintf(out, "  %s at %s (%s)\n", c.State, c.endpoint, strings.Join(about, ", "))
	}
	for _, f := range m.Failures {
		fmt.Fprintf(out, "  failed at %s %s ago; next attempt in %s: %s\n", f.Endpoint, p.ago(f.At), age(f.Until.Sub(p.At)),
			oneLine(f.Message))
	}
	if l := m.Last; l != nil && !isFailure(m, *l) {
		fmt.Fprintf(out, "  last call: %s at %s %s ago, took %s: %s\n", l.Call, l.Endpoint, p.ago(l.At), age(seconds(l.Seconds)),
			cmp.Or(oneLine(l.Error), "done"))
	}
}

// isFailure reports whether the result of a call is among the failures of its model.
func isFailure(m decide.ModelView, a decide.CallResult) bool {
	return slices.ContainsFunc(m.Failures, func(f decide.FailureView) bool { return f.Endpoint == a.Endpoint && f.Message == a.Error })
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// ago formats the time since t.
func (p page) ago(t time.Time) string { return age(p.At.Sub(t)) }

// age formats a duration, less precisely if it is long.
func age(d time.Duration) string {
	step := time.Minute
	switch d = max(0, d); {
	case d < time.Second:
		step = time.Millisecond
	case d < 10*time.Second:
		step = 100 * time.Millisecond
	case d < time.Hour:
		step = time.Second
	}
	text := d.Round(step).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	return text
}

// size formats a number of bytes.
func size(bytes int64) string {
	value, unit := float64(bytes), ""
	for _, next := range []string{"Ki", "Mi", "Gi", "Ti"} {
		if value < 1024 {
			break
		}
		value, unit = value/1024, next
	}
	if value < 10 && unit != "" {
		return strconv.FormatFloat(value, 'f', 1, 64) + unit
	}
	return strconv.FormatFloat(value, 'f', 0, 64) + unit
}

// oneLine formats an engine's message on one line of limited length.
func oneLine(text string) string { return display.Cut(display.Line(text), maxMessage) }
