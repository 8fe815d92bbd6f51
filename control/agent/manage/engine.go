package manage

import (
	"context"
	"errors"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/control/place/loader"
)

// Engine is the engine beside the agent. Its methods are safe for concurrent use and end with their
// contexts. Errors are gRPC statuses, which go to the caller.
type Engine interface {
	// Look checks whether the engine answers, and returns what identifies its incarnation. The
	// error is [ErrEnded] if no process listens.
	Look(ctx context.Context) (Sight, error)
	// Status returns the engine's limits and makes it ready: before it answers READY, it unloads
	// every model.
	Status(ctx context.Context, q *mmesh.RuntimeStatusRequest) (*mmesh.RuntimeStatusResponse, error)
	// Load loads a model whose files are local. The codes FAILED_PRECONDITION and INVALID_ARGUMENT
	// mean that nothing is left of the load.
	Load(ctx context.Context, q *mmesh.LoadModelRequest, l Local) (*mmesh.LoadModelResponse, error)
	// Unload unloads a model. It succeeds if the engine does not have the model.
	Unload(ctx context.Context, q *mmesh.UnloadModelRequest) error
	Predict(ctx context.Context, q *mmesh.PredictModelSizeRequest) (*mmesh.PredictModelSizeResponse, error)
	Size(ctx context.Context, q *mmesh.ModelSizeRequest) (*mmesh.ModelSizeResponse, error)
	// Recall sets the models that the engine should have, according to an earlier process of the
	// agent. It is called before the other methods.
	Recall(models []loader.Model)
	// Quit abandons running calls, because the engine's process has ended.
	Quit()
	Close() error
}

// Sight is the result of Look for an engine that answers.
type Sight struct {
	// Marks identify the incarnation of the engine; empty if they are unknown. Two results are of
	// the same incarnation if they have a mark in common.
	Marks []string
	// Lists means that Models are the ids of all models of the engine.
	Lists  bool
	Models []string
	// Restarted means that the engine has lost its models since the last Look.
	Restarted bool
}

// ErrEnded means that no process listens at the engine's address.
var ErrEnded = errors.New("no process listens there")

var (
	errRestarted = errors.New("the engine restarted")
	errPurged    = errors.New("the engine is made ready again")
	errClosing   = errors.New("the agent is ending")
	errUnloaded  = errors.New("the model is unloaded")
)
