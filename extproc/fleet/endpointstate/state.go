// Package endpointstate is what extproc believes of endpoints: their health, what they answer to and how busy they are, made of objects,
// looks at engines, what became of requests, and the word of control. It is pure: a [State] changes by what it is told, with the
// time as an argument, and package fleet tells it what happens. The counts of requests in flight are all that others change.
package endpointstate

import (
	"cmp"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/profile/table"
)

// View is everything that a decision depends on, at one moment: objects and endpoints that belong together. It is
// immutable but for the counts that its snapshot points to.
type View struct {
	World    *objects.World
	Snapshot *pick.Snapshot
	// Failures are the models that cannot be loaded for now, with a reason for programs.
	Failures map[objects.ModelKey]string
	// Methods are the gRPC methods that engines take, by endpoint; none of those that control does not speak of.
	Methods map[string]engine.Methods
}

// Config is what a State needs.
type Config struct {
	// Settings are those of pools without settings of their own; zero means the defaults.
	Settings settings.Settings
	// Placed says that somebody takes what models are used: see [State.Usage].
	Placed bool
}

// State is not safe for concurrent use. Make one with [New].
type State struct {
	Config
	Times     *EngineTimes
	world     *objects.World
	endpoints map[string]*endpoint // by address
	strays    map[string]Backlog   // what other processes have at endpoints that are not known
	caches    caches
	density   map[objects.Name]float64     // bytes of a token of prompts, by pool, those that are gone too: they may come back
	pools     map[string][]objects.Name    // of the world, by address
	indexes   map[objects.Name]*pick.Index // of the pools of the world; none where models or endpoints came and went
	changed   map[objects.Name]bool        // the pools that are to be made anew in the next view
	latest    map[string]*pick.Pool        // of the latest view
	unsealed  []*endpoint                  // those with models that the latest view has no more
	failOpen  map[objects.Name]bool        // the pools whose suspects are trusted, for there are too many of them
	control   control
	urgent    bool // there is news for control
}

// endpoint is one address, in whatever pools it is.
type endpoint struct {
	hash               uint64 // of the address
	number             int    // see pick.Endpoint
	pod                objects.Name
	inFlight, adapters atomic.Int64
	backlog            pick.Backlog
	peers              pick.Peers
	resident           pick.Resident
	models             map[string]*pick.Count // our requests in flight, by the engine's name of the model

	lists  listing
	there  []string // the adapters that it answers to
	load   engine.Load
	others others
	seen   Seen
	health health
	times  map[objects.Name]*timed // by its pools
}

// New returns a State of nothing.
func New(c Config) *State {
	if c.Settings == (settings.Settings{}) {
		c.Settings = settings.Default()
	}
	s := &State{
		Config: c, endpoints: make(map[string]*endpoint), strays: make(map[string]Backlog), density: make(map[objects.Name]float64),
		failOpen: make(map[objects.Name]bool), changed: make(map[objects.Name]bool),
	}
	s.Times = &EngineTimes{
		endpoints: s.endpoints, changed: s.changed, generic: table.Generic(), times: make(map[objects.Name]*times), waiting: make(map[AcceleratorKey]LearnedProfile),
	}
	s.SetWorld(objects.Build(objects.Set{}))
	return s
}

// SetWorld puts new objects in force. Endpoints that stay keep what is known of them.
func (s *State) SetWorld(w *objects.World) {
	s.world, s.pools = w, make(map[string][]objects.Name)
	for name, p := range w.Pools {
		for _, e := range p.Endpoints {
			s.pools[e.Address] = append(s.pools[e.Address], name)
			if s.endpoints[e.Address] == nil {
				fresh := &endpoint{hash: hash(e.Address), number: s.caches.take(), models: make(map[string]*pick.Count), times: make(map[objects.Name]*timed)}
				fresh.hear(s.strays[e.Address], 0)
				delete(s.strays, e.Address)
				s.endpoints[e.Address] = fresh
			}
		}
	}
	for _, e := range w.Engines {
		if known := s.endpoints[e.Address]; known.pod != e.Pod { // what control said was of another pod, or of none
			known.pod = e.Pod
			s.caches.tell(Cache{Number: known.number, Empty: true})
			delete(s.control.leaving, e.Address)
		}
	}
	s.Times.setWorld(w, s.pools)
	for address, e := range s.endpoints {
		// One that has requests in flight is kept, in case that it comes back before they end.
		if s.pools[address] == nil && e.inFlight.Load() == 0 {
			s.caches.leave(e.number)
			delete(s.endpoints, address)
			s.stray(e.peersTell(address))
		}
	}
	maps.DeleteFunc(s.control.own, func(k CopyKey, _ own) bool { return s.endpoints[k.Endpoint] == nil })
	maps.DeleteFunc(s.failOpen, func(name objects.Name, _ bool) bool { return w.Pools[name] == nil })
	s.latest = nil
	s.indexAll()
}

