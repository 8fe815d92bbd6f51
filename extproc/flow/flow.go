// Package flow queues requests until an endpoint can serve them: until a copy of their model is
// loaded, or until a copy at its concurrency limit has room again. It adds synchronization to
// package queue. Each waiting request blocks its own goroutine on a channel. A new view of the
// fleet wakes it, or the end of another request at a copy with a limit.
package flow

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/internal/objects"
)

// ErrUnknown means that the objects that defined the model were deleted.
var ErrUnknown = errors.New("the model is gone")

// ErrControlLost means that control, which would load the model, has been silent for too long.
var ErrControlLost = errors.New("the model is not loaded, and control does not answer")

// Failed means that the model cannot be loaded at present. Reason is one of control's reasons in
// api/wire.
type Failed struct{ Reason string }

func (f Failed) Error() string { return "the model cannot be loaded: " + f.Reason }

const (
	// DefaultMaxQueued is the default of Config.MaxQueued: about the number of requests that an
	// Envoy sends on one connection with its default of 1,024 streams.
	DefaultMaxQueued = 1000
	// DefaultMaxBytes is the default of Config.MaxBytes: sixteen times the largest body.
	DefaultMaxBytes = 512 << 20
)

// Config configures a Flow.
type Config struct {
	// View returns the latest view.
	View func() *endpointstate.View
	// MaxQueued limits the requests that wait for one model. MaxBytes limits the total size of the
	// bodies of all waiting requests.
	MaxQueued int
	MaxBytes  int64
	// Changed is called when the number of waiting requests changes. The change is urgent if a
	// model without a copy gets its first waiting request or loses its last. Changed may be nil. It
	// must return quickly.
	Changed func(urgent bool)
}

// Flow is safe for concurrent use. Make one with [New], and have the fleet call [Flow.Published]
// with each view.
type Flow struct {
	Config
	queued atomic.Int64 // number of waiting requests; usually 0, which is read without locking mu

	mu    sync.Mutex // guards the fields below; locked after all mutexes of the fleet, and before the mutexes that Changed locks
	queue *queue.Queue[*Ticket]
	lost  bool // whether control has been silent for too long
}

// New returns an empty Flow.
func New(c Config) *Flow {
	if c.Changed == nil {
		c.Changed = func(bool) {}
	}
	return &Flow{Config: c, queue: queue.New[*Ticket](c.MaxQueued, c.MaxBytes)}
}

// Ticket is a waiting request. One goroutine owns it, and must always call Leave at the end.
type Ticket struct {
	flow  *Flow
	key   objects.ModelKey
	place *queue.Place[*Ticket]
	// urgent reports that the model had no copy when the wait began.
	urgent bool
	turn   chan error // what Turn returns; capacity 1
}

// Enqueue adds a request to the end of its model's queue. Bytes is the size of its body. The error
// is [queue.ErrFull], [Failed], [ErrUnknown] or [ErrControlLost].
func (f *Flow) Enqueue(key objects.ModelKey, bytes int64, now time.Time) (*Ticket, error) {
	// Increment the count before reading the view. Published reads the count after the view is
	// stored, so Enqueue sees the new view or Published sees this request.
	f.queued.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	view := f.View()
	if f.verdict(view, key) == queue.Failed {
		f.queued.Add(-1)
		return nil, f.failure(view, key)
	}
	// A request that only waits for another request to end is not urgent: such waits are short and
	// frequent.
	there, _ := has(view, key)
	first := !f.queue.Has(key)
	t := &Ticket{flow: f, key: key, urgent: !there, turn: make(chan error, 1)}
	place, err := f.queue.Join(t, key, bytes, now)
	if err != nil {
		f.queued.Add(-1)
		return nil, err
	}
	t.place = place
	f.show(view, key)
	f.Changed(first && t.urgent)
	return t, nil
}

// Key returns the model that the request waits for.
func (t *Ticket) Key() objects.ModelKey { return t.key }

// Turn returns a channel that receives nil when the request may choose its endpoint. It receives
// [Failed], [ErrUnknown] or [ErrControlLost] when the model cannot be loaded.
func (t *Ticket) Turn() <-chan error { return t.turn }

// Back puts a request at the head of its queue again. The caller received nil from Turn, but then
// found no copy with room.
func (t *Ticket) Back() {
	f := t.flow
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue.Back(t.place)
	f.show(f.View(), t.key)
}

