package status

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/display"
)

// width is the number of columns that the table of endpoints fits into.
const width = 120

// row is one endpoint of one pool.
type row struct {
	pool, address string
	seen          []sight // as each extproc sees it
	placed        *decide.EndpointView
}

// sight is an endpoint as one extproc sees it.
type sight struct {
	extproc string
	admin.Endpoint
}

// ranks are the states from worst to best. States that are missing are worse.
var ranks = []string{"out", "lost", "stale", "suspect", "migrating", "healthy"}

// worst returns the sight with the worst state; the oldest if several have it. The row must have a
// sight.
func (r row) worst() sight {
	return slices.MinFunc(r.seen, func(a, b sight) int {
		return cmp.Or(cmp.Compare(slices.Index(ranks, a.State), slices.Index(ranks, b.State)), a.Since.Compare(b.Since))
	})
}

// rank sorts rows: endpoints that serve are last.
func (r row) rank() int {
	switch {
	case len(r.seen) > 0:
		return slices.Index(ranks, r.worst().State)
	case r.placed != nil && r.placed.State == decide.Ready:
		return len(ranks)
	}
	return 0
}

// rowsOf joins what extprocs and control know, sorted by pool, state and address. An endpoint that
// no extproc has is in one row for all its pools.
func rowsOf(extprocs []Extproc, placed []decide.EndpointView) (rows []row) {
	type id struct{ pool, address string }
	all, known := make(map[id]*row), make(map[string]bool)
	for _, x := range extprocs {
		for _, e := range x.Endpoints {
			k := id{e.Pool, e.Address}
			if all[k] == nil {
				all[k] = &row{pool: e.Pool, address: e.Address}
			}
			all[k].seen, known[e.Address] = append(all[k].seen, sight{x.Name, e}), true
		}
	}
	for i, e := range placed {
		if !known[e.Address] {
			pools := strings.Join(e.Pools, ", ")
			all[id{pools, e.Address}] = &row{pool: pools, address: e.Address}
		}
		for _, r := range all {
			if r.address == e.Address {
				r.placed = &placed[i]
			}
		}
	}
	for _, r := range all {
		rows = append(rows, *r)
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.pool, b.pool), cmp.Compare(a.address, b.address))
	})
	return rows
}

// writeFallbacks prints which extprocs hear nothing of control, and the pools whose policy is not
// in force.
func (p page) writeFallbacks(out *strings.Builder) {
	for _, x := range p.extprocs {
		by := ""
		if len(p.extprocs) > 1 {
			by = "at " + x.Name + ", "
		}
		if x.ControlLost {
			fmt.Fprintf(out, "! %scontrol is silent: requests whose model is not loaded get 503 control_unavailable\n", by)
		}
		for _, q := range x.Pools {
			if q.Waiting != "" {
				fmt.Fprintf(out, "! %spolicy latency of %s waits for measurements (%s): policy proposal decides\n", by, q.Name, q.Waiting)
			}
			if q.FailOpen {
				fmt.Fprintf(out, "! %smost endpoints of %s look unhealthy: all that are not out get requests\n", by, q.Name)
			}
		}
	}
}

func (p page) writeEndpoints(out *strings.Builder) {
	if len(p.rows) == 0 {
		if len(p.models) == 0 {
			out.WriteString("There are no endpoints: check the selector of the InferencePool, or the EndpointList.\n")
		}
		return
	}
	shown := p.rows
	if !p.all && len(shown) > maxRows {
		shown = shown[:maxRows]
	}
	// Format the columns of all endpoints first, so that they align although other lines are
	// printed between them. Columns that are empty in every row are left out.
	table := [][]string{{"ENDPOINT", "STATE", "FOR", "ENGINE", "FLIGHT", "RUN", "WAIT", "KV", "SLOTS", "1ST TOKEN", "LAST ERROR"}}
	several := slices.ContainsFunc(p.rows, func(r row) bool { return r.pool != p.rows[0].pool })
	for _, r := range shown {
		table = append(table, p.columns(r))
	}
	lines := align(table)
	out.WriteString(lines[0] + "\n")
	for i, r := range shown {
		out.WriteString(lines[i+1] + "\n")
		p.writeDetails(out, r, several)
	}
	if n := len(p.rows) - len(shown); n > 0 {
		fmt.Fprintf(out, "and %d more endpoints; --all shows them\n", n)
	}
	p.writeTotals(out)
}

