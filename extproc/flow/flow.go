// Package flow queues requests until an endpoint can serve them: until a copy of their model is
// loaded, until a copy at its concurrency limit has room again, or until an engine can start them.
// It adds synchronization to package queue. Each waiting request blocks its own goroutine on a
// channel.
//
// Each pool has one queue. An event makes models of a pool ready: a new view of the fleet, the end
// of another request, or the passing of time. The flow then calls the first request in order whose
// model is ready. That request chooses its endpoint, and the flow calls the next one. A request
// that finds no room makes its model wait for the next event.
package flow

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/internal/objects"
)

// ErrFull means that too many requests wait in the pool, or that waiting requests use too much
// memory.
var ErrFull = errors.New("too many requests are queued")

// ErrUnknown means that the objects that defined the model were deleted.
var ErrUnknown = errors.New("the model is gone")

// ErrControlLost means that control, which would load the model, has been silent for too long.
var ErrControlLost = errors.New("the model is not loaded, and control does not answer")

// ErrChanged means that the request's route was edited or deleted, so that the request must be
// decided again.
var ErrChanged = errors.New("the route has changed")

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
	// MaxQueued limits the requests that wait in one pool. MaxBytes limits the total size of the
	// bodies of all waiting requests.
	MaxQueued int
	MaxBytes  int64
	// Changed is called when the number of waiting requests changes. The change is urgent if a
	// model without a copy gets its first waiting request or loses its last. Changed may be nil. It
	// must return quickly.
	Changed func(urgent bool)
	// Alone means that there is no control, so that no model is loaded on demand.
	Alone bool
	// Turns are the turns of this process and others at endpoints; nil if there are no others. They
	// belong to one Flow, and are not used before New returns.
	Turns *Turns
}

// Flow is safe for concurrent use. Make one with [New], and have the fleet call [Flow.Published]
// with each view.
type Flow struct {
	Config
	queued  atomic.Int64 // number of waiting requests; usually 0, which is read without locking mu
	lengths lengths
	// expecting is the size of expected; usually 0, which is read without locking mu.
	expecting atomic.Int64

	// mu guards the fields below, and all pools, lines and tickets. It is locked after all mutexes
	// of the fleet, and before the mutexes that Changed locks.
	mu    sync.Mutex
	pools map[objects.Name]*pool
	lates map[objects.Name]*lateness // of names without a pool that still have promises
	// expected are the charges of requests whose outcome will be reported, by number.
	expected map[uint64]*Charge
	bytes    int64          // total size of the bodies of all waiting requests
	lost     bool           // whether control has been silent for too long
	world    *objects.World // last compared with the waiting requests; nil while nobody waits
	holder   uint64         // number of reservations made
}

// New returns an empty Flow.
func New(c Config) *Flow {
	if c.Changed == nil {
		c.Changed = func(bool) {}
	}
	f := &Flow{
		Config: c, pools: make(map[objects.Name]*pool), lates: make(map[objects.Name]*lateness),
		expected: make(map[uint64]*Charge),
	}
	if c.Turns != nil {
		c.Turns.opened = f.opened
	}
	return f
}

// Request describes a request that has to wait.
type Request struct {
	// Key is the pool and the engine's name of the model. ID is empty for the base model of the
	// pool, and for requests that any endpoint may serve.
	Key objects.ModelKey
	// Placed means that control loads the model when requests wait for it.
	Placed bool
	// Holds means that the request waits even if no endpoint may load its model, see [Flow.Absent].
	// It matters only with Placed. Requests with Holds must have another Class than requests
	// without it.
	Holds bool
	// Class separates requests for the same model that do not find room at the same time, for
	// example because different endpoints may serve them.
	Class string
	// Adapter is the adapter of the request's route. If an edit makes the route lead to another
	// adapter or pool, the wait ends with [ErrChanged].
	Adapter string
	// Fallback means that the fallback of the request's route serves the request.
	Fallback bool
	// Path is the request's flow: which share of the pool it uses.
	Path queue.Path
	// Bytes is the size of the request's body.
	Bytes int64
	// Service is what can be predicted before an endpoint is chosen. It does not affect the order:
	// [Ticket.Dispatch] charges requests. The zero Service means that nothing is known.
	Service Service
	// Longest is the longest acceptable wait: a request that is predicted to wait longer is [Late].
	// 0 means no limit. Identity is a hash that the request has again when its client retries; 0 if
	// there is none.
	Longest  time.Duration
	Identity uint64
}

