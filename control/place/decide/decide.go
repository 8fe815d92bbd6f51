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
	"math"
	"slices"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/internal/objects"
)

// Key names a model.
type Key = objects.ModelKey

// CopyKey names a copy.
type CopyKey struct {
	Key
	Endpoint string // "ip:port"
}

// Compare orders copies by endpoint, then model.
func (k CopyKey) Compare(l CopyKey) int {
	return cmp.Or(cmp.Compare(k.Endpoint, l.Endpoint), k.Key.Compare(l.Key))
}

// CopyState is how far a copy has come.
type CopyState uint8

const (
	// Queued: it has a place and waits for its turn, or for the room that others leave.
	Queued CopyState = iota
	// Loading: the engine was told to load it.
	Loading
	// Loaded: it answers requests.
	Loaded
	// Draining: no request is sent to it any more, and those that are there may end.
	Draining
	// Unloading: the engine was told to unload it.
	Unloading
)

// CopyStates are the names of the states.
var CopyStates = [...]string{Queued: "queued", Loading: "loading", Loaded: "loaded", Draining: "draining", Unloading: "unloading"}

func (s CopyState) String() string { return CopyStates[s] }

// SizeSource is where a size is known from, the better the greater.
type SizeSource uint8

const (
	// DefaultSize is the engine's, for models of which nothing is known.
	DefaultSize SizeSource = iota
	// HintedSize is what the Model says.
	HintedSize
	// PredictedSize is what the engine said before it loaded the model.
	PredictedSize
	// MeasuredSize is what it said of the loaded model.
	MeasuredSize
)

// SizeSources are the names of the sources.
var SizeSources = [...]string{DefaultSize: "default", HintedSize: "hint", PredictedSize: "predicted", MeasuredSize: "measured"}

// Copy is one model at one endpoint.
type Copy struct {
	CopyKey
	State CopyState
	// Since is when it came into its state.
	Since time.Time
	// Bytes is what it is taken to hold.
	Bytes int64
	// Source is where Bytes is known from.
	Source SizeSource
	// Limit is how many requests it takes at once; 0: as many as come.
	Limit int

	// cut: an earlier process told the engine to load it and did not hear an answer.
	cut bool
	// sizing: the engine was asked to predict its size.
	sizing bool
	// asked is when it should have been loaded, had there been room at once.
	asked time.Time
	// roomless is since when it has waited, with its turn come, for what leaves to make room; zero if it does not.
	roomless time.Time
	// leaving is when its eviction to make room began; zero if it is not being evicted.
	leaving time.Time
	// brief: its requests are short compared with a load, as of the last tick.
	brief bool
	// doomed: it is unloaded as soon as it is loaded.
	doomed bool
	// overdue: its load got no clear answer, and the engine is being told to unload it. It is doomed, and no load any more that counts
	// among those of the engine at once.
	overdue bool
	// slow: it has been loading for longer than loads take at most, at slowAt, and others begin beside it.
	slow   bool
	slowAt time.Time
	// late: the engine has been told to unload it for unloadLimit, and another copy waits for room: it counts as if it stayed.
	late bool
	// claim is what may leave for it.
	claim claim
	// flown is the seconds that requests were in flight there since the last tick, each for itself, and occupied those in which any was; counted
	// up to flying. Presence is the share of the time in which any was, in the mean of loadMean.
	flown, occupied, presence float64
	flying                    time.Time
	// before: it was there when its endpoint began to migrate.
	before bool
	// stays: it may not leave for another model, whatever happens.
	stays bool
	// ranked: it is in its endpoint's order, at rank.
	ranked bool
	rank   rank
	model  *model
	// endpoint is the one that Endpoint names.
	endpoint *endpoint
	// drained: nobody sends requests to it any more, and none is there.
	drained  bool
	inFlight int
}

// Failed reports whether the load of a copy has failed, or was given up, and the engine is being told to unload it.
func (c Copy) Failed() bool { return c.State == Loading && c.doomed }

// ActionKind is what is to be done.
type ActionKind uint8

const (
	// Predict asks the engine for the size of a model; [State.Predicted] is to be told, whatever comes of it.
	Predict ActionKind = iota
	// Load loads a model; [State.LoadEnded] is to be told.
	Load
	// Reload unloads a model and then loads it, for nobody knows how far an earlier load came; as Load.
	Reload
	// Cancel gives up a load that goes on; what comes of it is told as that of the Load.
	Cancel
	// Unload unloads a model; [State.UnloadEnded] is to be told. With a timeout it repeats one that failed, for whatever may be left.
	Unload
	// Quit gives up whatever the engine was told and has not answered, and tells it nothing more: it is about to end. What
	// comes of each Load and Unload is told as ever. It is about no model.
	Quit
)

