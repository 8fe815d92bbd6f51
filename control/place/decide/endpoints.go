package decide

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// Endpoint is what a look tells of an endpoint's engine.
type Endpoint struct {
	Address string
	// BaseModels are the engine's; none if it does not say.
	BaseModels []string
	// Lists says that the engine lists its models; CanLoad that it loads any while it runs;
	// CanPredict that it may know a model's size before.
	Lists, CanLoad, CanPredict bool
	// Bytes is what all models may take together, 0 where only their number is bounded;
	// DefaultBytes is to be taken for one of which nothing is known.
	Bytes, DefaultBytes int64
	// Slots is how many models it may hold, 0 where only their size is bounded.
	Slots int
	// GPUAdapters and HostAdapters are how many adapters its GPU and its host memory hold at once,
	// 0 where nobody says.
	GPUAdapters, HostAdapters int
	// Loads is how many it loads at once. Overlap is how many loads it takes at once where some are
	// slow; 0: no more than Loads.
	Loads, Overlap int
	// LoadTimeout is how long the engine says that a load may take, 0 if it does not say.
	// FirstTimeout bounds loads until enough of them were measured; 0: [defaultTimeout].
	LoadTimeout, FirstTimeout time.Duration
	// Incarnation tells one life of the engine from the next; empty where nothing tells.
	Incarnation string
}

type reach uint8

const (
	unknown reach = iota // not looked at yet
	up
	silent // it takes connections, and does not answer
	down   // it turned a connection away
)

type endpoint struct {
	Endpoint
	pools  []objects.Name
	state  reach
	copies map[Key]*Copy
	// sums is what they take up, if counted; order those that may leave for other models, who is
	// missed least first.
	sums    tally
	counted bool
	order   []*Copy
	// mayLeave is what the copies in order take up, if summed.
	mayLeave amount
	summed   bool
	hash     uint64
	// loadTime is the recent mean time of loads there, unloadTime that of evictions that make room,
	// both in seconds.
	loadTime, unloadTime recent
	// quick: evictions are so fast that no reserve is kept free.
	quick bool
	// prepares is when to make room for the next load, if any copy waits then; the endpoint is
	// among State.preparing.
	prepares time.Time
	// left is when copies went, for looks that began before.
	left map[Key]time.Time
	// leaks are models that may be left at the engine without a copy, by its name of them. Leaked
	// is the bytes of all.
	leaks  map[string]*leak
	leaked int64

	Leaving
	// deletedBy are those who say that its pod is being deleted, each with until when it migrates.
	deletedBy map[string]time.Time
	migration *migration // nil of one that has not begun to migrate
	pod       Pod
	trial     *Trial // nil of one that is not on trial
	// doubtful says that the runtime may have begun anew, without what it had, and nothing tells.
	doubtful bool
	// load is what it bears, as of the last tick: requests in flight, in the mean of minutes.
	load float64
	// demand is what the adapters there ask of its memories, as of the last tick, with what was put
	// there since.
	demand demand
	// born is when the look began that found the present life of the engine: what was heard before
	// is of an earlier one.
	born time.Time
}

// Leaving is why an endpoint is about to end, if it is. The zero Leaving is that of one that stays.
type Leaving struct {
	// Terminating says that its pod is being deleted.
	Terminating bool
	// Migrates is until when it serves on for its models to get copies elsewhere; zero if it does
	// not, or not any more.
	Migrates time.Time
	// Stopping is when its engine was last heard to say that it is stopping; zero if it did not, or
	// a while ago.
	Stopping time.Time
}

// Is says whether the endpoint is about to end.
func (l Leaving) Is() bool { return l.Terminating || !l.Stopping.IsZero() }

// StoppingFor is how long an engine is taken to be stopping after it was last heard to say so,
// unless a look finds its next life before: what Kubernetes gives a pod to end, by default
// (terminationGracePeriodSeconds).
const StoppingFor = 30 * time.Second

// useful says whether requests can be sent to what the endpoint has, as far as is known.
func (e *endpoint) useful() bool { return e.state != down && !e.Is() && !e.pod.Unready }

