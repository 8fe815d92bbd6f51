package configdump

import (
	"slices"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// notes returns which of a route's settings for a shared pool have no effect, and why.
func notes(w *objects.World, r *objects.Route) (all []string) {
	is := r.Sharing.Or()
	if is.Shed && !slices.ContainsFunc(r.Objectives, func(o v1alpha1.Objective) bool { return o.Type == v1alpha1.TimeToFirstToken }) {
		all = append(all, "late requests are shed by client deadlines only: there is no objective for TimeToFirstToken")
	}
	if name := is.Fallback.Pool; name != (objects.Name{}) && w.Pools[name] == nil {
		all = append(all, "no fallback: pool "+name.String()+" does not exist")
	}
	return all
}
