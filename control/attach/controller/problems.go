package controller

import (
	"slices"

	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/objects"
)

// problems lists the errors in the objects of plans, in order. Each contains the object's file and
// line if where returns them. It omits resources that Envoys reject. It does no I/O.
func problems(plans *plan.Plans, where func(kind string, name objects.Name) string) []string {
	var all []string
	for _, f := range plans.Faults() {
		all = append(all, f.String(func(of objects.Object) string { return where(of.Kind, of.Name) }))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// note logs the problems that are new.
func (d *Controller) note(all []string) {
	for _, p := range all {
		if _, known := slices.BinarySearch(d.problems, p); !known {
			d.Log.Warn("objects have a problem", "problem", p)
		}
	}
	d.problems = all
}