// Purpose is what a copy is for.
type Purpose uint8

const (
	// ForRecord: an earlier process had begun to load it.
	ForRecord Purpose = iota
	// ForRequests: requests wait for it, or somebody asked for one.
	ForRequests
	// ForLeast: the model has fewer than it must have.
	ForLeast
	// ForMigration: it takes the place of one at an endpoint that migrates.
	ForMigration
	// ForLoad: the model's load asks for more than it has.
	ForLoad
	// ForBalance: its endpoint bears little load.
	ForBalance
	// ForUse: it is the second copy of a model in use.
	ForUse
	// ForRoom: it fills room that is free.
	ForRoom
	// ForTrial: its endpoint is on trial.
	ForTrial
	// ForSlots: it takes the place of one at an endpoint where more adapters are in use than its GPU has slots for.
	ForSlots
)

// Purposes are their names.
var Purposes = [...]string{
	ForRecord: "record", ForRequests: "requests", ForLeast: "least", ForMigration: "migration", ForLoad: "load", ForBalance: "balance", ForUse: "use", ForRoom: "room", ForTrial: "trial",
	ForSlots: "slots",
}

func (p Purpose) String() string { return Purposes[p] }

var actionKinds = [...]string{Predict: "predict", Load: "load", Reload: "reload", Cancel: "cancel", Unload: "unload", Quit: "quit"}

func (k ActionKind) String() string { return actionKinds[k] }

// Action is something to be done at an engine, apart from others: it may take its time.
type Action struct {
	Kind     ActionKind
	Endpoint string
	Model    objects.Entry
	// For is what a Load or Reload is for, or the Predict before it.
	For Purpose
	// Timeout bounds a load, and a repeated unload.
	Timeout time.Duration
	// Waited is how long the first of the requests that wait for the model has; 0 if none waits.
	Waited time.Duration
	// Stalled is how much of that the load has waited for room that others had to leave first, or for its turn.
	Stalled time.Duration
}

// Reason is why a model cannot be loaded for now.
type Reason string

const (
	// LoadFailed: engines failed to load it.
	LoadFailed Reason = wire.LoadFailed
	// RankTooLarge: the engines that were asked take no adapter of its rank.
	RankTooLarge Reason = wire.RankTooLarge
	// FilesMissing: the engines that were asked find no files of it.
	FilesMissing Reason = wire.FilesMissing
	// LoadRetried: its load failed with a transient error, and control retries it soon. While requests wait, or it must have a copy, the retries do
	// not end; otherwise they end after maxRetries failed loads in a row.
	LoadRetried Reason = "load_retried"
	// NoEndpoint: control reaches no endpoint that could load it.
	NoEndpoint Reason = wire.NoEndpoint
	// CannotLoad: the engines of its pool load no models while they run, or none of its kind.
	CannotLoad Reason = wire.CannotLoad
	// NoRoom: what the endpoints hold is pinned, must stay, or was used more recently.
	NoRoom Reason = wire.NoRoom
	// NoLabels: the pool's constraints let it be loaded at no endpoint that there is.
	NoLabels Reason = wire.NoLabels
	// TooLarge: it is larger than any endpoint.
	TooLarge Reason = wire.TooLarge
	// UnknownModel: it is not in the catalogue.
	UnknownModel Reason = wire.UnknownModel
)

var messages = map[Reason]string{
	LoadFailed:   "engines failed to load it; control retries when the failures are old",
	RankTooLarge: "its rank is larger than the engines take; control retries when the failures are old",
	FilesMissing: "engines find no files of it at its source; control retries when the failures are old",
	LoadRetried:  "the engine reported a transient error; control retries the load soon",
	NoEndpoint:   "control reaches no endpoint that could load it",
	CannotLoad:   "no engine of its pool loads such models while it runs",
	NoRoom:       "there is no room: every other model is pinned, has no copy to spare, or was used more recently",
	NoLabels:     "no endpoint has the labels that the pool's constraints require for its type",
	TooLarge:     "it is larger than any endpoint",
	UnknownModel: "requests ask for it, and no object says what it is",
}

// Message says a reason in words for operators; empty if there is none.
func (r Reason) Message() string { return messages[r] }

// Failure is a load that failed.
type Failure struct {
	Endpoint string
	At       time.Time
	Words    string // the engine's own
	Why      Reason // LoadFailed, or one of those that say more
	// counts is how long it counts; 0: as the pool's failures do.
	counts time.Duration
}

