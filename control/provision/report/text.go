package report

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Seconds formats a duration, given in seconds, with about three digits and a unit.
func Seconds(s float64) string {
	d := time.Duration(s * 1e9)
	switch {
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond / 10).String()
	}
	return d.Round(time.Millisecond).String()
}

// Text formats the report as text.
func (r *Report) Text() string {
	var out bytes.Buffer
	if !r.Found {
		r.noPlan(&out)
		fmt.Fprintf(&out, "The %s planner ran %d simulations.\n", r.Planner, r.Simulations)
		return out.String()
	}
	replicas, note := 0, ""
	for _, s := range r.Stages {
		replicas += s.Replicas
		if s.Changes != "" {
			note = " at the start"
		}
	}
	fmt.Fprintf(&out, "%s: %d replicas%s, cost %.4g per hour.%s\n\n", r.Name, replicas, note, r.Cost, r.optimality())
	if r.OutOfBounds != "" {
		fmt.Fprintf(&out, "It exceeds a bound: %s.\n\n", r.OutOfBounds)
	}
	if len(r.Overloaded) > 0 {
		fmt.Fprintf(&out, "Overloaded: %s. Queues keep growing, and latencies would be worse on a longer trace.\n\n",
			strings.Join(r.Overloaded, ", and "))
	}
	if len(r.Extrapolated) > 0 {
		fmt.Fprintf(&out, "Times are extrapolated: %s. Measure longer prompts: headgate profile --prompt-tokens.\n\n",
			strings.Join(r.Extrapolated, ", and "))
	}
	r.stages(&out)
	fmt.Fprintln(&out)
	r.times(&out)
	fmt.Fprintf(&out, "\n%s", r.Planned.tightest())
	if r.Tested != nil {
		fmt.Fprintf(&out, "; in the test, %s", r.Tested.tightest())
	}
	fmt.Fprintln(&out, ".")
	if len(r.Cheaper) > 0 {
		fmt.Fprintln(&out, map[bool]string{
			false: "\nCheaper steps:",
			true:  "\nCheaper steps (the search was stopped, so some are missing):",
		}[r.Partial])
		r.cheaper(&out)
	}
	if r.Simulations > 0 {
		fmt.Fprintf(&out, "The %s planner ran %d simulations.\n", r.Planner, r.Simulations)
	}
	return out.String()
}

// optimality returns a sentence about whether a cheaper plan may exist.
func (r *Report) optimality() string {
	switch {
	case r.Optimal:
		return " Optimal: every cheaper configuration was tried."
	case r.Stopped:
		return " The search was stopped: a cheaper plan may exist."
	}
	return ""
}

// noPlan writes why there is no plan, and what would make a plan possible.
func (r *Report) noPlan(out *bytes.Buffer) {
	if r.Stopped {
		fmt.Fprintf(out, "%s: %s.\n", r.Name, r.Reasons[0])
	} else {
		fmt.Fprintf(out, "%s: there is no plan: %s.\n", r.Name, r.Reasons[0])
	}
	for _, reason := range r.Reasons[1:] {
		fmt.Fprintln(out, reason)
	}
}

// tightest describes the objective that is closest to being missed, or is missed most.
func (t *Times) tightest() string {
	ratio, text := 0.0, ""
	for _, o := range t.Objectives {
		if is := o.Value / o.Within; is > ratio {
			ratio, text = is, fmt.Sprintf("P%.4g %s is %.0f %% of its objective", 100*o.Quantile, o.Metric, 100*is)
		}
	}
	return text
}

func (r *Report) stages(out *bytes.Buffer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STAGE\tHARDWARE\tREPLICAS\tBATCH\tCOST/H\tUTILIZATION\tQUEUE TIME\tBATCHING DELAY\tSERVICE TIME\tP50\tP99")
	for _, s := range r.Stages {
		hardware := s.Hardware
		if s.Units > 1 {
			hardware = fmt.Sprintf("%d x %s", s.Units, s.Hardware)
		}
		fmt.Fprintf(w, "%s\t%s\t%d%s\t%d\t%.4g\t%.0f %%\t%s\t%s\t%s\t%s\t%s\n", s.Name, hardware, s.Replicas, s.Changes, s.Batch, s.Cost,
			100*s.Utilization,
			Seconds(s.QueueTime), Seconds(s.BatchingDelay), Seconds(s.ServiceTime), Seconds(s.Latency.P50), Seconds(s.Latency.P99))
	}
	_ = w.Flush()
}

func (r *Report) times(out *bytes.Buffer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\tQUERIES\tRATE\tCV\tMETRIC\tMEAN\tP50\tP90\tP99\tOBJECTIVE\tMISSED")
	for _, t := range []struct {
		by string
		*Times
	}{{"planned on ", r.Planned}, {"tested on ", r.Tested}} {
		if t.Times == nil {
			continue
		}
		by := t.by + t.Trace
		rows := []struct {
			metric string
			*Percentiles
		}{{"latency", &t.Latency}, {"time to first token", t.TimeToFirstToken}, {"time per token", t.TimePerOutputToken}}
		for i, row := range rows {
			if row.Percentiles == nil {
				continue
			}
			if i == 0 {
				fmt.Fprintf(w, "%s\t%d\t%.4g/s\t%.2g", by, t.Queries, t.Rate, t.CV)
			} else {
				fmt.Fprint(w, "\t\t\t")
			}
			fmt.Fprintf(w, "\t%s\t%s\t%s\t%s\t%s", row.metric, Seconds(row.Mean), Seconds(row.P50), Seconds(row.P90), Seconds(row.P99))
			objectives, missed := []string{}, []string{}
			for _, o := range t.Objectives {
				if o.Metric == row.metric {
					objectives = append(objectives, fmt.Sprintf("%s for %.4g %%", Seconds(o.Within), 100*o.Quantile))
					missed = append(missed, o.missed(t.Queries))
				}
			}
			fmt.Fprintf(w, "\t%s\t%s\n", strings.Join(objectives, ", "), strings.Join(missed, ", "))
		}
	}
	_ = w.Flush()
}

