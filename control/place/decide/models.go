package decide

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/hash"
	"github.com/headgate/headgate/internal/objects"
)

type model struct {
	objects.Entry
	gone bool // the model is not in the catalogue
	// foreign: an engine has the model although it is in no catalogue. Control never unloads it.
	foreign  bool
	lastUsed time.Time
	value    float64 // eviction value: models with lower values are evicted first
	usage            // how often the model is used
	load             // the work that the model's requests cause at engines
	// inUseSince is when the current period of use began: it has no break longer than secondWithin.
	inUseSince time.Time
	// awaited is when requests last began to wait for the model.
	awaited time.Time
	took    float64 // mean load time in seconds; 0: no load has ended
	ghosts  [2]ghostEntry
	wants   map[string]Want // waiting requests, by extproc
	// first is when the oldest waiting request began to wait; zero if none waits. restricted: some
	// requests cannot use copies at some endpoints.
	first      time.Time
	restricted bool
	copies     []*Copy // the model's copies, sorted by endpoint
	hash       uint64
	fit        *Fit  // where the model may be loaded
	bytes      int64 // size; 0 if no source has reported it
	source     SizeSource
	failures   []Failure
	// retries is the number of loads in a row that failed with transient errors; the last of them
	// failed at retried.
	retries int
	retried time.Time
	blocked Reason // why the model lacks a copy that it needs
	// stuck: the model waits for a place; its index in the pool's list of such models is place.
	// stale: it is in due.stale. touched: it is in due.touched.
	stuck, stale, touched bool
	place                 int
	// lacksPlaceSince is when the model began to lack a place for a copy that it needs; zero if it
	// lacks none.
	lacksPlaceSince time.Time
	failed          Reason // the value of blocked as published to waiting requests
	ensure          bool   // a client asked for a copy, though no request waits for it
	migrationGoal   int    // number of copies needed elsewhere because copies migrate; 0: none migrates
	vmodelMin       int    // minimum number of copies that VModels require
}

// Want describes the requests that wait for a model at one extproc.
type Want struct {
	Requests int
	Since    time.Time // when the oldest of these requests began to wait
	// Unusable are the endpoints whose copies these requests cannot use.
	Unusable []string
}

// ErrExists means that a different model has that id. ErrDeclared means that an object declares the
// model: only the object's owner may change or delete it, so a client can neither register nor
// unregister it.
var (
	ErrExists   = errors.New("a model of this id exists, with other attributes")
	ErrDeclared = errors.New("the model is declared by an object: delete that")
)

// SetModel adds a model to the catalogue, or changes it there. used is the model's last use; zero
// if unknown.
func (s *State) SetModel(e objects.Entry, used time.Time) {
	m := s.models[e.ModelKey]
	if m == nil {
		m = s.newModel(e)
		s.noteModel(modelAdded, m)
	}
	if m.Type != e.Type || m.Source != e.Source || m.Info != e.Info { // failures of the earlier definition do not apply
		m.failures = nil
	}
	m.Entry, m.gone, m.foreign, m.fit = e, false, false, s.pool(e.Pool).fits.Of(e.Type)
	if m.source <= HintedSize && e.Size > 0 {
		m.bytes, m.source = e.Size, HintedSize
	}
	useModel(s, m, Use{Last: used})
	s.noteModel(modelNeeds, m)
}

func (s *State) newModel(e objects.Entry) *model {
	m := &model{Entry: e, value: math.Inf(-1), hash: hash.Of(e.ID)}
	p := s.pool(e.Pool)
	m.fit = p.fits.Of(e.Type)
	p.models++
	s.models[e.ModelKey] = m
	updateFloor(s, e.ModelKey)
	return m
}

// RemoveModel removes a model from the catalogue. Its copies are unloaded.
func (s *State) RemoveModel(key Key) {
	if m := s.models[key]; m != nil && !m.foreign {
		m.gone = true
		s.noteModel(modelRemoved, m)
	}
}

// Wanted records how many requests wait for a model at one extproc; 0 means none.
func (s *State) Wanted(who string, key Key, w Want) {
	m := s.models[key]
	switch {
	case w.Requests == 0:
		if m != nil {
			removeWant(s, m, who)
		}
		return
	case m == nil:
		m = s.newModel(objects.Entry{ModelKey: key})
		m.gone = true
	}
	if m.wants == nil { // created on demand: most of thousands of models need no map
		m.wants = make(map[string]Want)
	}
	m.wants[who] = w
	m.recallWants()
	if w.Since.After(m.awaited) {
		m.awaited = w.Since
	}
	s.noteModel(modelWanted, m)
}

