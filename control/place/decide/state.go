package decide

import (
	"cmp"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// Endpoint is what a look tells of an endpoint's engine.
type Endpoint struct {
	Address string
	// BaseModels are the engine's; none if it does not say.
	BaseModels []string
	// Lists says that the engine lists its models; CanLoad that it loads any while it runs; CanPredict that it may know a
	// model's size before.
	Lists, CanLoad, CanPredict bool
	// Bytes is what all models may take together, 0 where only their number is bounded; DefaultBytes is to be taken for one of
	// which nothing is known.
	Bytes, DefaultBytes int64
	// Slots is how many models it may hold, 0 where only their size is bounded.
	Slots int
	// Loads is how many it loads at once.
	Loads int
	// LoadTimeout is how long the engine says that a load may take, 0 if it does not say.
	LoadTimeout time.Duration
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
	// left is when copies went, for looks that began before.
	left map[Key]time.Time
	// lost is what could not be unloaded and is held still, until the engine's next life.
	lost int64
}

type model struct {
	objects.Entry
	gone bool // it is in the catalogue no more
	// foreign: it is in no catalogue, and an engine has it all the same. It is left alone.
	foreign  bool
	lastUsed time.Time
	wants    map[string]Want // by who says so
	copies   map[string]*Copy
	bytes    int64 // known size, by any endpoint
	source   SizeSource
	failures []Failure
	blocked  Reason // why it gets no copy that it should have
	// since it has been without a place for a copy that it should have; zero if it has one.
	placeless time.Time
	failed    Reason // the same, told to those who wait
	ensure    bool   // somebody asked for a copy, though no request waits for it
}

// Want says that requests wait for a model.
type Want struct {
	Requests int
	Since    time.Time // when the first of them began to
	// Unusable are the endpoints whose copies are of no use to them.
	Unusable []string
}

// SetModel puts a model into the catalogue, or changes it. Used is when it was last used, if that is known.
func (s *State) SetModel(e objects.Entry, used time.Time) {
	m := s.models[e.ModelKey]
	if m == nil {
		m = s.newModel(e)
		s.changes.Models[m.ModelKey] = true
	}
	m.Entry, m.gone, m.foreign = e, false, false
	delete(s.unknown, m.ModelKey)
	if m.source <= HintedSize && e.Size > 0 {
		m.bytes, m.source = e.Size, HintedSize
	}
	m.use(used)
	s.dueModels[m.ModelKey] = true
}

func (s *State) newModel(e objects.Entry) *model {
	m := &model{Entry: e, wants: make(map[string]Want), copies: make(map[string]*Copy)}
	s.models[e.ModelKey] = m
	return m
}

// RemoveModel takes a model out of the catalogue. Its copies go.
func (s *State) RemoveModel(key Key) {
	if m := s.models[key]; m != nil && !m.foreign {
		m.gone = true
		s.dueModels[key] = true
		s.changes.Models[key] = true
	}
}

// SetEndpoint says that there is an endpoint, and in which pools. Nothing is loaded there before a look has seen it.
func (s *State) SetEndpoint(address string, pools []objects.Name) {
	e := s.endpoints[address]
	if e == nil {
		e = &endpoint{copies: make(map[Key]*Copy), left: make(map[Key]time.Time)}
		e.Address = address
		s.endpoints[address] = e
	}
	for _, p := range e.pools {
		s.pools[p] = slices.DeleteFunc(s.pools[p], func(o *endpoint) bool { return o == e })
	}
	e.pools = pools
	for _, p := range pools {
		at, _ := slices.BinarySearchFunc(s.pools[p], address, func(o *endpoint, a string) int { return cmp.Compare(o.Address, a) })
		s.pools[p] = slices.Insert(s.pools[p], at, e)
	}
	s.stir(e)
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
	for _, p := range e.pools {
		s.pools[p] = slices.DeleteFunc(s.pools[p], func(o *endpoint) bool { return o == e })
	}
	delete(s.endpoints, address)
	delete(s.dueEndpoints, address)
	s.stirAll()
}

// stir makes due what a change of an endpoint may help.
func (s *State) stir(e *endpoint) {
	s.dueEndpoints[e.Address] = true
	for key := range e.copies {
		s.dueModels[key] = true
	}
	s.stirAll()
}

func (s *State) stirAll() {
	for key := range s.stuck {
		s.dueModels[key] = true
	}
}

// Record is a copy as an earlier process wrote it down.
type Record struct {
	CopyKey
	// State is what the copy was last told to be: Loading, Loaded or Unloading.
	State       CopyState
	Bytes       int64
	Source      SizeSource
	Incarnation string
}

// Restore takes up a copy that an earlier process knew. The endpoint must be set, and the model, if it is in the catalogue.
// The record counts until a look says otherwise: where the engine lists its models its list does, else while its
// incarnation is the recorded one.
func (s *State) Restore(r Record, now time.Time) {
	e := s.endpoints[r.Endpoint]
	if e == nil {
		return
	}
	m := s.models[r.Key]
	if m == nil {
		m = s.newModel(objects.Entry{ModelKey: r.Key}.Complete(nil))
		m.gone = true
		s.dueModels[r.Key] = true
	}
	if r.Source > m.source {
		m.bytes, m.source = r.Bytes, r.Source
	}
	e.Incarnation = r.Incarnation
	switch r.State {
	case Loaded:
		s.add(m, e, Loaded, now)
	case Unloading:
		c := s.add(m, e, Draining, now)
		s.draining[c.CopyKey] = true
	default:
		s.add(m, e, Queued, now).cut = true
	}
}

// Sight is what a look at an endpoint found.
type Sight struct {
	Endpoint
	// Began is when the look did.
	Began time.Time
	// Listed are the models that the engine lists as loaded.
	Listed []string
	// Purged says that the engine has unloaded whatever it had.
	Purged bool
}

// Saw says what a look found. It must not be older than what was said before.
func (s *State) Saw(l Sight, now time.Time) {
	e := s.endpoints[l.Address]
	if e == nil {
		return
	}
	// Where its incarnation is known an engine that took no connection may be the same again.
	restarted := l.Purged || e.state == down && (l.Lists || l.Incarnation == "") || l.Incarnation != e.Incarnation && e.Incarnation != ""
	changed := e.state != up || restarted
	if e.Bytes != l.Bytes || e.Slots != l.Slots || e.Loads != l.Loads || e.CanLoad != l.CanLoad {
		changed = true
	}
	e.Endpoint, e.state = l.Endpoint, up
	if l.Lists {
		changed = s.compare(e, l, restarted, now) || changed
	} else if restarted {
		e.lost = 0
		for _, c := range e.sorted() {
			s.vanished(c, true, now)
		}
	}
	if changed {
		s.stir(e)
	}
}

// compare makes the copies of an endpoint those that its engine lists, and reports whether anything changed.
func (s *State) compare(e *endpoint, l Sight, restarted bool, now time.Time) (changed bool) {
	listed := make(map[string]bool, len(l.Listed))
	for _, id := range l.Listed {
		listed[id] = true
	}
	for _, c := range e.sorted() {
		there := listed[c.ID]
		switch {
		case c.State == Queued && there: // an earlier process's load, or somebody else's
			s.set(c, Loaded, now)
			changed = true
		case c.State == Queued && c.cut: // to load what is there does no harm
			c.cut, changed = false, true
		case (c.State == Loaded || c.State == Draining) && !there && !c.Since.After(l.Began):
			s.vanished(c, restarted, now)
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
	for key, at := range e.left {
		if at.Before(l.Began) {
			delete(e.left, key)
		}
	}
	return changed
}

// vanished says that the engine has a copy no more. After a restart a model that has no other is loaded again.
func (s *State) vanished(c *Copy, restarted bool, now time.Time) {
	m, e, was := s.models[c.Key], s.endpoints[c.Endpoint], c.State
	if was == Queued || was == Loading {
		c.cut = false // nothing is left of it; what is loading will be told to have failed
		return
	}
	s.drop(c)
	if restarted && was == Loaded && !m.gone && !m.foreign && len(m.copies) == 0 && e.CanLoad {
		s.add(m, e, Queued, now)
	}
}

// Silent says that an endpoint was asked and has not answered. What it has serves on for all that is known, but nothing is
// loaded there until a look finds it well again.
func (s *State) Silent(address string) {
	if e := s.endpoints[address]; e != nil && e.state <= up {
		s.leave(e, silent)
	}
}

// leave says that nothing can be loaded at an endpoint for now. What was to be is to be somewhere else.
func (s *State) leave(e *endpoint, state reach) {
	e.state = state
	for _, c := range e.sorted() {
		if c.State == Queued && !c.cut {
			s.drop(c)
		}
	}
	s.stir(e)
}

// Down says that an endpoint turned a connection away. Its copies are of no use until a look finds it again.
func (s *State) Down(address string) {
	if e := s.endpoints[address]; e != nil && e.state != down {
		s.leave(e, down)
	}
}

// Wanted says how many requests wait for a model at one of those who ask; 0 is none any more.
func (s *State) Wanted(who string, key Key, w Want) {
	m := s.models[key]
	switch {
	case w.Requests == 0:
		if m != nil {
			delete(m.wants, who)
			s.dueModels[key] = true
			s.stirAll() // its copies may leave now
		}
		return
	case m == nil:
		m = s.newModel(objects.Entry{ModelKey: key})
		m.gone = true
	}
	m.wants[who] = w
	s.dueModels[key] = true
	for address := range m.copies {
		s.dueEndpoints[address] = true // it may have become more urgent
	}
}

// Unwanted says that one of those who ask has gone.
func (s *State) Unwanted(who string) {
	for key, m := range s.models {
		if _, ok := m.wants[who]; ok {
			delete(m.wants, who)
			s.dueModels[key] = true
		}
	}
	s.stirAll()
}

// Ensure asks for a copy of a model that has none, without a request that waits: it does not go before others, and does not
// put out what was used more recently. It asks once: for a copy, or the failure to get one.
func (s *State) Ensure(key Key) {
	if m := s.models[key]; m != nil && s.there(m) == 0 {
		m.ensure = true
		s.dueModels[key] = true
	}
}

// Used says when a model was last used.
func (s *State) Used(key Key, at time.Time) {
	if m := s.models[key]; m != nil {
		m.use(at)
	}
}

func (m *model) use(at time.Time) {
	if at.After(m.lastUsed) {
		m.lastUsed = at
	}
}

// InFlight says how many requests there are at a copy.
func (s *State) InFlight(key CopyKey, requests int) {
	if c := s.copy(key); c != nil {
		c.inFlight = requests
	}
}

// Drained says that nobody sends requests to a draining copy any more and none is there.
func (s *State) Drained(key CopyKey, now time.Time) (todo []Action) {
	if c := s.copy(key); c != nil && c.State == Draining {
		return []Action{s.unload(c, now)}
	}
	return nil
}

// Missing says that an engine that gives no list answered as if it had no such copy.
func (s *State) Missing(key CopyKey, now time.Time) {
	if c := s.copy(key); c != nil && c.State == Loaded && !s.endpoints[key.Endpoint].Lists {
		s.vanished(c, false, now)
		s.dueModels[key.Key] = true
	}
}

// Predicted ends a Predict: with the size, or 0 if the engine could not tell.
func (s *State) Predicted(key CopyKey, bytes int64) {
	c := s.copy(key)
	if c == nil || !c.sizing {
		return
	}
	c.sizing = false
	s.learn(s.models[key.Key], bytes, PredictedSize)
	if e := s.endpoints[key.Endpoint]; c.State == Queued && c.Bytes > e.usable() {
		s.drop(c) // there is no place for it here
	}
	s.dueEndpoints[key.Endpoint], s.dueModels[key.Key] = true, true
}

// learn takes a size for all copies of a model, if it is better known than before.
func (s *State) learn(m *model, bytes int64, source SizeSource) {
	if bytes <= 0 || source < m.source {
		return
	}
	m.bytes, m.source = bytes, source
	for _, c := range m.copies {
		c.Bytes, c.Source = bytes, source
	}
}

// LoadFailing says that an engine did not load a model in time, or not for sure: it is being unloaded there, and the load
// ends when it is gone. Those who wait for it need not wait for that.
func (s *State) LoadFailing(key CopyKey, words string, now time.Time) {
	c := s.copy(key)
	if c == nil || c.State != Loading || c.doomed {
		return
	}
	c.doomed = true
	s.fail(s.models[key.Key], Failure{key.Endpoint, now, words})
	s.dueModels[key.Key] = true
}

func (s *State) fail(m *model, f Failure) {
	m.failures = append(m.failures, f)
	s.failing[m.ModelKey] = true
	s.changes.Models[m.ModelKey] = true
}

// LoadResult is how a load ended.
type LoadResult struct {
	// Bytes is what the model holds, 0 if the engine does not say.
	Bytes int64
	// Took is how long the load took.
	Took time.Duration
	// Failed says that the engine did not load it, and Words why, in its own.
	Failed bool
	Words  string
	// Unreached says that the engine took no connection; with Failed.
	Unreached bool
	// Left says that something of the model may be left at the engine; with Failed. What it would hold is lost until the
	// engine's next life.
	Left bool
}

// LoadEnded says how a load ended. It returns what is to be done about models that the copy's true size leaves no room for.
func (s *State) LoadEnded(key CopyKey, r LoadResult, now time.Time) (todo []Action) {
	c := s.copy(key)
	if c == nil || c.State != Loading {
		return nil
	}
	m, e := s.models[key.Key], s.endpoints[key.Endpoint]
	s.dueEndpoints[e.Address], s.dueModels[m.ModelKey] = true, true
	s.stirAll()
	switch {
	case r.Failed:
		doomed := c.doomed
		if r.Left {
			e.lost += c.Bytes
		}
		s.drop(c)
		switch {
		case r.Unreached:
			s.Down(e.Address)
		case !doomed:
			s.fail(m, Failure{e.Address, now, r.Words})
		}
	case c.doomed:
		c.doomed = false
		s.set(c, Loaded, now)
		return s.dismiss(c, now)
	default:
		s.timesOf(m.Type).add(r.Took)
		c.cut = false
		s.set(c, Loaded, now)
		s.learn(m, r.Bytes, MeasuredSize)
		m.failures = slices.DeleteFunc(m.failures, func(f Failure) bool { return f.Endpoint == e.Address })
		for _, victim := range e.overfull(s, m) {
			todo = append(todo, s.dismiss(victim, now)...)
		}
	}
	return todo
}

// UnloadEnded says that the engine has unloaded a copy, or, if failed, that it could not be made to: then what the copy
// holds is lost until the engine's next life.
func (s *State) UnloadEnded(key CopyKey, failed bool, now time.Time) {
	c := s.copy(key)
	if c == nil || c.State != Unloading {
		return
	}
	e := s.endpoints[key.Endpoint]
	if failed {
		e.lost += c.Bytes
	}
	s.drop(c)
	e.left[key.Key] = now
	s.dueEndpoints[e.Address] = true
	s.stirAll()
}

// Measured says what a loaded copy holds, by the engine.
func (s *State) Measured(key CopyKey, bytes int64, now time.Time) (todo []Action) {
	c := s.copy(key)
	if c == nil || c.State != Loaded {
		return nil
	}
	m, e := s.models[key.Key], s.endpoints[key.Endpoint]
	s.learn(m, bytes, MeasuredSize)
	for _, victim := range e.overfull(s, m) {
		todo = append(todo, s.dismiss(victim, now)...)
	}
	s.dueEndpoints[e.Address] = true
	return todo
}

func (s *State) copy(key CopyKey) *Copy {
	if e := s.endpoints[key.Endpoint]; e != nil {
		return e.copies[key.Key]
	}
	return nil
}

func (s *State) add(m *model, e *endpoint, state CopyState, now time.Time) *Copy {
	c := &Copy{CopyKey: CopyKey{m.ModelKey, e.Address}, State: state, Since: now, asked: now, Bytes: m.bytes, Source: m.source}
	if c.Bytes == 0 {
		c.Bytes = e.DefaultBytes
	}
	e.copies[m.ModelKey], m.copies[e.Address] = c, c
	s.changes.Copies[c.CopyKey] = true
	s.dueEndpoints[e.Address], s.dueModels[m.ModelKey] = true, true
	return c
}

func (s *State) set(c *Copy, state CopyState, now time.Time) {
	if state == Loaded {
		s.models[c.Key].ensure = false
	}
	c.State, c.Since = state, now
	s.changes.Copies[c.CopyKey] = true
}

func (s *State) drop(c *Copy) {
	m := s.models[c.Key]
	delete(s.endpoints[c.Endpoint].copies, c.Key)
	delete(m.copies, c.Endpoint)
	delete(s.draining, c.CopyKey)
	s.changes.Copies[c.CopyKey] = true
	s.dueEndpoints[c.Endpoint], s.dueModels[c.Key] = true, true
	if m.foreign && len(m.copies) == 0 {
		delete(s.models, c.Key)
	}
	s.stirAll()
}

// sorted is the copies of an endpoint, in order.
func (e *endpoint) sorted() []*Copy { return sorted(e.copies) }

// sorted is the copies of a model, in order.
func (m *model) sorted() []*Copy { return sorted(m.copies) }

func sorted[K comparable](copies map[K]*Copy) []*Copy {
	all := make([]*Copy, 0, len(copies))
	for _, c := range copies {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *Copy) int { return a.Compare(b.CopyKey) })
	return all
}

// compare orders models by who is to be helped first: those that requests wait for, in the order in which they came, then
// the most recently used.
func (m *model) compare(o *model) int {
	a, b := m.since(), o.since()
	switch {
	case a.IsZero() != b.IsZero():
		if b.IsZero() {
			return -1
		}
		return 1
	case !a.Equal(b):
		return a.Compare(b)
	}
	return cmp.Or(o.lastUsed.Compare(m.lastUsed), m.Compare(o.ModelKey))
}

// since is when the first request began to wait that still does; zero if none waits.
func (m *model) since() (first time.Time) {
	for _, w := range m.wants {
		if first.IsZero() || w.Since.Before(first) {
			first = w.Since
		}
	}
	return first
}

// starved says whether requests wait for the model that no copy there is, or that is on its way, will serve.
func (m *model) starved(s *State) bool {
	for _, w := range m.wants {
		served := false
		for _, c := range m.copies {
			if c.State <= Loaded && !c.doomed && s.endpoints[c.Endpoint].state != down && !slices.Contains(w.Unusable, c.Endpoint) {
				served = true
				break
			}
		}
		if !served {
			return true
		}
	}
	return false
}

// staying is the copies that are not on their way out, the first the one that would be missed least: the least far come,
// then the latest.
func (m *model) staying() []*Copy {
	all := slices.DeleteFunc(m.sorted(), func(c *Copy) bool { return c.State > Loaded || c.doomed })
	slices.SortStableFunc(all, func(a, b *Copy) int { return cmp.Or(cmp.Compare(a.State, b.State), b.Since.Compare(a.Since)) })
	return all
}

func (m *model) expiry(now time.Time) time.Duration {
	if len(m.wants) > 0 || now.Sub(m.lastUsed) < inUse {
		return failureExpiry / 2
	}
	return failureExpiry
}