// line returns the name of the request's line.
func (r *Request) line() string {
	if r.Class == "" {
		return r.Key.ID
	}
	return r.Key.ID + "\x00" + r.Class
}

// SameLine reports whether two requests wait in the same line of the same pool.
func (r *Request) SameLine(o *Request) bool { return r.Key == o.Key && r.Class == o.Class }

// Enqueue adds a request to its pool's queue. The error is [ErrFull], [Failed], [ErrUnknown],
// [ErrControlLost] or [Late]. If the queue is full, the request that [queue.Queue.Victim] selects
// gets ErrFull. It may be the new one.
func (f *Flow) Enqueue(r Request, now time.Time) (*Ticket, error) {
	// Increment the count before reading the view. Published reads the count after the view is
	// stored, so Enqueue sees the new view or Published sees this request.
	f.queued.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	view := f.View()
	is := f.verdict(view, r.Key, r.Placed, r.Holds)
	if is == failed {
		f.queued.Add(-1)
		return nil, f.failure(view, r.Key)
	}
	p := f.pools[r.Key.Pool]
	if p == nil {
		p = &pool{
			flow: f, name: r.Key.Pool, queue: queue.New[*Ticket](), lines: make(map[string]*line), running: make(map[*Charge]bool),
			late: f.latenessOf(r.Key.Pool),
		}
		f.pools[r.Key.Pool] = p
	}
	service := p.expected(&r)
	if retry, late := p.wouldBeLate(&r, service, is, now); late {
		f.queued.Add(-1)
		f.tidy(p)
		return nil, Late{retry}
	}
	// A request that only waits for another request to end is not urgent: such waits are short and
	// frequent.
	there, _ := has(view, r.Key)
	t := &Ticket{flow: f, pool: p, request: r, service: service, since: now, urgent: r.Placed && !there, turn: make(chan error, 1)}
	if f.world == nil {
		f.world = view.World
	}
	first := p.join(t, is)
	for v := f.excess(p, t); v != nil; v = f.excess(p, t) {
		if v == t {
			p.remove(t)
			p.call()
			f.tidy(p)
			return nil, ErrFull
		}
		v.fail(ErrFull)
		if v.pool != p {
			v.pool.call()
		}
		f.tidy(v.pool)
	}
	p.call()
	f.Changed(first && t.urgent)
	return t, nil
}

// excess returns the waiting request that must make room after a request has joined its pool's
// queue; nil if the queue is not too full.
func (f *Flow) excess(p *pool, newcomer *Ticket) *Ticket {
	var victim *queue.Place[*Ticket]
	switch band := newcomer.request.Path.Band; {
	case p.queue.Len() > f.MaxQueued:
		victim = p.queue.Victim(band, false)
	case f.bytes > f.MaxBytes:
		most := p
		for _, o := range f.pools {
			if o.queue.Bytes() > most.queue.Bytes() {
				most = o
			}
		}
		if victim = most.queue.Victim(band, true); victim == nil {
			victim = p.queue.Victim(band, true)
		}
	default:
		return nil
	}
	if victim == nil || victim.Waiter.called {
		return newcomer // a called request is already choosing its endpoint
	}
	return victim.Waiter
}

// Waits reports whether a new request must join the queue, because other requests of its pool wait.
func (f *Flow) Waits(pool objects.Name) bool {
	if f.queued.Load() == 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pools[pool]
	return p != nil && p.queue.Len() > 0
}

