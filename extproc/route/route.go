// Package route finds what a request is for: its LLMRoute, the pool that serves it and the model
// that the engine must be asked for. It is pure.
package route

import (
	"cmp"
	"errors"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

var (
	// ErrUnknownModel says that no route admits the model, and no pool without routes is there to
	// serve it.
	ErrUnknownModel = errors.New("no route admits the model")
	// ErrUnknownPool says that a request names no model, and nothing else says which pool it is for.
	ErrUnknownPool = errors.New("nothing says which pool the request is for")
)

// Ask is what is known of a request before its route is.
type Ask struct {
	// Offer is which models may be named where the request came in; nil means those of every route.
	Offer *objects.Offer
	// Model is the name that the request gives, empty if it gives none.
	Model string
	// Given is the pool that a gateway asks for, zero if it does not say. The request goes to no
	// other pool.
	Given objects.Name
	// Default is the pool of what no route admits, zero if there is none.
	Default objects.Name
	// Registered is a pool for which the model is registered though no object says so, zero if it
	// is for none.
	Registered objects.Name
	// Random is uniformly random.
	Random uint64
}

// Target is what a request is for.
type Target struct {
	// Route is zero for a request that none admits: the model is registered, or the pool is open.
	Route objects.Name
	Pool  objects.Name
	// Adapter is the adapter to ask the engine for; empty means the engine's base model, under
	// whatever name it has.
	Adapter string
	// Open says that there is no route: the model goes to the engine under the name that the
	// request gives.
	Open       bool
	Priority   int32
	Objectives []v1alpha1.Objective
}

// Find returns what a request is for. A pool is known by the route of the model, by where it is
// registered, by what the gateway asks for, or by default, never by guess. A pool that routes name
// admits their models and no others; one that none names admits what its endpoints list, which is
// for pick to find out.
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
	return Target{Route: r.Name, Pool: pool, Adapter: r.Adapter, Priority: r.Priority, Objectives: r.Objectives}
}

// backend chooses a pool in proportion to the weights, which add up to more than 0. The bias of the
// remainder is below one in 2^32.
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
