package decide

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// spread is the mean and variance of numbers, by Welford's method.
type spread struct {
	n    int
	mean float64
	m2   float64
}

func (s *spread) add(x float64) {
	s.n++
	delta := x - s.mean
	s.mean += delta / float64(s.n)
	s.m2 += delta * (x - s.mean)
}

// recent holds the latest measurements of a quantity. Their median predicts the next one, since
// single measurements may be far off.
type recent struct {
	last   [recentMost]float64
	n      int // number of measurements ever added
	median float64
}

// recentMost is the number of measurements that are kept.
const recentMost = 15

func (r *recent) add(x float64) {
	r.last[r.n%recentMost] = x
	r.n++
	sorted := r.last
	values := sorted[:min(r.n, recentMost)]
	slices.Sort(values)
	r.median = (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

// known reports whether there are enough measurements.
func (r *recent) known() bool { return r.n >= enough }

const (
	// defaultTimeout limits a load if no limit is configured or reported, and too few loads were
	// measured: enough for an adapter of a gigabyte from object storage.
	defaultTimeout = 2 * time.Minute
	// minTimeout is the lowest limit that measured loads lead to: a disk may be busy for a moment.
	minTimeout = 10 * time.Second
	// enough is the number of loads that give statistics. deviations is the number of standard
	// deviations above the mean that a load may take, for few and for many loads (ModelMesh,
	// TimeStats.java).
	enough         = 4
	deviationsFew  = 5
	deviationsMany = 3
	many           = 20
	// slack is the factor by which a load may exceed that time before it is abandoned: abandoning
	// it too early costs another load.
	slack = 3
)

// timesOf returns the load times of a type of models in a pool.
func (p *pool) timesOf(kind string) *spread {
	t := p.times[kind]
	if t == nil {
		t = new(spread)
		p.times[kind] = t
	}
	return t
}

// loadTimeout returns the limit of a load of a model at an endpoint: the lower one of the
// configured and the engine's limit; if there is neither, the limit from the load times of its type
// in the pool.
func loadTimeout(s *State, e *endpoint, m *model) time.Duration {
	p := s.pool(m.Pool)
	t := p.timesOf(m.Type)
	switch {
	case p.LoadTimeout > 0 && (e.LoadTimeout == 0 || p.LoadTimeout < e.LoadTimeout):
		return p.LoadTimeout
	case e.LoadTimeout > 0:
		return e.LoadTimeout
	case t.n < enough:
		return cmp.Or(e.FirstTimeout, defaultTimeout)
	}
	return max(slack*t.most(), minTimeout)
}

// most returns the longest normal load time, from the measured ones.
func (s *spread) most() time.Duration {
	deviations := float64(deviationsFew)
	if s.n > many {
		deviations = deviationsMany
	}
	return time.Duration((s.mean + deviations*math.Sqrt(s.m2/float64(s.n))) * float64(time.Second))
}

// slowAfter returns the time after which a load of a model counts as slow: the longest normal time,
// if enough loads were measured.
func slowAfter(s *State, m *model) time.Duration {
	const least = minTimeout / slack
	if t := s.pool(m.Pool).timesOf(m.Type); t.n >= enough {
		return max(t.most(), least)
	}
	return least
}
