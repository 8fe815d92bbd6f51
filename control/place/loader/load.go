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
	// Scrape queries which engine this is, and which models it has. Some engines must be made ready
	// before they load models, and lose all their models when they are made ready. Scrape makes
	// such an engine ready if it has no record or its incarnation differs from the recorded one,
	// and at most once in one incarnation. If incarnations cannot be distinguished, Scrape trusts
	// the record and sets Doubtful, until a connection is refused or the record has Restarted. When
	// Scrape makes the engine ready, it waits until that is done.
	Scrape(ctx context.Context, r Record) (ScrapeResult, error)
	// Load returns when the model is loaded and usable. If the model is loaded already, Load
	// succeeds. It does not call an engine that is known to be stopping, because the call might
	// never be answered and then the engine would never end.
	Load(ctx context.Context, m Model) (Loaded, error)
	// Unload returns when the model's memory is free. If the engine does not have the model, Unload
	// succeeds.
	Unload(ctx context.Context, id string) error
	// Predict estimates the size of a model in bytes; 0 if the engine cannot do that. It returns
	// quickly.
	Predict(ctx context.Context, m Model) (int64, error)
	// Size returns the size in bytes of a loaded model, for models whose load reported none; 0 if
	// the engine does not report sizes. It may take a long time; the model serves requests
	// meanwhile.
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
	// Info is additional information about the model for a model runtime.
	Info string
}

// Loaded is what an engine reports about a model that it loaded.
type Loaded struct {
	Bytes int64 // size of the model; 0 if not reported: then call [Driver.Size]
	// Concurrency is the maximum number of concurrent requests for the model; 0 means no limit.
	Concurrency int
}

// Record is what control stored about an engine after the last scrape, as input of the next scrape.
// The zero Record means that nothing is stored.
type Record struct {
	Known       bool
	Incarnation string // engine's incarnation at the last scrape
	Limits      Limits // limits at the last scrape: an engine may report them only when it is made ready
	// Restarted: the engine has restarted although its incarnation did not change. It must be made
	// ready, whatever the other fields say.
	Restarted bool
	// Stale: something has happened that the last scrape does not show; for example, a model was
	// missing from the engine. The next scrape must read the engine's list again.
	Stale bool
}

// ScrapeResult is the result of a scrape.
type ScrapeResult struct {
	// Kind is the engine's kind, as configured or as its metrics page shows; empty if neither does.
	Kind engine.Kind
	// Takes: the engine can load models. If it cannot, its only models are those it was started
	// with.
	Takes bool
	// Purged: the engine no longer has its earlier models, because this scrape made it ready or
	// found that its list contains none of them.
	Purged bool
	// Doubtful: the engine may have restarted since it was made ready, and control cannot find out,
	// because its connection to the engine broke or did not exist.
	Doubtful bool
	// Stopping: the engine finishes its requests and accepts no new ones.
	Stopping bool
	// Incarnation identifies one life of the engine: it changes at every restart. It is empty if
	// the engine has no such mark.
	Incarnation string
	Limits      Limits
	// Lists: the engine provides a list of its models, and the field Models is that list.
	Lists  bool
	Models []Listed
}

// Limits are an engine's limits, as it reports them; 0 if not reported.
type Limits struct {
	Bytes        int64 // memory for all models together
	DefaultBytes int64 // assumed size of a model of unknown size
	Adapters     int   // maximum number of adapters on the GPU at once
	Loads        int   // maximum number of concurrent loads; at least 1 if the engine can load models
	Overlap      int   // maximum number of concurrent loads if some are slow; 0 means Loads
	LoadTimeout  time.Duration
	FirstTimeout time.Duration // load timeout for this kind of engine until some loads were measured; 0: unknown
	// Methods are the gRPC methods that the engine serves, and for each method where a request
	// names the model.
	Methods engine.Methods
	// LimitsConcurrency: the answer to each load contains the model's concurrency limit.
	LimitsConcurrency bool
}

// Listed is a model in an engine's list.
type Listed struct {
	ID    string
	State ListedState
	// Base: this is the engine's own model, which is never loaded or unloaded.
	Base bool
}

// ListedState is the state of a model in an engine's list.
type ListedState uint8

const (
	// Ready: the model serves requests.
	Ready ListedState = iota
	// Loading: the model will become ready, or its load will fail.
	Loading
	// Unloading: the model is being unloaded.
	Unloading
)

// Outcome is what is known about the effect of a call that did not succeed.
type Outcome uint8

const (
	// Unclear: the engine may have done what was requested, may still be doing it, or may have done
	// nothing.
	Unclear Outcome = iota
	// Refused: the engine answered that it did not do what was requested, and nothing is left of
	// the attempt.
	Refused
	// Unreached: the call did not reach the engine, usually because the engine accepted no
	// connection.
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
	// Transient: a later call may succeed, since the engine was busy or the connection broke.
	Transient bool
}

func (e *Error) Error() string { return e.Message }

// maxMessage limits the length of a message that is kept, in bytes.
const maxMessage = 1 << 10

// fault returns an Error. It truncates a message that is too long, and replaces invalid UTF-8.
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

// transientFault returns a transient Error with an unclear outcome.
func transientFault(words string) *Error {
	e := fault(Unclear, words)
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

// faultOf returns err if it is an *Error, and wraps any other error in an Error with an unclear
// outcome. It returns nil for nil.
func faultOf(err error) *Error {
	var own *Error
	if err == nil || errors.As(err, &own) {
		return own
	}
	return fault(Unclear, err.Error())
}
