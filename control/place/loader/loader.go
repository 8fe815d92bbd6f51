package loader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
)

const (
	// settle is how long after a load without a clear answer the model is unloaded: what was on its
	// way to the engine then is there before the unload. ModelMesh waits as long.
	settle = time.Second
	// Between tries to unload: first the one, twice as long each time, then the other, as ModelMesh.
	minPause, maxPause = time.Second, 10 * time.Second
	// patience is when tries to unload end: ModelMesh's 90 tries of 10 s.
	patience = 15 * time.Minute
	// unloadTimeout bounds one try. An engine may let an unload wait for a load of the same model
	// to end.
	unloadTimeout = 30 * time.Second
	// absences is how many tries in a row may find nobody there before the engine is taken to be
	// gone.
	absences = 2
)

// Endpoint is where an engine is, as objects say it (objects.Endpoint has the fields of the same
// names). Another Endpoint is another Loader.
type Endpoint struct {
	Address     string             // "ip:port", where it serves requests
	Host        string             // the DNS name that people wrote for it; empty if they wrote none
	Kind        engine.Kind        // unknown is told apart by what it serves
	Management  string             // of a kind that is managed elsewhere: "ip:port", or "unix:PATH" of a model runtime
	Incarnation string             // empty if nobody says
	Token       string             // refers to its bearer token, as of [engineclient.Tokens]
	TLS         v1alpha1.EngineTLS // how it is known by the settings of its pool; zero if they do not say
	H2C         bool               // it speaks HTTP/2 without TLS
	HTTP        string             // where it takes requests over HTTP, "ip:port"; empty means Address
	GRPC        string             // where it takes gRPC calls, "ip:port"; empty means Address
}

// managedAt is where an engine that is managed over HTTP is told what to load, "ip:port": where it
// takes requests over HTTP.
func (e *Endpoint) managedAt() string { return cmp.Or(e.HTTP, e.Address) }

// Answer is what one call to an engine came to.
type Answer struct {
	Model  string
	Unload bool // or it was a load
	At     time.Time
	Took   time.Duration
	Err    *Error // nil where the engine did it
}

// Loader loads and unloads models at one endpoint, and makes clear what an unclear answer means:
// whoever hears of a load that failed knows whether something is left of it. Calls for one model
// follow each other; how many models are loaded at once is for the caller to bound. It is safe for
// concurrent use.
type Loader struct {
	driver Driver
	heard  func(Answer)
	over   context.Context // ended by Close
	end    context.CancelCauseFunc

	mu      sync.Mutex // guards the following
	turns   map[string]*turn
	resumed chan struct{}   // closed while calls may begin
	calls   context.Context // of loads and unloads; ended by Quit, which begins another, and by Close
	quit    context.CancelCauseFunc
}

// turn lets one call for a model go on at a time.
type turn struct {
	taken chan struct{} // has one place: full while a call is on; never closed
	users int           // calls that are on or wait; guarded by Loader.mu
}

// Open returns the Loader of an endpoint. Heard is told of each call to the engine as it ends, from
// several goroutines; it may be nil.
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
		d = openRepository(e, a)
	case e.Management != "" || e.Kind == engine.ModelRuntime:
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
	l := &Loader{driver: d, heard: heard, turns: make(map[string]*turn), resumed: make(chan struct{})}
	close(l.resumed)
	l.over, l.end = context.WithCancelCause(context.Background())
	l.calls, l.quit = context.WithCancelCause(l.over)
	return l
}

// Close ends every call, without clearing up after loads: whoever closes a Loader has their intents
// on record, or the endpoint is gone.
func (l *Loader) Close() error {
	l.end(errClosed)
	return l.driver.Close()
}

// Quit gives up every load and unload that is under way or waits for its turn, without clearing up
// after it: the engine is about to end, and may answer nothing any more. Those that begin later are
// made as ever.
func (l *Loader) Quit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.quit(errQuit)
	l.calls, l.quit = context.WithCancelCause(l.over)
}

// current is the context of the loads and unloads that begin now.
func (l *Loader) current() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

// Pause lets no call that loads or unloads begin, those that clear up after a load neither, until
// it is called with false. Those who made them wait.
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

// allowed waits until calls may begin, and says whether ctx lasted.
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

// Recall says what an engine was told to have that lists nothing, as far as that is known: before
// the first look at it that succeeds, else it changes nothing. Others are asked.
func (l *Loader) Recall(told []Model) {
	if d, is := l.driver.(*tfServing); is {
		d.recall(told)
	}
}

// Look is [Driver.Look].
func (l *Loader) Look(ctx context.Context, r Record) (Seen, error) {
	ctx, cancel := within(ctx, l.over)
	defer cancel()
	return l.driver.Look(ctx, r)
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

// within returns ctx, ended with another too.
func within(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { stop(); cancel(nil) }
}

// Load loads a model. The engine is asked to give up after timeout, or when ctx ends. Where its
// answer is unclear then, the model is unloaded until it is gone, which may take longer than both:
// Load returns when nothing is left.
//
// The error is an *[Error]. Refused: nothing is left of the load. Unreached: the engine was not
// asked. Unclear: the engine is gone, or could not be told to unload, or Close or Quit came
// between; something may be left, and [Loader.Unload] is needed before the model is loaded here
// again.
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
	if err := l.clear(calls, m.ID, settle); err != nil {
		return Loaded{}, fault(Unclear, fmt.Sprintf("%s; control cannot unload it: %v", failure.Words, err))
	}
	return Loaded{}, &Error{Outcome: Refused, Words: failure.Words, Fault: failure.Fault, Passing: failure.Passing}
}

// Unload unloads a model, again and again until it is gone, ctx ends or the engine is. The error is
// an *[Error]: Unreached where the engine is gone, else the last that it said.
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

// clear unloads a model after pause, and again until the engine says that it is gone.
func (l *Loader) clear(ctx context.Context, id string, pause time.Duration) *Error {
	ctx, cancel := context.WithTimeout(ctx, patience)
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
		if absent == absences {
			return failure
		}
		pause = next
	}
}

// wait waits, and says whether ctx lasted.
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

// enter waits for the turn of a call for a model, while both contexts last. The caller calls leave
// at its end.
func (l *Loader) enter(ctx, calls context.Context, id string) (leave func(), err error) {
	l.mu.Lock()
	t := l.turns[id]
	if t == nil {
		t = &turn{taken: make(chan struct{}, 1)}
		l.turns[id] = t
	}
	t.users++
	l.mu.Unlock()
	done := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(l.turns, id)
		}
	}
	select {
	case t.taken <- struct{}{}:
		if ctx.Err() == nil && calls.Err() == nil {
			return func() { <-t.taken; done() }, nil
		}
		<-t.taken
	case <-ctx.Done():
	case <-calls.Done():
	}
	done()
	err = context.Cause(calls)
	if err == nil {
		err = ctx.Err()
	}
	return nil, fault(Unreached, "control did not ask the engine: "+err.Error())
}