// able says whether models can be loaded at the endpoint now.
func (e *endpoint) able() bool { return e.state == up && e.CanLoad && e.useful() }

// SetEndpoint says that there is an endpoint, and in which pools. Nothing is loaded there before a
// look has seen it.
func (s *State) SetEndpoint(address string, pools []objects.Name) {
	e := s.endpoints[address]
	if e == nil {
		e = &endpoint{copies: make(map[Key]*Copy), left: make(map[Key]time.Time), leaks: make(map[string]*leak),
			deletedBy: make(map[string]time.Time)}
		e.Address, e.hash = address, hashed(address)
		s.endpoints[address] = e
		s.unseen++
	} else if slices.Equal(e.pools, pools) {
		return
	}
	leavePools(s, e)
	e.pools = pools
	for _, p := range pools {
		all := &s.pool(p).endpoints
		at, _ := slices.BinarySearchFunc(*all, address, func(o *endpoint, a string) int { return cmp.Compare(o.Address, a) })
		*all = slices.Insert(*all, at, e)
	}
	s.noteEndpoint(endpointChanged, e)
}

// leavePools takes an endpoint out of its pools.
func leavePools(s *State, e *endpoint) {
	for _, name := range e.pools {
		p := s.pool(name)
		p.endpoints = slices.DeleteFunc(p.endpoints, func(o *endpoint) bool { return o == e })
	}
}

// Terminating says whether the pod of an endpoint is being deleted, by somebody who knows: an
// endpoint is terminating while anybody says so. Migrates is until when it serves on for its models
// to get copies elsewhere, zero if it does not: who comes first in order of who says that counts.
func (s *State) Terminating(who, address string, is bool, migrates time.Time) {
	e := s.endpoints[address]
	if e == nil {
		return
	}
	if is {
		e.deletedBy[who] = migrates
	} else {
		delete(e.deletedBy, who)
	}
	l := Leaving{Terminating: len(e.deletedBy) > 0, Stopping: e.Stopping}
	for _, who := range slices.Backward(slices.Sorted(maps.Keys(e.deletedBy))) {
		if at := e.deletedBy[who]; !at.IsZero() {
			l.Migrates = at
		}
	}
	setLeaving(s, e, l)
}

// Stopping says that an engine was heard to say, at a time, that it is stopping. News of an earlier
// life is forgotten.
func (s *State) Stopping(address string, heard, now time.Time) {
	e := s.endpoints[address]
	if e == nil || !heard.After(e.born) || !heard.After(e.Stopping) || now.Sub(heard) >= StoppingFor {
		return
	}
	l := e.Leaving
	l.Stopping = heard
	setLeaving(s, e, l)
}

// endStopping says that an engine is not stopping, or was not heard to say so for long.
func endStopping(s *State, e *endpoint) {
	l := e.Leaving
	l.Stopping = time.Time{}
	setLeaving(s, e, l)
}

// setLeaving notes whether an endpoint is about to end. At one that is nothing begins, what it was
// told is given up, and what was to be loaded there is to be loaded somewhere else.
func setLeaving(s *State, e *endpoint, l Leaving) {
	if e.migration != nil && e.migration.end.Done {
		l.Migrates = time.Time{} // once is enough
	}
	if l == e.Leaving {
		return
	}
	was, migrated := e.Is(), e.IsMigrating()
	e.Leaving = l
	s.noteEndpoint(leavingChanged, e)
	switch {
	case e.IsMigrating() && !migrated:
		beginMigration(s, e)
	case migrated && !e.IsMigrating():
		endMigration(s, e)
	}
	if !e.Terminating {
		e.migration = nil
	}
	if was == e.Is() {
		return
	}
	if e.Is() {
		s.noteEndpoint(leavingBegan, e)
		dropQueued(s, e)
		for _, c := range e.copies {
			if c.State == Loading {
				doomCopy(s, c)
			}
		}
	}
	s.noteEndpoint(endpointChanged, e)
}

