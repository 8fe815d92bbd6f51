// Package endpointstate is extproc's state of endpoints: their health, their models and their load.
// Its sources are objects, scrapes, the outcomes of requests, and control. The package is pure:
// package fleet calls the methods of [State] and passes the time. Only the counts of requests in
// flight are changed by other code.
package endpointstate

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/hash"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/profile/table"
)

// Config configures a State.
type Config struct {
	// Settings are for pools without settings of their own; zero means the defaults.
	Settings settings.Settings
	// Placed reports that [State.Usage] is called, so that the use of models must be counted.
	Placed bool
}

// State is not safe for concurrent use. Make one with [New].
type State struct {
	Config
	Times           *EngineTimes
	Moves           Moves
	Schedule        Schedule
	world           *objects.World
	endpoints       map[string]*endpoint // endpoints by address
	unknownBacklogs map[string]Backlog   // work of other processes, by the unknown endpoint's address
	caches          caches
	density         map[objects.Name]float64     // prompt bytes per token by pool, including removed pools
	pools           map[string][]objects.Name    // pools of the World's endpoints, by the endpoint's address
	indexes         map[objects.Name]*pick.Index // indexes by pool; missing if the pool's models or endpoints have changed
	changed         map[objects.Name]bool        // pools to build again for the next view
	members         map[objects.Name]*members    // endpoints of each pool
	origin          time.Time                    // time of the first view
	latest          map[string]*pick.Pool        // pools of the latest view
	unsealed        []*endpoint                  // endpoints with models that the latest view dropped
	failOpen        map[objects.Name]bool        // pools in which most endpoints are suspect, so that these are treated as healthy
	control         control
	urgent          bool // control needs a report at once
}

// endpoint is the state of one address, in all its pools.
type endpoint struct {
	hash               uint64 // hash of the address
	number             int    // number of the endpoint, as in pick.Endpoint
	pod                objects.Name
	inFlight, adapters atomic.Int64
	backlog            pick.Backlog
	peers              pick.Peers
	window             window
	batch              batch
	resident           pick.Resident
	models             map[string]*pick.Count // requests in flight of this process, by the engine's name of the model

	lists  listing
	there  []string // adapters that the endpoint serves
	load   engine.Load
	still  bool // whether the engine's counters were the same in the last two scrapes
	others others
	seen   Seen
	health health
	times  map[objects.Name]*timed // the endpoint as a member of each pool

	fault Fault // latest error
}

// New returns an empty State.
func New(c Config) *State {
	if c.Settings == (settings.Settings{}) {
		c.Settings = settings.Default()
	}
	s := &State{
		Config: c, endpoints: make(map[string]*endpoint), unknownBacklogs: make(map[string]Backlog),
		density:  make(map[objects.Name]float64),
		failOpen: make(map[objects.Name]bool), changed: make(map[objects.Name]bool),
	}
	s.Schedule.endpoints = s.endpoints
	s.Times = &EngineTimes{
		endpoints: s.endpoints, changed: s.changed, generic: table.Generic(), times: make(map[objects.Name]*times),
		waiting: make(map[AcceleratorKey]LearnedProfile),
	}
	s.SetWorld(objects.Build(objects.Set{}))
	return s
}

// SetWorld replaces the objects. Endpoints that remain keep their state.
func (s *State) SetWorld(w *objects.World) {
	s.world, s.pools = w, make(map[string][]objects.Name)
	for name, p := range w.Pools {
		for _, e := range p.Endpoints {
			s.pools[e.Address] = append(s.pools[e.Address], name)
			if s.endpoints[e.Address] == nil {
				fresh := &endpoint{
					hash: hash.Of(e.Address), number: s.caches.take(), models: make(map[string]*pick.Count),
					times: make(map[objects.Name]*timed),
				}
				fresh.setPeers(s.unknownBacklogs[e.Address], 0)
				delete(s.unknownBacklogs, e.Address)
				s.endpoints[e.Address] = fresh
			}
		}
	}
	for _, e := range w.Engines {
		if known := s.endpoints[e.Address]; known.pod != e.Pod { // control's report was about another pod
			known.pod = e.Pod
			s.caches.add(Cache{Number: known.number, Empty: true})
			delete(s.control.leaving, e.Address)
		}
	}
	s.Times.setWorld(w, s.pools)
	for address, e := range s.endpoints {
		// An endpoint with requests in flight is kept, in case it is added again before they end.
		if s.pools[address] == nil && e.inFlight.Load() == 0 {
			s.caches.leave(e.number)
			delete(s.endpoints, address)
			s.keepUnknown(e.peersTell(address))
		}
	}
	maps.DeleteFunc(s.control.own, func(k CopyKey, _ own) bool { return s.endpoints[k.Endpoint] == nil })
	maps.DeleteFunc(s.failOpen, func(name objects.Name, _ bool) bool { return w.Pools[name] == nil })
	s.latest, s.members = nil, make(map[objects.Name]*members, len(w.Pools))
	for name, p := range w.Pools {
		s.members[name] = newMembers(s, p)
	}
	s.indexAll()
}

