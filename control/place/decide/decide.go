// Package decide is the pure core of placement: it decides which engine loads or unloads which
// model, and when. It is a state machine: facts are passed to the methods of [State], and
// [State.Decide] returns the actions. Time and randomness are arguments. The scenarios under
// testdata show its rules.
//
// The rules are those of a distributed cache. A model that is requested, or has fewer copies than
// its minimum, gets a copy at the endpoint with the most room. If no endpoint has room, the models
// with the lowest eviction value are evicted; that value depends on how often a model is used and
// on the time to load it again. A model that no request waits for is not loaded if its own eviction
// value is the lowest. A copy is drained before it is unloaded: it gets no new requests, and its
// requests in flight may end.
package decide

import (
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// catalogueLag is how long requests may name a model before it is in the catalogue: extproc and
// control both read edited objects within a second.
const catalogueLag = 2 * time.Second

// DrainLimit is the default time that requests at a draining copy get to end. It must not be
// shorter than requests take, because vLLM ends the requests of an adapter when it unloads the
// adapter.
const DrainLimit = time.Minute

// State is all that placement knows. It is not safe for concurrent use. Create a State with [New].
type State struct {
	Config
	paused    bool
	now       time.Time // time of the last Decide
	models    map[Key]*model
	endpoints map[string]*endpoint
	pools     map[objects.Name]*pool
	vmodels   map[Key]*vmodel
	named     map[Key]map[Key]bool // for each model, the VModels that name it

	due   due
	clock clock
	news  news
	// ticked is the time of the last tick.
	ticked time.Time
	// moving are the models whose target number of copies includes replacements for copies at
	// migrating endpoints.
	moving map[Key]bool
	// unscraped is the number of endpoints that have not been scraped yet.
	unscraped int
}

// Config configures a State. The zero Config selects the defaults.
type Config struct {
	// DrainLimit is the time that requests at a draining copy get to end; 0 means [DrainLimit].
	DrainLimit time.Duration
	// TieBreak breaks ties between equal endpoints: the endpoint with the lowest result wins. The
	// arguments are hashes of model and endpoint. Nil means rendezvous hashing, with which an
	// endpoint that is added or removed moves no model between other endpoints.
	TieBreak func(model, endpoint uint64) uint64
}

// New returns an empty State.
func New(c Config) *State {
	if c.DrainLimit == 0 {
		c.DrainLimit = DrainLimit
	}
	if c.TieBreak == nil {
		c.TieBreak = rendezvous
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

// Pause stops all new actions, or with false starts them again: a control that may have lost
// leadership must not give instructions to engines. Facts are still recorded meanwhile.
func (s *State) Pause(paused bool) { s.paused = paused }

// Decide returns the actions for now, and the time of the next call of Decide if no fact arrives
// before; the zero time means never.
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
		apply(rules.beforeMigration)
		for s.due.explained = 0; s.due.any() || s.due.explains(); {
			apply(rules.repeated)
		}
		apply(rules.after)
	}
	tidy(s)
	return todo, nextWake(s, now)
}
