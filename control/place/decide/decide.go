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

	// What has to be looked at, because something about it changed.
	dueModels    map[Key]bool
	dueEndpoints map[string]bool
	dueVModels   map[Key]bool
	// Stuck models of a pool that a helped endpoint may take are looked at again at once; those of it that are stale a few at a time, for nothing
	// but why they find no place may have changed.
	helped map[string]bool
	stale  []*model
	// touched are models whose copies may have to move in the orders of their endpoints.
	touched []*model
	// refills are pools in which a load has ended, and for more models free room is to be sought.
	refills map[objects.Name]bool
	// expiry is when the first failure may be old enough to be forgotten, or before that; zero: now.
	expiry time.Time
	// ticks: a tick is due; ticked is when the last one was.
	ticks  bool
	ticked time.Time
	// failing are models with failures, draining copies that drain.
	failing  map[Key]bool
	draining map[CopyKey]bool
	// roomless are copies whose turn it is and that wait for room, timed those that are loading and will be slow.
	roomless, timed map[CopyKey]bool
	// preparing are the endpoints where evictions are due shortly before a running load ends.
	preparing map[string]bool
	// unknown are models that are asked for and that the catalogue does not have, yet.
	unknown map[Key]bool
	// keeping are the VModels whose previous models keep their copies for a while.
	keeping map[Key]bool
	// stopping are the endpoints whose engines said that they are, quit those whose calls are to be given up.
	stopping, quit map[string]bool
	// migrating are the endpoints that do, dueMigrations those of which it is to be found what has to be moved, moving the models that have a
	// goal because of them.
	migrating, dueMigrations map[string]bool
	moving                   map[Key]bool

	// What changed since Changes was called last, with what is gone.
	changedCopies map[CopyKey]bool
	// changedRecords are leaks, and copies that engines were told to load, that were removed: the engines may have nothing of them any more.
	changedRecords map[CopyKey]bool
	changedModels  map[Key]bool // whose failure or presence changed
	// changedVModels are those of which anything did, unnamed the models that VModels named, and perhaps none does now.
	changedVModels, unnamed map[Key]bool
	// changedLeaving are endpoints of which it changed why they are about to end, or when that was last heard.
	changedLeaving map[string]bool
	// trials are the endpoints on trial. It changed which they are, or how one does.
	trials        map[string]bool
	changedTrials bool
	// seenMore: endpoints were seen for the first time, or went.
	seenMore bool
	unseen   int
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
	s := &State{
		Config: c,
		models: make(map[Key]*model), endpoints: make(map[string]*endpoint), pools: make(map[objects.Name]*pool),
		dueModels: make(map[Key]bool), dueEndpoints: make(map[string]bool),
		helped: make(map[string]bool), preparing: make(map[string]bool), failing: make(map[Key]bool), draining: make(map[CopyKey]bool), roomless: make(map[CopyKey]bool), timed: make(map[CopyKey]bool), unknown: make(map[Key]bool),
		refills: make(map[objects.Name]bool), stopping: make(map[string]bool), quit: make(map[string]bool), trials: make(map[string]bool),
		migrating: make(map[string]bool), dueMigrations: make(map[string]bool), moving: make(map[Key]bool),
		vmodels: make(map[Key]*vmodel), named: make(map[Key]map[Key]bool), dueVModels: make(map[Key]bool), keeping: make(map[Key]bool),
	}
	s.Changes() // makes what notes them
	return s
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
	for _, address := range slices.Sorted(maps.Keys(s.quit)) {
		todo = append(todo, Action{Kind: Quit, Endpoint: address})
	}
	clear(s.quit)
	for _, key := range slices.SortedFunc(maps.Keys(s.draining), CopyKey.Compare) {
		e := s.endpoints[key.Endpoint]
		if c := e.copies[key.Key]; !e.Is() && (c.drained || now.Sub(c.Since) >= s.DrainLimit) {
			todo = append(todo, s.unload(c, now))
		}
	}
	if s.ticks {
		maps.Copy(s.dueMigrations, s.migrating) // what was used meanwhile is to be moved, too
		todo = append(todo, s.tick(now)...)
	}
	for again := true; again; {
		s.migrate(now)
		todo = append(todo, s.work(now)...)
		again = s.settle(now) || len(s.refills) > 0
		todo = append(todo, s.refill(now)...) // what is asked for has gone before
	}
	s.tidy()
	return todo, s.wake(now)
}

