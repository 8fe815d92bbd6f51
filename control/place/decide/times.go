package decide

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// spread computes the mean and variance of numbers by Welford's method.
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

// recent contains the latest measurements of a quantity. Their median predicts the next
// measurement, since single measurements may be far off.
type recent struct {
	last   [recentMost]float64
	n      int // number of all measurements, including those no longer kept
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
	// defaultTimeout is the time limit of a load if none is configured or reported, and too few
	// loads were measured. It is enough for an adapter of a gigabyte from object storage.
	defaultTimeout = 2 * time.Minute
	// minTimeout is the lowest time limit that is derived from measured loads: a disk may be busy
	// for a moment.
	minTimeout = 10 * time.Second
	// enough is the smallest number of measured loads for which statistics are used. A normal load
	// takes at most the mean plus deviationsFew standard deviations, or deviationsMany if more than
	// many loads were measured (ModelMesh, TimeStats.java).
	enough         = 4
	deviationsFew  = 5
	deviationsMany = 3
	many           = 20
	// slack is the factor by which a load may exceed the longest normal load time before it is
	// abandoned: to abandon a load too early costs another load.
	slack = 3
)

// timesOf returns the load times of one type of models in a pool.
func (p *pool) timesOf(kind string) *spread {
	t := p.times[kind]
	if t == nil {
		t = new(spread)
		p.times[kind] = t
	}
	return t
}

// loadTimeout returns the time limit of a load of a model at an endpoint: the configured limit or
// the engine's own limit, whichever is lower. If there is neither, the limit is derived from the
// load times of the model's type in the pool.
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

// most returns the longest normal load time, derived from the measured load times.
func (s *spread) most() time.Duration {
	deviations := float64(deviationsFew)
	if s.n > many {
		deviations = deviationsMany
	}
	return time.Duration((s.mean + deviations*math.Sqrt(s.m2/float64(s.n))) * float64(time.Second))
}

// slowAfter returns the time after which a load of a model is treated as slow: the longest normal
// load time, if enough loads were measured.
func slowAfter(s *State, m *model) time.Duration {
	const least = minTimeout / slack
	if t := s.pool(m.Pool).timesOf(m.Type); t.n >= enough {
		return max(t.most(), least)
	}
	return least
}
