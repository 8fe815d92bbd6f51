// Package route determines where a request goes: its LLMRoute, the pool that serves it, and the
// model name that the engine expects. It is pure.
package route

import (
	"cmp"
	"errors"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

var (
	// ErrUnknownModel means that no route admits the model, and that no pool without routes can
	// serve it.
	ErrUnknownModel = errors.New("no route admits the model")
	// ErrUnknownPool means that a request names no model, and that nothing else determines its
	// pool.
	ErrUnknownPool = errors.New("the request names no pool")
)

// Ask contains what determines the route of a request.
type Ask struct {
	// Offer lists the models that requests may name at the listener where this request arrived; nil
	// means the models of every route.
	Offer *objects.Offer
	// Model is the model name in the request; empty if the request names none.
	Model string
	// Given is the pool that a gateway asked for, or zero. If it is set, the request goes to no
	// other pool.
	Given objects.Name
	// Default is the pool for requests that no route admits, or zero if there is none.
	Default objects.Name
	// Registered is the pool for which a ModelMesh client has registered the model, or zero if
	// none.
	Registered objects.Name
	// Random is a uniformly random number.
	Random uint64
}

// Target is the result of [Find]: the route, pool and model of a request.
type Target struct {
	// Route is the route that admits the request. It is zero if there is none, because the model is
	// registered or the pool is open.
	Route objects.Name
	Pool  objects.Name
	// Adapter is the adapter to request from the engine. If it is empty, the request is for the
	// engine's base model, whatever the name of that.
	Adapter string
	// no route applies: the engine gets the model name of the request
	Open       bool
	Priority   int32
	Objectives []v1alpha1.Objective
	// Sharing is that of the LLMRoute; nil for the default: see [objects.Sharing.Or]. Relay tokens
	// do not carry it: use [objects.World.SharingOf].
	Sharing *objects.Sharing
}

// Find returns the target of a request. The pool comes from the model's route, the model's
// registration, the gateway or the default; Find never guesses. A pool that routes refer to admits
// only the models of these routes. A pool without routes admits whatever its endpoints list, which
// pick checks later.
func Find(w *objects.World, a Ask) (Target, error) {
	var none objects.Name
	if a.Offer == nil {
		a.Offer = &w.Offer
	}
	if a.Model != "" {
		r := a.Offer.Route(a.Model)
		switch {
		case r != nil && a.Given == none:
			return target(r, backend(r.Backends, a.Random)), nil
		case r != nil && r.LeadsTo(a.Given):
			return target(r, a.Given), nil
		case a.Registered != none:
			return Target{Pool: a.Registered, Adapter: a.Model}, nil
		}
	}
	name := cmp.Or(a.Given, a.Default)
	switch p := w.Pools[name]; {
	case name == none && a.Model == "":
		return Target{}, ErrUnknownPool
	case name == none, a.Model != "" && p != nil && p.Routed:
		return Target{}, ErrUnknownModel
	}
	return Target{Pool: name, Open: true}, nil
}

func target(r *objects.Route, pool objects.Name) Target {
	return Target{
		Route: r.Name, Pool: pool, Adapter: r.Adapter, Priority: r.Priority, Objectives: r.Objectives, Sharing: r.Sharing,
	}
}

// backend chooses a pool at random with probabilities proportional to the weights. The sum of the
// weights must be positive. The modulo bias is below 2^-32.
func backend(backends []objects.Backend, random uint64) objects.Name {
	var total uint64
	for _, b := range backends {
		total += uint64(b.Weight)
	}
	at := random % total
	for _, b := range backends {
		if at < uint64(b.Weight) {
			return b.Pool
		}
		at -= uint64(b.Weight)
	}
	panic("route: weights add up to 0")
}