// Unwanted records that no request waits at one extproc any more.
func (s *State) Unwanted(who string) {
	for address := range s.endpoints {
		s.Terminating(who, address, false, time.Time{})
	}
	for _, m := range s.models {
		if _, ok := m.wants[who]; ok {
			removeWant(s, m, who)
		}
	}
}

func removeWant(s *State, m *model, who string) {
	delete(m.wants, who)
	m.recallWants()
	s.noteModel(modelUnwanted, m)
}

// Ensure asks for a copy of a model that has none, although no request waits. The load has no
// priority over other loads, and only models with a lower eviction value are evicted for it. The
// request ends when the model has a copy or its load has failed.
func (s *State) Ensure(key Key) {
	if m := s.models[key]; m != nil && remaining(m) == 0 {
		if m.exhausted() { // start a new series of retries
			m.retries = 0
			m.failures = slices.DeleteFunc(m.failures, func(f Failure) bool { return f.Why == LoadRetried })
			s.noteModel(reasonChanged, m)
		}
		m.ensure = true
		s.noteModel(modelEnsured, m)
	}
}

// Use describes how a model was used since the last report.
type Use struct {
	// Requests is the number of requests that named the model; 0 if they were not counted.
	Requests int
	// Last is the time of the last request.
	Last time.Time
	// Waited is the sum of the times that requests waited because every copy was at its limit.
	Waited time.Duration
}

// Used records the use of a model.
func (s *State) Used(key Key, u Use) {
	if m := s.models[key]; m != nil {
		useModel(s, m, u)
	}
}

func useModel(s *State, m *model, u Use) {
	m.waited += u.Waited.Seconds()
	later := u.Last.After(m.lastUsed)
	if u.Requests == 0 && !later {
		return
	}
	p := s.pool(m.Pool)
	if later {
		if u.Last.Sub(m.lastUsed) > secondWithin {
			m.inUseSince = u.Last
		}
		m.lastUsed = u.Last
	}
	m.requests += float64(u.Requests)
	m.usage = m.after(u.Requests, seconds(u.Last), p.decay.decayTime)
	m.updateValue(p)
	s.noteModel(modelUsed, m)
	if m.Min == 0 && u.Requests > 0 {
		p.decay.used(m, u.Requests, seconds(u.Last), missOverhead+m.took, m.relativeLoadCost(p))
	}
	if later {
		s.noteModel(modelUsedLater, m)
	}
}

// compare orders models by priority. Models with waiting requests come first, in the order of their
// oldest requests. The other models follow, the most recently used first.
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

// recallWants recomputes first and restricted from all wants.
func (m *model) recallWants() {
	m.first, m.restricted = time.Time{}, false
	for _, w := range m.wants {
		if m.first.IsZero() || w.Since.Before(m.first) {
			m.first = w.Since
		}
		m.restricted = m.restricted || len(w.Unusable) > 0
	}
}

// since returns when the oldest waiting request began to wait; zero if none waits.
func (m *model) since() time.Time { return m.first }

// starved reports whether requests wait that no copy of the model can serve, neither a loaded copy
// nor one that is to be loaded. If but is not nil, that copy is ignored.
func (m *model) starved(but *Copy) bool {
	if len(m.copies) == 0 {
		return len(m.wants) > 0
	}
	for _, w := range m.wants {
		served := false
		for _, c := range m.copies {
			if c != but && c.remains() && c.endpoint.useful() && !slices.Contains(w.Unusable, c.Endpoint) {
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

// staying returns the copies that are not being removed, at endpoints that can serve requests and
// where the model may be loaded. They are in the order in which to remove them: copies in the
// earliest state first, and of these the newest first.
func staying(m *model) []*Copy {
	all := slices.DeleteFunc(slices.Clone(m.copies), func(c *Copy) bool { return !c.remains() || !c.endpoint.useful() || c.misplaced() })
	slices.SortStableFunc(all, func(a, b *Copy) int { return cmp.Or(cmp.Compare(a.State, b.State), b.Since.Compare(a.Since)) })
	return all
}

// failureCounts returns after what time a failed load of a model expires, as it stands now.
func failureCounts(s *State, m *model, f Failure, now time.Time) time.Duration {
	if f.counts > 0 && (m.min() > 0 || !m.exhausted()) {
		return f.counts
	}
	all := cmp.Or(s.pool(m.Pool).FailureExpiry, failureExpiry)
	if len(m.wants) > 0 || now.Sub(m.lastUsed) < inUse {
		return all / 2
	}
	return all
}
