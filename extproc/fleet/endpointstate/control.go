package endpointstate

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// CopyKey names a copy.
type CopyKey struct {
	objects.ModelKey
	Endpoint string // "ip:port"
}

// PlacementUpdate is what control says, as what differs from what it said before.
type PlacementUpdate struct {
	// All says that this is all there is: what control said before is forgotten.
	All bool
	// Endpoints are all those whose copies control knows; nil means those of before.
	Endpoints map[string]bool
	Copies    map[CopyKey]CopyState
	// Limits are how many requests copies take at once, of all processes together, of those of Copies that have a limit.
	Limits map[CopyKey]int
	// Share is this process's part in them; the zero Share: that of before.
	Share Share
	// Others are the requests in flight from other processes.
	Others map[CopyKey]int64
	// Failures are the models that cannot be loaded, with a reason for programs; an empty one means that they can again.
	Failures map[objects.ModelKey]string
	// Registered are the models that requests may name though no object says so: true, or not any more.
	Registered map[objects.ModelKey]bool
	// VModels are where requests for them go; the zero Switch: there is no such VModel any more.
	VModels map[objects.ModelKey]Switch
	// Leaving are the endpoints that are about to end; the zero Leaving: it stays, or is gone.
	Leaving map[string]Leaving
	// Methods are the gRPC methods that engines take, by endpoint; empty ones: all, or it is gone.
	Methods map[string]engine.Methods
}

// Switch is where requests for a VModel go: to the active model of its pool, and Percent of a hundred to the canary if there is one.
type Switch struct {
	Active  string
	Canary  string
	Percent int
}

// control is what control said, of endpoints.
type control struct {
	endpoints map[string]bool
	copies    map[string]map[string]*reportedCopy // by endpoint and the engine's name of the model
	failures  map[objects.ModelKey]string         // immutable: views share it
	share     Share
	leaving   map[string]Leaving        // none that stays
	methods   map[string]engine.Methods // by endpoint, none that is empty; immutable: views share it
	missing   []CopyKey                 // that control is to be told
	own       map[CopyKey]own           // of copies at engines without a list: whose models answer by themselves as if they were missing
}

// governs says whether control knows the copies of an endpoint.
func (c *control) governs(endpoint string) bool { return c.endpoints[endpoint] }

// said is the word for a copy, to be written to.
func (c *control) said(k CopyKey) *reportedCopy {
	models := c.copies[k.Endpoint]
	if models == nil {
		models = make(map[string]*reportedCopy)
		c.copies[k.Endpoint] = models
	}
	if models[k.ID] == nil {
		models[k.ID] = new(reportedCopy)
	}
	return models[k.ID]
}

// Hear believes what control says: once a view with that is in force and sealed, no request begins any more at a copy that is
// Unloading or gone, and [State.InFlight] counts every one that began there.
func (s *State) ApplyPlacement(n PlacementUpdate, now time.Time) {
	c := &s.control
	before := c.copies
	if n.All || c.copies == nil {
		*c = control{endpoints: n.Endpoints, copies: make(map[string]map[string]*reportedCopy), share: c.share, leaving: make(map[string]Leaving), missing: c.missing, own: c.own}
	}
	shared := n.Share != (Share{}) && n.Share != c.share
	if shared {
		c.share = n.Share
	}
	if n.Endpoints != nil {
		c.endpoints = n.Endpoints
	}
	for k, word := range n.Copies {
		said := c.said(k)
		said.word, said.limit, said.heard, said.told, said.missed = word, n.Limits[k], now, false, false
		if was := before[k.Endpoint][k.ID]; n.All && was != nil && was.word == word {
			said.heard, said.missed = was.heard, was.missed // what is said again is no younger for it
		}
		s.index(k.Endpoint)
	}
	for k, others := range n.Others {
		c.said(k).others = others
		s.index(k.Endpoint)
	}
	for k := range n.Copies {
		c.drop(k)
	}
	for k := range n.Others {
		c.drop(k)
	}
	if len(n.Methods) > 0 {
		c.methods = maps.Clone(c.methods)
		if c.methods == nil {
			c.methods = make(map[string]engine.Methods, len(n.Methods))
		}
		for address, is := range n.Methods {
			if c.methods[address] = is; is == "" {
				delete(c.methods, address)
			}
		}
	}
	for address, l := range n.Leaving {
		if c.leaving[address] = l; l == (Leaving{}) {
			delete(c.leaving, address)
		}
		s.touch(address)
	}
	if len(n.Failures) > 0 {
		c.failures = maps.Clone(c.failures)
		if c.failures == nil {
			c.failures = make(map[objects.ModelKey]string)
		}
		for k, reason := range n.Failures {
			if c.failures[k] = reason; reason == "" {
				delete(c.failures, k)
			}
		}
	}
	if n.All || n.Endpoints != nil || shared {
		s.indexAll()
	}
}

