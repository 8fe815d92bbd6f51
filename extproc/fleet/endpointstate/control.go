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

// CopyKey, CopyState, Leaving and Switch are types that this package shares with control.
type (
	CopyKey   = objects.CopyKey
	CopyState = objects.CopyState
	Leaving   = objects.Leaving
	Switch    = objects.Switch
)

// PlacementUpdate is a message of control: the differences from its earlier messages.
type PlacementUpdate struct {
	// All reports that the update is complete: it replaces all earlier updates.
	All bool
	// Endpoints are all endpoints whose copies control manages; nil means no change.
	Endpoints map[string]bool
	Copies    map[CopyKey]CopyState
	// Limits are the limits of concurrent requests, for the copies in Copies that have a limit. All
	// processes share a limit.
	Limits map[CopyKey]int
	// Share is this process's share of the limits; the zero Share means no change.
	Share Share
	// Others are the numbers of requests in flight of other processes.
	Others map[CopyKey]int64
	// Failures are the models that cannot be loaded, each with a machine-readable reason; an empty
	// reason ends the failure.
	Failures map[objects.ModelKey]string
	// Registered are models that requests may name although no object defines them; false ends the
	// registration.
	Registered map[objects.ModelKey]bool
	// VModels are the targets of VModels; the zero Switch means that the VModel was deleted.
	VModels map[objects.ModelKey]Switch
	// Leaving are the endpoints that will end soon. The zero Leaving means that the endpoint does
	// not end, or has ended.
	Leaving map[string]Leaving
	// Methods are the gRPC methods that engines accept, by endpoint; empty means all methods.
	Methods map[string]engine.Methods
}

// control is the state of endpoints that control reported.
type control struct {
	endpoints map[string]bool
	copies    map[string]map[string]*reportedCopy // by endpoint and by the engine's name for the model
	failures  map[objects.ModelKey]string         // why models cannot be loaded; immutable: views share it
	share     Share
	leaving   map[string]Leaving        // only endpoints that will end soon
	methods   map[string]engine.Methods // accepted gRPC methods by endpoint, without empty values; immutable: views share it
	missing   []CopyKey                 // vanished copies that the next report to control names
	own       map[CopyKey]own           // models whose own answers look like NOT_FOUND, at engines without a list
}

// governs is true if control manages the copies of this endpoint.
func (c *control) governs(endpoint string) bool { return c.endpoints[endpoint] }

