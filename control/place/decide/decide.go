// Package decide is the pure core of placement: which engine is to load or to unload which model, and when. It is a state
// machine: what becomes known goes in by the methods of [State], and [State.Decide] returns what is to be done. Time and
// randomness are arguments. Scenarios, under testdata, show its rules at work.
//
// The rules are those of a distributed cache. A model that is wanted, or has fewer copies than it must have, gets a
// copy where most room is free; where none is, at the endpoint whose models are missed least, which are unloaded to make room: by how
// often they are used and what it takes to load them again. A model for which no request waits, and that would be missed least itself, is not
// loaded. A copy that is to go is drained first: nobody sends requests to it any more, and those that are there end.
package decide

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// catalogueLag is how long a model may be asked for before the catalogue has it: both sides read objects that were edited
// within a second.
const catalogueLag = 2 * time.Second

// DrainLimit is how long requests at a copy that is to go may take to end, if nobody says otherwise: half of what most
// answers take is in the drain of an engine's own (vLLM ends requests of an adapter that it was told to forget), so that
// a limit loses none there.
const DrainLimit = time.Minute

// State is everything that placement knows. It is not safe for concurrent use. Make one with [New].
type State struct {
	Config
	paused    bool
	now       time.Time // of the last Decide
	models    map[Key]*model
	endpoints map[string]*endpoint
	pools     map[objects.Name]*pool
	vmodels   map[Key]*vmodel
	named     map[Key]map[Key]bool // models by the VModels that name them

	due   due
	clock clock
	news  news
	// ticked is when the last tick was.
	ticked time.Time
	// moving are the models that have a goal because of endpoints that migrate.
	moving map[Key]bool
	// unseen is how many endpoints were not seen yet.
	unseen int
}

// Config is how a State decides. The zero Config is as people have it who set nothing.
type Config struct {
	// DrainLimit is what requests get to end at a copy that is to go; 0 is [DrainLimit].
	DrainLimit time.Duration
	// Lots order endpoints that are otherwise as good, by the hashes of model and endpoint: the lowest lot is taken. Nil is rendezvous
	// hashing, by which an endpoint that joins or leaves moves no model between others.
	Lots func(model, endpoint uint64) uint64
}

// New returns a State of nothing.
func New(c Config) *State {
	if c.DrainLimit == 0 {
		c.DrainLimit = DrainLimit
	}
	if c.Lots == nil {
		c.Lots = rendezvous
	}
	return &State{
		Config: c, models: make(map[Key]*model), endpoints: make(map[string]*endpoint), pools: make(map[objects.Name]*pool),
		vmodels: make(map[Key]*vmodel), named: make(map[Key]map[Key]bool), moving: make(map[Key]bool),
		due: due{
			models: make(map[Key]bool), endpoints: make(map[string]bool), helped: make(map[string]bool), vmodels: make(map[Key]bool),
			migrations: make(map[string]bool), fills: make(map[objects.Name]bool), quit: make(map[string]bool),
		},
		clock: clock{
			copies: make(map[CopyKey]bool), models: make(map[Key]bool), endpoints: make(map[string]bool), vmodels: make(map[Key]bool),
			failing: make(map[Key]bool),
		},
		news: newNews(),
	}
}

// Pause lets nothing begin until it is called with false: who cannot be sure to be the only one that leads tells no engine
// anything. What becomes known is taken in all the same.
func (s *State) Pause(paused bool) { s.paused = paused }

// atOnce bounds how many endpoints are asked in one Decide for the sake of stale models: in half a millisecond or so.
const atOnce = 8000

