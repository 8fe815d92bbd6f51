package decide

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/hash"
	"github.com/headgate/headgate/internal/objects"
)

// Endpoint is what a scrape reports about an endpoint's engine.
type Endpoint struct {
	Address string
	// BaseModels are the engine's base models; empty if unknown.
	BaseModels []string
	// Lists: the engine lists its models. CanLoad: it can load models while it runs. CanPredict: it
	// can predict the size of a model.
	Lists, CanLoad, CanPredict bool
	// Bytes is the memory for all models together; 0 if only the number of models is limited.
	// DefaultBytes is the assumed size of a model of unknown size.
	Bytes, DefaultBytes int64
	// Slots is the largest number of models; 0 if only their total size is limited.
	Slots int
	// GPUAdapters is the largest number of adapters on the GPU, and HostAdapters the largest number
	// in host memory; 0 if unknown.
	GPUAdapters, HostAdapters int
	// Loads is the maximum number of concurrent loads. Overlap is the maximum if some of these
	// loads are slow; 0 means Loads.
	Loads, Overlap int
	// LoadTimeout is the engine's own time limit of a load; 0 if unknown. FirstTimeout is the time
	// limit until enough loads have been measured; 0 means [defaultTimeout].
	LoadTimeout, FirstTimeout time.Duration
	// Incarnation changes whenever the engine restarts; empty if the engine reports no incarnation.
	Incarnation string
}

type reachability uint8

const (
	unknown reachability = iota // not scraped yet
	up
	silent // did not answer the last scrape
	down   // refused a connection
)

type endpoint struct {
	Endpoint
	pools  []objects.Name
	state  reachability
	copies map[Key]*Copy
	// sums is the memory and slots that the copies need together, valid if counted. order is the
	// eviction order: the evictable copies, the lowest eviction value first.
	sums    tally
	counted bool
	order   []*Copy
	// mayLeave is the memory and slots of the copies in order, valid if summed.
	mayLeave amount
	summed   bool
	hash     uint64
	// loadTime is the recent median time of loads at this endpoint, and unloadTime the recent
	// median time of evictions, both in seconds.
	loadTime, unloadTime recent
	// quick: evictions are so fast that no reserve is needed.
	quick bool
	// prepares is when evictions for the next load begin, if a copy is queued then.
	prepares time.Time
	// left maps models to the times when their copies were removed. Scrapes that began before such
	// a time may still list the model.
	left map[Key]time.Time
	// leaks are models that the engine may still have although they have no copy, by the engine's
	// name for them. leaked is the sum of their bytes.
	leaks  map[string]*leak
	leaked int64

	Leaving
	// deletedBy are the sources that report that the endpoint's pod is being deleted. The value is
	// the time until which the endpoint migrates.
	deletedBy map[string]time.Time
	migration *migration // nil before migration begins
	pod       Pod
	trial     *Trial // nil if the endpoint is not on trial
	// outdated: the pod has become ready since the last scrape, which failed.
	outdated bool
	// doubtful: the runtime may have restarted and lost its models, and no scrape can confirm it.
	doubtful bool
	// load is the endpoint's load at the last tick: the number of requests in flight, averaged over
	// minutes.
	load float64
	// demand is the use of GPU slots and host memory by the endpoint's adapters at the last tick,
	// plus that of the adapters placed here since.
	demand demand
	// incarnationBegan is when the scrape began that found the engine's current incarnation. Facts
	// from before that time are about an earlier incarnation.
	incarnationBegan time.Time
}

// StoppingFor is how long an engine is treated as stopping after its last report that it is
// stopping, unless a scrape finds a new incarnation. It is Kubernetes' default time for a pod to
// end (terminationGracePeriodSeconds).
const StoppingFor = 30 * time.Second

// useful reports whether the copies of the endpoint can serve requests, as far as is known.
func (e *endpoint) useful() bool { return e.state != down && !e.Is() && !e.pod.Unready }

// able reports whether models can be loaded at the endpoint now.
func (e *endpoint) able() bool { return e.state == up && e.CanLoad && e.useful() }

