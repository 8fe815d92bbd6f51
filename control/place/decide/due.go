package decide

import (
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// fact is a kind of fact: something that became known, or that a rule did.
type fact uint8

const (
	// Facts about a model.

	// modelNeeds: it came into the catalogue or changed, or it needs another number of copies.
	modelNeeds fact = iota
	// modelEnsured: somebody asked for a copy, though no request waits for it.
	modelEnsured
	// modelAdded: it is new in the catalogue.
	modelAdded
	// modelRemoved: it left the catalogue.
	modelRemoved
	// modelForgotten: nothing of it is left.
	modelForgotten
	// modelWanted: requests wait for it; modelUnwanted: those of one extproc do not any more.
	modelWanted
	modelUnwanted
	// modelUsed: its eviction value changed because requests named it; modelUsedLater: the last of
	// them came later than the last one before.
	modelUsed
	modelUsedLater
	// valueChanged: its eviction value changed, or how many copies its load needs; valueFell: other
	// models may evict it now.
	valueChanged
	valueFell
	// loadFailed: a load of it failed; failureExpired: that counts no more.
	loadFailed
	failureExpired
	// catalogueLagged: requests have waited for a while for a model that the catalogue does not have.
	catalogueLagged
	// reasonChanged: why it gets no copy, or what waiting requests are told.
	reasonChanged

	// Facts about a copy.

	copyAdded
	// copyMoved: it came into another state; copyDraining: it is to leave.
	copyMoved
	copyDraining
	copyRemoved
	// copyDoomed: it is loading, and unloaded as soon as that ends.
	copyDoomed
	// copySized: its size changed; copyShrank: it is smaller.
	copySized
	copyShrank
	// loadBegan, loadEnded: the engine was told to load it, and has ended that. sizeKnown: it said
	// how large it is.
	loadBegan
	loadEnded
	sizeKnown
	// loadSlow: its load takes long, or is given up, and others begin beside it; unloadLate: its
	// unload takes long, and others leave in its place.
	loadSlow
	unloadLate
	// copyTimed: it began to wait for room, or to load, and that may take too long.
	copyTimed
	// requestsChanged: the number of its requests in flight.
	requestsChanged
	// staysChanged: whether other models may evict it at all; mayLeave: they may now; spareNow: so
	// may models with a lower value.
	staysChanged
	mayLeave
	spareNow
	// misplaced: its model may not be loaded there any more.
	misplaced
	// recordVoid: the engine may have nothing of it any more.
	recordVoid

	// Facts about an endpoint.

	// endpointChanged: whether it can be reached, or whether models can be loaded there.
	endpointChanged
	// endpointSeen: it was seen first, or it was removed.
	endpointSeen
	// leavingChanged: why it is about to end; leavingBegan: that it is.
	leavingChanged
	leavingBegan
	// roomChanged: its leaks, or the reserve that it keeps free.
	roomChanged
	// turnAwaited: it is known when room is made for what waits there; turnCame: it is time for that.
	turnAwaited
	turnCame
	// migrationChanged: its models are to be moved, or not any more, or may have been used since.
	migrationChanged
	// trialChanged: whether it is on trial, or how that goes.
	trialChanged

	// Facts about a VModel.

	// vmodelSet: what people want of it, or for how long its previous model keeps copies;
	// vmodelMoved: where its requests go.
	vmodelSet
	vmodelMoved

	facts
)

// decisions is a set of kinds of decisions.
type decisions uint32

const (
	// toPlace: which copies a model gets, and which it loses.
	toPlace decisions = 1 << iota
	// toHelp: whether models that found no place have one at an endpoint now.
	toHelp
	// toExplain: why a model finds no place.
	toExplain
	// toStart: what an endpoint loads, unloads and evicts next.
	toStart
	// toCount: how much the copies of an endpoint take up together.
	toCount
	// toRank: in which order the copies of a model leave their endpoints.
	toRank
	// toRoute: where the requests for a VModel go.
	toRoute
	// toMigrate: which models of an endpoint are moved to others.
	toMigrate
	// toFill: what else is loaded into free room of a pool.
	toFill
	// toQuit: whether calls to an engine are given up.
	toQuit
	// toTry: which models an endpoint on trial loads.
	toTry
	// onClock: when something happens by itself.
	onClock
	// toExpire: when the first failure counts no more.
	toExpire

	// publishCopy and those that follow: what followers are told.
	publishCopy
	publishRecord
	publishModel
	publishLeaving
	publishTrials
	publishEndpoints
	publishVModel
)

// dueAfter has the decisions that are due after each fact. It is the only place that says so: rules
// and setters note facts. About which model, copy, endpoint or pool a decision is due follows from
// what the fact is about: see noteModel, noteCopy, noteEndpoint and noteVModel.
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

// due is what each decision is due for. Rules take from it, and only notes add to it.
type due struct {
	models     map[Key]bool // place
	helped     map[string]bool
	stale      []*model        // explain; a few at a time, for their reasons may be the same
	explained  int             // how many endpoints were asked for that in this round
	endpoints  map[string]bool // start
	touched    []*model        // rank
	vmodels    map[Key]bool    // route
	migrations map[string]bool
	fills      map[objects.Name]bool
	quit       map[string]bool
	tick       bool
	expiry     time.Time // when the first failure may count no more, or before that; zero: that is to be found
}

// clock has what something may happen to by itself, and perhaps more: wake removes what nothing
// will happen to.
type clock struct {
	copies    map[CopyKey]bool
	models    map[Key]bool
	endpoints map[string]bool
	vmodels   map[Key]bool
	failing   map[Key]bool // models with failures
}

// news is what changed since followers were last told.
type news struct {
	copies map[CopyKey]bool
	// records are leaks, and copies that engines were told to load, that were removed: the engines
	// may have nothing of them any more.
	records map[CopyKey]bool
	models  map[Key]bool
	leaving map[string]bool
	vmodels map[Key]bool
	// unnamed are the models that VModels named, and perhaps none does now.
	unnamed           map[Key]bool
	trials, endpoints bool
}

func newNews() news {
	return news{
		copies: make(map[CopyKey]bool), records: make(map[CopyKey]bool), models: make(map[Key]bool),
		leaving: make(map[string]bool), vmodels: make(map[Key]bool), unnamed: make(map[Key]bool),
	}
}

// noteModel notes a fact about a model: decisions about endpoints are due for those of its copies.
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
	if d&onClock != 0 && m.gone { // else nothing happens to it by itself
		s.clock.models[m.ModelKey] = true
	}
	if d&toExpire != 0 && (len(m.failures) > 0 || len(s.clock.failing) > 0 && s.clock.failing[m.ModelKey]) {
		s.clock.failing[m.ModelKey], s.due.expiry = true, time.Time{}
	}
	if d&publishModel != 0 {
		s.news.models[m.ModelKey] = true
	}
}

