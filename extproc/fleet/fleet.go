// Package fleet holds what the gateway believes about endpoints, and publishes it as snapshots.
//
// What it is told comes from beside the path of requests: objects from their source, looks at engines from scrape,
// refusals from outcome. What it gives is a [View] behind one atomic pointer, which a request loads once. The counts of
// requests in flight live on from view to view: [Begin] and [InFlight.End] change them while a request passes.
package fleet

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// View is everything that a decision depends on, at one moment: objects and endpoints that belong together. It is
// immutable but for the counts that its snapshot points to.
type View struct {
	World    *objects.World
	Snapshot *pick.Snapshot
}

const (
	// staleAfter is the silence after which an endpoint gets requests only where no other can: five scrapes at the
	// default interval. A busy vLLM misses one or two, for its one process does both.
	staleAfter = time.Second
	// lostAfter is the silence after which an endpoint gets none. vLLM that hangs after SIGTERM is silent while its
	// port is open (seen on 0.32.0).
	lostAfter = 10 * time.Second
	// stoppingFor is how long an endpoint that said that it is stopping gets no requests, unless a look finds sooner that it
	// has ended: what Kubernetes gives a pod to end, by default (terminationGracePeriodSeconds).
	stoppingFor = 30 * time.Second
	// pause is the least time between two views that only news of load separates. With hundreds of endpoints, news
	// comes thousands of times a second; a view that is this much older decides no worse.
	pause = 5 * time.Millisecond
)

// Fleet is safe for concurrent use. Make one with [New]; run it with [Fleet.Run].
type Fleet struct {
	view atomic.Pointer[View]
	now  func() time.Time
	news chan struct{} // capacity 1; never closed

	mu        sync.Mutex // guards the following
	world     *objects.World
	endpoints map[string]*endpoint         // by address
	indexes   map[objects.Name]*pick.Index // of the pools of world; cleared when models or endpoints come and go
}

// endpoint is one address, in whatever pools it is.
type endpoint struct {
	inFlight, adapters atomic.Int64
	models             map[string]*atomic.Int64 // our requests in flight, by the engine's name of the model

	lists  engine.Models
	load   engine.Load
	others int64
	// heard is when the last look that the endpoint answered began, refused when it last turned a request or a look
	// away; zero if never. Only what is heard after it was refused counts, so that a time to come keeps it out till then.
	heard, refused time.Time
}

// New returns a Fleet of nothing. Now is the clock.
func New(now func() time.Time) *Fleet {
	f := &Fleet{
		now: now, news: make(chan struct{}, 1),
		world: objects.Build(objects.Set{}), endpoints: make(map[string]*endpoint),
	}
	f.publish()
	return f
}

// View returns the latest view. It never blocks.
func (f *Fleet) View() *View { return f.view.Load() }

// Run publishes news of load, at most one view each pause, until ctx ends.
func (f *Fleet) Run(ctx context.Context) error {
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.news:
		}
		f.mu.Lock()
		f.publish()
		f.mu.Unlock()
		wait.Reset(pause)
		select {
		case <-ctx.Done():
			return nil
		case <-wait.C:
		}
	}
}

// SetWorld puts new objects in force: when it returns, every View has them. Endpoints that stay keep what is known of
// them.
func (f *Fleet) SetWorld(w *objects.World) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.world = w
	named := make(map[string]bool)
	for _, p := range w.Pools {
		for _, e := range p.Endpoints {
			named[e.Address] = true
			if f.endpoints[e.Address] == nil {
				f.endpoints[e.Address] = &endpoint{models: make(map[string]*atomic.Int64)}
			}
		}
	}
	for address, e := range f.endpoints {
		// One that has requests in flight is kept, in case that it comes back before they end.
		if !named[address] && e.inFlight.Load() == 0 {
			delete(f.endpoints, address)
		}
	}
	f.indexes = nil
	f.publish()
}

