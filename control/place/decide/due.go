package decide

import (
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// fact is a kind of event: a fact that came in from outside, or a change that a rule made.
type fact uint8

const (
	// Facts about a model.

	// modelNeeds: it is new or changed in the catalogue, or its target number of copies changed.
	modelNeeds fact = iota
	// modelEnsured: a client asked for a copy, though no request waits for it.
	modelEnsured
	// modelAdded: it is new in the catalogue.
	modelAdded
	// modelRemoved: it left the catalogue.
	modelRemoved
	// modelForgotten: the state has nothing about it any more.
	modelForgotten
	// modelWanted: requests wait for it. modelUnwanted: the requests of one extproc do not wait any
	// more.
	modelWanted
	modelUnwanted
	// modelUsed: requests named it, which changed its eviction value. modelUsedLater: its time of
	// last use changed, too.
	modelUsed
	modelUsedLater
	// valueChanged: its eviction value changed, or the number of copies that its load needs.
	// valueFell: other models may evict it now.
	valueChanged
	valueFell
	// loadFailed: a load of it failed. failureExpired: a failure does not count any more.
	loadFailed
	failureExpired
	// catalogueLagged: requests have waited for catalogueLag for a model that is missing from the
	// catalogue.
	catalogueLagged
	// reasonChanged: the reason why it gets no copy changed, or the answer to waiting requests.
	reasonChanged

	// Facts about a copy.

	copyAdded
	// copyMoved: its state changed. copyDraining: it is draining.
	copyMoved
	copyDraining
	copyRemoved
	// copyDoomed: it will be unloaded as soon as its load ends.
	copyDoomed
	// copySized: its size changed. copyShrank: its size became smaller.
	copySized
	copyShrank
	// loadBegan, loadEnded: its load began or ended. sizeKnown: the engine reported its size.
	loadBegan
	loadEnded
	sizeKnown
	// loadSlow: its load takes long or is abandoned, and other loads start beside it. unloadLate:
	// its unload takes long, and other copies are evicted instead.
	loadSlow
	unloadLate
	// copyTimed: it began to wait for room, or to load, and there is a time limit for that.
	copyTimed
	// requestsChanged: its number of requests in flight changed.
	requestsChanged
	// staysChanged: whether it may be evicted at all changed. mayLeave: it became evictable.
	// spareNow: models with a lower value may evict it now.
	staysChanged
	mayLeave
	spareNow
	// misplaced: its model may not be loaded at that endpoint any more.
	misplaced
	// recordVoid: the engine may not have it any more.
	recordVoid

	// Facts about an endpoint.

	// endpointChanged: whether it can be reached changed, or whether models can be loaded there.
	endpointChanged
	// endpointSeen: it was scraped for the first time, or removed.
	endpointSeen
	// leavingChanged: the reason why it is about to end changed. leavingBegan: it is about to end.
	leavingChanged
	leavingBegan
	// roomChanged: its leaks changed, or the reserve that it keeps free.
	roomChanged
	// turnAwaited: the time of the next evictions for its queue is known. turnCame: that time has
	// come.
	turnAwaited
	turnCame
	// migrationChanged: its models must be moved, or need not be any more, or may have been used.
	migrationChanged
	// trialChanged: its trial began, ended or progressed.
	trialChanged

	// Facts about a VModel.

	// vmodelSet: its specification changed, or the time for which its previous model keeps copies.
	// vmodelMoved: its target changed.
	vmodelSet
	vmodelMoved

	facts
)

// decisions is a set of kinds of decisions.
type decisions uint32

const (
	// toPlace: choose the copies that a model gets or loses.
	toPlace decisions = 1 << iota
	// toHelp: check whether an endpoint now has a place for models that found none.
	toHelp
	// toExplain: find the reason why a model has no place.
	toExplain
	// toStart: choose what an endpoint loads, unloads and evicts next.
	toStart
	// toCount: add up the sizes of an endpoint's copies.
	toCount
	// toRank: compute the eviction order of a model's copies.
	toRank
	// toRoute: choose the target of a VModel.
	toRoute
	// toMigrate: choose the models that move away from an endpoint.
	toMigrate
	// toFill: choose models to load into the free room of a pool.
	toFill
	// toQuit: abandon the calls to an engine.
	toQuit
	// toTry: choose the models that an endpoint on trial loads.
	toTry
	// onClock: find when time alone changes something.
	onClock
	// toExpire: find when the first failure expires.
	toExpire

	// publishCopy and the following: publish a change to followers.
	publishCopy
	publishRecord
	publishModel
	publishLeaving
	publishTrials
	publishEndpoints
	publishVModel
)

// dueAfter lists the decisions that are due after each fact. No other code decides that: rules and
// setters only note facts. The kind of fact also determines the model, copy, endpoint or pool that
// the decision is about: see noteModel, noteCopy, noteEndpoint and noteVModel.
var dueAfter = [facts]decisions{
	modelNeeds:      toPlace | toRank | toRoute | toExpire | onClock,
	modelEnsured:    toPlace,
	modelAdded:      publishModel,
	modelRemoved:    toPlace | toRoute | onClock | publishModel,
	modelForgotten:  publishModel,
	modelWanted:     toPlace | toStart | toRank | toExpire | onClock,
	modelUnwanted:   toPlace | toRank,
	modelUsed:       toRank | toExplain,
	modelUsedLater:  toExpire,
	valueChanged:    toRank,
	valueFell:       toHelp,
	loadFailed:      toPlace | toExpire | publishModel,
	failureExpired:  toPlace,
	catalogueLagged: toPlace,
	reasonChanged:   toRoute | publishModel,

	copyAdded:       toPlace | toStart | toCount | toRank | toRoute | toMigrate | publishCopy,
	copyMoved:       toCount | toRank | toRoute | publishCopy,
	copyDraining:    toHelp | onClock,
	copyRemoved:     toPlace | toHelp | toStart | toCount | toRank | toRoute | publishCopy,
	copyDoomed:      toHelp | toCount | toRank,
	copySized:       toStart | toCount | toRank,
	copyShrank:      toHelp,
	loadBegan:       toStart,
	sizeKnown:       toPlace | toStart,
	loadEnded:       toPlace | toStart | toFill,
	loadSlow:        toStart | toCount,
	unloadLate:      toStart | toCount,
	copyTimed:       onClock,
	requestsChanged: toRank,
	staysChanged:    toExplain | toCount,
	mayLeave:        toHelp | toStart,
	spareNow:        toExplain,
	misplaced:       toStart,
	recordVoid:      publishRecord,

	endpointChanged:  toPlace | toHelp | toExplain | toStart | toCount | toRank | toRoute,
	endpointSeen:     toTry | toRoute | publishEndpoints,
	leavingChanged:   onClock | publishLeaving,
	leavingBegan:     toQuit,
	roomChanged:      toHelp | toExplain | toStart | toCount,
	turnAwaited:      onClock,
	turnCame:         toStart,
	migrationChanged: toMigrate,
	trialChanged:     publishTrials,

	vmodelSet:   toRoute,
	vmodelMoved: onClock | publishVModel,
}

// due holds the models, endpoints and pools that each decision is due for. Rules remove from it;
// only notes add to it.
type due struct {
	models     map[Key]bool // for toPlace
	helped     map[string]bool
	stale      []*model        // for toExplain, a few at a time, since their reasons may be the same
	explained  int             // number of endpoints asked for reasons in this round
	endpoints  map[string]bool // for toStart
	touched    []*model        // for toRank
	vmodels    map[Key]bool    // for toRoute
	migrations map[string]bool
	fills      map[objects.Name]bool
	quit       map[string]bool
	tick       bool
	expiry     time.Time // no failure expires earlier; zero: not computed
}

// clock holds at least everything that time alone may change; wake removes what time cannot change.
type clock struct {
	copies    map[CopyKey]bool
	models    map[Key]bool
	endpoints map[string]bool
	vmodels   map[Key]bool
	failing   map[Key]bool // models with failures
}

// news is what has changed since the last call of Changes.
type news struct {
	copies map[CopyKey]bool
	// records are removed leaks, and removed copies that engines had been told to load. The engines
	// may not have them any more.
	records map[CopyKey]bool
	models  map[Key]bool
	leaving map[string]bool
	vmodels map[Key]bool
	// unnamed are models that a VModel named, and that perhaps no VModel names now.
	unnamed           map[Key]bool
	trials, endpoints bool
}

func newNews() news {
	return news{
		copies: make(map[CopyKey]bool), records: make(map[CopyKey]bool), models: make(map[Key]bool),
		leaving: make(map[string]bool), vmodels: make(map[Key]bool), unnamed: make(map[Key]bool),
	}
}

// noteModel notes a fact about a model. Decisions about endpoints are due for the endpoints of its
// copies.
func (s *State) noteModel(f fact, m *model) {
	d := dueAfter[f]
	s.markModel(d, m)
	if d&(toStart|toHelp) != 0 {
		for _, c := range m.copies {
			s.markEndpoint(d&(toStart|toHelp), c.endpoint)
		}
	}
	if d&toExplain != 0 && m.stuck {
		s.doubt(m)
	}
	if d&onClock != 0 && m.gone { // time alone changes nothing else about it
		s.clock.models[m.ModelKey] = true
	}
	if d&toExpire != 0 && (len(m.failures) > 0 || len(s.clock.failing) > 0 && s.clock.failing[m.ModelKey]) {
		s.clock.failing[m.ModelKey], s.due.expiry = true, time.Time{}
	}
	if d&publishModel != 0 {
		s.news.models[m.ModelKey] = true
	}
}

// noteCopy notes a fact about a copy. Decisions are due for its model and its endpoint.
func (s *State) noteCopy(f fact, c *Copy) {
	d := dueAfter[f]
	s.markModel(d, c.model)
	s.markEndpoint(d, c.endpoint)
	if d&toFill != 0 {
		s.due.fills[c.Pool] = true
	}
	if d&onClock != 0 {
		s.clock.copies[c.CopyKey] = true
	}
	if d&publishCopy != 0 {
		s.news.copies[c.CopyKey] = true
	}
	if d&publishRecord != 0 {
		s.news.records[c.CopyKey] = true
	}
}

// noteEndpoint notes a fact about an endpoint. Decisions about models are due for the models of its
// copies, those about VModels for all VModels.
func (s *State) noteEndpoint(f fact, e *endpoint) {
	d := dueAfter[f]
	s.markEndpoint(d, e)
	if d&(toPlace|toRank|onClock) != 0 {
		for _, c := range e.copies {
			s.markModel(d&(toPlace|toRank), c.model)
			if d&onClock != 0 {
				s.clock.copies[c.CopyKey] = true
			}
		}
	}
	if d&onClock != 0 {
		s.clock.endpoints[e.Address] = true
	}
	if d&toRoute != 0 {
		for key := range s.vmodels {
			s.due.vmodels[key] = true
		}
	}
	if d&toTry != 0 {
		for address, o := range s.endpoints {
			if o.trial != nil {
				s.due.endpoints[address] = true
			}
		}
	}
	if d&toQuit != 0 {
		s.due.quit[e.Address] = true
	}
	if d&publishLeaving != 0 {
		s.news.leaving[e.Address] = true
	}
	s.news.trials = s.news.trials || d&publishTrials != 0
	s.news.endpoints = s.news.endpoints || d&publishEndpoints != 0
}

// noteVModel notes a fact about a VModel.
func (s *State) noteVModel(f fact, key Key) {
	d := dueAfter[f]
	if d&toRoute != 0 {
		s.due.vmodels[key] = true
	}
	if d&onClock != 0 {
		s.clock.vmodels[key] = true
	}
	if d&publishVModel != 0 {
		s.news.vmodels[key] = true
	}
}

// noteRecord notes that an engine may not have a removed copy any more.
func (s *State) noteRecord(key CopyKey) {
	if dueAfter[recordVoid]&publishRecord != 0 {
		s.news.records[key] = true
	}
}

// markModel makes decisions due for a model.
func (s *State) markModel(d decisions, m *model) {
	if d&toPlace != 0 {
		s.due.models[m.ModelKey] = true
	}
	if d&toRank != 0 && !m.touched {
		m.touched = true
		s.due.touched = append(s.due.touched, m)
	}
	if d&toRoute != 0 && len(s.vmodels) > 0 {
		for by := range s.named[m.ModelKey] {
			s.due.vmodels[by] = true
		}
		if s.vmodels[m.ModelKey] != nil {
			s.due.vmodels[m.ModelKey] = true // a VModel may have the same name
		}
	}
}

// markEndpoint makes decisions due for an endpoint.
func (s *State) markEndpoint(d decisions, e *endpoint) {
	if d&toCount != 0 {
		e.counted = false
	}
	if d&toStart != 0 {
		s.due.endpoints[e.Address] = true
	}
	if d&toHelp != 0 {
		s.due.helped[e.Address] = true
	}
	if d&toMigrate != 0 && e.migration != nil {
		s.due.migrations[e.Address] = true
	}
	if d&toExplain != 0 {
		for _, p := range e.pools {
			for _, m := range s.pool(p).stuck {
				s.doubt(m)
			}
		}
	}
}

// doubt marks a model so that the reason why it has no place is computed again.
func (s *State) doubt(m *model) {
	if !m.stale {
		m.stale = true
		s.due.stale = append(s.due.stale, m)
	}
}

// forgetModel removes a model and all that the state has about it.
func forgetModel(s *State, m *model) {
	p, key := s.pool(m.Pool), m.ModelKey
	for i := range m.ghosts {
		p.decay.ghostLists[i].forget(m, i)
	}
	clearStuck(s, m)
	p.models--
	for _, all := range []map[Key]bool{s.due.models, s.clock.models, s.clock.failing, s.moving} {
		delete(all, key)
	}
	delete(s.models, key)
	s.noteModel(modelForgotten, m)
}

// forgetEndpoint removes an endpoint and all that the state has about it.
func forgetEndpoint(s *State, e *endpoint) {
	for _, all := range []map[string]bool{s.due.endpoints, s.due.helped, s.due.migrations, s.due.quit, s.clock.endpoints} {
		delete(all, e.Address)
	}
	delete(s.endpoints, e.Address)
}
