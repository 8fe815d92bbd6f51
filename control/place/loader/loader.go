package loader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/keylock"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
)

const (
	// settlePause is the time between a load with an unclear answer and the unload that follows it,
	// so that a load call that is still in the network arrives first. ModelMesh waits as long.
	settlePause = time.Second
	// minPause and maxPause are the first and the longest pause between attempts to unload; the
	// pause doubles each time, as in ModelMesh.
	minPause, maxPause = time.Second, 10 * time.Second
	// unloadPatience is how long control retries an unload: as long as ModelMesh's 90 attempts,
	// each 10 s after the last.
	unloadPatience = 15 * time.Minute
	// unloadTimeout limits one attempt to unload. An engine may delay an unload until a load of the
	// same model has ended.
	unloadTimeout = 30 * time.Second
	// maxUnreached is the number of consecutive attempts without a connection after which control
	// assumes that the engine is gone.
	maxUnreached = 2
)

// Endpoint is the address of an engine, as objects declare it (objects.Endpoint has fields with the
// same names). A changed Endpoint needs a new Loader.
type Endpoint struct {
	Address     string             // where the engine serves requests, "ip:port"
	Host        string             // the engine's DNS name, if configured
	Kind        engine.Kind        // if unknown, detected from the engine's pages
	Management  string             // other address for management: "ip:port", or "unix:PATH" of a model runtime
	Incarnation string             // identifies one life of the engine; empty if unknown
	Token       string             // reference to the engine's bearer token, for [engineclient.Tokens]
	TLS         v1alpha1.EngineTLS // TLS settings of the engine's pool; may be zero
	H2C         bool               // the engine serves HTTP/2 without TLS
	HTTP        string             // where the engine serves HTTP requests, "ip:port"; empty means Address
	GRPC        string             // where the engine serves gRPC calls, "ip:port"; empty means Address
	// RepositoryOverGRPC: the V2 model repository is called over gRPC, at GRPC, instead of HTTP.
	RepositoryOverGRPC bool
	// ModelList is the file from which an OpenVINO Model Server reads its models. Its driver writes
	// that file, so only a program that shares a disk with the engine can use it.
	ModelList string
}

// managedAt returns the "ip:port" to which management calls over HTTP are sent: the agent of an
// engine that loads adapters, if it has one, or else where the engine serves HTTP requests.
func (e *Endpoint) managedAt() string {
	if e.Kind.Adapters() && e.Management != "" {
		return e.Management
	}
	return cmp.Or(e.HTTP, e.Address)
}

// Answer is the outcome of one call to an engine.
type Answer struct {
	Model  string
	Unload bool // the call was an unload; false: a load
	At     time.Time
	Took   time.Duration
	Err    *Error // nil if the call succeeded
}

// Loader loads and unloads models at one endpoint, and resolves unclear answers: after a failed
// load, its caller learns whether a part of the model may be left in the engine. Calls for one
// model run one at a time. The caller limits the number of concurrent loads. A Loader is safe for
// concurrent use.
type Loader struct {
	driver Driver
	heard  func(Answer)
	over   context.Context // ended by Close, never renewed
	end    context.CancelCauseFunc

	locks keylock.Locks // of models: one call for a model runs at a time

	mu      sync.Mutex      // guards the fields below
	resumed chan struct{}   // closed while new calls are allowed
	calls   context.Context // context of loads and unloads; ended by Close, and by Quit, which makes a new one
	quit    context.CancelCauseFunc
}

// Open returns the Loader of an endpoint. The Loader calls heard at the end of each call to the
// engine, from several goroutines; heard may be nil.
func Open(e Endpoint, a engineclient.Access, heard func(Answer)) (*Loader, error) {
	a = a.With(e.Token).Over(e.TLS, e.H2C)
	var d Driver
	var err error
	switch {
	case e.Kind == engine.TorchServe:
		d = openTorchServe(e, a)
	case e.Kind == engine.TFServing:
		d, err = openTFServing(e, a)
	case e.Kind.V2Repository():
		d, err = openRepository(e, a)
	case e.Kind == engine.OVMS:
		d, err = openModelList(e, a)
	case e.Kind == engine.ModelRuntime, e.Kind == "" && e.Management != "":
		d, err = openRuntime(e, a)
	default:
		d = openAdapters(e, a)
	}
	if err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", e.Address, err)
	}
	return newLoader(d, heard), nil
}

func newLoader(d Driver, heard func(Answer)) *Loader {
	if heard == nil {
		heard = func(Answer) {}
	}
	l := &Loader{driver: d, heard: heard, resumed: make(chan struct{})}
	close(l.resumed)
	l.over, l.end = context.WithCancelCause(context.Background())
	l.calls, l.quit = context.WithCancelCause(l.over)
	return l
}

// Close ends every call. It does not unload the models of interrupted loads: either the caller has
// recorded them, or the endpoint is gone.
func (l *Loader) Close() error {
	l.end(errClosed)
	return l.driver.Close()
}

// Quit abandons all running and waiting loads and unloads, because the engine is about to end and
// may not answer any more. It does not unload the models of abandoned loads. Later calls work as
// usual.
func (l *Loader) Quit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.quit(errQuit)
	l.calls, l.quit = context.WithCancelCause(l.over)
}

// current returns the context for loads and unloads that begin now.
func (l *Loader) current() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

