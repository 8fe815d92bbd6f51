// Package route finds what a request is for: its LLMRoute, the pool that serves it and the model that the engine must be
// asked for. It is pure.
package route

import (
	"errors"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// ErrUnknownModel says that no route admits the model.
var ErrUnknownModel = errors.New("no route admits the model")

// Target is what a request is for.
type Target struct {
	Route objects.Name
	Pool  objects.Name
	// Adapter is the adapter to ask the engine for; empty means the engine's base model, under whatever name it has.
	Adapter    string
	Priority   int32
	Objectives []v1alpha1.Objective
}

// Find returns what a request for model is for. Random chooses among a route's pools by their weights.
func Find(w *objects.World, model string, random uint64) (Target, error) {
	r := w.Route(model)
	if r == nil {
		return Target{}, ErrUnknownModel
	}
	return Target{
		Route: r.Name, Pool: backend(r.Backends, random), Adapter: r.Adapter,
		Priority: r.Priority, Objectives: r.Objectives,
	}, nil
}

// backend chooses a pool in proportion to the weights, which add up to more than 0. The bias of the remainder is below
// one in 2^32.
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
