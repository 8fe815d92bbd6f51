// Package load drives engines: it puts models onto them and takes them off, for each kind of engine in its own words.
package load

import (
	"context"
	"time"
)

// Driver drives the engine of one endpoint. It does what it is told once and hides nothing: when to try again, and what an
// unclear answer means, is [Loader]'s to know. Its methods are safe for concurrent use, end with their contexts, and
// return an *[Error] where the engine did not do what it was asked.
type Driver interface {
	// Look finds out what the engine is and holds. Known is the incarnation that is on record for the endpoint, empty if
	// none is: an engine that must be made ready before it takes models, and loses those that it has by that, is made
	// ready if it is another. Look then returns when it is ready.
	Look(ctx context.Context, known string) (Seen, error)
	// Load returns when the model is loaded and usable. A model that is there already is loaded.
	Load(ctx context.Context, m Model) (Loaded, error)
	// Unload returns when what the model held is free. A model that is not there is unloaded.
	Unload(ctx context.Context, id string) error
	// Predict estimates how many bytes a model will take; 0 where the engine cannot tell.
	Predict(ctx context.Context, m Model) (int64, error)
	// Close lets go of connections.
	Close() error
}

// Model is what an engine is told of a model.
type Model struct {
	ID, Type string
	// Source is a path or a URI that the engine can read.
	Source string
	// Info is what a model runtime is told beside the source.
	Info string
}

// Loaded is what an engine says of a model that it loaded.
type Loaded struct {
	Bytes int64 // 0 where it does not say
}

// Seen is what a look finds.
type Seen struct {
	// Incarnation tells one life of the engine from the next; empty where nothing tells.
	Incarnation string
	Limits      Limits
	// Lists says that the engine lists its models, and Models what it lists.
	Lists  bool
	Models []Listed
}

// Limits are what an engine says that it holds and takes. What it does not say is 0.
type Limits struct {
	Bytes        int64 // that all models may take together
	DefaultBytes int64 // to take for a model of which nothing is known
	Adapters     int   // that its GPU holds at once
	Loads        int   // at once
	LoadTimeout  time.Duration
}

// Listed is a model that an engine lists.
type Listed struct {
	ID    string
	State ListedState
}

// ListedState is what an engine says of a model that it lists.
type ListedState uint8

const (
	// Ready answers requests.
	Ready ListedState = iota
	// Loading will, or fail.
	Loading
	// Unloading is on its way out.
	Unloading
)

// Outcome is what is known of a model at an engine that did not do what it was asked.
type Outcome uint8

const (
	// Unclear: the engine may have done it, may be doing it or may not; nobody knows.
	Unclear Outcome = iota
	// Refused: the engine answered that it did not, and nothing is left of the attempt.
	Refused
	// Unreached: the engine took no connection; it knows nothing of it.
	Unreached
)

// Error is why an engine did not do what it was asked.
type Error struct {
	Outcome Outcome
	// Words are the engine's own, or the network's. They are for operators, not for clients.
	Words string
}

func (e *Error) Error() string { return e.Words }
