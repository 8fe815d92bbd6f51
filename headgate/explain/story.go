package explain

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/internal/display"
)

// story prints a decision and its outcome. By is the extproc that decided.
func story(out *strings.Builder, d *admin.Decision, by string) {
	fmt.Fprintf(out, "%s  request %s", d.Time.Local().Format("2006-01-02 15:04:05.000"), display.Name(d.Request))
	if by != "" {
		fmt.Fprintf(out, "  (extproc %s)", by)
	}
	out.WriteString("\n")
	if d.Again {
		line(out, "Again", "the relay sent the request again, because no endpoint had served it")
	}
	plan(out, &d.Plan)
	if d.Band != 0 {
		line(out, "Band", strconv.Itoa(int(d.Band)))
	}
	if d.Waited > 0 {
		line(out, "Waited", seconds(d.Waited)+why(cmp.Or(d.WaitFor, d.Reason)))
	}
	if len(d.Picks) > 0 {
		var rows [][]string
		for i := range d.Picks {
			rows = append(rows, row(place(i), &d.Picks[i]))
		}
		if d.RunnerUp != nil {
			rows = append(rows, row("runner-up", d.RunnerUp))
		}
		table(out, rows)
	}
	line(out, "Outcome", ended(d.Outcome))
	out.WriteString("\n")
}

// foretold prints how a request would be decided by an extproc.
func foretold(out *strings.Builder, r *admin.ExplainResult, by string) {
	fmt.Fprintf(out, "extproc %s would decide:\n", by)
	plan(out, &r.Plan)
	switch {
	case r.Error != nil:
		line(out, "Answer", failed(r.Error))
	case r.Waits != "":
		line(out, "Waits", r.Waits)
	case r.Answer:
		line(out, "Answer", "extproc itself answers the request")
	case len(r.Picks) == 0 && r.Relay:
		line(out, "Picks", "only extproc's relay, which sends other requests for this one")
	case len(r.Picks) > 0:
		var picks []string
		for _, p := range r.Picks {
			picks = append(picks, p.Endpoint)
		}
		line(out, "Picks", strings.Join(picks, ", then "))
	}
	var rows [][]string
	n := 0
	for i := range r.Candidates {
		c := &r.Candidates[i]
		if c.Excluded == "" {
			rows = append(rows, row(place(n), c))
			n++
			continue
		}
		rows = append(rows, []string{"-", c.Endpoint, c.State, "", load(c), "no: " + c.Excluded})
	}
	if len(rows) > 0 {
		table(out, rows)
	}
	out.WriteString("\n")
}

// line prints a line, without control characters: a client may have written parts of the text.
func line(out *strings.Builder, name, text string) {
	fmt.Fprintf(out, "  %-8s %s\n", name, display.Line(text))
}

// plan prints what is decided, without the endpoints.
func plan(out *strings.Builder, p *admin.Plan) {
	target := ""
	switch {
	case p.VModel != "" && p.Target != "":
		target = ", VModel " + display.Name(p.VModel) + ", now model " + display.Name(p.Target)
	case p.Target != "" && p.Target != p.Model:
		target = ", at engines " + display.Name(p.Target)
	}
	model := "none named"
	if p.Model != "" {
		model = display.Name(p.Model)
	}
	line(out, "Model", model+target)
	switch {
	case p.Route != "":
		line(out, "Route", p.Route+" to pool "+p.Pool)
	case p.Pool != "":
		line(out, "Route", "none; pool "+p.Pool)
	}
	switch p.Fallback {
	case "":
	case wire.BaseModelFallback:
		line(out, "Fallback", "the base model of the pool serves the request")
	default:
		line(out, "Fallback", "pool "+p.Fallback+" serves the request")
	}
	if p.Policy != "" && p.Error == nil {
		text := p.Policy
		if p.Instead != "" {
			text += ": " + p.Instead
		}
		if p.PromptTokens > 0 {
			text += "; " + display.Count(p.PromptTokens, "prompt token") + ", " + display.Count(p.OutputTokens, "answer token") + " expected"
		}
		line(out, "Policy", text)
	}
}

