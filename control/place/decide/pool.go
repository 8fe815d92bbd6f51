package decide

import (
	"math"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// Pool contains the placement settings of an InferencePool. The zero Pool selects the defaults.
type Pool struct {
	// LRU: the least recently used model is evicted first, however often it was used.
	LRU bool
	// RPM is how many requests per minute one copy of a model should serve; 0 means that the
	// measured load of engines decides the number of copies.
	RPM int
	// LoadTimeout is the time limit of a load; a lower limit of the engine takes precedence. 0
	// means the engine's limit or, if it has none, a limit derived from earlier loads.
	LoadTimeout time.Duration
	// FailureExpiry is the time after which a failed load expires, half of it for a model in use; 0
	// means 15 minutes.
	FailureExpiry time.Duration
}

// pool is the state of an InferencePool.
type pool struct {
	Pool
	models    int
	endpoints []*endpoint // sorted by address
	// times are the load times, by type of model.
	times map[string]*spread
	// fills are the models that may be loaded into free room and were not considered since the last
	// tick, the highest eviction value first.
	fills []*model
	// requestTime is how long a request is at its engine, in seconds, as a mean over some minutes;
	// 0 if unknown.
	requestTime float64
	// stuck are the models that wait for a place.
	stuck []*model
	decay *decayTuner
	fits  Fits
	// loadCosts is the distribution of loadCostPerRoom of loaded models; meanLoadCost is its mean
	// when the eviction values were last recomputed.
	loadCosts    spread
	meanLoadCost float64
}

// pool returns the pool with this name. It creates the pool if necessary.
func (s *State) pool(name objects.Name) *pool {
	p := s.pools[name]
	if p == nil {
		p = &pool{times: make(map[string]*spread), decay: newDecayTuner()}
		s.pools[name] = p
	}
	return p
}

// tidy removes pools that have neither models nor endpoints nor settings.
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
	s.due.expiry = time.Time{} // with the new settings, failures may expire sooner
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

// relativeLoadCost returns the logarithm of a model's load cost per room relative to the mean of
// the pool; 0 if unknown.
func (m *model) relativeLoadCost(p *pool) float64 {
	if m.took == 0 || p.loadCosts.n < enough {
		return 0
	}
	return min(max(m.loadCostPerRoom()-p.meanLoadCost, -maxLoadCost), maxLoadCost)
}

// missOverhead is the approximate cost of a miss in addition to the load, in seconds: the request
// waits, and another model is evicted. Without it, the noise of millisecond loads would determine
// eviction values.
const missOverhead = 1

// loadCostPerRoom returns the logarithm of the load cost of a model per byte.
func (m *model) loadCostPerRoom() float64 {
	return math.Log(missOverhead+m.took) - math.Log(float64(max(1, m.bytes)))
}

// learnLoadTime updates the load time of a model with a measurement.
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
	if m.updateValue(p); m.value < was { // other models may now be able to evict it
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

// loadCostTolerance is how far the mean load cost may move, as a logarithm, before the eviction
// values are recomputed.
const loadCostTolerance = 0.2

// tickValues recomputes the eviction values of models that have not been used for a long time.
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