// drop forgets a copy that there is nothing to say of.
func (c *control) drop(k CopyKey) {
	if s := c.copies[k.Endpoint][k.ID]; s != nil && s.word == Nothing && s.others == 0 {
		delete(c.copies[k.Endpoint], k.ID)
		if len(c.copies[k.Endpoint]) == 0 {
			delete(c.copies, k.Endpoint)
		}
	}
}

// adapters is what an endpoint answers to beside its base models, and the copies that vanished.
func (s *State) adapters(address string, e *endpoint) (there, gone []string) {
	return adapters(s.control.governs(address), s.control.copies[address], e.lists)
}

// noteVanished keeps for control which copies vanished.
func (s *State) noteVanished(p *objects.Pool, address string, gone []string) {
	for _, name := range gone {
		if said := s.control.copies[address][name]; !said.told {
			said.told = true
			s.miss(CopyKey{objects.ModelKey{Pool: p.Name, ID: name}, address})
		}
	}
}

func (s *State) miss(k CopyKey) {
	if !slices.Contains(s.control.missing, k) {
		s.control.missing = append(s.control.missing, k)
	}
	s.urgent = true
}

// Missed says that an engine answered a request, which began at a time, as if it did not have the model. If the engine lists its models, its next
// scrape tells. Else the copy counts as gone until control has loaded it anew, which costs little if the engine has it. An answer to a request from
// before that load says nothing, nor does one of a model that answers so by itself (see [State.OwnNotFound]).
func (s *State) ModelMissing(k CopyKey, began, now time.Time) {
	e, c := s.endpoints[k.Endpoint], &s.control
	if e == nil || e.lists.gives() || !c.governs(k.Endpoint) || slices.Contains(c.missing, k) || now.Before(c.own[k].until) {
		return
	}
	if said := c.copies[k.Endpoint][k.ID]; said != nil {
		if said.missed || said.word != Loaded || began.Before(said.heard) {
			return
		}
		said.missed, said.told = true, true // control is told below
		s.index(k.Endpoint)
	}
	s.miss(k)
}

// own is what is known of a model that answers by itself as if it were missing.
type own struct {
	times int // that it did, one after the other
	until time.Time
}

// How long a model's own answers are told from those of an engine that has lost it: twice as long each time, between these. That bounds how often it
// is loaded in vain.
const (
	ownLeast = 10 * time.Second
	ownMost  = 5 * time.Minute
)

// OwnAnswer says that an engine answered again as if it did not have a model, to a request that began at a time. If the model was loaded there after
// that, for the request, this is taken for the model's own answer for a while. Else it is as [State.ModelMissing]: the engine may have lost the model.
func (s *State) OwnNotFound(k CopyKey, began, now time.Time) {
	e, c := s.endpoints[k.Endpoint], &s.control
	if e == nil || e.lists.gives() || !c.governs(k.Endpoint) {
		return
	}
	if said := c.copies[k.Endpoint][k.ID]; said == nil || said.word != Loaded || !said.heard.After(began) {
		s.ModelMissing(k, began, now)
		return
	}
	is := c.own[k]
	if now.Before(is.until) {
		return // of a request that came beside the one that told
	}
	maps.DeleteFunc(c.own, func(_ CopyKey, o own) bool { return now.Sub(o.until) >= ownMost })
	if c.own == nil {
		c.own = make(map[CopyKey]own)
	}
	is.until = now.Add(min(ownLeast<<min(is.times, 10), ownMost))
	is.times++
	c.own[k] = is
	s.index(k.Endpoint)
}