// Failures says whether it is for what engines said to a load that the model cannot be loaded.
func (r Reason) Failures() bool {
	return r == LoadFailed || r == RankTooLarge || r == FilesMissing || r == LoadRetried
}

// ModelMesh 0.12 (kserve/modelmesh, ModelMesh.java).
const (
	// maxFailures is how many places are tried: MAX_LOAD_FAILURES.
	maxFailures = 3
	// failureExpiry is how long a failed load counts where nobody says: LOAD_FAILURE_EXPIRY; half of it for a model in use.
	failureExpiry = 15 * time.Minute
	// minRetry is how long a failure counts that may pass, twice as long each time, up to maxRetry.
	minRetry, maxRetry = time.Second, 30 * time.Second
	// unloadLimit bounds how long other copies wait for an unload before control evicts something else.
	unloadLimit = 30 * time.Second
	// maxRetries is after how many transient load failures in a row a model counts as failed if no request waits: a minute of backoff plus the
	// loads.
	maxRetries = 7
	// inUse is how recently a model was used that is in use.
	inUse = 3 * time.Minute
	// roomWait is how long a load waits for what leaves to make room: MAX_WAIT_FOR_SPACE, 3 minutes there too.
	roomWait = 3 * time.Minute
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

// Change is what those are told who follow placement. [State.Changes] has all but Registered, which package place knows.
type Change struct {
	Copies map[CopyKey]CopyChange
	// Gone are copies of which, as far as is known, their engines have nothing any more: neither the copy nor a leak. They are in no order.
	Gone []CopyKey
	// Failures say why a model cannot be loaded for now; empty: it may be asked for.
	Failures map[Key]Reason
	// Leaving says why endpoints are about to end; the zero Leaving: they stay, or are gone.
	Leaving map[string]Leaving
	// Trials says that it changed which endpoints are on trial, or how one does.
	Trials bool
	// VModels are where requests for them go; of one that is no more, or that anything else is known of, perhaps as before.
	VModels map[Key]Switch
	// Unnamed are the models that no VModel names any more, in no order.
	Unnamed []Key
	// Registered models came, or with false went.
	Registered map[Key]bool
	// Endpoints are those that were seen, those that are down too, in order: where that changed; else nil.
	Endpoints []string
}

// CopyChange is what followers need of a copy. There false says that it is gone.
type CopyChange struct {
	There bool
	State CopyState
	// Limit is how many requests it takes at once; 0: as many as come.
	Limit int
	// Earlier says that an earlier process told the engine to load it, and may have published it as loaded, though this one does not know whether it is.
	Earlier bool
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

// Changes returns what changed since the last call.
func (s *State) Changes() Change {
	change := Change{
		Copies: make(map[CopyKey]CopyChange, len(s.changedCopies)), Failures: make(map[Key]Reason, len(s.changedModels)),
		Leaving: make(map[string]Leaving, len(s.changedLeaving)), Trials: s.changedTrials, VModels: make(map[Key]Switch, len(s.changedVModels)),
	}
	for key := range s.changedVModels {
		change.VModels[key] = Switch{}
		if v := s.vmodels[key]; v != nil {
			change.VModels[key] = v.told
		}
	}
	for key := range s.unnamed {
		if len(s.named[key]) == 0 {
			change.Unnamed = append(change.Unnamed, key)
		}
	}
	for key := range s.changedCopies {
		c, there := s.Copy(key)
		change.Copies[key] = CopyChange{there, c.State, c.Limit, c.cut}
	}
	for key := range s.changedRecords {
		if !s.mayBeAt(key) {
			change.Gone = append(change.Gone, key)
		}
	}
	for key := range s.changedModels {
		var why Reason // of one that is gone, none
		if m := s.models[key]; m != nil {
			why = m.failed
		}
		change.Failures[key] = why
	}
	for address := range s.changedLeaving {
		var why Leaving
		if e := s.endpoints[address]; e != nil {
			why = e.Leaving
		}
		change.Leaving[address] = why
	}
	if s.seenMore {
		s.seenMore, change.Endpoints = false, []string{}
		for address, e := range s.endpoints {
			if e.state != unknown {
				change.Endpoints = append(change.Endpoints, address)
			}
		}
		slices.Sort(change.Endpoints)
	}
	s.changedCopies, s.changedModels, s.changedLeaving = make(map[CopyKey]bool), make(map[Key]bool), make(map[string]bool)
	s.changedRecords = make(map[CopyKey]bool)
	s.changedVModels, s.unnamed, s.changedTrials = make(map[Key]bool), make(map[Key]bool), false
	return change
}

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

// reexpire notes that failures of a model may count for less time than before.
func (s *State) reexpire(m *model) {
	if len(m.failures) > 0 {
		s.expiry = time.Time{}
	}
}

// forgive forgets failures that are old.
func (s *State) forgive(now time.Time) {
	if len(s.failing) == 0 || now.Before(s.expiry) {
		return
	}
	for key := range s.failing {
		m := s.models[key]
		was := len(m.failures)
		m.failures = slices.DeleteFunc(m.failures, func(f Failure) bool { return now.Sub(f.At) >= s.failureCounts(m, f, now) })
		if len(m.failures) < was {
			s.dueModels[key] = true
			s.pass(m)
		}
		if len(m.failures) == 0 {
			delete(s.failing, key)
		}
	}
	s.expiry = s.nextExpiry(now)
}

// nextExpiry returns when the first failure will be old enough to be forgotten; zero if there is none.
func (s *State) nextExpiry(now time.Time) (first time.Time) {
	for key := range s.failing {
		m := s.models[key]
		for _, f := range m.failures {
			first = sooner(first, f.At.Add(s.failureCounts(m, f, now)))
		}
	}
	return first
}

// consider gives a model the copies that it must have, and takes those that it must not.
func (s *State) consider(m *model, now time.Time) (todo []Action) {
	if m.gone {
		return s.considerGone(m, now)
	}
	todo = s.disown(m, now)
	if m.Max > 0 && len(m.copies) > m.Max {
		staying := s.staying(m)
		for ; len(staying) > m.Max; staying = staying[1:] {
			todo = append(todo, s.dismiss(staying[0], now)...)
		}
	}
	for {
		starved := m.starved(nil)
		if !starved && s.there(m) >= m.needs() {
			if m.failed != "" {
				if best, _ := s.choose(m, claim{asked: true, below: math.Inf(1), spares: true}); best.e == nil {
					return todo // who asks for it now would be told the same
				}
			}
			s.pass(m)
			m.placeless = time.Time{}
			return todo
		}
		by := s.claim(m)
		best, why := s.choose(m, by)
		if best.e == nil {
			m.ensure = m.ensure && why == ""
			if m.placeless.IsZero() {
				m.placeless = now
			}
			s.block(m, why, starved)
			return todo
		}
		s.pass(m)
		todo = append(todo, s.put(m, best.e, by, now)...)
	}
}

// disown lets copies of a model go at endpoints that have left its pool. What another pool has there, too, stays at the engine.
func (s *State) disown(m *model, now time.Time) (todo []Action) {
	for _, c := range slices.Clone(m.copies) {
		switch e := c.endpoint; {
		case slices.Contains(e.pools, m.Pool):
		case len(e.twins(c)) > 0:
			s.drop(c)
		default:
			todo = append(todo, s.dismiss(c, now)...)
		}
	}
	return todo
}

// put gives a model a copy at an endpoint that has a place for it. It is loaded when its turn comes.
func (s *State) put(m *model, e *endpoint, by claim, now time.Time) []Action {
	presence := m.presence()
	c := s.add(m, e, Queued, now)
	c.claim, c.presence = by, presence
	e.ask(c, now)
	if !m.placeless.IsZero() {
		c.asked, m.placeless = m.placeless, time.Time{}
	}
	if e.Bytes > 0 && c.Source < PredictedSize && e.CanPredict {
		c.sizing = true
		return []Action{{Kind: Predict, Endpoint: e.Address, Model: m.Entry, For: by.purpose}}
	}
	return nil
}

// considerGone takes the copies of a model that is not in the catalogue. Requests that wait for it may know of it before
// the catalogue does, and only for a moment.
func (s *State) considerGone(m *model, now time.Time) (todo []Action) {
	for _, c := range slices.Clone(m.copies) {
		todo = append(todo, s.dismiss(c, now)...)
	}
	delete(s.unknown, m.ModelKey)
	switch {
	case len(m.wants) > 0 && now.Sub(m.since()) >= catalogueLag:
		s.block(m, UnknownModel, true)
	case len(m.wants) > 0:
		s.unknown[m.ModelKey] = true
	case len(m.copies) == 0:
		delete(s.models, m.ModelKey)
		for i := range m.ghosts {
			s.pool(m.Pool).fading.shadows[i].forget(m, i)
		}
		s.unstick(m)
		delete(s.failing, m.ModelKey)
		s.changedModels[m.ModelKey] = true
	}
	return todo
}

// least is how many copies there are to be even if no request waits.
func (m *model) least() int {
	if m.ensure {
		return max(m.min(), 1)
	}
	return m.min()
}

// there counts the copies that a model has or will have, where requests can be sent.
func (s *State) there(m *model) int {
	n := 0
	for _, c := range m.copies {
		if c.remains() && c.endpoint.useful() {
			n++
		}
	}
	return n
}

// block notes why a model gets no copy. Requests that wait for it are told, unless a place will come free.
func (s *State) block(m *model, why Reason, starved bool) {
	if !m.stuck {
		p := s.pool(m.Pool)
		m.stuck, m.place = true, len(p.stuck)
		p.stuck = append(p.stuck, m)
	}
	if m.blocked != why {
		m.blocked = why
		s.changedModels[m.ModelKey] = true
		s.stirVModels(m.ModelKey)
	}
	if starved && m.failed != why {
		m.failed = why
		s.changedModels[m.ModelKey] = true
	}
}

// pass notes that a model has what it needs, or may try again.
func (s *State) pass(m *model) {
	s.unstick(m)
	if m.blocked != "" {
		m.blocked = ""
		s.stirVModels(m.ModelKey)
	}
	if m.failed != "" {
		m.failed = ""
		s.changedModels[m.ModelKey] = true
	}
}

// unstick notes that a model waits for no place.
func (s *State) unstick(m *model) {
	if !m.stuck {
		return
	}
	p := s.pool(m.Pool)
	last := p.stuck[len(p.stuck)-1]
	p.stuck[m.place], last.place = last, m.place
	p.stuck, m.stuck = p.stuck[:len(p.stuck)-1], false
}

// start tells an engine to load what waits there, as many at once as it takes, in the order of [Copy.compareTurn].
func (s *State) start(e *endpoint, now time.Time) (todo []Action) {
	if e.state != up || e.Is() {
		return nil
	}
	todo = s.repeatUnloads(e)
	t := e.tally()
	if len(t.queue) == 0 {
		return todo
	}
	loading, queue := e.turns(), slices.Clone(t.queue)
	slices.SortFunc(queue, (*Copy).compareTurn)
	todo = append(todo, s.prepare(e, queue, now)...)
	for _, c := range queue {
		if loading >= max(1, e.Loads) {
			return todo
		}
		if e.copies[c.Key] != c || c.State != Queued {
			continue // it has given its place up
		}
		if is := e.leaks[c.ID]; c.sizing || is != nil && is.asked {
			continue // a moment
		}
		if !e.started(c) { // what is evicted for it is not gone yet; who comes after it must not take its room
			if c.roomless.IsZero() {
				c.roomless = now
				s.roomless[c.CopyKey] = true
			}
			return todo
		}
		loading++
		m := c.model
		kind := Load
		if c.cut {
			kind = Reload
		}
		stalled := now.Sub(c.asked)
		s.set(c, Loading, now)
		if e.Overlap > e.Loads {
			c.slowAt = now.Add(s.slowAfter(m))
			s.timed[c.CopyKey] = true
		}
		a := Action{Kind: kind, Endpoint: e.Address, Model: m.Entry, For: c.claim.purpose, Timeout: s.timeout(e, m), Stalled: stalled}
		if since := m.since(); !since.IsZero() {
			a.Waited = now.Sub(since)
		}
		todo = append(todo, a)
		if e.unloadTime.known() { // shortly before it ends, room is made for the next load
			s.dueEndpoints[e.Address] = true
		}
	}
	return todo
}

// dismiss lets a copy go, in the way that its state asks for.
func (s *State) dismiss(c *Copy, now time.Time) []Action {
	switch c.State {
	case Queued:
		if c.cut { // the engine may have it
			s.drain(c, now)
			return nil
		}
		s.drop(c)
	case Loading:
		if !c.doomed {
			s.doom(c)
			return []Action{{Kind: Cancel, Endpoint: c.Endpoint, Model: c.model.Entry}}
		}
	case Loaded:
		s.drain(c, now)
	}
	return nil
}

// drain lets the requests of a copy end, and no more go there.
func (s *State) drain(c *Copy, now time.Time) {
	s.set(c, Draining, now)
	s.draining[c.CopyKey] = true
}

// doom has a copy that is loading be unloaded as soon as it is loaded.
func (s *State) doom(c *Copy) {
	c.doomed = true
	s.helped[c.Endpoint] = true
	s.recount(c)
}

// recount notes that what a copy takes up at its endpoint has changed.
func (s *State) recount(c *Copy) {
	c.endpoint.counted = false
	s.touch(c.model)
}

// unload ends a drain.
func (s *State) unload(c *Copy, now time.Time) Action {
	delete(s.draining, c.CopyKey)
	s.set(c, Unloading, now)
	return Action{Kind: Unload, Endpoint: c.Endpoint, Model: c.model.Entry}
}