// work looks at everything about which something changed, until nothing does.
func (s *State) work(now time.Time) (todo []Action) {
	asked := 0 // endpoints, for the sake of stale models
	for s.reorder(); len(s.dueVModels) > 0 || len(s.dueModels) > 0 || len(s.helped) > 0 || len(s.dueEndpoints) > 0 || len(s.stale) > 0 && asked < atOnce; s.reorder() {
		todo = append(todo, s.considerDue(now)...)
		s.considerVModels(now)
		if len(s.stale) > 0 && asked < atOnce {
			m := s.stale[0]
			s.stale, m.stale = s.stale[1:], false
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
	due := slices.Sorted(maps.Keys(s.dueEndpoints))
	clear(s.dueEndpoints)
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
	due := make([]candidate, 0, len(s.dueModels))
	for key := range s.dueModels {
		if m := s.models[key]; m != nil {
			due = append(due, candidate{model: m})
		}
	}
	clear(s.dueModels)
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
	helped := slices.Sorted(maps.Keys(s.helped))
	clear(s.helped)
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
	if len(s.failing) > 0 {
		if s.expiry.IsZero() { // one of them counts for less time since it was found
			s.expiry = s.nextExpiry(now)
		}
		if !s.expiry.IsZero() {
			soonest(later(s.expiry, now))
		}
	}
	if len(s.stale) > 0 {
		soonest(now)
	}
	for key := range s.unknown {
		soonest(s.models[key].since().Add(catalogueLag))
	}
	for key := range s.draining {
		if e := s.endpoints[key.Endpoint]; !e.Is() {
			soonest(e.copies[key.Key].Since.Add(s.DrainLimit))
		}
	}
	for key := range s.roomless {
		soonest(s.copy(key).roomless.Add(roomWait))
		for _, c := range s.endpoints[key.Endpoint].copies {
			if c.State == Unloading && !c.late {
				soonest(c.Since.Add(unloadLimit))
			}
		}
	}
	for key := range s.timed {
		soonest(s.copy(key).slowAt)
	}
	for address := range s.preparing {
		soonest(s.endpoints[address].prepares)
	}
	for key := range s.keeping {
		soonest(s.vmodels[key].Until)
	}
	for address := range s.migrating {
		soonest(s.endpoints[address].until())
	}
	for address := range s.stopping {
		soonest(s.endpoints[address].Stopping.Add(StoppingFor))
	}
	return at
}

// beLate finds what an engine has been told to unload for too long, so that something else makes room for those that wait.
func (s *State) beLate(e *endpoint, now time.Time) {
	for _, c := range e.copies {
		if c.State == Unloading && !c.late && now.Sub(c.Since) >= unloadLimit {
			c.late, e.counted = true, false
			s.dueEndpoints[e.Address] = true
		}
	}
}

// expire forgets failures that are old, and that an engine said a while ago that it is stopping. What has waited for room for too long is to be
// loaded elsewhere.
func (s *State) expire(now time.Time) {
	for address := range s.stopping {
		if e := s.endpoints[address]; now.Sub(e.Stopping) >= StoppingFor {
			s.stoppedStopping(e)
		}
	}
	for key := range s.unknown {
		s.dueModels[key] = true
	}
	for key := range s.keeping {
		if !now.Before(s.vmodels[key].Until) {
			s.dueVModels[key] = true
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(s.roomless), CopyKey.Compare) {
		if c := s.copy(key); now.Sub(c.roomless) >= roomWait {
			s.fail(s.models[key.Key], Failure{Endpoint: key.Endpoint, At: now, Words: "what was to make room for it has not left within " + roomWait.String(), Why: LoadFailed})
			s.dismiss(c, now)
		} else {
			s.beLate(c.endpoint, now)
		}
	}
	for key := range s.timed {
		if c := s.copy(key); !now.Before(c.slowAt) {
			c.slow = true
			delete(s.timed, key)
			s.recount(c)
			s.dueEndpoints[c.Endpoint], s.helped[c.Endpoint] = true, true
		}
	}
	for address := range s.preparing {
		if !now.Before(s.endpoints[address].prepares) {
			delete(s.preparing, address)
			s.dueEndpoints[address] = true
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