// Decide returns what is to be done now, and when it is to be asked again if nothing happens; the zero time is never.
func (s *State) Decide(now time.Time) (todo []Action, wake time.Time) {
	if s.paused {
		return nil, time.Time{}
	}
	s.now = now
	s.expire(now)
	for _, address := range slices.Sorted(maps.Keys(s.due.quit)) {
		if s.endpoints[address].Is() {
			todo = append(todo, Action{Kind: Quit, Endpoint: address})
		}
	}
	clear(s.due.quit)
	for _, c := range s.timed() {
		if c.State == Draining && !c.endpoint.Is() && (c.drained || now.Sub(c.Since) >= s.DrainLimit) {
			todo = append(todo, s.unload(c, now))
		}
	}
	if s.due.tick {
		for address := range s.clock.endpoints {
			if e := s.endpoints[address]; e != nil {
				s.noteEndpoint(migrationBegan, e) // what was used meanwhile is to be moved, too
			}
		}
		todo = append(todo, s.tick(now)...)
	}
	for again := true; again; {
		s.migrate(now)
		todo = append(todo, s.work(now)...)
		again = s.settle(now) || len(s.due.fills) > 0
		todo = append(todo, s.refill(now)...) // what is asked for has gone before
	}
	s.tidy()
	return todo, s.wake(now)
}

// work looks at everything about which something changed, until nothing does.
func (s *State) work(now time.Time) (todo []Action) {
	asked := 0 // endpoints, for the sake of stale models
	d := &s.due
	for s.reorder(); len(d.vmodels) > 0 || len(d.models) > 0 || len(d.helped) > 0 || len(d.endpoints) > 0 || len(d.stale) > 0 && asked < atOnce; s.reorder() {
		todo = append(todo, s.considerDue(now)...)
		s.considerVModels(now)
		if len(d.stale) > 0 && asked < atOnce {
			m := d.stale[0]
			d.stale, m.stale = d.stale[1:], false
			if m.stuck {
				asked += max(1, len(s.pool(m.Pool).endpoints))
				todo = append(todo, s.consider(m, now)...)
			}
		}
		todo = append(todo, s.startDue(now)...)
	}
	return todo
}

// startDue has endpoints about which something changed load what is next there.
func (s *State) startDue(now time.Time) (todo []Action) {
	due := slices.Sorted(maps.Keys(s.due.endpoints))
	clear(s.due.endpoints)
	for _, address := range due {
		if e := s.endpoints[address]; e != nil {
			todo = append(todo, s.try(e, now)...)
			todo = append(todo, s.start(e, now)...)
		}
	}
	return todo
}

// candidate is a model that may get a copy now, because it changed, or because it is stuck and an endpoint that may take it changed.
type candidate struct {
	*model
	e *endpoint // nil if the model itself changed
}

// considerDue considers changed models, and stuck models that changed endpoints may take, in one pass in the order of [model.compare]. With two
// passes a changed model could take the room that an older stuck model waits for.
func (s *State) considerDue(now time.Time) (todo []Action) {
	due := make([]candidate, 0, len(s.due.models))
	for key := range s.due.models {
		if m := s.models[key]; m != nil {
			due = append(due, candidate{model: m})
		}
	}
	clear(s.due.models)
	due = s.appendHelped(due)
	slices.SortFunc(due, func(a, b candidate) int {
		return cmp.Or(a.compare(b.model), truth(a.e != nil)-truth(b.e != nil))
	})
	for _, d := range due {
		if d.e != nil {
			if s.reorder(); !d.stuck || !s.takes(d.e, d.model, s.claim(d.model)) { // earlier candidates may have taken the room
				continue
			}
		}
		todo = append(todo, s.consider(d.model, now)...)
	}
	return todo
}

// appendHelped appends the stuck models that changed endpoints may take. Orders are up to date.
func (s *State) appendHelped(all []candidate) []candidate {
	helped := slices.Sorted(maps.Keys(s.due.helped))
	clear(s.due.helped)
	for _, address := range helped {
		e := s.endpoints[address]
		if e == nil {
			continue
		}
		for _, p := range e.pools {
			for _, m := range s.pool(p).stuck {
				if s.takes(e, m, s.claim(m)) {
					all = append(all, candidate{m, e})
				}
			}
		}
	}
	return all
}

