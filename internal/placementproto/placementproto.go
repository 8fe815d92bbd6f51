// Package placementproto converts between the types of package objects and the messages of the
// placement protocol. Extproc and control both use it.
package placementproto

import (
	"strings"
	"time"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/internal/objects"
)

// Model returns the message for a model.
func Model(k objects.ModelKey) *placement.ModelKey {
	return &placement.ModelKey{Pool: k.Pool.String(), Model: k.ID}
}

// ModelOf returns the model that a message names, and whether the message has a pool and a model.
func ModelOf(k *placement.ModelKey) (key objects.ModelKey, ok bool) {
	namespace, name, ok := strings.Cut(k.GetPool(), "/")
	return objects.ModelKey{Pool: objects.Name{Namespace: namespace, Name: name}, ID: k.GetModel()}, ok && k.GetModel() != ""
}

// Copy returns the message for a copy.
func Copy(k objects.CopyKey) *placement.CopyKey {
	return &placement.CopyKey{Key: Model(k.ModelKey), Endpoint: k.Endpoint}
}

// CopyOf returns the copy that a message names, and whether the message has a pool and a model.
func CopyOf(k *placement.CopyKey) (key objects.CopyKey, ok bool) {
	key.Endpoint = k.GetEndpoint()
	key.ModelKey, ok = ModelOf(k.GetKey())
	return key, ok
}

// State returns the message for a state. A queued copy is sent as loading, and a draining copy as
// unloading.
func State(s objects.CopyState) placement.Copy_State {
	switch s {
	case objects.Gone:
		return placement.Copy_GONE
	case objects.Queued, objects.Loading:
		return placement.Copy_LOADING
	case objects.Loaded:
		return placement.Copy_LOADED
	default:
		return placement.Copy_UNLOADING
	}
}

// StateOf returns the state that a message has; Gone if it is unknown.
func StateOf(s placement.Copy_State) objects.CopyState {
	switch s {
	case placement.Copy_LOADING:
		return objects.Loading
	case placement.Copy_LOADED:
		return objects.Loaded
	case placement.Copy_UNLOADING:
		return objects.Unloading
	default:
		return objects.Gone
	}
}

// Leaving returns the message for an endpoint that is about to end. Times are sent relative to now.
func Leaving(endpoint string, l objects.Leaving, now time.Time) *placement.Leaving {
	m := &placement.Leaving{Endpoint: endpoint, Terminating: l.Terminating}
	if !l.Migrates.IsZero() {
		m.MigratesMs = new(uint64(max(0, l.Migrates.Sub(now)).Milliseconds()))
	}
	if !l.Stopping.IsZero() {
		m.StoppingMs = new(uint64(max(0, now.Sub(l.Stopping)).Milliseconds()))
	}
	return m
}

// LeavingOf returns why the endpoint of a message is about to end.
func LeavingOf(m *placement.Leaving, now time.Time) objects.Leaving {
	l := objects.Leaving{Terminating: m.GetTerminating()}
	if m.MigratesMs != nil {
		l.Migrates = now.Add(time.Duration(m.GetMigratesMs()) * time.Millisecond) //nolint:gosec // a wrong value ends soon
	}
	if m.StoppingMs != nil {
		l.Stopping = now.Add(-time.Duration(m.GetStoppingMs()) * time.Millisecond)
	}
	return l
}
