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

// Seconds is a time for people, to three digits.
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

// Text is the answer for people.
func (a *Answer) Text() string {
	var out bytes.Buffer
	if !a.Found {
		a.none(&out)
		fmt.Fprintf(&out, "The %s planner ran %d simulations.\n", a.Planner, a.Simulations)
		return out.String()
	}
	replicas, note := 0, ""
	for _, s := range a.Stages {
		replicas += s.Replicas
		if s.Changes != "" {
			note = " to begin with"
		}
	}
	fmt.Fprintf(&out, "%s: %d replicas%s for %.4g an hour.%s\n\n", a.Name, replicas, note, a.Cost, a.sure())
	if a.Beyond != "" {
		fmt.Fprintf(&out, "It is not within bounds: %s.\n\n", a.Beyond)
	}
	if len(a.Overloaded) > 0 {
		fmt.Fprintf(&out, "It does not keep up: %s. Queries wait longer and longer, and a longer trace would show it.\n\n", strings.Join(a.Overloaded, ", and "))
	}
	if len(a.Extrapolated) > 0 {
		fmt.Fprintf(&out, "Its times are extrapolated: %s. Measure such prompts too: control profile --inputs.\n\n", strings.Join(a.Extrapolated, ", and "))
	}
	a.stages(&out)
	fmt.Fprintln(&out)
	a.times(&out)
	share, of := a.Planned.nearest()
	fmt.Fprintf(&out, "\nThe %s takes %.0f %% of what it may", of, 100*share)
	if a.Tested != nil {
		share, of = a.Tested.nearest()
		fmt.Fprintf(&out, ", and in the test the %s %.0f %%", of, 100*share)
	}
	fmt.Fprintln(&out, ".")
	if len(a.Cheaper) > 0 {
		fmt.Fprintln(&out, map[bool]string{false: "\nWhy not cheaper:", true: "\nWhy not cheaper, as far as it was tried:"}[a.Partial])
		a.cheaper(&out)
	}
	if a.Simulations > 0 {
		fmt.Fprintf(&out, "The %s planner ran %d simulations.\n", a.Planner, a.Simulations)
	}
	return out.String()
}

// sure says whether there may be cheaper plans, as far as that is known.
func (a *Answer) sure() string {
	switch {
	case a.Optimal:
		return " Nothing is cheaper: all that is was tried."
	case a.Stopped:
		return " The search was stopped: there may be cheaper plans."
	}
	return ""
}

// none says that there is no plan, why, and what would do.
func (a *Answer) none(out *bytes.Buffer) {
	if a.Stopped {
		fmt.Fprintf(out, "%s: %s.\n", a.Name, a.Why[0])
	} else {
		fmt.Fprintf(out, "%s: there is no plan: %s.\n", a.Name, a.Why[0])
	}
	for _, why := range a.Why[1:] {
		fmt.Fprintln(out, why)
	}
}

// nearest is by what share of its time the objective is kept that is nearest to being missed.
func (t *Times) nearest() (share float64, of string) {
	for _, o := range t.Objectives {
		if is := o.Takes / o.Within; is > share {
			share, of = is, o.Of
		}
	}
	return share, of
}

func (a *Answer) stages(out *bytes.Buffer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STAGE\tHARDWARE\tREPLICAS\tBATCH\tCOST\tBUSY\tIN QUEUE\tBATCH FILLS\tCOMPUTED\tP50\tP99")
	for _, s := range a.Stages {
		hardware := s.Hardware
		if s.Units > 1 {
			hardware = fmt.Sprintf("%d x %s", s.Units, s.Hardware)
		}
		fmt.Fprintf(w, "%s\t%s\t%d%s\t%d\t%.4g\t%.0f %%\t%s\t%s\t%s\t%s\t%s\n", s.Name, hardware, s.Replicas, s.Changes, s.Batch, s.Cost, 100*s.Busy,
			Seconds(s.Queue), Seconds(s.Fill), Seconds(s.Compute), Seconds(s.Latency.P50), Seconds(s.Latency.P99))
	}
	_ = w.Flush()
}

