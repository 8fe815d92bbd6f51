// Package decide is the pure core of placement: which engine is to load or to unload which model,
// and when. It is a state machine: what becomes known goes in by the methods of [State], and
// [State.Decide] returns what is to be done. Time and randomness are arguments. Scenarios, under
// testdata, show its rules at work.
//
// The rules are those of a distributed cache. A model that is wanted, or has fewer copies than it
// must have, gets a copy where most room is free; where none is, at the endpoint whose models are
// missed least, which are unloaded to make room: by how often they are used and what it takes to
// load them again. A model for which no request waits, and that would be missed least itself, is
// not loaded. A copy that is to go is drained first: nobody sends requests to it any more, and
// those that are there end.
package decide

import (
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// catalogueLag is how long a model may be asked for before the catalogue has it: both sides read
// objects that were edited within a second.
const catalogueLag = 2 * time.Second

// DrainLimit is how long requests at a copy that is to go may take to end, if nobody says
// otherwise: half of what most answers take is in the drain of an engine's own (vLLM ends requests
// of an adapter that it was told to forget), so that a limit loses none there.
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
	// Lots order endpoints that are otherwise as good, by the hashes of model and endpoint: the
	// lowest lot is taken. Nil is rendezvous hashing, by which an endpoint that joins or leaves
	// moves no model between others.
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

// Pause lets nothing begin until it is called with false: who cannot be sure to be the only one
// that leads tells no engine anything. What becomes known is taken in all the same.
func (s *State) Pause(paused bool) { s.paused = paused }

// Decide returns what is to be done now, and when to ask again if nothing happens; the zero time is
// never.
func (s *State) Decide(now time.Time) (todo []Action, wake time.Time) {
	if s.paused {
		return nil, time.Time{}
	}
	s.now = now
	apply := func(rules []rule) {
		for _, r := range rules {
			todo = append(todo, r(s, now)...)
		}
	}
	apply(rules.first)
	for again := true; again; again = s.due.any() || len(s.due.migrations) > 0 {
		apply(rules.before)
		for s.due.explained = 0; s.due.any() || s.due.explains(); {
			apply(rules.repeated)
		}
		apply(rules.after)
	}
	tidy(s)
	return todo, nextWake(s, now)
}