// noteCopy notes a fact about a copy: decisions are due for its model and its endpoint.
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

// noteEndpoint notes a fact about an endpoint: decisions about models are due for those of its
// copies, and about VModels for all.
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

// noteRecord notes that an engine may have nothing of a copy any more that is gone.
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
			s.due.vmodels[m.ModelKey] = true // the name may be the model's
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

// doubt makes it due to find out why a model finds no place.
func (s *State) doubt(m *model) {
	if !m.stale {
		m.stale = true
		s.due.stale = append(s.due.stale, m)
	}
}

// forgetModel removes a model with all that is kept for it.
func forgetModel(s *State, m *model) {
	p, key := s.pool(m.Pool), m.ModelKey
	for i := range m.ghosts {
		p.fading.shadows[i].forget(m, i)
	}
	unstick(s, m)
	p.models--
	for _, all := range []map[Key]bool{s.due.models, s.clock.models, s.clock.failing, s.moving} {
		delete(all, key)
	}
	delete(s.models, key)
	s.noteModel(modelForgotten, m)
}

// forgetEndpoint removes an endpoint with all that is kept for it.
func forgetEndpoint(s *State, e *endpoint) {
	for _, all := range []map[string]bool{s.due.endpoints, s.due.helped, s.due.migrations, s.due.quit, s.clock.endpoints} {
		delete(all, e.Address)
	}
	delete(s.endpoints, e.Address)
}
