package decide

import (
	"math"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// Pool is how models are placed in an InferencePool. The zero Pool is as people have it who set
// nothing.
type Pool struct {
	// LRU has the model leave first that was used least recently, however often it was used.
	LRU bool
	// RPM is how many requests a minute make another copy, in place of what they keep engines busy
	// with; 0 for that.
	RPM int
	// LoadTimeout bounds a load, unless its engine has a lower bound; 0 for what the engine says,
	// else what loads before it took.
	LoadTimeout time.Duration
	// FailureExpiry is how long a failed load counts, half of it for a model in use; 0 for 15
	// minutes.
	FailureExpiry time.Duration
}

// pool is what is known of an InferencePool.
type pool struct {
	Pool
	models    int
	endpoints []*endpoint // in order of address
	// times are what loads took, by type of model.
	times map[string]*spread
	// fills are the models for which free room was not yet sought since the last tick, the most
	// missed first.
	fills []*model
	// requestTime is the mean time of a request at its engine over some minutes, in seconds; 0:
	// unknown.
	requestTime float64
	// stuck are models that found no place.
	stuck  []*model
	fading *fading
	fits   Fits
	// dear is what misses cost for the room of the models that were loaded (price), dearness its
	// mean as it was last looked at.
	dear     spread
	dearness float64
}

// pool is what is known of a pool that is named.
func (s *State) pool(name objects.Name) *pool {
	p := s.pools[name]
	if p == nil {
		p = &pool{times: make(map[string]*spread), fading: newFading()}
		s.pools[name] = p
	}
	return p
}

// tidy forgets pools without models, endpoints and settings.
func tidy(s *State) {
	for name, p := range s.pools {
		if p.models == 0 && len(p.endpoints) == 0 && p.Pool == (Pool{}) && p.fits.Types == nil && p.fits.Others == nil {
			delete(s.pools, name)
		}
	}
}

// SetPool says how models are placed in a pool.
func (s *State) SetPool(name objects.Name, to Pool) {
	p := s.pool(name)
	if p.Pool == to {
		return
	}
	p.Pool = to
	s.due.expiry = time.Time{} // failures may be forgotten sooner
	revalue(s, name, p)
}

// revalue finds the worth of all models of a pool anew.
func revalue(s *State, name objects.Name, p *pool) {
	for _, m := range s.models {
		if m.Pool == name {
			m.value(p)
			s.noteModel(valueChanged, m)
		}
	}
}

// value finds what a model is missed by.
func (m *model) value(p *pool) {
	if p.LRU {
		m.worth = seconds(m.lastUsed)
		return
	}
	m.worth = m.usage.worth(p.fading.fade, m.dear(p))
}

// dear is how much dearer a miss of a model is for its room than of others, as a logarithm; 0 where
// that is not known.
func (m *model) dear(p *pool) float64 {
	if m.took == 0 || p.dear.n < enough {
		return 0
	}
	return min(max(m.price()-p.dearness, -mostDear), mostDear)
}

// aside is about what a miss costs beside the load, in seconds: the request is held, somebody
// leaves. It keeps chance out of what loads of milliseconds take.
const aside = 1

// price is what a miss of a model costs for its room, as a logarithm.
func (m *model) price() float64 {
	return math.Log(aside+m.took) - math.Log(float64(max(1, m.bytes)))
}

// learnLoadTime notes how long a load of a model took.
func learnLoadTime(s *State, m *model, took time.Duration) {
	if took <= 0 {
		return
	}
	if m.took == 0 {
		m.took = took.Seconds()
	} else {
		m.took = (m.took + took.Seconds()) / 2
	}
	p := s.pool(m.Pool)
	p.dear.add(m.price())
	if p.dear.n == enough {
		p.dearness = p.dear.mean
		revalue(s, m.Pool, p)
	}
	was := m.worth
	if m.value(p); m.worth < was { // models that could not evict it before may do so now
		s.noteModel(valueFell, m)
	}
	s.noteModel(valueChanged, m)
}

// tickFading finds how slowly counts are to fade in a pool, and what its shadows may hold.
func tickFading(s *State, name objects.Name, p *pool) {
	var capacity amount
	for _, e := range p.endpoints {
		if e.CanLoad && e.useful() {
			capacity.models += e.Slots
			capacity.bytes = sum(capacity.bytes, max(0, e.usable()))
		}
	}
	for i := range p.fading.shadows {
		p.fading.shadows[i].capacity = capacity
	}
	fade, moves := p.fading.move()
	if moved := p.dear.mean - p.dearness; p.dear.n >= enough && math.Abs(moved) > dearnessOff {
		p.dearness, moves = p.dear.mean, true
	}
	if !moves {
		return
	}
	slower := fade / p.fading.fade
	if slower != 1 {
		p.fading.turn(fade)
	}
	for _, m := range s.models {
		if m.Pool == name {
			m.usage = m.faded(slower)
		}
	}
	revalue(s, name, p)
}

// dearnessOff is how far the mean price of loads may move, as a logarithm, before models are valued
// by it anew.
const dearnessOff = 0.2

// tickWorth finds the worth of models anew that have been silent for long.
func tickWorth(s *State, p *pool, all []*model, now time.Time) {
	at := seconds(now)
	for i := range p.fading.shadows {
		p.fading.shadows[i].tick(at)
	}
	if p.LRU {
		return
	}
	for _, m := range all {
		if worth := m.worthAt(at, p.fading.fade, m.dear(p)); worth != m.worth {
			m.worth = worth
			s.noteModel(valueChanged, m)
		}
	}
}