// reported returns control's report of a copy, to be changed by the caller.
func (c *control) reported(k CopyKey) *reportedCopy {
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

// ApplyPlacement applies an update of control. After a view with the update is published and
// sealed, no request begins at a copy that is Unloading or gone, and [State.InFlight] counts every
// request that began there.
func (s *State) ApplyPlacement(n PlacementUpdate, now time.Time) {
	c := &s.control
	before := c.copies
	if n.All || c.copies == nil {
		*c = control{
			endpoints: n.Endpoints, copies: make(map[string]map[string]*reportedCopy), share: c.share,
			leaving: make(map[string]Leaving), missing: c.missing, own: c.own,
		}
	}
	shared := n.Share != (Share{}) && n.Share != c.share
	if shared {
		c.share = n.Share
	}
	if n.Endpoints != nil {
		c.endpoints = n.Endpoints
	}
	for k, word := range n.Copies {
		said := c.reported(k)
		said.state, said.limit, said.reportedAt, said.controlKnows, said.foundMissing = word, n.Limits[k], now, false, false
		if was := before[k.Endpoint][k.ID]; n.All && was != nil && was.state == word {
			said.reportedAt, said.foundMissing = was.reportedAt, was.foundMissing // a repeated report keeps the time of the first one
		}
		s.index(k.Endpoint)
	}
	for k, others := range n.Others {
		c.reported(k).others = others
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

// drop deletes the report of a copy that has no state and no requests of other processes.
func (c *control) drop(k CopyKey) {
	if s := c.copies[k.Endpoint][k.ID]; s != nil && s.state == Gone && s.others == 0 {
		delete(c.copies[k.Endpoint], k.ID)
		if len(c.copies[k.Endpoint]) == 0 {
			delete(c.copies, k.Endpoint)
		}
	}
}

// adapters returns the adapters that an endpoint serves, and those that vanished from it.
func (s *State) adapters(address string, e *endpoint) (there, gone []string) {
	return adapters(s.control.governs(address), s.control.copies[address], e.lists)
}

// noteVanished queues the copies that vanished for the next report to control.
func (s *State) noteVanished(p *objects.Pool, address string, gone []string) {
	for _, name := range gone {
		if said := s.control.copies[address][name]; !said.controlKnows {
			said.controlKnows = true
			s.miss(CopyKey{ModelKey: objects.ModelKey{Pool: p.Name, ID: name}, Endpoint: address})
		}
	}
}

func (s *State) miss(k CopyKey) {
	if !slices.Contains(s.control.missing, k) {
		s.control.missing = append(s.control.missing, k)
	}
	s.urgent = true
}

// ModelMissing records that an engine answered a request as if it did not have the model. If the
// engine lists its models, its next scrape decides. Otherwise the copy is treated as gone until
// control has loaded it again, which costs little if the engine still has it. Requests that began
// before the last load are ignored, and so are models whose own answers are NOT_FOUND (see
// [State.OwnNotFound]).
func (s *State) ModelMissing(k CopyKey, began, now time.Time) {
	e, c := s.endpoints[k.Endpoint], &s.control
	if e == nil || e.lists.gives() || !c.governs(k.Endpoint) || slices.Contains(c.missing, k) || now.Before(c.own[k].until) {
		return
	}
	if said := c.copies[k.Endpoint][k.ID]; said != nil {
		if said.foundMissing || said.state != Loaded || began.Before(said.reportedAt) {
			return
		}
		said.foundMissing, said.controlKnows = true, true // controlKnows becomes true because s.miss informs control
		s.index(k.Endpoint)
	}
	s.miss(k)
}

// own describes a model whose own answers look like the engine's NOT_FOUND.
type own struct {
	times int // number of such answers in a row
	until time.Time
}

// ownLeast and ownMost bound how long a NOT_FOUND is taken for the model's own answer. The time
// doubles with each repetition, which limits how often the model is loaded in vain.
const (
	ownLeast = 10 * time.Second
	ownMost  = 5 * time.Minute
)

// OwnNotFound records that an engine answered NOT_FOUND again to a request that was repeated after
// the model was loaded. For a while such answers are taken for the model's own. If the model was
// not loaded in between, the engine may have lost it, as in [State.ModelMissing].
func (s *State) OwnNotFound(k CopyKey, began, now time.Time) {
	e, c := s.endpoints[k.Endpoint], &s.control
	if e == nil || e.lists.gives() || !c.governs(k.Endpoint) {
		return
	}
	if said := c.copies[k.Endpoint][k.ID]; said == nil || said.state != Loaded || !said.reportedAt.After(began) {
		s.ModelMissing(k, began, now)
		return
	}
	is := c.own[k]
	if now.Before(is.until) {
		return // the answer to a concurrent request was already recorded
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

// ProcessEnded records that no process listens at an endpoint, so that the next engine there has no
// models. If the engine lists its models, its list decides. Otherwise its copies are treated as
// gone until control reports them again.
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
		said.foundMissing = said.foundMissing || said.state == Loaded
	}
	s.index(address)
}

// TakeMissing returns the copies that control reports although the engine does not have them. It
// returns each copy once.
func (s *State) TakeMissing() []CopyKey {
	all := s.control.missing
	s.control.missing = nil
	return all
}

// TakeUrgent reports whether control needs a report at once: a copy is missing, or an engine is
// stopping. It then resets this to false.
func (s *State) TakeUrgent() bool {
	urgent := s.urgent
	s.urgent = false
	return urgent
}

// ModelUse is the use of a model since the last report.
type ModelUse struct {
	Requests int64     // requests that began since the last report
	Last     time.Time // start of the latest request
}

// Usage returns the use of every model that is not a base model since the previous call. It omits
// unused models.
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

// InFlightCount is the number of requests of this process at a copy.
type InFlightCount struct {
	Requests int64
	// Closed reports that no more requests begin there.
	Closed bool
}

// InFlight returns the number of requests of this process at each copy that is not a base model. It
// omits zeros.
func (s *State) InFlight() map[CopyKey]InFlightCount {
	all := make(map[CopyKey]InFlightCount)
	s.eachCount(func(k CopyKey, c *pick.Count) {
		if n := c.Load(); n > 0 {
			all[k] = InFlightCount{n, c.Closed.Load()}
		}
	})
	return all
}

// eachCount visits the request count of each copy whose model is not a base model. An endpoint in
// several pools is visited in the first.
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
					visit(CopyKey{ModelKey: objects.ModelKey{Pool: name, ID: model}, Endpoint: declared.Address}, c)
				}
			}
		}
	}
}

// Unusable returns the endpoints of a pool that have a copy of a model but cannot be used: they
// refuse connections, are silent, or are not ready. It omits endpoints that are out only because of
// failed requests.
func (v *View) Unusable(k objects.ModelKey) []string {
	pool := v.Snapshot.Pools[k.Pool.String()]
	if pool == nil {
		return nil
	}
	var all []string
	for _, c := range pool.Copies[k.ID] {
		if e := pool.Endpoints[c.Endpoint]; e.State == pick.Out && !e.Doubted {
			all = append(all, e.Address)
		}
	}
	slices.SortFunc(all, strings.Compare)
	return all
}