// missed formats the share of queries that missed the objective. If only some queries have the
// metric, it adds their number.
func (o *Objective) missed(queries int) string {
	if o.Queries == 0 {
		return "no such query"
	}
	text := fmt.Sprintf("%.2f %%", 100*o.Missed)
	if o.Queries != queries {
		text += fmt.Sprintf(" of %d", o.Queries)
	}
	if o.Missed > 1-o.Quantile+1e-9 {
		text += " (too many)"
	}
	return text
}

func (r *Report) cheaper(out *bytes.Buffer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STEP\tCOST/H\tRESULT")
	for _, t := range r.Cheaper {
		var values []string
		for i, o := range r.Planned.Objectives {
			values = append(values, fmt.Sprintf("%s of %s", Seconds(t.Values[i]), Seconds(o.Within)))
		}
		note := ""
		switch {
		case t.Feasible:
			note = " (met)"
		case t.Overloaded:
			note = " (overloaded)"
		}
		fmt.Fprintf(w, "%s\t%.4g\t%s%s\n", t.Step, t.Cost, strings.Join(values, ", "), note)
	}
	_ = w.Flush()
}

// Compare describes how b differs from a in cost, stages and latencies. If a or b has no plan,
// Compare returns both reports.
func Compare(a, b *Report) string {
	var out bytes.Buffer
	if !a.Found || !b.Found {
		return a.Text() + "\n" + b.Text()
	}
	fmt.Fprintf(&out, "%s costs %.4g per hour, %s %.4g", a.Name, a.Cost, b.Name, b.Cost)
	if a.Cost > 0 {
		fmt.Fprintf(&out, ": %+.1f %%", 100*(b.Cost/a.Cost-1))
	}
	fmt.Fprint(&out, ".\n")
	for _, r := range []*Report{a, b} {
		if r.OutOfBounds != "" {
			fmt.Fprintf(&out, "%s exceeds a bound: %s.\n", r.Name, r.OutOfBounds)
		}
		if len(r.Overloaded) > 0 {
			fmt.Fprintf(&out, "%s is overloaded: %s.\n", r.Name, strings.Join(r.Overloaded, ", and "))
		}
	}
	fmt.Fprintln(&out)
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "STAGE\t%s\t%s\tCHANGE\n", a.Name, b.Name)
	setting := func(s *Stage) string {
		if s == nil {
			return "-"
		}
		return fmt.Sprintf("%d%s x %s, batch %d", s.Replicas, s.Changes, s.Hardware, s.Batch)
	}
	for _, pair := range paired(a.Stages, b.Stages) {
		name := pair[0]
		if name == nil {
			name = pair[1]
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", name.Name, setting(pair[0]), setting(pair[1]), change(pair[0], pair[1]))
	}
	for _, o := range a.Planned.Objectives {
		i := slices.IndexFunc(b.Planned.Objectives, func(of Objective) bool { return of.Metric == o.Metric && of.Quantile == o.Quantile })
		if i < 0 {
			continue
		}
		of := b.Planned.Objectives[i]
		fmt.Fprintf(w, "%s\t%s of %s\t%s of %s\t\n", o.Metric, Seconds(o.Value), Seconds(o.Within), Seconds(of.Value), Seconds(of.Within))
		fmt.Fprintf(w, "missed\t%.2f %%\t%.2f %%\t\n", 100*o.Missed, 100*of.Missed)
	}
	_ = w.Flush()
	return out.String()
}

// paired matches the stages of two reports by name. If only one report has a stage, the other
// element of the pair is nil.
func paired(a, b []Stage) (all [][2]*Stage) {
	at := make(map[string]int)
	for i := range a {
		at[a[i].Name] = len(all)
		all = append(all, [2]*Stage{&a[i], nil})
	}
	for i := range b {
		if n, ok := at[b[i].Name]; ok {
			all[n][1] = &b[i]
		} else {
			all = append(all, [2]*Stage{nil, &b[i]})
		}
	}
	return all
}

// change describes how the setting of a stage changes from a to b.
func change(a, b *Stage) string {
	switch {
	case a == nil:
		return "add the stage"
	case b == nil:
		return "remove the stage"
	}
	var all []string
	if a.Hardware != b.Hardware {
		all = append(all, fmt.Sprintf("move from %s to %s", a.Hardware, b.Hardware))
	}
	switch n := b.Replicas - a.Replicas; {
	case a.Changes != b.Changes:
		all = append(all, fmt.Sprintf("run %d%s", b.Replicas, cmp.Or(b.Changes, " throughout")))
	case n > 0:
		all = append(all, fmt.Sprintf("add %d", n))
	case n < 0:
		all = append(all, fmt.Sprintf("remove %d", -n))
	}
	if a.Batch != b.Batch {
		all = append(all, fmt.Sprintf("batch %d instead of %d", b.Batch, a.Batch))
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}
