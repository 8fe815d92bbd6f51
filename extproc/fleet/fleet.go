// Package fleet holds what the gateway believes about endpoints, and publishes it as snapshots.
//
// What it is told comes from beside the path of requests: objects from their source, looks at engines from scrape,
// refusals from outcome. What it gives is a [View] behind one atomic pointer, which a request loads once. The counts of
// requests in flight live on from view to view: [Begin] and [InFlight.End] change them while a request passes.
package fleet

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// View is everything that a decision depends on, at one moment: objects and endpoints that belong together. It is
// immutable but for the counts that its snapshot points to.
type View struct {
	World    *objects.World
	Snapshot *pick.Snapshot
	// Failures are the models that cannot be loaded for now, with a reason for programs.
	Failures map[objects.ModelKey]string
}

const (
	// pause is the least time between two views that only news of load separates. With hundreds of endpoints, news
	// comes thousands of times a second; a view that is this much older decides no worse.
	pause = 5 * time.Millisecond
	// sweep is how often leases that ran out are looked for.
	sweep = time.Second
)

// Fleet is safe for concurrent use. Make one with [New]; run it with [Fleet.Run].
type Fleet struct {
	Config
	view   atomic.Pointer[View]
	news   chan struct{} // capacity 1; never closed
	leases leases
	makers *lru.Cache[string, Maker] // by the id of the answer
	names  names
	urgent chan struct{} // capacity 1; never closed; see Urgent

	mu        sync.Mutex // guards the following
	world     *objects.World
	endpoints map[string]*endpoint         // by address
	indexes   map[objects.Name]*pick.Index // of the pools of world; cleared when models or endpoints come and go
	failOpen  map[objects.Name]bool        // the pools whose suspects are trusted, for there are too many of them
	control   control
}

// Config is what a Fleet needs.
type Config struct {
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Settings are those of pools without settings of their own; zero means the defaults.
	Settings settings.Settings
	// Log gets what operators should know; nil means nobody.
	Log *slog.Logger
	// Published is told of each View once it is in force; nil means nobody. It must be quick and ask nothing of the Fleet
	// but its View.
	Published func(*View)
	// Placed says that somebody takes what models are used: see [Fleet.Usage].
	Placed bool
}

// endpoint is one address, in whatever pools it is.
type endpoint struct {
	hash               uint64 // of the address
	pod                objects.Name
	inFlight, adapters atomic.Int64
	models             map[string]*pick.Count // our requests in flight, by the engine's name of the model

	lists  listing
	there  []string // the adapters that it answers to
	load   engine.Load
	others int64
	seen   seen
	health health
}