// align formats a table without its empty columns.
func align(table [][]string) []string {
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, cells := range table {
		var used []string
		for i, cell := range cells {
			if slices.ContainsFunc(table[1:], func(of []string) bool { return of[i] != "" }) {
				used = append(used, cmp.Or(cell, "-"))
			}
		}
		fmt.Fprintln(t, strings.Join(used, "\t"))
	}
	_ = t.Flush() // a write to memory does not fail
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	for i, line := range lines {
		lines[i] = cut(line, width)
	}
	return lines
}

// cut shortens a line to n characters.
func cut(line string, n int) string {
	if utf8.RuneCountInString(line) <= n {
		return line
	}
	return strings.TrimRight(string([]rune(line)[:n-1]), " ") + "…"
}

// columns returns the columns of an endpoint; unknown ones are empty.
func (p page) columns(r row) []string {
	cells := make([]string, 11)
	cells[0] = r.address
	if v := r.placed; v != nil {
		cells[1], cells[3], cells[4] = state(*v), v.Engine, strconv.Itoa(v.InFlight)
	}
	if len(r.seen) == 0 {
		return cells
	}
	w := r.worst()
	cells[1], cells[2] = shownState(w.State), p.ago(w.Since)
	cells[3] = cmp.Or(w.Engine, cells[3])
	var flight, active int64
	var latest *admin.EndpointError
	for _, s := range r.seen {
		flight, active = flight+s.InFlight, max(active, s.ActiveAdapters)
		if s.LastError != nil && (latest == nil || s.LastError.At.After(latest.At)) {
			latest = s.LastError
		}
	}
	cells[4] = strconv.FormatInt(flight, 10)
	cells[5], cells[6], cells[7] = count(w.Running, 1, ""), count(w.Waiting, 1, ""), count(w.KVUse, 100, " %")
	if w.Slots > 0 {
		cells[8] = fmt.Sprintf("%d/%d", active, w.Slots)
	}
	if w.FirstTokenSeconds != nil {
		cells[9] = age(seconds(*w.FirstTokenSeconds))
	}
	if latest != nil {
		cells[10] = p.lastError(*latest)
	}
	return cells
}

// shownState is the word for a state of the picker.
func shownState(state string) string {
	if state == "migrating" {
		return "draining"
	}
	return state
}

func count(n *float64, times float64, unit string) string {
	if n == nil {
		return ""
	}
	return strconv.FormatFloat(math.Round(*n*times), 'f', 0, 64) + unit
}

