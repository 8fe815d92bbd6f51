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

// recent are the last values of something that is measured again and again. Their median is taken
// for the next one, for one of them may be far off.
type recent struct {
	last   [recentMost]float64
	n      int // how many were added
	median float64
}

// recentMost is how many values count.
const recentMost = 15

func (r *recent) add(x float64) {
	r.last[r.n%recentMost] = x
	r.n++
	sorted := r.last
	values := sorted[:min(r.n, recentMost)]
	slices.Sort(values)
	r.median = (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

// known reports whether there are enough values.
func (r *recent) known() bool { return r.n >= enough }

const (
	// defaultTimeout bounds a load where nobody says how long one may take, and too few loads
	// before it how long one takes: an adapter of a gigabyte from object storage.
	defaultTimeout = 2 * time.Minute
	// minTimeout is the least that statistics make of it: a disk may be busy once.
	minTimeout = 10 * time.Second
	// enough is how many loads make statistics, and deviations how many standard deviations above
	// the mean a load may take, few and many loads (ModelMesh, TimeStats.java).
	enough         = 4
	deviationsFew  = 5
	deviationsMany = 3
	many           = 20
	// slack is how much more than that a load gets before it is given up: giving up too early costs
	// another load.
	slack = 3
)

// timesOf is what loads of a type took in a pool.
func (p *pool) timesOf(kind string) *spread {
	t := p.times[kind]
	if t == nil {
		t = new(spread)
		p.times[kind] = t
	}
	return t
}

// loadTimeout is how long a load of a model may take at an endpoint: what people or the engine say,
// the lower of both, else by what loads of the model's type took in its pool.
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

// most is what a load takes at most, by those before it.
func (s *spread) most() time.Duration {
	deviations := float64(deviationsFew)
	if s.n > many {
		deviations = deviationsMany
	}
	return time.Duration((s.mean + deviations*math.Sqrt(s.m2/float64(s.n))) * float64(time.Second))
}

// slowAfter is when a load of a model counts as slow: after what such loads take at most, where
// enough of them were measured.
func slowAfter(s *State, m *model) time.Duration {
	const least = minTimeout / slack
	if t := s.pool(m.Pool).timesOf(m.Type); t.n >= enough {
		return max(t.most(), least)
	}
	return least
}
