package stream

import (
	"net/http"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/internal/objects"
)

// This file sends a request that extproc would reject to the fallback of its route.

// fallback is the state of a request at its fallback.
type fallback struct {
	d *dispatcher // the request
	// name is the name of the fallback for clients: its pool, or [wire.BaseModelFallback]. It is
	// empty unless the request is at its fallback.
	name string
	to   route.Target
	// instead is the target in whose place the fallback serves, and why is its error. The error is
	// nil if the relay sent the request, which was at its fallback before.
	instead route.Target
	why     error
	// stored means that the request needs a stored response. It is set for every request.
	stored bool
}

// rejection is a request that extproc would reject, as far as its fallback depends on it.
type rejection struct {
	status int // HTTP status of the reply
	// limited means that the request exceeds a limit of its route.
	limited bool
	// begun means that an endpoint may have received the request.
	begun bool
	// again means that the request is at its fallback.
	again bool
	// stored means that the request needs a stored response, which only its own pool has.
	stored bool
	// given means that the data plane chose the pool.
	given bool
	// target is the target that rejected the request. A VModel in it is not resolved.
	target route.Target
	// of is the fallback of the route; zero if there is none.
	of objects.Fallback
}

// fallback returns where the request falls back to, with the name for clients. It returns false if
// the request must be rejected.
func (r *rejection) fallback() (to route.Target, name string, ok bool) {
	switch r.status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
	default:
		return to, "", false
	}
	if r.limited || r.begun || r.again || r.stored {
		return to, "", false
	}
	to, name = r.target, wire.BaseModelFallback
	if pool := r.of.Pool; pool != (objects.Name{}) {
		to.Pool, name = pool, pool.Name
	}
	if r.of.BaseModel {
		to.Adapter = ""
	}
	itself := to.Pool == r.target.Pool && to.Adapter == r.target.Adapter
	return to, name, !itself && (to.Pool == r.target.Pool || !r.given)
}

// use makes the next decision use the fallback of the request's route, and reports whether there is
// one. Err is why extproc would reject the request. The caller then decides the request again. It
// uses the fallback that the route has now, not the one that it had when the request arrived.
func (f *fallback) use(err error, now time.Time) bool {
	d := f.d
	world := d.server.Fleet.View().World
	of := world.SharingOf(d.found.Route).Or().Fallback
	if of == (objects.Fallback{}) {
		return false
	}
	e, relayed := describe(err, ""), d.scope.relayed
	_, given := d.scope.given(world)
	r := rejection{
		status: e.status, limited: e.limited, begun: d.announced || relayed != nil && relayed.Last, again: f.name != "",
		stored: f.stored || relayed != nil && relayed.Most > 0, given: given, target: d.found, of: of,
	}
	to, name, ok := r.fallback()
	if !ok {
		return false
	}
	f.name, f.to, f.instead, f.why = name, to, d.found, err
	d.hasTurn, d.ticket = false, nil // these belong to the other queue
	if !d.since.IsZero() {
		d.spent = now.Sub(d.since)
	}
	return true
}

// resume continues at the fallback to which the request was sent before it went to the relay.
func (f *fallback) resume(e *relaytoken.Request) {
	if e.Fallback != "" {
		f.name, f.to = e.Fallback, e.Models[0].Target
	}
}

// targetOf returns the target of a request: that for which it is admitted, or its fallback. The
// result near is that of admit.
func (f *fallback) targetOf(a *ask, view *endpointstate.View) (target route.Target, near string, err error) {
	if f.name != "" {
		f.d.search, f.d.searches = search{}, nil
		target = f.to
		target.Sharing = view.World.SharingOf(target.Route) // an edit may have changed it
		return target, "", nil
	}
	f.stored = a.stored
	return f.d.admit(a, view)
}

// rejected returns the error with which extproc rejects a request that failed with err. If the
// fallback could not serve the request either, that is the error without the fallback, because the
// client named that model. Errors in the client's own request stay.
func (f *fallback) rejected(err error) error {
	if f.name == "" || f.why == nil || f.d.announced {
		return err
	}
	if status := describe(err, "").status; status != http.StatusTooManyRequests && status < http.StatusInternalServerError {
		return err
	}
	f.d.aim(f.instead)
	f.d.found, f.name = f.instead, ""
	return f.why
}
