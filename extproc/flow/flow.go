// Package flow queues requests until an endpoint can take them: until a copy of their model is
// loaded, or until a copy at its concurrency limit takes another request. It adds synchronization
// to package queue. A waiting request is the goroutine that it has anyway, blocked on a channel. A
// new view of the fleet, or the end of a request at a copy with a limit, wakes it.
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

// ErrUnknown means that the objects that admitted the request are gone, and the model with them.
var ErrUnknown = errors.New("the model is gone")

// Failed means that the model cannot be loaded for now. Reason is control's reason, one of those in
// api/wire.
type Failed struct{ Reason string }

func (f Failed) Error() string { return "the model cannot be loaded: " + f.Reason }

const (
	// DefaultMaxQueued bounds the requests that wait for one model: about as many as an Envoy sends
	// on a connection with its default of 1,024 streams.
	DefaultMaxQueued = 1000
	// DefaultMaxBytes bounds the bodies of all waiting requests: sixteen of the largest.
	DefaultMaxBytes = 512 << 20
)

// Config configures a Flow.
type Config struct {
	// View returns the latest view.
	View func() *endpointstate.View
	// MaxQueued bounds the requests that wait for one model, MaxBytes the bodies of all waiting
	// requests.
	MaxQueued int
	MaxBytes  int64
	// Changed is called when the set of models without a copy that requests wait for has changed,
	// which is urgent, or only the number of waiting requests. It may be nil, and must be quick.
	Changed func(urgent bool)
}

// Flow is safe for concurrent use. Make one with [New], and let the fleet call [Flow.Published]
// with each view.
type Flow struct {
	Config
	queued atomic.Int64 // makes the common case, no waiting request, one atomic load

	mu    sync.Mutex // guards queue; locked after the fleet's InFlight.mu and Fleet.mu, before what Config.Changed locks
	queue *queue.Queue[*Ticket]
}

// New returns an empty Flow.
func New(c Config) *Flow {
	if c.Changed == nil {
		c.Changed = func(bool) {}
	}
	return &Flow{Config: c, queue: queue.New[*Ticket](c.MaxQueued, c.MaxBytes)}
}

// Ticket is a waiting request. One goroutine owns it, and must call Leave in every case.
type Ticket struct {
	flow  *Flow
	key   objects.ModelKey
	place *queue.Place[*Ticket]
	// urgent reports that the model had no copy when the wait began.
	urgent bool
	turn   chan error // capacity 1
}

// Enqueue queues a request with a body of so many bytes behind all that wait for its model. It
// fails with [queue.ErrFull], [Failed] or [ErrUnknown].
func (f *Flow) Enqueue(key objects.ModelKey, bytes int64, now time.Time) (*Ticket, error) {
	// Count before reading the view. Published reads the count after the view is stored, so that no
	// request is missed by both.
	f.queued.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	view := f.View()
	v := verdict(view, key)
	if v == queue.Failed {
		f.queued.Add(-1)
		return nil, failure(view, key)
	}
	// A wait for another request to end is not urgent: it is short and frequent.
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

// Turn receives nil when the request may choose its endpoint, and a [Failed] or [ErrUnknown] when
// its model cannot be loaded.
func (t *Ticket) Turn() <-chan error { return t.turn }

// Back returns a request that had its turn but found no copy to the head of its queue.
func (t *Ticket) Back() {
	f := t.flow
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue.Back(t.place)
	f.show(f.View(), t.key)
}

// Leave ends the wait, whatever its result, and gives the next request its turn. It may be called
// more than once.
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

// Busy reports whether requests wait for a model, so that a new one must queue behind them.
func (f *Flow) Busy(key objects.ModelKey) bool {
	if f.queued.Load() == 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queue.Has(key)
}

// Published gives requests their turn whose model is ready in the view, and fails those whose model
// has failed.
func (f *Flow) Published(v *endpointstate.View) {
	if f.queued.Load() == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.queue.WaitingModels() {
		f.show(v, w.Key)
	}
}

// Freed gives the next request for a model its turn after a copy has fewer requests than before.
// Model is the engine's name.
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

// show applies the verdict of a view to the requests for a model. The caller holds mu.
func (f *Flow) show(v *endpointstate.View, key objects.ModelKey) {
	is := verdict(v, key)
	var news error
	if is == queue.Failed {
		news = failure(v, key)
	}
	for _, p := range f.queue.Show(key, is) {
		p.Waiter.turn <- news
	}
}

// WaitingModels returns every model with waiting requests, in order.
func (f *Flow) WaitingModels() []queue.WaitingModel {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queue.WaitingModels()
}

// QueuedAtLimit returns the number of requests that wait for models whose copies are all at their
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

// failure returns why a model has failed in a view.
func failure(v *endpointstate.View, key objects.ModelKey) error {
	if v.Failures[key] == wire.UnknownModel {
		return ErrUnknown
	}
	return Failed{v.Failures[key]}
}

// has reports whether a view has a usable copy of a model, and one with room.
func has(v *endpointstate.View, key objects.ModelKey) (has, room bool) {
	return v.Snapshot.Pools[key.Pool.String()].Has(key.ID)
}

// verdict returns the verdict of a view on a model. If the pool is gone, the request gets its turn
// and then its error. A failed load does not concern requests whose model has a copy.
func verdict(v *endpointstate.View, key objects.ModelKey) queue.Verdict {
	has, room := has(v, key)
	switch {
	case v.Snapshot.Pools[key.Pool.String()] == nil, room:
		return queue.Ready
	case !has && v.Failures[key] != "":
		return queue.Failed
	}
	return queue.Waits
}