// RemoveEndpoint says that an endpoint is no more. Its copies are gone.
func (s *State) RemoveEndpoint(address string) {
	e := s.endpoints[address]
	if e == nil {
		return
	}
	for _, c := range e.sorted() {
		s.drop(c)
	}
	sealLeaks(s, e)
	leavePools(s, e)
	setReach(s, e, unknown)
	s.unseen--
	if e.trial != nil {
		setTrial(s, e, false)
	}
	if e.Is() {
		s.noteEndpoint(leavingChanged, e)
	}
	forgetEndpoint(s, e)
	s.noteEndpoint(endpointSeen, e)
}

// Record is a copy as an earlier process wrote it down.
type Record struct {
	CopyKey
	// State is what the copy was last told to be: Loading, Loaded or Unloading.
	State  CopyState
	Bytes  int64
	Source SizeSource
	// Limit is how many requests it takes at once; 0: as many as come.
	Limit       int
	Incarnation string
}

// Restore takes up a copy that an earlier process knew. The endpoint must be set, and the model, if
// it is in the catalogue. The record counts until a look says otherwise: where the engine lists its
// models its list does, else while its incarnation is the recorded one.
func (s *State) Restore(r Record, now time.Time) {
	e := s.endpoints[r.Endpoint]
	if e == nil || e.copies[r.Key] != nil {
		return
	}
	m := s.models[r.Key]
	if m == nil {
		m = s.newModel(objects.Entry{ModelKey: r.Key}.Complete(nil))
		m.gone = true
	}
	if r.Source > m.source {
		learnSize(s, m, r.Bytes, r.Source)
	}
	e.Incarnation = r.Incarnation
	switch r.State {
	case Loaded:
		s.add(m, e, Loaded, now).Limit = r.Limit
	case Unloading:
		s.noteCopy(copyDraining, s.add(m, e, Draining, now))
	default:
		s.add(m, e, Queued, now).cut = true
	}
}

// Sight is what a look at an endpoint found.
type Sight struct {
	Endpoint
	// Began is when the look did.
	Began time.Time
	// Listed are the models that the engine lists as loaded, Passing those that it lists as being
	// loaded or unloaded.
	Listed, Passing []string
	// Purged says that the engine has unloaded whatever it had, Stopping that it ends. Doubtful
	// says of one that tells neither its life nor what it has that it may have begun anew.
	Purged, Stopping, Doubtful bool
}

// Saw says what a look found. It must not be older than what was said before.
func (s *State) Saw(l Sight, now time.Time) {
	e := s.endpoints[l.Address]
	if e == nil {
		return
	}
	// An engine that took no connection may be the same again: its list tells, or its incarnation,
	// or nothing does.
	restarted := l.Purged || e.state == down && l.Lists || l.Incarnation != e.Incarnation && e.Incarnation != ""
	changed := e.state != up || restarted
	if e.Bytes != l.Bytes || e.Slots != l.Slots || e.Loads != l.Loads || e.CanLoad != l.CanLoad {
		changed = true
	}
	nothingTells := !l.Lists && l.Incarnation == ""
	e.doubtful = !restarted && nothingTells && (e.doubtful || l.Doubtful || e.state == down)
	if e.DefaultBytes != l.DefaultBytes {
		changed = true
		for _, c := range e.copies {
			if c.Source == DefaultSize {
				c.Bytes = l.DefaultBytes
			}
		}
	}
	e.Endpoint = l.Endpoint
	keepReserve(s, e)
	setReach(s, e, up)
	if restarted {
		e.born = l.Began
		sealLeaks(s, e)
		if !e.Stopping.After(l.Began) { // else the new life said so
			endStopping(s, e)
		}
		if e.trial != nil {
			setTrial(s, e, true)
		}
	}
	if l.Lists {
		changed = compareListed(s, e, l, restarted, now) || changed
	} else if restarted {
		lostAll(s, e, now)
	}
	checkLeaks(s, e, l)
	maps.DeleteFunc(e.left, func(_ Key, at time.Time) bool { return at.Before(l.Began) })
	if changed {
		s.noteEndpoint(endpointChanged, e)
	}
	if l.Stopping {
		s.Stopping(l.Address, now, now)
	}
}