// SetModels says what an endpoint answers to. News of an endpoint that is gone is forgotten.
func (f *Fleet) SetModels(address string, m engine.Models) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.endpoints[address]
	if e == nil || slices.Equal(e.lists.Base, m.Base) && slices.Equal(e.lists.Adapters, m.Adapters) {
		return
	}
	e.lists = m
	f.indexes = nil
	f.tell()
}

// Refused says that an endpoint turned a request away at the door, or dropped it. The endpoint is out until it answers a
// look that begins after this.
func (f *Fleet) Refused(address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.endpoints[address]; e != nil {
		e.refused = f.now()
		f.publish()
	}
}

// Stopping says that an endpoint turned away a request that began at a time, because it is stopping: it will end, though
// it answers looks until then. It is out until it has refused and then answers a look, or for a while. News that is older
// than what is known is forgotten: the endpoint has ended since, or it is known.
func (f *Fleet) Stopping(address string, began time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.endpoints[address]; e != nil && began.After(e.refused) {
		e.refused = began.Add(stoppingFor)
		f.publish()
	}
}

// Look is one look at an endpoint's load, from its beginning.
type Look struct {
	fleet   *Fleet
	address string
	began   time.Time
	ours    int64
}

// Look begins a look at an endpoint. It ends with one of Saw, Failed or [Fleet.Refused].
func (f *Fleet) Look(address string) Look {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := Look{fleet: f, address: address, began: f.now()}
	if e := f.endpoints[address]; e != nil {
		l.ours = e.inFlight.Load()
	}
	return l
}

// Saw ends a look that the endpoint answered.
func (l Look) Saw(load engine.Load) {
	l.fleet.mu.Lock()
	defer l.fleet.mu.Unlock()
	e := l.fleet.endpoints[l.address]
	if e == nil {
		return
	}
	e.load, e.heard = load, l.began
	// The engine counted some time between the beginning and now. Taking the larger of our own counts of then and now
	// makes ghosts of others' requests rarer than of none.
	ours := max(l.ours, e.inFlight.Load())
	e.others = max(0, int64(load.Running.Or(0)+load.Waiting.Or(0))-ours)
	l.fleet.tell()
}

// Failed ends a look that the endpoint did not answer in time, or not in words that make sense.
func (l Look) Failed() { l.fleet.tell() }

// tell wakes Run.
func (f *Fleet) tell() {
	select {
	case f.news <- struct{}{}:
	default:
	}
}

// publish makes a view of what is known. The caller holds mu.
func (f *Fleet) publish() {
	if f.indexes == nil {
		f.indexes = make(map[objects.Name]*pick.Index, len(f.world.Pools))
	}
	now := f.now()
	s := &pick.Snapshot{Pools: make(map[string]*pick.Pool, len(f.world.Pools))}
	for name, p := range f.world.Pools {
		if f.indexes[name] == nil {
			f.indexes[name] = f.index(p)
		}
		endpoints := make([]pick.Endpoint, len(p.Endpoints))
		for i, declared := range p.Endpoints {
			endpoints[i] = f.endpoints[declared.Address].snapshot(declared, now)
		}
		s.Pools[name.String()] = &pick.Pool{Endpoints: endpoints, Index: *f.indexes[name]}
	}
	f.view.Store(&View{World: f.world, Snapshot: s})
}

// index says where the models of a pool are addressable.
func (f *Fleet) index(p *objects.Pool) *pick.Index {
	index := &pick.Index{Copies: make(map[string][]pick.Copy)}
	for i, declared := range p.Endpoints {
		e := f.endpoints[declared.Address]
		e.forget()
		if len(e.lists.Base) > 0 {
			c := pick.Copy{Endpoint: i, Model: e.lists.Base[0], Base: true, Names: e.lists.Base, InFlight: e.count(e.lists.Base[0])}
			index.Base = append(index.Base, c)
			for _, name := range e.lists.Base {
				c.Model = name
				index.Copies[name] = append(index.Copies[name], c)
			}
		}
		for _, name := range e.lists.Adapters {
			index.Copies[name] = append(index.Copies[name], pick.Copy{Endpoint: i, Model: name, InFlight: e.count(name)})
		}
	}
	return index
}