// place names the nth endpoint of a list.
func place(n int) string { return strconv.Itoa(n + 1) }

// row returns the columns of a candidate.
func row(place string, c *admin.Candidate) []string {
	first := ""
	if c.Seconds != nil {
		first = "first token in " + seconds(*c.Seconds)
	}
	why := c.Reason + terms(c)
	if c.NoRoom != "" {
		why += "; only for retries: " + c.NoRoom
	}
	return []string{place, c.Endpoint, c.State, first, load(c), why}
}

// load describes the requests at an endpoint.
func load(c *admin.Candidate) string {
	if c.State == "" {
		return "" // an access log does not have it
	}
	text := display.Count(int(c.Requests), "other request")
	if c.AdapterRequests != nil {
		text += fmt.Sprintf(", %d for the adapter", *c.AdapterRequests)
	}
	return text
}

// terms describes the terms of policy latency.
func terms(c *admin.Candidate) string {
	t := c.Terms
	if t == nil {
		return ""
	}
	var parts []string
	for _, p := range []struct {
		name  string
		value float64
	}{
		{"overhead", t.FrontendOverhead}, {"queue", t.Queue}, {"room", t.Room}, {"adapter load", t.Load}, {"prefill", t.Prefill},
	} {
		if p.value >= 0.0005 {
			parts = append(parts, p.name+" "+seconds(p.value))
		}
	}
	text := fmt.Sprintf("; cost %.3f = %.3f own + %.3f others'", t.Own+t.Others, t.Own, t.Others)
	if parts != nil {
		text += "; " + strings.Join(parts, ", ")
	}
	return text
}

func table(out *strings.Builder, rows [][]string) {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		for i := range r {
			r[i] = display.Line(r[i])
		}
		fmt.Fprintf(w, "    %s\n", strings.Join(r, "\t"))
	}
	_ = w.Flush() // a strings.Builder returns no error
	for line := range strings.Lines(text.String()) {
		out.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
}

// ended describes the outcome of a request.
func ended(o *admin.Outcome) string {
	if o == nil {
		return "none yet: the request is in flight, or its end has not been reported"
	}
	text := fmt.Sprint("status ", o.Status)
	if o.Status == 0 {
		text = "no answer"
	}
	if o.Call != "" {
		text += ", gRPC " + o.Call
	}
	if o.Failed != "" {
		text += ": the " + o.Failed + " is at fault" + why(strings.ReplaceAll(o.Why, "_", " "))
		if o.Failed == "unknown" {
			text = strings.Replace(text, "the unknown is at fault", "it is unknown who broke it off", 1)
		}
	}
	if o.Error != nil {
		text += ". " + failed(o.Error)
	}
	var tried strings.Builder
	for _, t := range o.Tried {
		tried.WriteString("; " + t.Endpoint + " " + t.Did)
	}
	text += tried.String()
	if o.Endpoint != "" {
		verb := "served by "
		if o.Failed != "" {
			verb = "last sent to "
		}
		text += "; " + verb + o.Endpoint
	}
	if o.Attempts > 1 {
		text += fmt.Sprintf(" in attempt %d", o.Attempts)
	}
	if o.FirstByte > 0 {
		text += ", first token or byte after " + seconds(o.FirstByte)
	}
	if o.Duration > 0 {
		text += ", end after " + seconds(o.Duration)
	}
	if o.PromptTokens+o.CompletionTokens > 0 {
		text += "; " + display.Count(o.PromptTokens, "prompt token") + ", " + display.Count(o.CompletionTokens, "answer token")
	}
	return text
}

// failed describes an error of extproc.
func failed(e *admin.Error) string {
	return fmt.Sprintf("extproc answers %d %s", e.Status, e.Code) + why(strings.TrimSuffix(e.Message, "."))
}

func why(text string) string {
	if text == "" {
		return ""
	}
	return ": " + text
}

// seconds formats seconds with three significant digits or so.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}