// Pause with true delays all new loads and unloads, including unloads after a failed load. Their
// callers wait until Pause is called with false.
func (l *Loader) Pause(paused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.resumed:
		if paused {
			l.resumed = make(chan struct{})
		}
	default:
		if !paused {
			close(l.resumed)
		}
	}
}

// allowed waits until calls may begin, and returns false if ctx ends first.
func (l *Loader) allowed(ctx context.Context) bool {
	l.mu.Lock()
	resumed := l.resumed
	l.mu.Unlock()
	select {
	case <-resumed:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// Recall sets the models that an engine without a list should have, according to the store. Call it
// before the first successful Scrape. It has no effect for other engines.
func (l *Loader) Recall(told []Model) {
	if d, is := l.driver.(*tfServing); is {
		d.recall(told)
	}
}

// Scrape is [Driver.Scrape].
func (l *Loader) Scrape(ctx context.Context, r Record) (ScrapeResult, error) {
	ctx, cancel := within(ctx, l.over)
	defer cancel()
	return l.driver.Scrape(ctx, r)
}

// Predict is [Driver.Predict].
func (l *Loader) Predict(ctx context.Context, m Model) (int64, error) {
	ctx, cancel := within(ctx, l.over)
	defer cancel()
	return l.driver.Predict(ctx, m)
}

// Size is [Driver.Size].
func (l *Loader) Size(ctx context.Context, id string) (int64, error) {
	ctx, cancel := within(ctx, l.over)
	defer cancel()
	return l.driver.Size(ctx, id)
}

// within returns a context that ends when either of two contexts ends.
func within(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { stop(); cancel(nil) }
}

// Load loads a model. It gives up after timeout, or when ctx ends. If the outcome is unclear then,
// Load also unloads the model, which may continue after timeout and after the end of ctx. It
// returns when nothing is left of the model.
//
// The error is an *[Error]. Refused: nothing is left of the load. Unreached: the call did not reach
// the engine. Unclear: the engine is gone, the unload failed, or Close or Quit was called. Then a
// part of the model may be left, and the caller must call [Loader.Unload] before it loads the model
// here again.
func (l *Loader) Load(ctx context.Context, m Model, timeout time.Duration) (Loaded, error) {
	calls := l.current()
	leave, err := l.enter(ctx, calls, m.ID)
	if err != nil {
		return Loaded{}, err
	}
	defer leave()
	ctx, cancel := within(ctx, calls)
	defer cancel()
	if !l.allowed(ctx) {
		return Loaded{}, fault(Unreached, "control did not ask the engine: it was not certain which control leads")
	}
	limited, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	began := time.Now()
	loaded, err := l.driver.Load(limited, m)
	failure := faultOf(err)
	l.heard(Answer{Model: m.ID, At: began, Took: time.Since(began), Err: failure})
	if failure == nil {
		return loaded, nil
	}
	if failure.Outcome != Unclear {
		return Loaded{}, failure
	}
	if err := l.clear(calls, m.ID, settlePause); err != nil {
		return Loaded{}, fault(Unclear, fmt.Sprintf("%s; control cannot unload it: %v", failure.Message, err))
	}
	return Loaded{}, &Error{Outcome: Refused, Message: failure.Message, Fault: failure.Fault, Transient: failure.Transient}
}

// Unload unloads a model, with retries, until the model is gone, ctx ends, or the engine is gone.
// The error is an *[Error]: Unreached if the engine is gone, otherwise the error of the last
// attempt.
func (l *Loader) Unload(ctx context.Context, id string) error {
	calls := l.current()
	leave, err := l.enter(ctx, calls, id)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := within(ctx, calls)
	defer cancel()
	if failure := l.clear(ctx, id, 0); failure != nil {
		return failure
	}
	return nil
}

// clear unloads a model after pause, with retries, until the engine answers that the model is gone.
func (l *Loader) clear(ctx context.Context, id string, pause time.Duration) *Error {
	ctx, cancel := context.WithTimeout(ctx, unloadPatience)
	defer cancel()
	last := fault(Unclear, "control did not ask the engine to unload")
	absent := 0
	for next := minPause; ; next = min(2*next, maxPause) {
		if !wait(ctx, pause) || !l.allowed(ctx) {
			return last
		}
		limited, stop := context.WithTimeout(ctx, unloadTimeout)
		began := time.Now()
		failure := faultOf(l.driver.Unload(limited, id))
		stop()
		l.heard(Answer{Model: id, Unload: true, At: began, Took: time.Since(began), Err: failure})
		if failure == nil {
			return nil
		}
		last = failure
		if absent++; failure.Outcome != Unreached {
			absent = 0
		}
		if absent == maxUnreached {
			return failure
		}
		pause = next
	}
}

// wait waits for pause, and returns false if ctx ends first.
func wait(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

var (
	errClosed = errors.New("control no longer uses the endpoint")
	errQuit   = errors.New("the endpoint is leaving")
)

// enter waits until no other call for the model is running, and fails if either context ends first.
// The caller must call leave at the end of its call.
func (l *Loader) enter(ctx, calls context.Context, id string) (leave func(), err error) {
	either, stop := within(ctx, calls)
	defer stop()
	if leave, err = l.locks.Lock(either, id); err == nil {
		if calls.Err() == nil {
			return leave, nil
		}
		leave() // calls had ended before
	}
	err = context.Cause(calls)
	if err == nil {
		err = ctx.Err()
	}
	return nil, fault(Unreached, "control did not ask the engine: "+err.Error())
}