// touch has the pools of an endpoint made anew.
func (s *State) touch(address string) {
	for _, name := range s.pools[address] {
		s.changed[name] = true
	}
}

// index has the indexes of an endpoint's pools made anew.
func (s *State) index(address string) {
	s.touch(address)
	for _, name := range s.pools[address] {
		delete(s.indexes, name)
	}
}

func (s *State) indexAll() {
	s.indexes = make(map[objects.Name]*pick.Index, len(s.world.Pools))
	s.Age()
}

// Age has all pools made anew: time alone changes what is believed of who is silent.
func (s *State) Age() {
	clear(s.changed)
	for name := range s.world.Pools {
		s.changed[name] = true
	}
}

// Changed says whether a view would differ from the latest.
func (s *State) Changed() bool { return len(s.changed) > 0 }

// View makes a view of what is known, in which pools of which there is no news are those of the view before, and tells of pools
// that are to be told of. Once it is in force, call [State.Seal].
func (s *State) View(now time.Time) (*View, []FailOpenChange) {
	var told []FailOpenChange
	pools := maps.Clone(s.latest)
	if pools == nil {
		pools = make(map[string]*pick.Pool, len(s.world.Pools))
	}
	for name := range s.changed {
		p := s.world.Pools[name]
		if s.indexes[name] == nil {
			s.indexes[name] = s.indexOf(p)
			for _, declared := range p.Endpoints {
				s.unsealed = append(s.unsealed, s.endpoints[declared.Address])
			}
		}
		limits, predictable := s.Settings.For(p), s.Times.predictable(name)
		slots := s.Times.fewestSlots(p)
		endpoints := make([]pick.Endpoint, len(p.Endpoints))
		for i, declared := range p.Endpoints {
			e := s.endpoints[declared.Address]
			endpoints[i] = s.snapshot(e, declared, now, limits)
			e.predict(&endpoints[i], e.times[name].fresh(now, slots), predictable)
		}
		if t, news := s.trust(p, endpoints, now); news {
			told = append(told, t)
		}
		pools[name.String()] = &pick.Pool{Endpoints: endpoints, Predictable: predictable, Index: *s.indexes[name]}
	}
	clear(s.changed)
	s.latest = pools
	return &View{World: s.world, Snapshot: &pick.Snapshot{Pools: pools}, Failures: s.control.failures, Methods: s.control.methods}, told
}

// Seal ends that requests begin for models that the latest view has no more, and drops the counts of those that have no request in
// flight. A request that was decided by an older view counts itself and looks whether it may; who asks how many are in flight asks
// after this. So it is either seen, or goes elsewhere.
func (s *State) Seal() {
	for _, e := range s.unsealed {
		e.close(s.Placed)
	}
	s.unsealed = nil
}

// indexOf says where the models of a pool are addressable.
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
		pending = pending || !e.health.looked
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
				if own, is := s.control.own[CopyKey{objects.ModelKey{Pool: p.Name, ID: name}, declared.Address}]; is {
					c.Own = own.until.UnixNano()
				}
			}
			if asked := engine.AskedAs(cmp.Or(declared.Kind, e.load.Kind), e.lists.Base, name); asked != name {
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

// snapshot is what a decision needs of the endpoint.
func (s *State) snapshot(e *endpoint, declared objects.Endpoint, now time.Time, limits settings.Settings) pick.Endpoint {
	slots, _ := e.slots()
	p := pick.Endpoint{
		Address: declared.Address, Number: e.number, Hash: e.hash, State: s.stateOf(e, declared, now, limits), Doubted: e.health.doubted, Others: e.others.requests,
		Slots: int64(slots), InFlight: &e.inFlight, Adapters: &e.adapters,
		Backlog: &e.backlog, Peers: &e.peers, Resident: &e.resident, OthersTokens: e.others.tokens,
		Forgets: e.load.Forgets,
	}
	p.Unheard = p.State == pick.Out && s.unheard(e, declared)
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

// close closes the counts of models that the endpoint answers to no more. Placed keeps counts of use until they are taken.
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

// MaxLength is the most tokens of a request, prompt and answer, that every endpoint of a pool takes that says so; 0 if none does.
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
func (s *State) Endpoints(now time.Time) []Status {
	var all []Status
	for _, p := range s.world.Pools {
		limits := s.Settings.For(p)
		for _, declared := range p.Endpoints {
			e := s.endpoints[declared.Address]
			status := Status{
				Address: declared.Address, Pool: p.Name, State: s.stateOf(e, declared, now, limits), Load: e.load,
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

func hash(address string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(address))
	return h.Sum64()
}