// Leave removes the request from the queue, whether or not it was served, and lets the next request
// choose its endpoint. It may be called more than once.
func (t *Ticket) Leave() {
	f := t.flow
	f.mu.Lock()
	defer f.mu.Unlock()
	if t.place == nil {
		return
	}
	if next := f.queue.Leave(t.place); next != nil {
		next.Waiter.turn <- nil
	}
	t.place = nil
	f.queued.Add(-1)
	f.Changed(t.urgent && !f.queue.Has(t.key))
}

// Busy reports whether requests wait for a model, so that a new request must queue behind them.
func (f *Flow) Busy(key objects.ModelKey) bool {
	if f.queued.Load() == 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queue.Has(key)
}

// Published wakes requests whose model has room in the view, and fails requests whose model cannot
// be loaded.
func (f *Flow) Published(v *endpointstate.View) {
	if f.queued.Load() == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.showAll(v)
}

// ControlLost records whether control has been silent for too long. While it has, requests whose
// model has no copy fail with [ErrControlLost], including those that wait now.
func (f *Flow) ControlLost(lost bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost = lost; lost {
		f.showAll(f.View())
	}
}

// Lost reports whether control has been silent for too long.
func (f *Flow) Lost() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lost
}

// showAll applies a view to all requests that wait. The caller holds mu.
func (f *Flow) showAll(v *endpointstate.View) {
	for _, w := range f.queue.WaitingModels() {
		f.show(v, w.Key)
	}
}

// Freed wakes the next request for a model after a request at one of its copies has ended. Model is
// the engine's name of the model.
func (f *Flow) Freed(model string) {
	if f.queued.Load() == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	view := f.View()
	for _, key := range f.queue.Named(model) {
		f.show(view, key)
	}
}

// show applies the model's state in a view to the requests that wait for it. The caller holds mu.
func (f *Flow) show(v *endpointstate.View, key objects.ModelKey) {
	is := f.verdict(v, key)
	var news error
	if is == queue.Failed {
		news = f.failure(v, key)
	}
	for _, p := range f.queue.Show(key, is) {
		p.Waiter.turn <- news
	}
}

// WaitingModels returns every model with waiting requests, sorted.
func (f *Flow) WaitingModels() []queue.WaitingModel {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queue.WaitingModels()
}

// QueuedAtLimit returns the number of waiting requests for each model whose copies are all at their
// concurrency limit.
func (f *Flow) QueuedAtLimit() map[objects.ModelKey]int {
	all := make(map[objects.ModelKey]int)
	view := f.View()
	for _, w := range f.WaitingModels() {
		if there, _ := has(view, w.Key); there {
			all[w.Key] = w.Requests
		}
	}
	return all
}

// Queued returns the number of waiting requests and the bytes of their bodies.
func (f *Flow) Queued() (requests, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queued.Load(), f.queue.Bytes()
}

// Failure returns why a model without copies cannot be loaded now; nil if it can be.
func (f *Flow) Failure(key objects.ModelKey) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failure(f.View(), key)
}

// failure is Failure for a view. While control is lost, its other reasons may be obsolete, so they
// do not count. The caller holds mu.
func (f *Flow) failure(v *endpointstate.View, key objects.ModelKey) error {
	switch reason := v.Failures[key]; {
	case reason == wire.UnknownModel:
		return ErrUnknown
	case f.lost:
		return ErrControlLost
	case reason != "":
		return Failed{reason}
	}
	return nil
}

// has reports whether the model has a usable copy in a view, and whether such a copy has room for
// another request.
func has(v *endpointstate.View, key objects.ModelKey) (has, room bool) {
	return v.Snapshot.Pools[key.Pool.String()].Has(key.ID)
}

// verdict returns the model's state in a view. It is Ready without a pool, so that the request
// continues and gets the error of a missing pool. A failed load does not matter while the model has
// another copy. The caller holds mu.
func (f *Flow) verdict(v *endpointstate.View, key objects.ModelKey) queue.Verdict {
	has, room := has(v, key)
	switch {
	case v.Snapshot.Pools[key.Pool.String()] == nil, room:
		return queue.Ready
	case !has && f.failure(v, key) != nil:
		return queue.Failed
	}
	return queue.Waits
}
