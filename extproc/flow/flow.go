// Package flow keeps requests that wait for their model until they may go on: until there is a copy that they can use, and where copies take so
// many requests at once and no more, until one of them takes another. It is the edge of package queue: what waits is the goroutine that each
// request has anyway, on a channel, and what wakes it is a view of the fleet, or the end of a request at a copy with a limit.
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

// ErrUnknown says that the model is none any more: the objects that admitted the request are gone.
var ErrUnknown = errors.New("the model is gone")

// Failed says that the model cannot be loaded for now, and has control's reason: one of api/wire.
type Failed struct{ Reason string }

func (f Failed) Error() string { return "the model cannot be loaded: " + f.Reason }

const (
	// DefaultMaxHeld is how many requests may wait for one model: as many as an Envoy with its default of 1,024 streams a
	// connection would send at once, and seconds of work for one engine.
	DefaultMaxHeld = 1000
	// DefaultMaxBytes bounds the bodies of all requests that wait: sixteen of the largest.
	DefaultMaxBytes = 512 << 20
)

// Config is what a Flow needs.
type Config struct {
	// View returns the view in force.
	View func() *endpointstate.View
	// MaxHeld bounds the requests that wait for one model, MaxBytes the bodies of all that wait.
	MaxHeld  int
	MaxBytes int64
	// Changed is told when other models are waited for than before that have no copy, or, not urgently, more or fewer requests. It may be nil,
	// and must be quick.
	Changed func(urgent bool)
}

// Flow is safe for concurrent use. Make one with [New], and let the fleet tell it of each view by [Flow.Published].
type Flow struct {
	Config
	held atomic.Int64 // so that whom nobody waits for costs one load

	mu    sync.Mutex // guards queue; locked after the fleet's InFlight.mu and Fleet.mu, before what Config.Changed locks
	queue *queue.Queue[*Ticket]
}

// New returns a Flow in which nobody waits.
func New(c Config) *Flow {
	if c.Changed == nil {
		c.Changed = func(bool) {}
	}
	return &Flow{Config: c, queue: queue.New[*Ticket](c.MaxHeld, c.MaxBytes)}
}

// Ticket is a request that waits. It is owned by one goroutine, and must be left whatever becomes of the request.
type Ticket struct {
	flow  *Flow
	key   objects.ModelKey
	place *queue.Place[*Ticket]
	// urgent says that there was no copy when it began to wait.
	urgent bool
	turn   chan error // capacity 1
}

// Hold gives a request whose body has so many bytes a place behind all that wait for its model. It fails with
// [queue.ErrFull], or a [Failed] or [ErrUnknown] where the view in force says so.
func (f *Flow) Hold(key objects.ModelKey, bytes int64, now time.Time) (*Ticket, error) {
	// Counted before the view is read: who publishes reads this after the view is there, so that none is missed by both.
	f.held.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	view := f.View()
	v := verdict(view, key)
	if v == queue.Failed {
		f.held.Add(-1)
		return nil, failure(view, key)
	}
	// That one waits for another to end need not be told at once: that is over in a moment, and comes again.
	there, _ := has(view, key)
	first := !f.queue.Has(key)
	t := &Ticket{flow: f, key: key, urgent: !there, turn: make(chan error, 1)}
	place, err := f.queue.Join(t, key, bytes, now)
	if err != nil {
		f.held.Add(-1)
		return nil, err
	}
	t.place = place
	f.show(view, key)
	f.Changed(first && t.urgent)
	return t, nil
}

// Key is the model that the request waits for.
func (t *Ticket) Key() objects.ModelKey { return t.key }

// Turn is sent nil when the request may choose its endpoint, and a [Failed] or [ErrUnknown] when its model cannot be loaded.
func (t *Ticket) Turn() <-chan error { return t.turn }

// Back says that the request had its turn and found no copy: it waits on, before all others.
func (t *Ticket) Back() {
	f := t.flow
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue.Back(t.place)
	f.show(f.View(), t.key)
}

// Leave ends the wait, whether the request goes on or not, and lets the next have its turn. It may be called more than once.
func (t *Ticket) Leave() {
	f := t.flow
	f.mu.Lock()
	defer f.mu.Unlock()
	if t.place == nil {
		return
	}
	if next := f.queue.Leave(t.place); next != nil {
		next.Holder.turn <- nil
	}
	t.place = nil
	f.held.Add(-1)
	f.Changed(t.urgent && !f.queue.Has(t.key))
}

// Busy says whether requests wait for a model, so that one that comes now must not overtake them.
func (f *Flow) Busy(key objects.ModelKey) bool {
	if f.held.Load() == 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queue.Has(key)
}

// Published lets those go on whose model a view shows to be ready, and ends the wait of those whose model it shows to have
// failed.
func (f *Flow) Published(v *endpointstate.View) {
	if f.held.Load() == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.queue.Wanted() {
		f.show(v, w.Key)
	}
}

// Freed lets the next go on that wait for a model, by what engines call it, of which a copy has fewer requests than before.
func (f *Flow) Freed(model string) {
	if f.held.Load() == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	view := f.View()
	for _, key := range f.queue.Named(model) {
		f.show(view, key)
	}
}

// show tells those whom it concerns what a view says of their model. The caller holds mu.
func (f *Flow) show(v *endpointstate.View, key objects.ModelKey) {
	is := verdict(v, key)
	var news error
	if is == queue.Failed {
		news = failure(v, key)
	}
	for _, p := range f.queue.Show(key, is) {
		p.Holder.turn <- news
	}
}

// Wanted returns every model that requests wait for, in order.
func (f *Flow) Wanted() []queue.Wanted {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queue.Wanted()
}

// HeldFull is how many requests wait for models of which there are copies, each with as many requests as it takes.
func (f *Flow) HeldFull() map[objects.ModelKey]int {
	all := make(map[objects.ModelKey]int)
	view := f.View()
	for _, w := range f.Wanted() {
		if there, _ := has(view, w.Key); there {
			all[w.Key] = w.Requests
		}
	}
	return all
}

// Held is how many requests wait, and how many bytes their bodies have.
func (f *Flow) Held() (requests, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held.Load(), f.queue.Bytes()
}

// failure is why a view says that a model has failed.
func failure(v *endpointstate.View, key objects.ModelKey) error {
	if v.Failures[key] == wire.UnknownModel {
		return ErrUnknown
	}
	return Failed{v.Failures[key]}
}

// has says whether a view has a copy of a model that can be used, and one that takes another request.
func has(v *endpointstate.View, key objects.ModelKey) (has, room bool) {
	return v.Snapshot.Pools[key.Pool.String()].Has(key.ID)
}

// verdict is what a view says of a model. Where the pool is gone the request is let go, to be told. That another copy cannot be loaded is no matter
// to those that wait for one that there is.
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
