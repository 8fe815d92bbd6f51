package decide

import (
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// ActionKind is what is to be done.
type ActionKind uint8

const (
	// Predict asks the engine for the size of a model; [State.Predicted] is to be told, whatever
	// comes of it.
	Predict ActionKind = iota
	// Load loads a model; [State.LoadEnded] is to be told.
	Load
	// Reload unloads a model and then loads it, for nobody knows how far an earlier load came; as
	// Load.
	Reload
	// Cancel gives up a load that goes on; what comes of it is told as that of the Load.
	Cancel
	// Unload unloads a model; [State.UnloadEnded] is to be told. With a timeout it repeats one that
	// failed, for whatever may be left.
	Unload
	// Quit gives up whatever the engine was told and has not answered, and tells it nothing more:
	// it is about to end. What comes of each Load and Unload is told as ever. It is about no model.
	Quit
)

// Purpose is what a copy is for.
type Purpose uint8

const (
	// ForRecord: an earlier process had begun to load it.
	ForRecord Purpose = iota
	// ForRequests: requests wait for it, or somebody asked for one.
	ForRequests
	// ForLeast: the model has fewer than it must have.
	ForLeast
	// ForMigration: it takes the place of one at an endpoint that migrates.
	ForMigration
	// ForLoad: the model's load asks for more than it has.
	ForLoad
	// ForBalance: its endpoint bears little load.
	ForBalance
	// ForUse: it is the second copy of a model in use.
	ForUse
	// ForRoom: it fills room that is free.
	ForRoom
	// ForTrial: its endpoint is on trial.
	ForTrial
	// ForSlots: it takes the place of one at an endpoint where more adapters are in use than its
	// GPU has slots for.
	ForSlots
)

// Purposes are their names.
var Purposes = [...]string{
	ForRecord: "record", ForRequests: "requests", ForLeast: "least", ForMigration: "migration", ForLoad: "load", ForBalance: "balance",
	ForUse: "use", ForRoom: "room", ForTrial: "trial",
	ForSlots: "slots",
}

func (p Purpose) String() string { return Purposes[p] }

var actionKinds = [...]string{Predict: "predict", Load: "load", Reload: "reload", Cancel: "cancel", Unload: "unload", Quit: "quit"}

func (k ActionKind) String() string { return actionKinds[k] }

// Action is something to be done at an engine, apart from others: it may take its time.
type Action struct {
	Kind     ActionKind
	Endpoint string
	Model    objects.Entry
	// For is what a Load or Reload is for, or the Predict before it.
	For Purpose
	// Timeout bounds a load, and a repeated unload.
	Timeout time.Duration
	// Waited is how long the first of the requests that wait for the model has; 0 if none waits.
	Waited time.Duration
	// Stalled is how much of that the load has waited for room that others had to leave first, or
	// for its turn.
	Stalled time.Duration
}
