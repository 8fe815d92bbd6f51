// Package loader drives engines: it puts models onto them and takes them off, for each kind of
// engine in its own words.
//
// [Open] returns the [Loader] of one endpoint. It has the [Driver] of the endpoint's kind, which
// does what it is told once, and knows itself what to do about an engine whose answer is not clear.
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

// Driver drives the engine of one endpoint. It does what it is told once and hides nothing: when to
// try again, and what an unclear answer means, is [Loader]'s to know. Its methods are safe for
// concurrent use, end with their contexts, and return an *[Error] where the engine did not do what
// it was asked.
type Driver interface {
	// Look finds out what the engine is and holds. An engine that must be made ready before it
	// takes models, and loses those that it has by that, is made ready if nothing is on record of
	// it or its incarnation is another than the recorded one, and never twice in one incarnation;
	// where incarnations cannot be told apart, what is on record stands, if with doubt, until a
	// dial is refused or somebody says that the engine has begun anew. Look then returns when the
	// engine is ready.
	Look(ctx context.Context, r Record) (Seen, error)
	// Load returns when the model is loaded and usable. A model that is there already is loaded. An
	// engine that is stopping is told nothing where that can be known: it may never answer, and
	// never end.
	Load(ctx context.Context, m Model) (Loaded, error)
	// Unload returns when what the model held is free. A model that is not there is unloaded.
	Unload(ctx context.Context, id string) error
	// Predict estimates how many bytes a model will take; 0 where the engine cannot tell. It is
	// quick.
	Predict(ctx context.Context, m Model) (int64, error)
	// Size tells how many bytes a model takes that was loaded by an engine that did not say then; 0
	// where the engine cannot tell. It may take its time: the model answers requests meanwhile.
	Size(ctx context.Context, id string) (int64, error)
	// Close lets go of connections.
	Close() error
}

// unsized is of drivers of engines that do not tell what a model takes: Predict and Size know
// nothing.
type unsized struct{}

func (unsized) Predict(context.Context, Model) (int64, error) { return 0, nil }

func (unsized) Size(context.Context, string) (int64, error) { return 0, nil }

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
	Bytes int64 // 0 where it does not say: ask [Driver.Size]
	// Concurrency is how many requests for the model it takes at once; 0: as many as come.
	Concurrency int
}

// Record is what was written down of an engine after a look, for the next one. The zero Record is
// that of an engine of which nothing is on record.
type Record struct {
	Known       bool
	Incarnation string // as it was seen
	Limits      Limits // as they were seen: an engine may tell them when it is made ready, and not again
	// Anew says that the engine turned out to have begun anew where its incarnation does not tell:
	// it is to be made ready, whatever else is known.
	Anew bool
	// Afresh says that something came of which the last look knows nothing, such as a model that an
	// engine turned out not to have: what it listed then counts no more.
	Afresh bool
}

// Seen is what a look finds.
type Seen struct {
	// Kind is the engine's kind, as configured or as its metrics page shows; empty if neither does.
	Kind engine.Kind
	// Takes says that the engine can be told to load models. One that does not has those that it
	// was started with.
	Takes bool
	// Purged says that what the engine held before is gone: the look made it ready, or found of one
	// that lists its models that it has none of those it had.
	Purged bool
	// Doubtful says that the engine may have begun anew since it was made ready, and that nothing
	// tells: the connection to it broke, or nobody had one.
	Doubtful bool
	// Stopping says that the engine ends what it has and takes nothing new.
	Stopping bool
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
	Loads        int   // at once; at least 1 where it takes models
	Overlap      int   // at once where some are slow; 0: no more than Loads
	LoadTimeout  time.Duration
	FirstTimeout time.Duration // bounds loads until some were measured, for engines of its kind; 0: nothing is known of them
	// Methods are the gRPC methods that it takes, and where it wants models to be named in them.
	Methods engine.Methods
	// LimitsConcurrency says that it takes so many requests for a model at once as it says when it
	// has loaded it.
	LimitsConcurrency bool
}

// Listed is a model that an engine lists.
type Listed struct {
	ID    string
	State ListedState
	// Base says that it is the engine's own model, which nobody loads or unloads.
	Base bool
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
	// Unreached: the engine was not asked, most often since it took no connection; it knows nothing
	// of it.
	Unreached
)

// String is the outcome in a word.
func (o Outcome) String() string {
	switch o {
	case Refused:
		return "refused"
	case Unreached:
		return "unreached"
	}
	return "unclear"
}

// Error is why an engine did not do what it was asked.
type Error struct {
	Outcome Outcome
	// Words are the engine's own, or the network's. They are for operators, not for clients.
	Words string
	// Stopping says that the engine said that it is stopping.
	Stopping bool
	// Fault is what the words say of why a model was not loaded.
	Fault engine.LoadFault
	// Passing says that the next call may well succeed: the engine was busy, or the connection broke.
	Passing bool
}

func (e *Error) Error() string { return e.Words }

// maxWords bounds what is kept of an engine's words, in bytes.
const maxWords = 1 << 10

// fault makes an Error of words that may be long or no text at all.
func fault(o Outcome, words string) *Error {
	words = strings.ToValidUTF8(words, "\uFFFD")
	if len(words) > maxWords {
		cut := maxWords - len("…")
		for !utf8.RuneStart(words[cut]) {
			cut--
		}
		words = words[:cut] + "…"
	}
	return &Error{Outcome: o, Words: words}
}

// passingFault makes an Error of a fault that may pass.
func passingFault(o Outcome, words string) *Error {
	e := fault(o, words)
	e.Passing = true
	return e
}

// isPassing reports whether a status of HTTP is of a fault that may pass.
func isPassing(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// faultOf returns err as an Error; one that is none has an unclear outcome.
func faultOf(err error) *Error {
	var own *Error
	if err == nil || errors.As(err, &own) {
		return own
	}
	return fault(Unclear, err.Error())
}
