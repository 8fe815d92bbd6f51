// Package loader calls engines to load and unload models, through the API of each kind of engine.
//
// [Open] returns the [Loader] of one endpoint. It uses the [Driver] for the endpoint's kind. A
// Driver makes each call once; the Loader handles unclear answers.
package loader

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/headgate/headgate/internal/engine"
)

// Driver calls the engine of one endpoint. It makes each call once and hides nothing: the [Loader]
// decides when to retry, and what an unclear answer means. Its methods are safe for concurrent use,
// end with their contexts, and return an *[Error] if the engine did not do what was requested.
type Driver interface {
	// Scrape scrapes the engine: what it is, and which models it has. Some engines must be made
	// ready before they load models, and lose their models by that. Look makes such an engine ready
	// if it has no record or its incarnation differs from the recorded one, and never twice in one
	// incarnation. If incarnations cannot be told apart, the record counts, with Doubtful, until a
	// connection is refused or the record has Anew. Look then returns when the engine is ready.
	Scrape(ctx context.Context, r Record) (ScrapeResult, error)
	// Load returns when the model is loaded and usable. A model that is already there counts as
	// loaded. An engine that is known to be stopping gets no call, since it might never answer and
	// never end.
	Load(ctx context.Context, m Model) (Loaded, error)
	// Unload returns when the memory of the model is free. A model that is not there counts as
	// unloaded.
	Unload(ctx context.Context, id string) error
	// Predict estimates the size of a model in bytes; 0 if the engine cannot. It is fast.
	Predict(ctx context.Context, m Model) (int64, error)
	// Size returns the size in bytes of a loaded model whose load reported none; 0 if the engine
	// does not report it. It may take long; the model serves requests meanwhile.
	Size(ctx context.Context, id string) (int64, error)
	// Close closes connections.
	Close() error
}

// unsized is embedded in drivers of engines that do not report sizes: Predict and Size return 0.
type unsized struct{}

func (unsized) Predict(context.Context, Model) (int64, error) { return 0, nil }

func (unsized) Size(context.Context, string) (int64, error) { return 0, nil }

// Model is what an engine needs to load a model.
type Model struct {
	ID, Type string
	// Source is a path or a URI that the engine can read.
	Source string
	// Info is further information for a model runtime.
	Info string
}

// Loaded is what an engine reports about a model that it loaded.
type Loaded struct {
	Bytes int64 // 0 if not reported: call [Driver.Size]
	// Concurrency is the most requests for the model at once; 0 means no limit.
	Concurrency int
}

// Record is what was stored about an engine after a scrape, for the next one. The zero Record means
// that nothing is stored.
type Record struct {
	Known       bool
	Incarnation string // at the last scrape
	Limits      Limits // at the last scrape: an engine may report them only when it is made ready
	// Restarted: the engine turned out to have restarted without a change of its incarnation. It
	// must be made ready, whatever else is known.
	Restarted bool
	// Stale: something has happened that the last scrape does not show, such as a model that is
	// missing from the engine. Its list does not count any more.
	Stale bool
}

// ScrapeResult is the result of a scrape.
type ScrapeResult struct {
	// Kind is the engine's kind, as configured or as its metrics page shows; empty if neither does.
	Kind engine.Kind
	// Takes: the engine can load models. Without it, the engine has only the models that it was
	// started with.
	Takes bool
	// Purged: the engine's earlier models are gone, because the scrape made it ready, or found that
	// its list has none of them.
	Purged bool
	// Doubtful: the engine may have restarted since it was made ready, without a way to find out:
	// the connection to it broke, or there was none.
	Doubtful bool
	// Stopping: the engine finishes its requests and accepts no new ones.
	Stopping bool
	// Incarnation changes whenever the engine restarts; empty if the engine has no such mark.
	Incarnation string
	Limits      Limits
	// Lists: the engine lists its models; Models is that list.
	Lists  bool
	Models []Listed
}

// Limits are an engine's limits, as it reports them; 0 if not reported.
type Limits struct {
	Bytes        int64 // of all models together
	DefaultBytes int64 // assumed size of a model of unknown size
	Adapters     int   // adapters on the GPU at once
	Loads        int   // concurrent loads; at least 1 if it can load models
	Overlap      int   // concurrent loads if some are slow; 0 means Loads
	LoadTimeout  time.Duration
	FirstTimeout time.Duration // limit of a load until some were measured, for its kind; 0: unknown
	// Methods are the gRPC methods that it serves, and where a request of each names the model.
	Methods engine.Methods
	// LimitsConcurrency: the answer to each load has the model's concurrency limit.
	LimitsConcurrency bool
}

// Listed is a model in an engine's list.
type Listed struct {
	ID    string
	State ListedState
	// Base: it is the engine's own model, which is never loaded or unloaded.
	Base bool
}

// ListedState is the state of a model in an engine's list.
type ListedState uint8

const (
	// Ready: it serves requests.
	Ready ListedState = iota
	// Loading: it will be ready, or fail.
	Loading
	// Unloading: it is being unloaded.
	Unloading
)

// Outcome says what is known after a call that did not succeed.
type Outcome uint8

const (
	// Unclear: the engine may have done it, may be doing it, or may not have done it.
	Unclear Outcome = iota
	// Refused: the engine answered that it did not do it, and nothing is left of the attempt.
	Refused
	// Unreached: the call did not reach the engine, usually because it accepted no connection.
	Unreached
)

// String returns the name of the outcome.
func (o Outcome) String() string {
	switch o {
	case Refused:
		return "refused"
	case Unreached:
		return "unreached"
	}
	return "unclear"
}

// Error is the reason why an engine did not do what was requested.
type Error struct {
	Outcome Outcome
	// Message is the message of the engine or the network. It is for operators, not for clients.
	Message string
	// Stopping: the engine answered that it is stopping.
	Stopping bool
	// Fault is the reason of a failed load, according to the message.
	Fault engine.LoadFault
	// Transient: the error is transient: the engine was busy, or the connection broke.
	Transient bool
}

func (e *Error) Error() string { return e.Message }

// maxMessage limits the length of a message that is kept, in bytes.
const maxMessage = 1 << 10

// fault returns an Error with a message that may be too long or invalid text.
func fault(o Outcome, words string) *Error {
	words = strings.ToValidUTF8(words, "\uFFFD")
	if len(words) > maxMessage {
		cut := maxMessage - len("…")
		for !utf8.RuneStart(words[cut]) {
			cut--
		}
		words = words[:cut] + "…"
	}
	return &Error{Outcome: o, Message: words}
}

// transientFault returns a transient Error.
func transientFault(o Outcome, words string) *Error {
	e := fault(o, words)
	e.Transient = true
	return e
}

// isTransient reports whether an HTTP status means a transient error.
func isTransient(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// faultOf returns err as an Error; any other error becomes one with an unclear outcome.
func faultOf(err error) *Error {
	var own *Error
	if err == nil || errors.As(err, &own) {
		return own
	}
	return fault(Unclear, err.Error())
}