// Busy reports whether requests wait for a model, so that a new request must queue behind them.
func (f *Flow) Busy(r *Request) bool {
	if f.queued.Load() == 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pools[r.Key.Pool]
	return p != nil && p.lines[r.line()] != nil
}

// Published makes models ready that may have room in the view, and fails requests whose model
// cannot be loaded.
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
	edited := v.World != f.world
	f.world = v.World
	for _, p := range f.pools {
		if edited {
			p.edit(v.World)
		}
	}
	for _, p := range f.pools {
		p.show(v)
	}
}

// Freed makes models ready after a request has ended. Model is the engine's name of its model.
func (f *Flow) Freed(address, model string) {
	if f.queued.Load() == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	view := f.View()
	for _, p := range f.pools {
		p.freed(view, address, model)
	}
}

// Any reports whether any request waits. It is fast.
func (f *Flow) Any() bool { return f.queued.Load() > 0 }

// WaitingModel is a model that requests wait for.
type WaitingModel struct {
	Key      objects.ModelKey
	Requests int
	Since    time.Time // arrival of the first waiting request
}

// WaitingModels returns every model with waiting requests that control may load, sorted.
func (f *Flow) WaitingModels() []WaitingModel { return f.waiting(func(*line) bool { return true }) }

// waiting returns every placed model for whose line the function returns true, sorted.
func (f *Flow) waiting(counts func(*line) bool) []WaitingModel {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make(map[objects.ModelKey]WaitingModel)
	for _, p := range f.pools {
		for _, l := range p.lines {
			if !l.placed || !counts(l) {
				continue
			}
			w, since := all[l.key], l.tickets.Front().Value.(*Ticket).since
			if w.Requests == 0 || since.Before(w.Since) {
				w.Since = since
			}
			w.Key, w.Requests = l.key, w.Requests+l.tickets.Len()
			all[l.key] = w
		}
	}
	sorted := make([]WaitingModel, 0, len(all))
	for _, w := range all {
		sorted = append(sorted, w)
	}
	slices.SortFunc(sorted, func(a, b WaitingModel) int { return a.Key.Compare(b.Key) })
	return sorted
}

// QueuedAtLimit returns the number of waiting requests for each model whose copies are all at their
// concurrency limit.
func (f *Flow) QueuedAtLimit() map[objects.ModelKey]int {
	all := make(map[objects.ModelKey]int)
	view := f.View()
	for _, w := range f.waiting(func(l *line) bool { return l.why == Copy }) {
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
	return f.queued.Load(), f.bytes
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

// verdict is the state of a model in a view.
type verdict uint8

const (
	// waits means that no copy is usable, or that every usable copy is at its concurrency limit.
	waits verdict = iota
	// ready means that a request may try to find an endpoint.
	ready
	// failed means that the model cannot be loaded.
	failed
	// empty means that no endpoint may load the model, and that the requests wait until one may.
	empty
)

// verdict returns a model's state in a view. It is ready without a pool, so that the request
// continues and gets the error of a missing pool. A failed load does not matter while the model has
// another copy. Holds is [Request.Holds]. The caller holds mu.
func (f *Flow) verdict(v *endpointstate.View, key objects.ModelKey, placed, holds bool) verdict {
	if !placed {
		return ready
	}
	has, room := has(v, key)
	switch {
	case v.Snapshot.Pools[key.Pool.String()] == nil, room:
		return ready
	case holds && f.absent(v, key):
		return empty
	case !has && f.failure(v, key) != nil:
		return failed
	}
	return waits
}

// tidy forgets a pool without waiting and running requests. The caller holds mu.
func (f *Flow) tidy(p *pool) {
	if p.queue.Len() == 0 {
		p.stop()
		if len(p.running) == 0 && f.pools[p.name] == p { // else the pool has been deleted, and made again
			delete(f.pools, p.name)
			f.keepPromises(p.name, p.late)
		}
	}
}