// compareListed makes the copies of an endpoint those that its engine lists, and reports whether
// anything changed.
func compareListed(s *State, e *endpoint, l Sight, restarted bool, now time.Time) (changed bool) {
	listed := make(map[string]bool, len(l.Listed))
	for _, id := range l.Listed {
		listed[id] = true
	}
	for _, c := range e.sorted() {
		there := listed[c.ID] && e.left[c.Key].Before(l.Began)
		switch {
		case c.State == Queued && there: // an earlier process's load, or somebody else's
			s.set(c, Loaded, now)
			changed = true
		case c.State == Queued && c.cut: // to load what is there does no harm
			clearCut(s, c)
			changed = true
		case (c.State == Loaded || c.State == Draining) && !there && !c.Since.After(l.Began):
			lostCopy(s, c, restarted, now)
			changed = true
		}
	}
	for _, id := range l.Listed {
		for _, p := range e.pools {
			key := Key{Pool: p, ID: id}
			if e.copies[key] != nil || !e.left[key].Before(l.Began) {
				continue
			}
			m := s.models[key]
			if m == nil {
				m = s.newModel(objects.Entry{ModelKey: key}.Complete(nil))
				m.foreign = true
			}
			s.add(m, e, Loaded, now)
			changed = true
		}
	}
	return changed
}

// clearCut records that nothing is left of a load that an earlier process began.
func clearCut(s *State, c *Copy) {
	if c.cut {
		c.cut = false
		s.noteCopy(recordVoid, c)
	}
}

// lostAll says that a runtime has begun anew, and has nothing.
func lostAll(s *State, e *endpoint, now time.Time) {
	sealLeaks(s, e)
	for _, c := range e.sorted() {
		lostCopy(s, c, true, now)
	}
}

// lostCopy says that the engine has a copy no more. After a restart a model that has no other is
// loaded again.
func lostCopy(s *State, c *Copy, restarted bool, now time.Time) {
	m, e, was := c.model, c.endpoint, c.State
	if was == Queued || was == Loading {
		clearCut(s, c) // nothing is left of it; a load in progress will report its failure
		return
	}
	s.drop(c)
	if restarted && was == Loaded && !m.gone && !m.foreign && len(m.copies) == 0 && e.CanLoad && e.useful() {
		s.add(m, e, Queued, now)
	}
}

// Silent says that an endpoint was asked and has not answered. What it has serves on for all that
// is known, but nothing is loaded there until a look finds it well again.
func (s *State) Silent(address string) {
	switch e := s.endpoints[address]; {
	case e == nil:
	case e.state <= up:
		loseEndpoint(s, e, silent)
	case e.state == silent:
		dropQueued(s, e) // what waited for it to be made ready
	}
}

// loseEndpoint says that nothing can be loaded at an endpoint for now. What was to be is to be
// somewhere else.
func loseEndpoint(s *State, e *endpoint, state reach) {
	setReach(s, e, state)
	dropQueued(s, e)
	s.noteEndpoint(endpointChanged, e)
}

// setReach notes how an endpoint was last reached.
func setReach(s *State, e *endpoint, state reach) {
	switch {
	case e.state == unknown && state != unknown:
		s.unseen--
		s.noteEndpoint(endpointSeen, e)
	case e.state != unknown && state == unknown:
		s.unseen++
	}
	e.state = state
}

// dropQueued forgets what was to be loaded at an endpoint and which its engine was not told of.
func dropQueued(s *State, e *endpoint) {
	for _, c := range e.sorted() {
		if c.State == Queued && !c.cut {
			s.drop(c)
		}
	}
}

// Down says that an endpoint turned a connection away. Its copies are of no use until a look finds
// it again.
func (s *State) Down(address string) {
	if e := s.endpoints[address]; e != nil && e.state != down {
		loseEndpoint(s, e, down)
	}
}

// InFlight says how many requests there are at a copy.
func (s *State) InFlight(key CopyKey, requests int, now time.Time) {
	if c := s.copy(key); c != nil && c.inFlight != requests {
		c.fly(now)
		c.inFlight = requests
		s.noteCopy(requestsChanged, c)
	}
}