// indexOf returns which endpoints of a pool serve which model.
func (s *State) indexOf(p *objects.Pool) *pick.Index {
	index := &pick.Index{Copies: make(map[string][]pick.Copy)}
	read, pending := false, false
	for i, declared := range p.Endpoints {
		e := s.endpoints[declared.Address]
		there, gone := s.adapters(declared.Address, e)
		e.there = there
		s.noteVanished(p, declared.Address, gone)
		index.Any = append(index.Any, pick.Copy{Endpoint: i, Base: true, InFlight: e.count("")})
		index.Listed = index.Listed || e.lists.gives() || s.control.governs(declared.Address)
		read = read || e.lists.known || s.control.governs(declared.Address)
		pending = pending || !e.health.scraped
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
			c.Limited = s.limit(declared.Address, name, c.InFlight)
			if c.Unlisted = !e.lists.gives() && s.control.governs(declared.Address); c.Unlisted {
				if own, is := s.control.own[CopyKey{ModelKey: objects.ModelKey{Pool: p.Name, ID: name}, Endpoint: declared.Address}]; is {
					c.Own = own.until.UnixNano()
				}
			}
			if asked := engine.AskedAs(e.kind(declared), e.lists.Base, name); asked != name {
				c.Names = []string{asked}
			}
			var others int64
			if said := s.control.copies[declared.Address][name]; said != nil {
				others = said.others
			}
			c.InFlight.Others.Store(others)
			index.Copies[name] = append(index.Copies[name], c)
		}
	}
	index.Unread = pending && !read
	return index
}

// snapshot returns the input of decisions for an endpoint, and the reason for its state.
func (s *State) snapshot(e *endpoint, declared objects.Endpoint, now time.Time, limits settings.Settings) (*pick.Endpoint, Reason) {
	slots, _ := e.slots()
	state, why := s.stateOf(e, declared, now, limits)
	p := &pick.Endpoint{
		Address: declared.Address, Number: e.number, Hash: e.hash, State: state, Doubted: e.health.doubted,
		Others: e.others.requests,
		Slots:  int64(slots), InFlight: &e.inFlight, Window: &e.window.limit, Batch: &e.batch.limit, Adapters: &e.adapters,
		Backlog: &e.backlog, Peers: &e.peers, Resident: &e.resident, OthersTokens: e.others.tokens, KVBeyond: e.others.beyond,
		Forgets: e.load.Forgets,
	}
	p.Unscraped = p.State == pick.Out && s.unscraped(e, declared)
	for _, name := range e.load.Active {
		p.Listed = append(p.Listed, e.count(name))
	}
	return p, why
}

// kind returns the kind of the engine, as the objects, its metrics page or its list of models state
// it; empty if it is unknown.
func (e *endpoint) kind(declared objects.Endpoint) engine.Kind {
	return cmp.Or(declared.Kind, e.load.Kind, e.lists.Kind)
}

// count returns the count of this process's requests in flight for a model.
func (e *endpoint) count(model string) *pick.Count {
	c := e.models[model]
	if c == nil {
		c = new(pick.Count)
		e.models[model] = c
	}
	return c
}

// open opens the count of a model for requests and returns it.
func (e *endpoint) open(model string) *pick.Count {
	c := e.count(model)
	c.Closed.Store(false)
	return c
}

// close closes the counts of models that the endpoint no longer serves. If placed is true, it keeps
// their counts of use until they are reported.
func (e *endpoint) close(placed bool) {
	for model, c := range e.models {
		if model == "" || slices.Contains(e.lists.Base, model) || contains(e.there, model) {
			continue
		}
		c.Closed.Store(true)
		if c.Load() > 0 || slices.Contains(e.load.Active, model) {
			continue
		}
		e.resident.Drop(c)
		if !placed || c.Began.Load() == 0 {
			delete(e.models, model)
		}
	}
}

// MaxLength returns the least context length, in tokens, that an endpoint of a pool reports; 0 if
// no endpoint reports one.
func (s *State) MaxLength(pool objects.Name) (least int) {
	p := s.world.Pools[pool]
	if p == nil {
		return 0
	}
	for _, declared := range p.Endpoints {
		if n := s.endpoints[declared.Address].lists.MaxLength; n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}

// contains does the same as slices.Contains, for a sorted list.
func contains(ordered []string, s string) bool {
	_, found := slices.BinarySearch(ordered, s)
	return found
}

// Status is the state of one endpoint of a pool, for output to users and metrics.
type Status struct {
	Address  string
	Pool     objects.Name
	State    pick.State
	Load     engine.Load
	InFlight int64
	// Models maps the engine's name of each model to this process's requests in flight, without
	// zeros.
	Models map[string]int64
	// Kind is the configured kind of the engine, or else the one that its metrics page reveals.
	Kind engine.Kind
	// Standing is the endpoint's state in the latest view. It differs from State if the pool fails
	// open, and it may be older.
	Standing Standing
	// Fault is the endpoint's latest error, in any pool; zero if there was none.
	Fault Fault
	// Base are the names of the engine's base model, and Adapters are the adapters that it serves.
	// Both are sorted.
	Base, Adapters []string
}

// Endpoints returns the status of every endpoint, sorted by address. An endpoint in several pools
// is listed once for each pool, each time with its whole load. Its state may differ between pools,
// since it depends on the pool's settings.
func (s *State) Endpoints(now time.Time) []Status {
	var all []Status
	for _, p := range s.world.Pools {
		limits := s.Settings.For(p)
		for _, declared := range p.Endpoints {
			e := s.endpoints[declared.Address]
			state, _ := s.stateOf(e, declared, now, limits)
			status := Status{
				Address: declared.Address, Pool: p.Name, State: state, Load: e.load,
				InFlight: e.inFlight.Load(), Models: make(map[string]int64), Kind: e.kind(declared),
				Standing: e.times[p.Name].standing, Fault: e.fault, Base: slices.Clone(e.lists.Base), Adapters: slices.Clone(e.there),
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