// snapshot is what a decision needs of the endpoint.
func (e *endpoint) snapshot(declared objects.Endpoint, now time.Time) pick.Endpoint {
	p := pick.Endpoint{
		Address: declared.Address, State: e.state(declared.Ready, now), Others: e.others,
		Slots: int64(e.load.MaxAdapters.Or(0)), InFlight: &e.inFlight, Adapters: &e.adapters,
	}
	for _, name := range e.load.Active {
		p.Listed = append(p.Listed, e.count(name))
	}
	return p
}

// state says whether the endpoint may get requests.
func (e *endpoint) state(ready bool, now time.Time) pick.State {
	silence := now.Sub(e.heard)
	switch {
	case !ready, e.load.Asleep, !e.heard.After(e.refused), silence >= lostAfter:
		return pick.Out
	case silence >= staleAfter:
		return pick.Stale
	}
	return pick.Healthy
}

// count is our count of requests in flight for a model.
func (e *endpoint) count(model string) *atomic.Int64 {
	c := e.models[model]
	if c == nil {
		c = new(atomic.Int64)
		e.models[model] = c
	}
	return c
}

// forget drops the counts of models that the endpoint lists no more and that have no request in flight.
func (e *endpoint) forget() {
	for model, c := range e.models {
		if c.Load() == 0 && !slices.Contains(e.lists.Base, model) && !slices.Contains(e.lists.Adapters, model) && !slices.Contains(e.load.Active, model) {
			delete(e.models, model)
		}
	}
}

// InFlight is one request on its way to an endpoint, counted there until it ends.
type InFlight struct {
	endpoint, model *atomic.Int64
	adapters        *atomic.Int64 // nil for a base model
	ended           atomic.Bool
}

// Begin counts a request where a decision sends it.
func Begin(d pick.Decision) *InFlight {
	f := &InFlight{endpoint: d.Endpoint.InFlight, model: d.Copy.InFlight}
	f.endpoint.Add(1)
	if !d.Copy.Base {
		f.adapters = d.Endpoint.Adapters
	}
	if f.model.Add(1) == 1 && f.adapters != nil {
		f.adapters.Add(1)
	}
	return f
}

// End counts the request as gone. Only the first call counts; a nil InFlight has none.
func (f *InFlight) End() {
	if f == nil || f.ended.Swap(true) {
		return
	}
	if f.model.Add(-1) == 0 && f.adapters != nil {
		f.adapters.Add(-1)
	}
	f.endpoint.Add(-1)
}

// Status is what is believed of one endpoint, for people and metrics.
type Status struct {
	Address  string
	State    pick.State
	Load     engine.Load
	InFlight int64
	// Models counts our requests in flight by the engine's name of the model, those with none left out.
	Models map[string]int64
}

// Endpoints returns the status of every endpoint of the objects in force, in order of address.
func (f *Fleet) Endpoints() []Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	seen := make(map[string]bool)
	var all []Status
	for _, p := range f.world.Pools {
		for _, declared := range p.Endpoints {
			if seen[declared.Address] {
				continue
			}
			seen[declared.Address] = true
			e := f.endpoints[declared.Address]
			status := Status{
				Address: declared.Address, State: e.state(declared.Ready, now), Load: e.load,
				InFlight: e.inFlight.Load(), Models: make(map[string]int64),
			}
			for model, c := range e.models {
				if n := c.Load(); n != 0 {
					status.Models[model] = n
				}
			}
			all = append(all, status)
		}
	}
	slices.SortFunc(all, func(a, b Status) int { return strings.Compare(a.Address, b.Address) })
	return all
}
