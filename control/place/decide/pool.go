package decide

import (
	"math"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// Pool is the placement settings of an InferencePool. The zero Pool has the defaults.
type Pool struct {
	// LRU: the least recently used model is evicted first, however often it was used.
	LRU bool
	// RPM is the requests per minute that call for one more copy; 0 means that the measured load of
	// engines decides.
	RPM int
	// LoadTimeout limits a load, unless the engine's own limit is lower; 0 means the engine's
	// limit, or one that is derived from earlier loads.
	LoadTimeout time.Duration
	// FailureExpiry is how long a failed load counts, half of it for a model in use; 0 means 15
	// minutes.
	FailureExpiry time.Duration
}

// pool is the state of an InferencePool.
type pool struct {
	Pool
	models    int
	endpoints []*endpoint // sorted by address
	// times are the load times, by type of model.
	times map[string]*spread
	// fills are the models to load into free room that were not considered since the last tick, the
	// highest eviction value first.
	fills []*model
	// requestTime is the mean time of a request at its engine over some minutes, in seconds; 0 if
	// unknown.
	requestTime float64
	// stuck are the models that found no place.
	stuck []*model
	decay *decayTuner
	fits  Fits
	// loadCosts is the distribution of the load cost per room (see price) of loaded models;
	// dearness is its mean when the models were last valued.
	loadCosts    spread
	meanLoadCost float64
}

// pool returns the pool of a name, new if necessary.
func (s *State) pool(name objects.Name) *pool {
	p := s.pools[name]
	if p == nil {
		p = &pool{times: make(map[string]*spread), decay: newDecayTuner()}
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

// SetPool sets the placement settings of a pool.
func (s *State) SetPool(name objects.Name, to Pool) {
	p := s.pool(name)
	if p.Pool == to {
		return
	}
	p.Pool = to
	s.due.expiry = time.Time{} // failures may expire sooner
	revalue(s, name, p)
}

// revalue recomputes the eviction values of all models of a pool.
func revalue(s *State, name objects.Name, p *pool) {
	for _, m := range s.models {
		if m.Pool == name {
			m.updateValue(p)
			s.noteModel(valueChanged, m)
		}
	}
}

// updateValue computes the eviction value of a model.
func (m *model) updateValue(p *pool) {
	if p.LRU {
		m.value = seconds(m.lastUsed)
		return
	}
	m.value = m.usage.value(p.decay.decayTime, m.relativeLoadCost(p))
}

// relativeLoadCost returns how much higher the load cost per room of a model is than that of
// others, as a logarithm; 0 if unknown.
func (m *model) relativeLoadCost(p *pool) float64 {
	if m.took == 0 || p.loadCosts.n < enough {
		return 0
	}
	return min(max(m.loadCostPerRoom()-p.meanLoadCost, -maxLoadCost), maxLoadCost)
}

// missOverhead is the approximate cost of a miss beyond the load, in seconds: the request waits,
// and another model is evicted. Without it, the noise of millisecond loads would decide.
const missOverhead = 1

// loadCostPerRoom returns the load cost of a model per room, as a logarithm.
func (m *model) loadCostPerRoom() float64 {
	return math.Log(missOverhead+m.took) - math.Log(float64(max(1, m.bytes)))
}

// learnLoadTime records the load time of a model.
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
	p.loadCosts.add(m.loadCostPerRoom())
	if p.loadCosts.n == enough {
		p.meanLoadCost = p.loadCosts.mean
		revalue(s, m.Pool, p)
	}
	was := m.value
	if m.updateValue(p); m.value < was { // models that could not evict it may now be able to
		s.noteModel(valueFell, m)
	}
	s.noteModel(valueChanged, m)
}

// tickDecay updates the decay of use counts in a pool, and the capacity of its ghost lists.
func tickDecay(s *State, name objects.Name, p *pool) {
	var capacity amount
	for _, e := range p.endpoints {
		if e.CanLoad && e.useful() {
			capacity.models += e.Slots
			capacity.bytes = sum(capacity.bytes, max(0, e.usable()))
		}
	}
	for i := range p.decay.ghostLists {
		p.decay.ghostLists[i].capacity = capacity
	}
	decayTime, moves := p.decay.move()
	if moved := p.loadCosts.mean - p.meanLoadCost; p.loadCosts.n >= enough && math.Abs(moved) > loadCostTolerance {
		p.meanLoadCost, moves = p.loadCosts.mean, true
	}
	if !moves {
		return
	}
	slower := decayTime / p.decay.decayTime
	if slower != 1 {
		p.decay.update(decayTime)
	}
	for _, m := range s.models {
		if m.Pool == name {
			m.usage = m.rescaled(slower)
		}
	}
	revalue(s, name, p)
}

// loadCostTolerance is how far the mean load cost may move, as a logarithm, before the models are
// valued again.
const loadCostTolerance = 0.2

// tickValues recomputes the eviction values of models that have not been used for long.
func tickValues(s *State, p *pool, all []*model, now time.Time) {
	at := seconds(now)
	for i := range p.decay.ghostLists {
		p.decay.ghostLists[i].tick(at)
	}
	if p.LRU {
		return
	}
	for _, m := range all {
		if worth := m.valueAt(at, p.decay.decayTime, m.relativeLoadCost(p)); worth != m.value {
			m.value = worth
			s.noteModel(valueChanged, m)
		}
	}
}