func (a *Answer) times(out *bytes.Buffer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\tQUERIES\tRATE\tCV\tTIME\tMEAN\tP50\tP90\tP99\tOBJECTIVE\tMISSED")
	for _, t := range []struct {
		by string
		*Times
	}{{"planned on ", a.Planned}, {"tested on ", a.Tested}} {
		if t.Times == nil {
			continue
		}
		by := t.by + t.Trace
		rows := []struct {
			of string
			*Percentiles
		}{{"latency", &t.Latency}, {"time to first token", t.FirstToken}, {"time per token", t.PerToken}}
		for i, r := range rows {
			if r.Percentiles == nil {
				continue
			}
			if i == 0 {
				fmt.Fprintf(w, "%s\t%d\t%.4g/s\t%.2g", by, t.Queries, t.Rate, t.CV)
			} else {
				fmt.Fprint(w, "\t\t\t")
			}
			fmt.Fprintf(w, "\t%s\t%s\t%s\t%s\t%s", r.of, Seconds(r.Mean), Seconds(r.P50), Seconds(r.P90), Seconds(r.P99))
			objectives, missed := []string{}, []string{}
			for _, o := range t.Objectives {
				if o.Of == r.of {
					objectives = append(objectives, fmt.Sprintf("%s for %.4g %%", Seconds(o.Within), 100*o.Quantile))
					missed = append(missed, o.missed(t.Queries))
				}
			}
			fmt.Fprintf(w, "\t%s\t%s\n", strings.Join(objectives, ", "), strings.Join(missed, ", "))
		}
	}
	_ = w.Flush()
}

// missed is what share of queries took longer than they may, and of how many that is where not all of so many have such a time.
func (o *Kept) missed(queries int) string {
	if o.Queries == 0 {
		return "no query has it"
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

func (a *Answer) cheaper(out *bytes.Buffer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STEP\tCOST\tOBJECTIVES TAKE")
	for _, t := range a.Cheaper {
		var takes []string
		for i, o := range a.Planned.Objectives {
			takes = append(takes, fmt.Sprintf("%s of %s", Seconds(t.Takes[i]), Seconds(o.Within)))
		}
		note := ""
		switch {
		case t.Keeps:
			note = " (kept)"
		case t.Overloaded:
			note = " (too little room for the queries)"
		}
		fmt.Fprintf(w, "%s\t%.4g\t%s%s\n", t.By, t.Cost, strings.Join(takes, ", "), note)
	}
	_ = w.Flush()
}

// Compare says how b differs from a: what it costs, what each stage has, and what is kept. Where one of them is no plan it tells both, one after the
// other.
func Compare(a, b *Answer) string {
	var out bytes.Buffer
	if !a.Found || !b.Found {
		return a.Text() + "\n" + b.Text()
	}
	fmt.Fprintf(&out, "%s costs %.4g an hour, %s %.4g", a.Name, a.Cost, b.Name, b.Cost)
	if a.Cost > 0 {
		fmt.Fprintf(&out, ": %+.1f %%", 100*(b.Cost/a.Cost-1))
	}
	fmt.Fprint(&out, ".\n")
	for _, is := range []*Answer{a, b} {
		if is.Beyond != "" {
			fmt.Fprintf(&out, "%s is not within bounds: %s.\n", is.Name, is.Beyond)
		}
		if len(is.Overloaded) > 0 {
			fmt.Fprintf(&out, "%s does not keep up: %s.\n", is.Name, strings.Join(is.Overloaded, ", and "))
		}
	}
	fmt.Fprintln(&out)
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "STAGE\t%s\t%s\tCHANGE\n", a.Name, b.Name)
	have := func(s *Stage) string {
		if s == nil {
			return "-"
		}
		return fmt.Sprintf("%d%s x %s, batches of %d", s.Replicas, s.Changes, s.Hardware, s.Batch)
	}
	for _, pair := range paired(a.Stages, b.Stages) {
		name := pair[0]
		if name == nil {
			name = pair[1]
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", name.Name, have(pair[0]), have(pair[1]), change(pair[0], pair[1]))
	}
	for _, o := range a.Planned.Objectives {
		i := slices.IndexFunc(b.Planned.Objectives, func(of Kept) bool { return of.Of == o.Of && of.Quantile == o.Quantile })
		if i < 0 {
			continue
		}
		of := b.Planned.Objectives[i]
		fmt.Fprintf(w, "%s\t%s of %s\t%s of %s\t\n", o.Of, Seconds(o.Takes), Seconds(o.Within), Seconds(of.Takes), Seconds(of.Within))
		fmt.Fprintf(w, "missed\t%.2f %%\t%.2f %%\t\n", 100*o.Missed, 100*of.Missed)
	}
	_ = w.Flush()
	return out.String()
}

// paired are stages of two answers by their names; nil where one has none of a name.
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

// change is what to do to get from one to the other.
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
		all = append(all, fmt.Sprintf("have %d%s", b.Replicas, cmp.Or(b.Changes, " all the time")))
	case n > 0:
		all = append(all, fmt.Sprintf("add %d", n))
	case n < 0:
		all = append(all, fmt.Sprintf("remove %d", -n))
	}
	if a.Batch != b.Batch {
		all = append(all, fmt.Sprintf("batches of %d, not %d", b.Batch, a.Batch))
	}
	if len(all) == 0 {
		return "nothing"
	}
	return strings.Join(all, ", ")
}
