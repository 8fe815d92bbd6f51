package decide

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

type model struct {
	objects.Entry
	gone bool // it is in the catalogue no more
	// foreign: it is in no catalogue, and an engine has it all the same. It is left alone.
	foreign  bool
	lastUsed time.Time
	worth    float64 // what it is missed by: the greater, the later it leaves
	usage            // how often it is used
	load             // what its requests ask of engines
	// inUseSince is since when it has been used without a break of secondWithin.
	inUseSince time.Time
	// awaited is since when requests waited for it, the last time that any did.
	awaited time.Time
	took    float64 // seconds that a load of it takes; 0: none has ended
	ghosts  [2]ghost
	wants   map[string]Want // by who says so
	// first is when the oldest waiting request began to wait, zero if none waits; barred: some
	// requests can use no copy at some endpoints.
	first    time.Time
	barred   bool
	copies   []*Copy // in order of endpoint
	hash     uint64
	fit      *Fit  // where it may be loaded
	bytes    int64 // known size, by any endpoint
	source   SizeSource
	failures []Failure
	// retries is how many loads of it have failed in a row for reasons that may pass, the last one
	// at retried.
	retries int
	retried time.Time
	blocked Reason // why it gets no copy that it should have
	// stuck: it waits for a place, at place among the stuck of its pool; stale: it is among the
	// stale. Touched: among the touched.
	stuck, stale, touched bool
	place                 int
	// since it has been without a place for a copy that it should have; zero if it has one.
	placeless time.Time
	failed    Reason // the same, told to those who wait
	ensure    bool   // somebody asked for a copy, though no request waits for it
	goal      int    // how many copies it is to have elsewhere because it is at endpoints that migrate; 0: it is not
	floor     int    // how many copies it must have because VModels name it
}

// Want says that requests wait for a model.
type Want struct {
	Requests int
	Since    time.Time // when the first of them began to
	// Unusable are the endpoints whose copies are of no use to them.
	Unusable []string
}

// ErrExists says that a model of that id is another one, ErrDeclared that an object declares it,
// which is the user's to delete: a client cannot register the one, nor unregister the other.
var (
	ErrExists   = errors.New("a model of this id exists, with other attributes")
	ErrDeclared = errors.New("the model is declared by an object: delete that")
)

// SetModel puts a model into the catalogue, or changes it. Used is when it was last used, if that
// is known.
func (s *State) SetModel(e objects.Entry, used time.Time) {
	m := s.models[e.ModelKey]
	if m == nil {
		m = s.newModel(e)
		s.noteModel(modelAdded, m)
	}
	if m.Type != e.Type || m.Source != e.Source || m.Info != e.Info { // what failed to load was something else
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
	m := &model{Entry: e, worth: math.Inf(-1), hash: hashed(e.ID)}
	p := s.pool(e.Pool)
	m.fit = p.fits.Of(e.Type)
	p.models++
	s.models[e.ModelKey] = m
	updateFloor(s, e.ModelKey)
	return m
}

// RemoveModel takes a model out of the catalogue. Its copies go.
func (s *State) RemoveModel(key Key) {
	if m := s.models[key]; m != nil && !m.foreign {
		m.gone = true
		s.noteModel(modelRemoved, m)
	}
}

// Wanted says how many requests wait for a model at one of those who ask; 0 is none any more.
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
	if m.wants == nil { // of most models of thousands nobody waits for any
		m.wants = make(map[string]Want)
	}
	m.wants[who] = w
	m.recallWants()
	if w.Since.After(m.awaited) {
		m.awaited = w.Since
	}
	s.noteModel(modelWanted, m)
}

// Unwanted says that one of those who ask has gone, with all that it said.
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

// Ensure asks for a copy of a model that has none, without a request that waits: it does not go
// before others, and does not put out what was used more recently. It asks once: for a copy, or the
// failure to get one.
func (s *State) Ensure(key Key) {
	if m := s.models[key]; m != nil && remaining(m) == 0 {
		if m.exhausted() { // its retries begin anew
			m.retries = 0
			m.failures = slices.DeleteFunc(m.failures, func(f Failure) bool { return f.Why == LoadRetried })
			s.noteModel(reasonChanged, m)
		}
		m.ensure = true
		s.noteModel(modelEnsured, m)
	}
}

// Use is how a model was used.
type Use struct {
	// Requests are those that named it since that was last said; 0 where nobody has counted them.
	Requests int
	// Last is when the last one did.
	Last time.Time
	// Waited is for how long requests waited since that was last said because each copy had as many
	// as it takes, each for itself.
	Waited time.Duration
}

// Used says that a model was used.
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
	m.usage = m.after(u.Requests, seconds(u.Last), p.fading.fade)
	m.value(p)
	s.noteModel(modelUsed, m)
	if m.Min == 0 && u.Requests > 0 {
		p.fading.used(m, u.Requests, seconds(u.Last), aside+m.took, m.dear(p))
	}
	if later {
		s.noteModel(modelUsedLater, m)
	}
}

// compare orders models by who is to be helped first: those that requests wait for, in the order in
// which they came, then the most recently used.
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

// recallWants recomputes first and barred from all wants.
func (m *model) recallWants() {
	m.first, m.barred = time.Time{}, false
	for _, w := range m.wants {
		if m.first.IsZero() || w.Since.Before(m.first) {
			m.first = w.Since
		}
		m.barred = m.barred || len(w.Unusable) > 0
	}
}

// since returns when the oldest waiting request began to wait; zero if none waits.
func (m *model) since() time.Time { return m.first }

// starved says whether requests wait for the model that no copy there is, or that is on its way,
// will serve, but for one.
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

// staying is the copies that are not on their way out, where requests can be sent and it may be.
// The first is the one that would be missed least: the least far come, then the latest.
func staying(m *model) []*Copy {
	all := slices.DeleteFunc(slices.Clone(m.copies), func(c *Copy) bool { return !c.remains() || !c.endpoint.useful() || c.misplaced() })
	slices.SortStableFunc(all, func(a, b *Copy) int { return cmp.Or(cmp.Compare(a.State, b.State), b.Since.Compare(a.Since)) })
	return all
}

// failureCounts is how long a failed load of a model counts now.
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