// New returns a Fleet of nothing.
func New(c Config) *Fleet {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Settings == (settings.Settings{}) {
		c.Settings = settings.Default()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Published == nil {
		c.Published = func(*View) {}
	}
	f := &Fleet{
		Config: c, news: make(chan struct{}, 1), urgent: make(chan struct{}, 1), leases: leases{held: make(map[string]lease)}, makers: newMakers(),
		world: objects.Build(objects.Set{}), endpoints: make(map[string]*endpoint), failOpen: make(map[objects.Name]bool),
	}
	f.publish()
	return f
}

// View returns the latest view. It never blocks.
func (f *Fleet) View() *View { return f.view.Load() }

// Run publishes news of load, at most one view each pause, and ends leases that ran out, until ctx ends.
func (f *Fleet) Run(ctx context.Context) error {
	wait := time.NewTimer(0)
	defer wait.Stop()
	leases := time.NewTicker(sweep)
	defer leases.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-leases.C:
			f.endLeases()
			continue
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
				f.endpoints[e.Address] = &endpoint{hash: hash(e.Address), models: make(map[string]*pick.Count)}
			}
			if known := f.endpoints[e.Address]; known.pod != e.Pod { // what control said was of another pod
				known.pod = e.Pod
				delete(f.control.leaving, e.Address)
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

// SetModels says what an endpoint answers to, as a look that begins and ends now.
func (f *Fleet) SetModels(address string, m engine.Models) { f.Look(address).Lists(m) }

// Lists says what the endpoint of a look lists. News of an endpoint that is gone is forgotten.
func (l Look) Lists(m engine.Models) {
	f := l.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.endpoints[l.address]
	if e == nil {
		return
	}
	was := e.lists
	e.lists = listing{m, true, l.began}
	there, _ := f.adapters(l.address, e)
	if was.known && slices.Equal(was.Base, m.Base) && was.Unlisted == m.Unlisted && was.MaxLength == m.MaxLength && slices.Equal(e.there, there) {
		return
	}
	f.indexes = nil
	f.tell()
}

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
	now := f.Now()
	s := &pick.Snapshot{Pools: make(map[string]*pick.Pool, len(f.world.Pools))}
	var anew []*endpoint
	for name, p := range f.world.Pools {
		if f.indexes[name] == nil {
			f.indexes[name] = f.index(p)
			for _, declared := range p.Endpoints {
				anew = append(anew, f.endpoints[declared.Address])
			}
		}
		limits := f.Settings.For(p)
		endpoints := make([]pick.Endpoint, len(p.Endpoints))
		for i, declared := range p.Endpoints {
			endpoints[i] = f.endpoints[declared.Address].snapshot(declared, f.control.leaving[declared.Address], now, limits)
		}
		f.trust(p, endpoints, now)
		s.Pools[name.String()] = &pick.Pool{Endpoints: endpoints, Index: *f.indexes[name]}
	}
	view := &View{World: f.world, Snapshot: s, Failures: f.control.failures}
	f.view.Store(view)
	for _, e := range anew {
		e.close(f.Placed)
	}
	f.Published(view)
}

// index says where the models of a pool are addressable.
func (f *Fleet) index(p *objects.Pool) *pick.Index {
	index := &pick.Index{Copies: make(map[string][]pick.Copy)}
	for i, declared := range p.Endpoints {
		e := f.endpoints[declared.Address]
		there, gone := f.adapters(declared.Address, e)
		e.there = there
		f.noteLost(p, declared.Address, gone)
		index.Any = append(index.Any, pick.Copy{Endpoint: i, Base: true, InFlight: e.count("")})
		index.Listed = index.Listed || e.lists.gives() || f.control.governs(declared.Address)
		if len(e.lists.Base) > 0 {
			c := pick.Copy{Endpoint: i, Model: e.lists.Base[0], Base: true, Names: e.lists.Base, InFlight: e.open(e.lists.Base[0])}
			index.Base = append(index.Base, c)
			for _, name := range e.lists.Base {
				c.Model = name
				index.Copies[name] = append(index.Copies[name], c)
			}
		}
		for _, name := range there {
			c := pick.Copy{Endpoint: i, Model: name, InFlight: e.open(name)}
			if asked := engine.AskedAs(cmp.Or(declared.Kind, e.load.Kind), e.lists.Base, name); asked != name {
				c.Names = []string{asked}
			}
			var others int64
			if s := f.control.copies[declared.Address][name]; s != nil {
				others = s.others
			}
			c.InFlight.Others.Store(others)
			index.Copies[name] = append(index.Copies[name], c)
		}
	}
	return index
}

// snapshot is what a decision needs of the endpoint.
func (e *endpoint) snapshot(declared objects.Endpoint, told Leaving, now time.Time, limits settings.Settings) pick.Endpoint {
	p := pick.Endpoint{
		Address: declared.Address, Hash: e.hash, State: e.state(declared, told, now, limits), Others: e.others,
		Slots: int64(e.load.MaxAdapters.Or(0)), InFlight: &e.inFlight, Adapters: &e.adapters,
	}
	for _, name := range e.load.Active {
		p.Listed = append(p.Listed, e.count(name))
	}
	return p
}

// count is our count of requests in flight for a model.
func (e *endpoint) count(model string) *pick.Count {
	c := e.models[model]
	if c == nil {
		c = new(pick.Count)
		e.models[model] = c
	}
	return c
}

// open is count for a model that requests may begin for.
func (e *endpoint) open(model string) *pick.Count {
	c := e.count(model)
	c.Closed.Store(false)
	return c
}

// close ends that requests begin for models that the endpoint answers to no more, after the view that says so is in force,
// and drops the counts of those that have no request in flight. A request that was decided by an older view counts
// itself and looks whether it may; who asks how many are in flight asks after this. So it is either seen, or goes
// elsewhere. Placed keeps counts of use until they are taken.
func (e *endpoint) close(placed bool) {
	for model, c := range e.models {
		if model == "" || slices.Contains(e.lists.Base, model) || contains(e.there, model) {
			continue
		}
		c.Closed.Store(true)
		if c.Load() == 0 && (!placed || c.Began.Load() == 0) && !slices.Contains(e.load.Active, model) {
			delete(e.models, model)
		}
	}
}

// MaxLength is the most tokens of a request, prompt and answer, that every endpoint of a pool takes that says so; 0 if none does.
func (f *Fleet) MaxLength(pool objects.Name) (least int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.world.Pools[pool]
	if p == nil {
		return 0
	}
	for _, declared := range p.Endpoints {
		if n := f.endpoints[declared.Address].lists.MaxLength; n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}

// contains is slices.Contains for a list in order.
func contains(ordered []string, s string) bool {
	_, found := slices.BinarySearch(ordered, s)
	return found
}

// Status is what is believed of one endpoint of a pool, for people and metrics.
type Status struct {
	Address  string
	Pool     objects.Name
	State    pick.State
	Load     engine.Load
	InFlight int64
	// Models counts our requests in flight by the engine's name of the model, those with none left out.
	Models map[string]int64
}

// Endpoints returns the status of every endpoint of the objects in force, in order of address. One that is in several pools is
// there for each of them, with the whole of its load: what state it is in, their settings say.
func (f *Fleet) Endpoints() []Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.Now()
	var all []Status
	for _, p := range f.world.Pools {
		limits := f.Settings.For(p)
		for _, declared := range p.Endpoints {
			e := f.endpoints[declared.Address]
			status := Status{
				Address: declared.Address, Pool: p.Name, State: e.state(declared, f.control.leaving[declared.Address], now, limits), Load: e.load,
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
	slices.SortFunc(all, func(a, b Status) int { return cmp.Or(strings.Compare(a.Address, b.Address), a.Pool.Compare(b.Pool)) })
	return all
}
