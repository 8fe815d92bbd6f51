package flow

import (
	"slices"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// This file is about requests that wait while no endpoint may serve them.

// Empty reports whether no endpoint of a pool may get requests, because all are out. If failClose
// is set, lost endpoints do not count either. P may be nil, which is not empty but missing.
func Empty(p *pick.Pool, failClose bool) bool {
	worst := pick.Lost
	if failClose {
		worst = pick.Migrating
	}
	return p != nil && !slices.ContainsFunc(p.Endpoints, func(e *pick.Endpoint) bool { return e.State <= worst })
}

// Absent reports whether no endpoint may load a model at present: all endpoints of its pool are
// out, control reaches none, or none has the labels that the model requires. It is false while
// control is silent, and for a model that no object defines.
func (f *Flow) Absent(key objects.ModelKey) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.absent(f.View(), key)
}

// absent is Absent for a view. The caller holds mu.
func (f *Flow) absent(v *endpointstate.View, key objects.ModelKey) bool {
	switch reason := v.Failures[key]; {
	case f.lost, reason == wire.UnknownModel:
		return false
	case reason == wire.NoEndpoint, reason == wire.NoLabels:
		there, _ := has(v, key)
		return !there
	}
	return Empty(v.Snapshot.Pools[key.Pool.String()], false)
}