// wake is when the next thing happens by itself.
func (s *State) wake(now time.Time) (at time.Time) {
	soonest := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if s.due.expiry.IsZero() { // one of them counts for less time since it was found
		s.due.expiry = s.nextExpiry(now)
	}
	if len(s.clock.failing) > 0 && !s.due.expiry.IsZero() {
		soonest(later(s.due.expiry, now))
	}
	if len(s.due.stale) > 0 {
		soonest(now)
	}
	for key := range s.clock.models {
		if m := s.models[key]; !m.lags() || !now.Before(m.since().Add(catalogueLag)) {
			delete(s.clock.models, key)
		} else {
			soonest(m.since().Add(catalogueLag))
		}
	}
	for key := range s.clock.copies {
		if next := s.nextOfCopy(s.copy(key)); next.IsZero() {
			delete(s.clock.copies, key)
		} else {
			soonest(next)
		}
	}
	for address := range s.clock.endpoints {
		if next := s.endpoints[address].next(); next.IsZero() {
			delete(s.clock.endpoints, address)
		} else {
			soonest(next)
		}
	}
	for key := range s.clock.vmodels {
		if v := s.vmodels[key]; v == nil || v.Previous == "" {
			delete(s.clock.vmodels, key)
		} else {
			soonest(v.Until)
		}
	}
	return at
}

// nextOfCopy returns when something happens to a copy by itself; zero: never.
func (s *State) nextOfCopy(c *Copy) (at time.Time) {
	switch {
	case c == nil:
	case c.State == Draining && !c.endpoint.Is():
		at = c.Since.Add(s.DrainLimit)
	case !c.roomless.IsZero():
		at = c.roomless.Add(roomWait)
		for _, o := range c.endpoint.copies {
			if o.State == Unloading && !o.late {
				at = sooner(at, o.Since.Add(unloadLimit))
			}
		}
	case !c.slow:
		at = c.slowAt
	}
	return at
}

// next returns when something happens to an endpoint by itself; zero: never.
func (e *endpoint) next() (at time.Time) {
	at = e.prepares
	if e.IsMigrating() {
		at = sooner(at, e.until())
	}
	if !e.Stopping.IsZero() {
		at = sooner(at, e.Stopping.Add(StoppingFor))
	}
	return at
}

// lags reports whether requests wait for a model that the catalogue does not have, or not yet.
func (m *model) lags() bool { return m != nil && m.gone && len(m.wants) > 0 }

// timed returns the copies to which something may happen by itself, in order.
func (s *State) timed() []*Copy {
	if len(s.clock.copies) == 0 {
		return nil
	}
	all := make([]*Copy, 0, len(s.clock.copies))
	for key := range s.clock.copies {
		if c := s.copy(key); c != nil {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *Copy) int { return a.Compare(b.CopyKey) })
	return all
}

// beLate finds what an engine has been told to unload for too long, so that something else makes room for those that wait.
func (s *State) beLate(e *endpoint, now time.Time) {
	for _, c := range e.copies {
		if c.State == Unloading && !c.late && now.Sub(c.Since) >= unloadLimit {
			c.late = true
			s.noteCopy(unloadLate, c)
		}
	}
}

// expire forgets failures that are old, and that an engine said a while ago that it is stopping. What has waited for room for too long is to be
// loaded elsewhere.
func (s *State) expire(now time.Time) {
	for address := range s.clock.endpoints {
		e := s.endpoints[address]
		if !e.Stopping.IsZero() && now.Sub(e.Stopping) >= StoppingFor {
			s.stoppedStopping(e)
		}
		if !e.prepares.IsZero() && !now.Before(e.prepares) {
			e.prepares = time.Time{}
			s.noteEndpoint(turnCame, e)
		}
	}
	for key := range s.clock.models {
		if m := s.models[key]; m.lags() {
			s.noteModel(catalogueLagged, m)
		}
	}
	for key := range s.clock.vmodels {
		if v := s.vmodels[key]; v != nil && v.Previous != "" && !now.Before(v.Until) {
			s.noteVModel(vmodelSet, key)
		}
	}
	for _, c := range s.timed() {
		switch {
		case !c.roomless.IsZero() && now.Sub(c.roomless) >= roomWait:
			s.fail(c.model, Failure{Endpoint: c.Endpoint, At: now, Words: "what was to make room for it has not left within " + roomWait.String(), Why: LoadFailed})
			s.dismiss(c, now)
		case !c.roomless.IsZero():
			s.beLate(c.endpoint, now)
		case !c.slowAt.IsZero() && !c.slow && !now.Before(c.slowAt):
			c.slow = true
			s.noteCopy(loadSlow, c)
		}
	}
	s.forgive(now)
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