// SetEndpoint adds an endpoint, or changes its pools. No model is loaded at a new endpoint before
// its first scrape.
func (s *State) SetEndpoint(address string, pools []objects.Name) {
	e := s.endpoints[address]
	if e == nil {
		e = &endpoint{
			copies: make(map[Key]*Copy), left: make(map[Key]time.Time), leaks: make(map[string]*leak),
			deletedBy: make(map[string]time.Time),
		}
		e.Address, e.hash = address, hash.Of(address)
		s.endpoints[address] = e
		s.unscraped++
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

// leavePools removes an endpoint from its pools.
func leavePools(s *State, e *endpoint) {
	for _, name := range e.pools {
		p := s.pool(name)
		p.endpoints = slices.DeleteFunc(p.endpoints, func(o *endpoint) bool { return o == e })
	}
}

// Terminating records whether a source, named by who, reports that the pod of an endpoint is being
// deleted. The endpoint is terminating while any source reports it. The endpoint serves until
// migrates while its models are loaded elsewhere; zero means that it does not migrate. If several
// sources give a time, the time of the first source in sort order is used.
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

// Stopping records that an engine reported, at the time heard, that it is stopping. A report from
// an earlier incarnation is ignored.
func (s *State) Stopping(address string, heard, now time.Time) {
	e := s.endpoints[address]
	if e == nil || !heard.After(e.incarnationBegan) || !heard.After(e.Stopping) || now.Sub(heard) >= StoppingFor {
		return
	}
	l := e.Leaving
	l.Stopping = heard
	setLeaving(s, e, l)
}

// endStopping records that an engine is not stopping, or that its last report of stopping is too
// old.
func endStopping(s *State, e *endpoint) {
	l := e.Leaving
	l.Stopping = time.Time{}
	setLeaving(s, e, l)
}

// setLeaving records whether, and why, an endpoint is about to end. At such an endpoint no action
// begins, calls to its engine are abandoned, and its queued copies are placed elsewhere.
func setLeaving(s *State, e *endpoint, l Leaving) {
	if e.migration != nil && e.migration.end.Done {
		l.Migrates = time.Time{} // an endpoint migrates only once
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

// RemoveEndpoint removes an endpoint and its copies.
func (s *State) RemoveEndpoint(address string) {
	e := s.endpoints[address]
	if e == nil {
		return
	}
	for _, c := range e.sorted() {
		s.drop(c)
	}
	clearLeaks(s, e)
	leavePools(s, e)
	setReachability(s, e, unknown)
	s.unscraped--
	if e.trial != nil {
		setTrial(s, e, false)
	}
	if e.Is() {
		s.noteEndpoint(leavingChanged, e)
	}
	forgetEndpoint(s, e)
	s.noteEndpoint(endpointSeen, e)
}

// Record describes a copy as an earlier process recorded it.
type Record struct {
	CopyKey
	// State is the last instruction to the engine: Loading, Loaded or Unloading.
	State  CopyState
	Bytes  int64
	Source SizeSource
	// Limit is the maximum number of concurrent requests of the copy; 0 means no limit.
	Limit       int
	Incarnation string
}

// Restore adds a copy from the record of an earlier process. Call it after SetEndpoint for the
// copy's endpoint and, if the catalogue has the model, after SetModel. The next scrape corrects the
// record: if the engine lists its models, the list is believed; otherwise the record is believed if
// the engine's incarnation is the recorded one.
func (s *State) Restore(r Record, now time.Time) {
	e := s.endpoints[r.Endpoint]
	if e == nil || e.copies[r.ModelKey] != nil {
		return
	}
	m := s.models[r.ModelKey]
	if m == nil {
		m = s.newModel(objects.Entry{ModelKey: r.ModelKey}.Complete(nil))
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
		s.add(m, e, Queued, now).interrupted = true
	}
}

// ScrapeResult is the result of a scrape of an endpoint.
type ScrapeResult struct {
	Endpoint
	// Began is when the scrape began.
	Began time.Time
	// Listed are the models that the engine lists as loaded. InTransition are those that it lists
	// as loading or unloading.
	Listed, InTransition []string
	// Purged: all models of the engine were unloaded. Stopping: the engine is stopping. Doubtful:
	// the engine may have restarted, and reports neither an incarnation nor its models.
	Purged, Stopping, Doubtful bool
}

// Scraped records the result of a scrape. Results must be passed in the order of the scrapes.
func (s *State) Scraped(l ScrapeResult, now time.Time) {
	e := s.endpoints[l.Address]
	if e == nil {
		return
	}
	// An engine that refused connections has not necessarily restarted. Its list of models or its
	// incarnation shows whether it has, if it reports either.
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
	endOutdated(s, e)
	keepReserve(s, e)
	setReachability(s, e, up)
	if restarted {
		e.incarnationBegan = l.Began
		clearLeaks(s, e)
		if !e.Stopping.After(l.Began) { // a later report is from the new incarnation
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

// compareListed adds and removes copies of an endpoint to match the models that its engine lists.
// It reports whether anything changed.
func compareListed(s *State, e *endpoint, l ScrapeResult, restarted bool, now time.Time) (changed bool) {
	listed := make(map[string]bool, len(l.Listed))
	for _, id := range l.Listed {
		listed[id] = true
	}
	for _, c := range e.sorted() {
		there := listed[c.ID] && e.left[c.ModelKey].Before(l.Began)
		switch {
		case c.State == Queued && there: // an earlier process or an operator loaded it
			s.set(c, Loaded, now)
			changed = true
		case c.State == Queued && c.interrupted: // the engine lacks it, so it can be loaded again
			clearInterrupted(s, c)
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

// clearInterrupted records that the engine has nothing left of a load that an earlier process
// began.
func clearInterrupted(s *State, c *Copy) {
	if c.interrupted {
		c.interrupted = false
		s.noteCopy(recordVoid, c)
	}
}

// lostAll records that a runtime has restarted and has no models.
func lostAll(s *State, e *endpoint, now time.Time) {
	clearLeaks(s, e)
	for _, c := range e.sorted() {
		lostCopy(s, c, true, now)
	}
}

// lostCopy records that the engine no longer has the model of a copy. If the engine restarted and
// the model has no other copy, the model is loaded again.
func lostCopy(s *State, c *Copy, restarted bool, now time.Time) {
	m, e, was := c.model, c.endpoint, c.State
	if was == Queued || was == Loading {
		clearInterrupted(s, c) // the engine has nothing left of the copy; a load in progress will report its failure
		return
	}
	s.drop(c)
	if restarted && was == Loaded && !m.gone && !m.foreign && len(m.copies) == 0 && e.CanLoad && e.useful() {
		s.add(m, e, Queued, now)
	}
}

// Silent records that an endpoint did not answer. Its copies may still serve, but no model is
// loaded there before the next successful scrape.
func (s *State) Silent(address string) {
	e := s.endpoints[address]
	if e == nil {
		return
	}
	endOutdated(s, e)
	switch {
	case e.state <= up:
		loseEndpoint(s, e, silent)
	case e.state == silent:
		dropQueued(s, e) // copies that waited for the endpoint to become ready
	}
}

// endOutdated records that an endpoint was scraped.
func endOutdated(s *State, e *endpoint) {
	if e.outdated {
		e.outdated = false
		s.noteEndpoint(endpointChanged, e)
	}
}

// loseEndpoint records that nothing can be loaded at an endpoint for now. Queued copies are placed
// elsewhere.
func loseEndpoint(s *State, e *endpoint, state reachability) {
	setReachability(s, e, state)
	dropQueued(s, e)
	s.noteEndpoint(endpointChanged, e)
}

// setReachability records whether an endpoint could be reached.
func setReachability(s *State, e *endpoint, state reachability) {
	switch {
	case e.state == unknown && state != unknown:
		s.unscraped--
		s.noteEndpoint(endpointSeen, e)
	case e.state != unknown && state == unknown:
		s.unscraped++
	}
	e.state = state
}

// dropQueued removes the queued copies of an endpoint that its engine has not been told to load.
func dropQueued(s *State, e *endpoint) {
	for _, c := range e.sorted() {
		if c.State == Queued && !c.interrupted {
			s.drop(c)
		}
	}
}

// Down records that an endpoint refused a connection. Its copies cannot serve before the next
// successful scrape.
func (s *State) Down(address string) {
	e := s.endpoints[address]
	if e == nil {
		return
	}
	endOutdated(s, e)
	if e.state != down {
		loseEndpoint(s, e, down)
	}
}

// InFlight records the number of requests in flight at a copy.
func (s *State) InFlight(key CopyKey, requests int, now time.Time) {
	if c := s.copy(key); c != nil && c.inFlight != requests {
		c.countInFlight(now)
		c.inFlight = requests
		s.noteCopy(requestsChanged, c)
	}
}

// Drained records that a draining copy gets no new requests and has none in flight.
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

// Missing records that an engine without a model list answered that it lacks the model of a copy.
// If the engine may have restarted, Missing returns true: the engine is then assumed to have
// restarted without its models, it must be made ready, and no model is loaded there before the next
// scrape. Otherwise the copy is loaded there again, which costs little if the engine has the model
// after all. Until that load succeeds, the model is recorded as a leak there.
func (s *State) Missing(key CopyKey, now time.Time) (anew bool) {
	c, e := s.copy(key), s.endpoints[key.Endpoint]
	if c == nil || c.State != Loaded || e.Lists {
		return false
	}
	if !e.doubtful {
		m := c.model
		addLeak(s, c, now) // the engine may have the model after all
		s.drop(c)
		if !m.gone && !m.foreign && e.CanLoad && e.useful() {
			s.add(m, e, Queued, now)
		}
		return false
	}
	e.doubtful = false
	lostAll(s, e, now)
	if e.state != up { // it is unknown when the endpoint will be ready
		dropQueued(s, e)
	} else {
		setReachability(s, e, silent)
	}
	s.noteEndpoint(endpointChanged, e)
	return true
}

func (s *State) copy(key CopyKey) *Copy {
	if e := s.endpoints[key.Endpoint]; e != nil {
		return e.copies[key.ModelKey]
	}
	return nil
}

func (s *State) add(m *model, e *endpoint, state CopyState, now time.Time) *Copy {
	c := &Copy{
		CopyKey: CopyKey{ModelKey: m.ModelKey, Endpoint: e.Address}, State: state, Since: now, asked: now, Bytes: m.bytes,
		Source: m.source, model: m, endpoint: e,
	}
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
	c.State, c.Since, c.waitsForRoomSince, c.slow, c.slowAt, c.late = state, now, time.Time{}, false, time.Time{}, false
	s.noteCopy(copyMoved, c)
	if state == Draining {
		s.noteCopy(copyDraining, c)
		if c.model.migrationGoal > 0 { // a draining copy no longer counts: the model may need another one
			s.noteModel(modelNeeds, c.model)
		}
	}
}

func (s *State) drop(c *Copy) {
	m, e := c.model, c.endpoint
	if c.loadRequested() {
		s.noteCopy(recordVoid, c)
	}
	if c.ranked {
		at, _ := slices.BinarySearchFunc(e.order, c, (*Copy).compareRank)
		e.order, e.summed = slices.Delete(e.order, at, at+1), false
	}
	delete(e.copies, c.ModelKey)
	if place, there := m.find(c.Endpoint); there {
		m.copies = slices.Delete(m.copies, place, place+1)
	}
	s.noteCopy(copyRemoved, c)
	if m.foreign && len(m.copies) == 0 {
		m.foreign, m.gone = false, true // kept only for the requests that wait for the model
		s.noteModel(modelNeeds, m)
	}
}

// sorted returns the copies of an endpoint in order of their keys.
func (e *endpoint) sorted() []*Copy {
	return slices.SortedFunc(maps.Values(e.copies), func(a, b *Copy) int { return a.Compare(b.CopyKey) })
}

// find returns the index of a model's copy at an endpoint, and true. If there is no such copy, it
// returns the index at which to insert it, and false.
func (m *model) find(address string) (place int, there bool) {
	return slices.BinarySearchFunc(m.copies, address, func(c *Copy, a string) int { return cmp.Compare(c.Endpoint, a) })
}

// at returns the model's copy at an endpoint; nil if there is none.
func (m *model) at(address string) *Copy {
	if place, there := m.find(address); there {
		return m.copies[place]
	}
	return nil
}