// Drained says that nobody sends requests to a draining copy any more and none is there.
func (s *State) Drained(key CopyKey, now time.Time) (todo []Action) {
	c := s.copy(key)
	if c == nil || c.State != Draining {
		return nil
	}
	if s.paused || s.endpoints[key.Endpoint].Is() {
		c.drained = true
		return nil
	}
	return []Action{unloadCopy(s, c, now)}
}

// Missing records that an engine without a model list answered that it lacks a copy. It reports
// whether the engine therefore counts as restarted: then it has no models and must be made ready,
// and nothing is loaded there before the next scrape. Otherwise the copy is loaded there again,
// which costs little if the engine has it after all. Until that load succeeds, the model counts as
// leaked there.
func (s *State) Missing(key CopyKey, now time.Time) (anew bool) {
	c, e := s.copy(key), s.endpoints[key.Endpoint]
	if c == nil || c.State != Loaded || e.Lists {
		return false
	}
	if !e.doubtful {
		m := c.model
		addLeak(s, c, now) // the engine may have it after all
		s.drop(c)
		if !m.gone && !m.foreign && e.CanLoad && e.useful() {
			s.add(m, e, Queued, now)
		}
		return false
	}
	e.doubtful = false
	lostAll(s, e, now)
	if e.state != up { // nobody knows when it can be made ready
		dropQueued(s, e)
	} else {
		setReach(s, e, silent)
	}
	s.noteEndpoint(endpointChanged, e)
	return true
}

func (s *State) copy(key CopyKey) *Copy {
	if e := s.endpoints[key.Endpoint]; e != nil {
		return e.copies[key.Key]
	}
	return nil
}

func (s *State) add(m *model, e *endpoint, state CopyState, now time.Time) *Copy {
	c := &Copy{CopyKey: CopyKey{m.ModelKey, e.Address}, State: state, Since: now, asked: now, Bytes: m.bytes, Source: m.source, model: m,
		endpoint: e}
	if c.Bytes == 0 {
		c.Bytes = e.DefaultBytes
	}
	c.brief = isBrief(s, m, e)
	e.copies[m.ModelKey] = c
	place, _ := m.find(e.Address)
	m.copies = slices.Insert(m.copies, place, c)
	s.noteCopy(copyAdded, c)
	return c
}

func (s *State) set(c *Copy, state CopyState, now time.Time) {
	if state == Loaded {
		c.model.ensure = false
	}
	c.State, c.Since, c.roomless, c.slow, c.slowAt, c.late = state, now, time.Time{}, false, time.Time{}, false
	s.noteCopy(copyMoved, c)
	if state == Draining {
		s.noteCopy(copyDraining, c)
		if c.model.goal > 0 { // it leaves for others, and is to be moved there still
			s.noteModel(modelNeeds, c.model)
		}
	}
}

func (s *State) drop(c *Copy) {
	m, e := c.model, c.endpoint
	if c.told() {
		s.noteCopy(recordVoid, c)
	}
	if c.ranked {
		at, _ := slices.BinarySearchFunc(e.order, c, (*Copy).compareRank)
		e.order, e.summed = slices.Delete(e.order, at, at+1), false
	}
	delete(e.copies, c.Key)
	if place, there := m.find(c.Endpoint); there {
		m.copies = slices.Delete(m.copies, place, place+1)
	}
	s.noteCopy(copyRemoved, c)
	if m.foreign && len(m.copies) == 0 {
		m.foreign, m.gone = false, true // but for requests that wait for it
		s.noteModel(modelNeeds, m)
	}
}

// sorted is the copies of an endpoint, in order.
func (e *endpoint) sorted() []*Copy {
	return slices.SortedFunc(maps.Values(e.copies), func(a, b *Copy) int { return a.Compare(b.CopyKey) })
}

// find is the place of a copy at an endpoint among those of the model, and whether there is one.
func (m *model) find(address string) (place int, there bool) {
	return slices.BinarySearchFunc(m.copies, address, func(c *Copy, a string) int { return cmp.Compare(c.Endpoint, a) })
}

// at is the copy at an endpoint; nil if there is none.
func (m *model) at(address string) *Copy {
	if place, there := m.find(address); there {
		return m.copies[place]
	}
	return nil
}
