package doctor

import (
	"slices"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/headgate/doctor/diagnosis"
	"github.com/headgate/headgate/internal/objects"
)

// ofFolder returns the conditions that are False of the objects of a folder, as if the standalone
// data plane served them. States are the reports of extprocs. For other endpoints, the answers of
// their engines count.
func ofFolder(w *objects.World, engines []diagnosis.Engine, states map[string]conditions.Endpoint) []admin.Condition {
	in := conditions.Input{World: w, Observed: conditions.Observed{
		Reports: states, Scrapes: make(map[string]conditions.Endpoint),
		Extprocs: []conditions.Extproc{{Process: "headgate run", Standalone: true}},
	}}
	for _, e := range engines {
		in.Scrapes[e.Address] = asked(e)
	}
	return conditions.False(conditions.OfEndpoints(in))
}

// asked returns the state of an endpoint whose engine was asked for its models.
func asked(e diagnosis.Engine) conditions.Endpoint {
	switch e.Outcome {
	case diagnosis.Answered:
		return conditions.Endpoint{State: conditions.Serving}
	case diagnosis.Refused:
		return conditions.Endpoint{State: conditions.Out, Reason: "connection_refused"}
	case diagnosis.Silent:
		return conditions.Endpoint{State: conditions.Out, Reason: "scrapes_unanswered"}
	case diagnosis.BadTLS:
		return conditions.Endpoint{State: conditions.Out, Reason: "TLS fails"}
	case diagnosis.Denied:
		return conditions.Endpoint{State: conditions.Out, Reason: "it rejects the token"}
	case diagnosis.Other: // it may be an engine that lists its models elsewhere
	}
	return conditions.Endpoint{}
}

// stateOf returns the state of an endpoint that an extproc reports.
func stateOf(e admin.Endpoint) conditions.Endpoint {
	is := conditions.Endpoint{State: conditions.Out, Since: e.Since, Reason: e.Reason}
	switch e.State {
	case "healthy", "migrating":
		is.State = conditions.Serving
	case "suspect", "stale":
		is.State = conditions.Suspect
	}
	return is
}

// join returns all, and those conditions of others whose object, part and type all lacks.
func join(all, others []admin.Condition) []admin.Condition {
	type key struct{ kind, name, of, condition string }
	of := func(c admin.Condition) key { return key{c.Kind, c.Name, c.Of, c.Type} }
	known := make(map[key]bool)
	for _, c := range all {
		known[of(c)] = true
	}
	return append(all, slices.DeleteFunc(slices.Clone(others), func(c admin.Condition) bool { return known[of(c)] })...)
}

// dropKnown removes the problems of objects that conditions already report.
func dropKnown(f *diagnosis.Facts) {
	if f.Objects == nil {
		return
	}
	f.Objects.Problems = slices.DeleteFunc(f.Objects.Problems, func(problem string) bool {
		return slices.ContainsFunc(f.Conditions, func(c admin.Condition) bool { return problem == c.Kind+" "+c.Name+": "+c.Message })
	})
}

// headersOf returns the headers for tenants and programs that LLMRoutes name. W may be nil.
func headersOf(w *objects.World) (all []diagnosis.RouteHeader) {
	if w == nil {
		return nil
	}
	for _, r := range w.Routes {
		is := r.Sharing.Or()
		for _, h := range [...]struct{ field, name string }{{"tenantHeader", is.TenantHeader}, {"programHeader", is.ProgramHeader}} {
			if h.name != "" {
				all = append(all, diagnosis.RouteHeader{Route: r.Name.String(), Field: h.field, Header: h.name})
			}
		}
	}
	return all
}

// held reports whether requests wait in every pool of an extproc until its first endpoint is ready.
func held(r admin.EndpointsResult) bool {
	return len(r.Pools) > 0 && r.Omitted == 0 && !slices.ContainsFunc(r.Pools, func(p admin.Pool) bool { return !p.HoldsWhileEmpty }) &&
		!slices.ContainsFunc(r.Endpoints, func(e admin.Endpoint) bool { return e.State != "out" || e.Reason != "not_ready" })
}
