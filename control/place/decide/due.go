package decide

import (
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// fact is a kind of event: something reported from outside, or a change made by a rule.
type fact uint8

const (
	// Facts about a model.

	// modelNeeds: a model was added to the catalogue or changed there, or its target number of
	// copies changed.
	modelNeeds fact = iota
	// modelEnsured: a client asked for a copy, though no request waits for it.
	modelEnsured
	// modelAdded: a model was added to the catalogue.
	modelAdded
	// modelRemoved: a model was removed from the catalogue.
	modelRemoved
	// modelForgotten: the state has no data about the model any more.
	modelForgotten
	// modelWanted: requests wait for the model. modelUnwanted: the requests at one extproc do not
	// wait for it any more.
	modelWanted
	modelUnwanted
	// modelUsed: requests named the model, which changed its eviction value. modelUsedLater: the
	// time of its last use changed, too.
	modelUsed
	modelUsedLater
	// valueChanged: the eviction value of a model changed, or the number of copies that its load
	// needs. valueFell: its eviction value fell, so other models may now be able to evict it.
	valueChanged
	valueFell
	// loadFailed: a load of the model failed. failureExpired: the record of a failed load expired.
	loadFailed
	failureExpired
	// catalogueLagged: requests have waited for catalogueLag for a model that is missing from the
	// catalogue.
	catalogueLagged
	// reasonChanged: the reason why the model gets no copy changed, or the answer to its waiting
	// requests.
	reasonChanged

	// Facts about a copy.

	copyAdded
	// copyMoved: the state of a copy changed. copyDraining: a copy began to drain.
	copyMoved
	copyDraining
	copyRemoved
	// copyDoomed: the copy will be unloaded as soon as its load ends.
	copyDoomed
	// copySized: the size of a copy changed. copyShrank: its size became smaller.
	copySized
	copyShrank
	// loadBegan, loadEnded: the load of a copy began or ended. sizeKnown: the engine reported the
	// size of a copy.
	loadBegan
	loadEnded
	sizeKnown
	// loadSlow: the load of a copy takes long or is abandoned, and other loads start beside it.
	// unloadLate: the unload of a copy takes long, and other copies are evicted instead.
	loadSlow
	unloadLate
	// copyTimed: a copy began to wait for room or to load, and there is a time limit for that.
	copyTimed
	// requestsChanged: the number of requests in flight at a copy changed.
	requestsChanged
	// staysChanged: a copy that could be evicted must now stay, or the reverse. mayLeave: a copy
	// became evictable. spareNow: a copy became surplus, so models with a lower eviction value may
	// evict it.
	staysChanged
	mayLeave
	spareNow
	// misplaced: the model of a copy may not be loaded at the copy's endpoint any more.
	misplaced
	// recordVoid: the engine may not have the model of a removed copy any more.
	recordVoid

	// Facts about an endpoint.

	// endpointChanged: an endpoint's reachability changed, or whether models can be loaded there.
	endpointChanged
	// endpointSeen: an endpoint was scraped for the first time, or removed.
	endpointSeen
	// leavingChanged: the reason for which an endpoint is about to end has changed. leavingBegan:
	// an endpoint is now about to end.
	leavingChanged
	leavingBegan
	// roomChanged: the leaks of an endpoint changed, or the reserve that it keeps free.
	roomChanged
	// turnAwaited: the time of the next evictions for an endpoint's queue is known. turnCame: that
	// time has come.
	turnAwaited
	turnCame
	// migrationChanged: the models of an endpoint must be moved, or need not be moved any more, or
	// may have been used.
	migrationChanged
	// trialChanged: the trial of an endpoint began, ended or progressed.
	trialChanged

	// Facts about a VModel.

	// vmodelSet: the specification of a VModel changed, or the time for which its previous model
	// keeps copies. vmodelMoved: its target changed.
	vmodelSet
	vmodelMoved

	facts
)

// decisions is a set of kinds of decisions, one bit for each kind.
type decisions uint32

const (
	// toPlace: choose the copies that a model gets or loses.
	toPlace decisions = 1 << iota
	// toHelp: check whether an endpoint now has a place for a model that had found none.
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
	// onClock: find the next time at which a decision is needed even if no fact arrives.
	onClock
	// toExpire: find when the first failure expires.
	toExpire

	// publishCopy and the constants below: publish a change to followers.
	publishCopy
	publishRecord
	publishModel
	publishLeaving
	publishTrials
	publishEndpoints
	publishVModel
)

// dueAfter lists the decisions that are due after each kind of fact. It is the only such list:
// rules and setters only note facts. The kind of fact also determines the models, copies, endpoints
// and pools that the decisions are about: see noteModel, noteCopy, noteEndpoint and noteVModel.
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

// due contains, for each kind of decision, the models, endpoints or pools for which it is due. Only
// the note functions add entries; rules remove them.
type due struct {
	models     map[Key]bool // models for which toPlace is due
	helped     map[string]bool
	stale      []*model        // models for which toExplain is due; processed a few at a time, since many have the same reason
	explained  int             // number of endpoints checked by toExplain in this round
	endpoints  map[string]bool // endpoints for which toStart is due
	touched    []*model        // models for which toRank is due
	vmodels    map[Key]bool    // VModels for which toRoute is due
	migrations map[string]bool
	fills      map[objects.Name]bool
	quit       map[string]bool
	tick       bool
	expiry     time.Time // a time before which no failure expires; zero: not computed
}

// clock contains everything that the passage of time alone may change, and possibly more: wake
// removes what time cannot change.
type clock struct {
	copies    map[CopyKey]bool
	models    map[Key]bool
	endpoints map[string]bool
	vmodels   map[Key]bool
	failing   map[Key]bool // models with failures
}

// news is what has changed since the last call of [State.Changes].
type news struct {
	copies map[CopyKey]bool
	// records are removed leaks, and removed copies that engines had been told to load. The engines
	// may not have these models any more.
	records map[CopyKey]bool
	models  map[Key]bool
	leaving map[string]bool
	vmodels map[Key]bool
	// unnamed are models that a VModel named, and that possibly no VModel names now.
	unnamed           map[Key]bool
	trials, endpoints bool
}

func newNews() news {
	return news{
		copies: make(map[CopyKey]bool), records: make(map[CopyKey]bool), models: make(map[Key]bool),
		leaving: make(map[string]bool), vmodels: make(map[Key]bool), unnamed: make(map[Key]bool),
	}
}

// noteModel notes a fact about a model. Decisions about endpoints become due for the endpoints of
// the model's copies.
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
	if d&onClock != 0 && m.gone { // only models that are not in the catalogue have a time limit
		s.clock.models[m.ModelKey] = true
	}
	if d&toExpire != 0 && (len(m.failures) > 0 || len(s.clock.failing) > 0 && s.clock.failing[m.ModelKey]) {
		s.clock.failing[m.ModelKey], s.due.expiry = true, time.Time{}
	}
	if d&publishModel != 0 {
		s.news.models[m.ModelKey] = true
	}
}

// noteCopy notes a fact about a copy. Decisions become due for the copy's model and endpoint.
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

// noteEndpoint notes a fact about an endpoint. Decisions about models become due for the models of
// the endpoint's copies; decisions about VModels become due for all VModels.
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

// noteRecord notes that an engine may not have the model of a removed copy any more.
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

// forgetModel removes a model and all of its data from the state.
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

// forgetEndpoint removes an endpoint and all of its data from the state.
func forgetEndpoint(s *State, e *endpoint) {
	for _, all := range []map[string]bool{s.due.endpoints, s.due.helped, s.due.migrations, s.due.quit, s.clock.endpoints} {
		delete(all, e.Address)
	}
	delete(s.endpoints, e.Address)
}
