package fleet

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// CopyKey names a copy.
type CopyKey struct {
	objects.ModelKey
	Endpoint string // "ip:port"
}

// News is what control says, as what differs from what it said before.
type News struct {
	// All says that this is all there is: what control said before is forgotten.
	All bool
	// Endpoints are all those whose copies control knows; nil means those of before.
	Endpoints map[string]bool
	Copies    map[CopyKey]Word
	// Others are the requests in flight from other processes.
	Others map[CopyKey]int64
	// Failures are the models that cannot be loaded, with a reason for programs; an empty one means that they can again.
	Failures map[objects.ModelKey]string
	// Registered are the models that requests may name though no object says so: true, or not any more.
	Registered map[objects.ModelKey]bool
	// Leaving are the endpoints that are about to end; the zero Leaving: it stays, or is gone.
	Leaving map[string]Leaving
}

// control is what control said, guarded by the Fleet's mu.
type control struct {
	endpoints map[string]bool
	copies    map[string]map[string]*said // by endpoint and the engine's name of the model
	failures  map[objects.ModelKey]string // immutable: views share it
	leaving   map[string]Leaving          // none that stays
	missing   []CopyKey                   // that control is to be told
}

// governs says whether control knows the copies of an endpoint.
func (c *control) governs(endpoint string) bool { return c.endpoints[endpoint] }

// said is the word for a copy, to be written to.
func (c *control) said(k CopyKey) *said {
	models := c.copies[k.Endpoint]
	if models == nil {
		models = make(map[string]*said)
		c.copies[k.Endpoint] = models
	}
	if models[k.ID] == nil {
		models[k.ID] = new(said)
	}
	return models[k.ID]
}

// Hear puts in force what control says: when it returns, no request begins any more at a copy that is Unloading or gone,
// and [Fleet.InFlight] counts every one that began there.
func (f *Fleet) Hear(n News) {
	f.names.hear(n)
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &f.control
	before := c.copies
	if n.All || c.copies == nil {
		*c = control{endpoints: n.Endpoints, copies: make(map[string]map[string]*said), leaving: make(map[string]Leaving), missing: c.missing}
	}
	if n.Endpoints != nil {
		c.endpoints = n.Endpoints
	}
	now := f.Now()
	for k, word := range n.Copies {
		s := c.said(k)
		s.word, s.heard, s.told = word, now, false
		if was := before[k.Endpoint][k.ID]; n.All && was != nil && was.word == word {
			s.heard = was.heard // what is said again is no younger for it
		}
	}
	for k, others := range n.Others {
		c.said(k).others = others
	}
	for k := range n.Copies {
		c.drop(k)
	}
	for k := range n.Others {
		c.drop(k)
	}
	for address, l := range n.Leaving {
		if c.leaving[address] = l; l == (Leaving{}) {
			delete(c.leaving, address)
		}
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
	if n.All || n.Endpoints != nil || len(n.Copies)+len(n.Others) > 0 {
		f.indexes = nil
	}
	f.publish()
}

// drop forgets a copy that there is nothing to say of.
func (c *control) drop(k CopyKey) {
	if s := c.copies[k.Endpoint][k.ID]; s != nil && s.word == Nothing && s.others == 0 {
		delete(c.copies[k.Endpoint], k.ID)
	}
}

// adapters is what an endpoint answers to beside its base models, and what it has lost. The caller holds mu.
func (f *Fleet) adapters(address string, e *endpoint) (there, gone []string) {
	return adapters(f.control.governs(address), f.control.copies[address], e.lists)
}

// noteLost keeps for control that an engine has copies no more which control believes in. The caller holds mu.
func (f *Fleet) noteLost(p *objects.Pool, address string, gone []string) {
	for _, name := range gone {
		if s := f.control.copies[address][name]; !s.told {
			s.told = true
			f.miss(CopyKey{objects.ModelKey{Pool: p.Name, ID: name}, address})
		}
	}
}

func (f *Fleet) miss(k CopyKey) {
	f.control.missing = append(f.control.missing, k)
	f.hurry()
}

// Missed says that an engine answered for a model as if it had it not. Where the engine gives a list, its next look tells;
// else it is for control to find out.
func (f *Fleet) Missed(k CopyKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.endpoints[k.Endpoint]; e != nil && !e.lists.gives() && f.control.governs(k.Endpoint) && !slices.Contains(f.control.missing, k) {
		f.miss(k)
	}
}

// TakeMissing returns the copies that engines have no more though control believes in them, each once.
func (f *Fleet) TakeMissing() []CopyKey {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.control.missing
	f.control.missing = nil
	return all
}

// Urgent is sent to, at most once until it is received from, when control should be told something at once: the last
// request of a copy that takes no more has ended, a copy is missing, or an engine is stopping.
func (f *Fleet) Urgent() <-chan struct{} { return f.urgent }

func (f *Fleet) hurry() {
	select {
	case f.urgent <- struct{}{}:
	default:
	}
}

// gone tells of a copy that is drained.
func (f *Fleet) gone(drained bool) {
	if drained {
		f.hurry()
	}
}

// Used is how a model was used.
type Used struct {
	Requests int64     // that began
	Last     time.Time // when the last one did
}

// Usage takes the use of every model that is not an engine's own since it was last taken. One that was not used is left
// out.
func (f *Fleet) Usage() map[objects.ModelKey]Used {
	all := make(map[objects.ModelKey]Used)
	f.eachCount(func(k CopyKey, c *pick.Count) {
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

// Flying is how many requests this process has at a copy.
type Flying struct {
	Requests int64
	// Closed says that no more come.
	Closed bool
}

// InFlight is how many requests this process has at each copy that is no engine's own, those with none left out.
func (f *Fleet) InFlight() map[CopyKey]Flying {
	all := make(map[CopyKey]Flying)
	f.eachCount(func(k CopyKey, c *pick.Count) {
		if n := c.Load(); n > 0 {
			all[k] = Flying{n, c.Closed.Load()}
		}
	})
	return all
}

// eachCount visits the count of each model that is not an engine's own. An endpoint in several pools counts for the first.
func (f *Fleet) eachCount(visit func(CopyKey, *pick.Count)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := make(map[string]bool)
	for _, name := range slices.SortedFunc(maps.Keys(f.world.Pools), objects.Name.Compare) {
		for _, declared := range f.world.Pools[name].Endpoints {
			e := f.endpoints[declared.Address]
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
// are not ready.
func (v *View) Unusable(k objects.ModelKey) []string {
	pool := v.Snapshot.Pools[k.Pool.String()]
	if pool == nil {
		return nil
	}
	var all []string
	for _, c := range pool.Copies[k.ID] {
		if e := &pool.Endpoints[c.Endpoint]; e.State == pick.Out {
			all = append(all, e.Address)
		}
	}
	slices.SortFunc(all, strings.Compare)
	return all
}
