package plan

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/headgate/headgate/control/provision/planner"
	"github.com/headgate/headgate/control/provision/report"
)

// reports contains the reports that one run of "headgate plan" prints.
type reports struct {
	plan    *report.Report
	current *report.Report     // report of --current; nil if not set
	config  *planner.Timetable // base of what-ifs: the current configuration, or else the plan
	// whatIf has two reports for each --what-if: first the base configuration with the changes (nil
	// if there is none), then the new plan.
	whatIf [][2]*report.Report
	// skipped lists the --what-if arguments that were not evaluated because the search was stopped.
	skipped []string
}

// text formats the reports as text.
func (a *reports) text() string {
	var out strings.Builder
	if a.current != nil {
		out.WriteString(a.current.Text() + "\n")
	}
	out.WriteString(a.plan.Text())
	if a.current != nil && a.plan.Found {
		out.WriteString("\n" + report.Compare(a.current, a.plan))
	}
	for _, pair := range a.whatIf {
		fmt.Fprintf(&out, "\nWhat if %s?\n", pair[1].Name)
		if pair[0] == nil {
			out.WriteString(pair[1].Text())
		} else {
			out.WriteString(report.Compare(pair[0], pair[1]))
		}
	}
	for _, text := range a.skipped {
		fmt.Fprintf(&out, "\nWhat if %s?\nNot evaluated: the search was stopped.\n", text)
	}
	return out.String()
}

// writeJSON writes the report of the plan as JSON, or a list if there are several reports.
func (a *reports) writeJSON(out io.Writer) error {
	var all []*report.Report
	for _, pair := range append([][2]*report.Report{{a.current, a.plan}}, a.whatIf...) {
		if pair[0] != nil {
			all = append(all, pair[0])
		}
		all = append(all, pair[1])
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	if a.current == nil && len(a.whatIf)+len(a.skipped) == 0 {
		return e.Encode(a.plan)
	}
	return e.Encode(all)
}