// lastError formats an error: "5s ago 500 server_error".
func (p page) lastError(e admin.EndpointError) string {
	words := []string{p.ago(e.At), "ago"}
	if e.Status != 0 {
		words = append(words, strconv.Itoa(e.Status))
	}
	kind := e.Kind
	if e.Status >= 500 && e.Kind == "error" {
		kind = ""
	}
	for _, word := range []string{kind, e.Type, e.Code} {
		if word != "" && !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	return strings.Join(words, " ")
}

// advice says why an endpoint is in its state, and what to do, by the reason that extproc gives.
var advice = map[string]string{
	"not_ready":          "its pod is not ready: kubectl describe pod shows why",
	"terminating":        "its pod is being deleted, or it is drained",
	"engine_stopping":    "its engine answered that it is stopping: it returns when the next engine answers",
	"engine_asleep":      "its engine sleeps (vLLM's sleep mode): wake it up, or remove the endpoint",
	"connection_refused": "it refuses connections: start the engine, or correct the address",
	"never_answered":     "it has not answered yet: check that the engine runs, and the address, token and TLS of the endpoint",
	"scrapes_unanswered": "it accepts connections but does not answer: the engine hangs or is overloaded; look into its log, and restart it if it hangs",
	"node_silent":        "its node does not report to Kubernetes: kubectl get nodes",
	"connection_reset":   "it broke a connection, and has not answered since: look into the engine's log",
	"requests_fail":      "a request failed there: LAST ERROR says how; look into the engine's log",
	"queue_full":         "its queue is full: add endpoints, or lower the load",
}

// writeDetails prints the lines below an endpoint: why it does not serve, and its models.
func (p page) writeDetails(out *strings.Builder, r row, several bool) {
	disagree := false
	if len(r.seen) > 0 {
		w := r.worst()
		for _, s := range r.seen {
			disagree = disagree || s.State != w.State
		}
		if drained := r.placed != nil && r.placed.Drained; w.Reason != "" && !disagree && (w.Reason != "terminating" || !drained) {
			out.WriteString("  " + cmp.Or(advice[w.Reason], w.Reason) + "\n")
		}
		if disagree {
			for _, s := range r.seen {
				fmt.Fprintf(out, "  %s at %s for %s", shownState(s.State), s.extproc, p.ago(s.Since))
				if s.Reason != "" {
					out.WriteString(": " + cmp.Or(advice[s.Reason], s.Reason))
				}
				out.WriteString("\n")
			}
		}
	}
	if r.placed != nil {
		v := *r.placed
		tells := len(r.seen) == 0 || v.State == decide.Ready || v.Drained || r.worst().State == "healthy" // more than extproc
		if why := why(v); why != "" && tells {
			out.WriteString("  " + why + "\n")
		}
	}
	if about := r.about(several); about != "" {
		out.WriteString("  " + about + "\n")
	}
	if len(r.seen) > 0 {
		if w := r.worst(); len(w.Base) > 0 {
			fmt.Fprintf(out, "  %-9s  %s\n", "base", strings.Join(quoted(w.Base), ", "))
		}
	}
	if r.placed != nil {
		p.writeCopies(out, *r.placed)
		return
	}
	if len(r.seen) > 0 {
		p.writeAdapters(out, r.worst())
	}
}

// about returns the endpoint's pool, pod and room.
func (r row) about(several bool) string {
	var all []string
	if several {
		all = append(all, "pool "+r.pool)
	}
	owner, listed := "", false
	if len(r.seen) > 0 {
		owner, listed = r.seen[0].Pod, r.seen[0].Listed
	}
	if v := r.placed; v != nil && owner == "" {
		owner, listed = v.Pod, v.Listed
	}
	switch {
	case owner != "" && listed:
		all = append(all, "EndpointList "+owner)
	case owner != "":
		all = append(all, "pod "+owner)
	}
	if v := r.placed; v != nil {
		if room := used(*v); room != "" {
			all = append(all, room)
		}
		if now := loads(*v); now != "" {
			all = append(all, now+" loads")
		}
	}
	return strings.Join(all, ", ")
}

func quoted(names []string) (all []string) {
	for _, n := range names {
		all = append(all, display.Name(n))
	}
	return all
}

// writeAdapters prints the adapters that an engine serves.
func (p page) writeAdapters(out *strings.Builder, s sight) {
	most := len(s.Adapters)
	if !p.all {
		most = min(most, maxCopies)
	}
	var all []string
	for _, a := range s.Adapters[:most] {
		text := display.Name(a.Name)
		if a.InFlight > 0 {
			text += fmt.Sprintf(" (%d in flight)", a.InFlight)
		}
		all = append(all, text)
	}
	if more := s.AdapterCount - most; more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	if len(all) > 0 {
		fmt.Fprintf(out, "  %-9s  %s\n", "adapters", strings.Join(all, ", "))
	}
}

// writeTotals prints one line about all endpoints.
func (p page) writeTotals(out *strings.Builder) {
	states, order := make(map[string]int), []string{"healthy", "draining", "suspect", "stale", "lost", "out"}
	var flight int64
	var waiting float64
	for _, r := range p.rows {
		is := ""
		if len(r.seen) > 0 {
			is = shownState(r.worst().State)
			if r.seen[0].Waiting != nil {
				waiting += *r.seen[0].Waiting
			}
		} else if is = r.placed.State.String(); r.placed.State == decide.Ready {
			is = "ready"
		}
		if states[is]++; !slices.Contains(order, is) {
			order = append(order, is)
		}
		for _, s := range r.seen {
			flight += s.InFlight
		}
		if len(r.seen) == 0 {
			flight += int64(r.placed.InFlight)
		}
	}
	var words []string
	for _, is := range order {
		if n := states[is]; n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, is))
		}
	}
	fmt.Fprintf(out, "%s: %s; %s in flight, %.0f waiting in engines\n", display.Count(len(p.rows), "endpoint"), strings.Join(words, ", "),
		display.Count(int(flight), "request"), waiting)
}

// writeConditions prints the conditions that are False.
func (p page) writeConditions(out *strings.Builder) {
	if len(p.conditions) == 0 || len(p.models) > 0 || p.endpoint != "" {
		return
	}
	out.WriteString("\nCONDITIONS THAT ARE FALSE\n")
	merged := admin.Merge(p.conditions)
	shown := merged
	if !p.all && len(shown) > maxRows {
		shown = shown[:maxRows]
	}
	for _, c := range shown {
		of := ""
		if c.Of != "" {
			of = " (" + c.Of + ")"
		}
		fmt.Fprintf(out, "%s %s%s: %s: %s\n  %s\n", c.Kind, display.Some(c.Names), of, strings.Join(c.Types, " and "), c.Reason, oneLine(c.Message))
	}
	if n := len(merged) - len(shown); n > 0 {
		fmt.Fprintf(out, "and %d more; --all shows them\n", n)
	}
}
