package plan

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/headgate/headgate/control/provision/planner"
	"github.com/headgate/headgate/control/provision/report"
)

// answers are what is told.
type answers struct {
	plan  *report.Answer
	today *report.Answer     // of --given; else nil
	has   *planner.Timetable // what there is: what --given says, or else the plan, if there is one
	// asked are those of --what-if, in pairs: what there is would keep, nil where there is nothing, and what the plan would be.
	asked [][2]*report.Answer
	// left are the --what-if that were not looked at, for the search was stopped.
	left []string
}

// text is all for people.
func (a *answers) text() string {
	var out strings.Builder
	if a.today != nil {
		out.WriteString(a.today.Text() + "\n")
	}
	out.WriteString(a.plan.Text())
	if a.today != nil && a.plan.Found {
		out.WriteString("\n" + report.Compare(a.today, a.plan))
	}
	for _, pair := range a.asked {
		fmt.Fprintf(&out, "\nWhat if %s?\n", pair[1].Name)
		if pair[0] == nil {
			out.WriteString(pair[1].Text())
		} else {
			out.WriteString(report.Compare(pair[0], pair[1]))
		}
	}
	for _, text := range a.left {
		fmt.Fprintf(&out, "\nWhat if %s?\nThe search was stopped before that.\n", text)
	}
	return out.String()
}

// writeJSON writes the plan, or a list of all there is where more was asked for.
func (a *answers) writeJSON(out io.Writer) error {
	var all []*report.Answer
	for _, pair := range append([][2]*report.Answer{{a.today, a.plan}}, a.asked...) {
		if pair[0] != nil {
			all = append(all, pair[0])
		}
		all = append(all, pair[1])
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	if a.today == nil && len(a.asked)+len(a.left) == 0 {
		return e.Encode(a.plan)
	}
	return e.Encode(all)
}