// Ended says that nobody listens at an endpoint: its engine has ended, and the next one there has nothing. Where the engine gives a list, that
// will tell; else its copies have vanished until control says something of them again.
func (s *State) ProcessEnded(address string, now time.Time) {
	e := s.endpoints[address]
	if e == nil {
		return
	}
	e.health.ended = now
	if e.lists.gives() || !s.control.governs(address) {
		return
	}
	for _, said := range s.control.copies[address] {
		said.missed = said.missed || said.word == Loaded
	}
	s.index(address)
}

// TakeMissing returns the copies that engines have no more though control believes in them, each once.
func (s *State) TakeMissing() []CopyKey {
	all := s.control.missing
	s.control.missing = nil
	return all
}

// TakeUrgent says, once, that there is something that control should be told at once: a copy is missing, or an engine is stopping.
func (s *State) TakeUrgent() bool {
	urgent := s.urgent
	s.urgent = false
	return urgent
}

// ModelUse is how a model was used.
type ModelUse struct {
	Requests int64     // that began
	Last     time.Time // when the last one did
}

// Usage takes the use of every model that is not an engine's own since it was last taken. One that was not used is left
// out.
func (s *State) Usage() map[objects.ModelKey]ModelUse {
	all := make(map[objects.ModelKey]ModelUse)
	s.eachCount(func(k CopyKey, c *pick.Count) {
		n := c.Began.Swap(0)
		if n == 0 {
			return
		}
		u := all[k.ModelKey]
		u.Requests += n
		if at := time.Unix(0, c.Last.Load()); at.After(u.Last) {
			u.Last = at
		}
		all[k.ModelKey] = u
	})
	return all
}

// InFlightCount is how many requests this process has at a copy.
type InFlightCount struct {
	Requests int64
	// Closed says that no more come.
	Closed bool
}

// InFlight is how many requests this process has at each copy that is no engine's own, those with none left out.
func (s *State) InFlight() map[CopyKey]InFlightCount {
	all := make(map[CopyKey]InFlightCount)
	s.eachCount(func(k CopyKey, c *pick.Count) {
		if n := c.Load(); n > 0 {
			all[k] = InFlightCount{n, c.Closed.Load()}
		}
	})
	return all
}

// eachCount visits the count of each model that is not an engine's own. An endpoint in several pools counts for the first.
func (s *State) eachCount(visit func(CopyKey, *pick.Count)) {
	seen := make(map[string]bool)
	for _, name := range slices.SortedFunc(maps.Keys(s.world.Pools), objects.Name.Compare) {
		for _, declared := range s.world.Pools[name].Endpoints {
			e := s.endpoints[declared.Address]
			if seen[declared.Address] {
				continue
			}
			seen[declared.Address] = true
			for model, c := range e.models {
				if model != "" && !slices.Contains(e.lists.Base, model) {
					visit(CopyKey{objects.ModelKey{Pool: name, ID: model}, declared.Address}, c)
				}
			}
		}
	}
}

// Unusable returns the endpoints of a pool that have a copy of a model which cannot be used: they refuse, are silent, or
// are not ready. Those are not among them of which requests alone say so.
func (v *View) Unusable(k objects.ModelKey) []string {
	pool := v.Snapshot.Pools[k.Pool.String()]
	if pool == nil {
		return nil
	}
	var all []string
	for _, c := range pool.Copies[k.ID] {
		if e := &pool.Endpoints[c.Endpoint]; e.State == pick.Out && !e.Doubted {
			all = append(all, e.Address)
		}
	}
	slices.SortFunc(all, strings.Compare)
	return all
}
