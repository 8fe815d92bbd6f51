package decide

import (
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// ActionKind is the kind of an [Action].
type ActionKind uint8

const (
	// Predict asks the engine for the size of a model. The caller reports the outcome, even a
	// failure, to [State.Predicted].
	Predict ActionKind = iota
	// Load loads a model. The caller reports the outcome to [State.LoadEnded].
	Load
	// Reload unloads a model and then loads it, because the progress of an earlier load is unknown.
	// The caller reports the outcome as for Load.
	Reload
	// Cancel abandons a load in progress. The caller reports the outcome as for Load.
	Cancel
	// Unload unloads a model. The caller reports the outcome to [State.UnloadEnded]. An Unload with
	// a Timeout repeats a failed Unload, in case the engine still has the model.
	Unload
	// Quit abandons all calls to an engine that is about to end, and forbids new ones. The caller
	// still reports the outcome of each Load and Unload. A Quit has no model.
	Quit
)

// Purpose is the reason for a copy.
type Purpose uint8

const (
	// ForRecord: an earlier process had started the load.
	ForRecord Purpose = iota
	// ForRequests: requests wait for the model, or a client asked for a copy.
	ForRequests
	// ForLeast: the model has fewer copies than its minimum.
	ForLeast
	// ForMigration: the copy replaces a copy at a migrating endpoint.
	ForMigration
	// ForLoad: the model's load needs more copies.
	ForLoad
	// ForBalance: the endpoint has much less load than other endpoints.
	ForBalance
	// ForUse: the model is in use, and this is its second copy.
	ForUse
	// ForRoom: the copy fills free room.
	ForRoom
	// ForTrial: the endpoint is on trial.
	ForTrial
	// ForSlots: the copy replaces a copy at another endpoint, where more adapters are in use than
	// the GPU has slots.
	ForSlots
)

// Purposes are the names of the purposes.
var Purposes = [...]string{
	ForRecord: "record", ForRequests: "requests", ForLeast: "least", ForMigration: "migration", ForLoad: "load", ForBalance: "balance",
	ForUse: "use", ForRoom: "room", ForTrial: "trial",
	ForSlots: "slots",
}

func (p Purpose) String() string { return Purposes[p] }

var actionKinds = [...]string{Predict: "predict", Load: "load", Reload: "reload", Cancel: "cancel", Unload: "unload", Quit: "quit"}

func (k ActionKind) String() string { return actionKinds[k] }

// Action is an instruction for one engine. Actions run concurrently and may take a long time.
type Action struct {
	Kind     ActionKind
	Endpoint string
	Model    objects.Entry
	// For is the purpose of a Load or Reload, or of the Predict before it.
	For Purpose
	// Timeout is the time limit of a load, or of an Unload that repeats a failed one.
	Timeout time.Duration
	// Waited is the time that the oldest request for the model has waited; 0 if none waits.
	Waited time.Duration
	// Stalled is the part of Waited during which the load waited for evictions or for its turn.
	Stalled time.Duration
}
