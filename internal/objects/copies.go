package objects

import (
	"cmp"
	"slices"
	"time"
)

// CopyKey identifies a copy of a model: the model and the endpoint that has it.
type CopyKey struct {
	ModelKey
	Endpoint string // "ip:port"
}

// Compare orders keys by endpoint, then model.
func (k CopyKey) Compare(l CopyKey) int {
	return cmp.Or(cmp.Compare(k.Endpoint, l.Endpoint), k.ModelKey.Compare(l.ModelKey))
}

// CopyState is the state of a copy.
type CopyState uint8

const (
	// Gone: the copy does not exist.
	Gone CopyState = iota
	// Queued: the copy has an endpoint, and waits for its turn or for free memory there.
	Queued
	// Loading: the engine was told to load it.
	Loading
	// Loaded: it serves requests.
	Loaded
	// Draining: it gets no new requests, and its requests may end.
	Draining
	// Unloading: the engine was told to unload it.
	Unloading
)

// CopyStates are the names of the states.
var CopyStates = [...]string{
	Gone: "gone", Queued: "queued", Loading: "loading", Loaded: "loaded", Draining: "draining", Unloading: "unloading",
}

func (s CopyState) String() string { return CopyStates[s] }

// MarshalText returns the name of the state.
func (s CopyState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText sets the state to that of a name; Gone if the name is unknown.
func (s *CopyState) UnmarshalText(name []byte) error {
	*s = CopyState(max(0, slices.Index(CopyStates[:], string(name))))
	return nil
}

// Leaving is why an endpoint is about to end. The zero Leaving is that of an endpoint that stays.
type Leaving struct {
	// Terminating reports that its pod is being deleted.
	Terminating bool
	// Migrates is until when it serves, so that its models get copies elsewhere; zero if it does
	// not.
	Migrates time.Time
	// Stopping is when its engine last reported that it is stopping; zero if it did not recently.
	Stopping time.Time
}

// Is reports whether the endpoint is about to end.
func (l Leaving) Is() bool { return l.Terminating || !l.Stopping.IsZero() }

// IsMigrating reports whether the endpoint serves until its models have copies elsewhere.
func (l Leaving) IsMigrating() bool {
	return l.Terminating && !l.Migrates.IsZero() && l.Stopping.IsZero()
}

// Switch is where the requests for a VModel go: to the active model, and Percent of a hundred to
// the canary if there is one. The zero Switch is that of a VModel that does not exist.
type Switch struct {
	Active  string
	Canary  string
	Percent int
}
