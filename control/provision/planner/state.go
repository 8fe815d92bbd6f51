package planner

import (
	"fmt"
	"math"
	"slices"

	"github.com/headgate/headgate/control/provision/estimate"
)

// search is what is known in a search for a plan.
type search struct {
	*Problem
	rate   float64   // of the trace, queries a second
	shares []float64 // of them, by stage
	known  map[string]Candidate
	broken map[string]bool // configurations that were given up
	// counts is how many queries have the time of each objective. It is the same in all configurations, and known when one was tried.
	counts []int
	// bisects says that the least number of replicas of a stage alone is found by halves, and not one by one.
	bisects bool
	best    Candidate // the cheapest that keeps the objectives, of those that were tried
	plan    Plan
}

func newSearch(p *Problem) *search {
	own := *p
	own.Stages = p.paced()
	return &search{
		Problem: &own, rate: estimate.Rate(p.Queries), shares: p.Pipeline.Shares(),
		known: make(map[string]Candidate), broken: make(map[string]bool),
	}
}

// try finds out what a configuration keeps.
func (s *search) try(c Config, by string) Candidate {
	key := fmt.Sprint(c)
	if is, known := s.known[key]; known {
		return is
	}
	all := make([][]float64, len(s.Objectives))
	for i := range all {
		all[i] = make([]float64, 0, len(s.Queries))
	}
	s.run(c, func(_ int, took estimate.Took) bool {
		for i, o := range s.Objectives {
			if seconds, has := o.Of.In(took); has {
				all[i] = append(all[i], seconds)
			}
		}
		return true
	})
	var counts []int
	is := Candidate{Config: slices.Clone(c), Cost: s.Cost(c), Keeps: s.fits(c), By: by}
	for i, o := range s.Objectives {
		slices.Sort(all[i])
		n, kept := len(all[i]), 0.0
		if n > 0 {
			kept = all[i][n-1-o.Misses(n)]
		}
		is.Kept, counts = append(is.Kept, kept), append(counts, n)
	}
	s.counts = counts
	is.Keeps = is.Keeps && s.met(is) && s.able(c)
	s.known[key] = is
	s.plan.Tried = append(s.plan.Tried, is)
	if !c.Unbounded() && is.Keeps && (!s.best.Keeps || is.Cost < s.best.Cost) {
		s.best = is
	}
	return is
}

// met says whether each objective is kept, whether or not there is as much hardware.
func (s *search) met(is Candidate) bool {
	for i, o := range s.Objectives {
		if is.Kept[i] > o.Seconds {
			return false
		}
	}
	return true
}

// able reports whether the throughput of each stage exceeds its arrival rate. Otherwise its queue keeps growing, which does not show before the
// trace ends if the objective is long compared with the trace.
func (s *search) able(c Config) bool {
	for i := range c {
		if s.room(c, i) <= s.rate {
			return false
		}
	}
	return true
}

// keeps says whether a configuration keeps the objectives: it gives up as soon as it does not. Another one must have been tried before.
func (s *search) keeps(c Config) bool {
	key := fmt.Sprint(c)
	if is, known := s.known[key]; known || s.broken[key] {
		return is.Keeps
	}
	if !s.fits(c) || !s.able(c) {
		return false
	}
	left := make([]int, len(s.Objectives)) // how many may still miss
	for i, o := range s.Objectives {
		left[i] = o.Misses(s.counts[i])
	}
	kept := true
	s.run(c, func(_ int, took estimate.Took) bool {
		for i, o := range s.Objectives {
			if seconds, _ := o.Of.In(took); seconds > o.Seconds {
				left[i]--
				kept = kept && left[i] >= 0
			}
		}
		return kept
	})
	if !kept {
		s.broken[key] = true
	}
	return kept
}

func (s *search) run(c Config, done func(int, estimate.Took) bool) {
	s.plan.Simulations++
	if _, err := estimate.Run(s.Pipeline, s.Settings(c), s.Queries, s.Seed, done); err != nil {
		panic(err) // Check has found none
	}
	s.tell()
}

// tell tells who looks on, and stops where that wants no more.
func (s *search) tell() {
	if s.Told != nil && !s.Told(s.plan.Simulations, s.best) {
		panic(stopped{})
	}
}

// stopped ends a search that is to go on no more, from wherever it is.
type stopped struct{}

// unlessStopped does something, and leaves the best plan so far where it is stopped.
func (s *search) unlessStopped(do func()) {
	defer func() {
		switch is := recover().(type) {
		case nil:
		case stopped:
			s.plan.Found, s.plan.Candidate, s.plan.Optimal, s.plan.Stopped = s.best.Keeps, s.best, false, true
			if !s.best.Keeps {
				s.plan.Why = "no plan was found before the search was stopped"
			}
		default:
			panic(is)
		}
	}()
	do()
}

// at is the hardware of a stage in a configuration.
func (s *search) at(c Config, stage int) *Hardware {
	return &s.Stages[stage].Hardware[c[stage].Hardware]
}

// throughput is how many queries of the pipeline a second a stage has room for: InferLine's k·μ/s.
func (s *search) throughput(c Config, stage int) float64 {
	return float64(c[stage].Replicas) * s.at(c, stage).pace.Throughput(c[stage].Batch) / s.shares[stage]
}

// room is the throughput, without bound where no query can wait: there are as many replicas as queries.
func (s *search) room(c Config, stage int) float64 {
	if c[stage].Replicas >= len(s.Queries) {
		return math.Inf(1)
	}
	return s.throughput(c, stage)
}

// full says that a stage has as many replicas as it may, or that there is no hardware for another.
func (s *search) full(c Config, stage int) bool {
	most := s.Stages[stage].MaxReplicas
	return most != 0 && c[stage].Replicas >= most || s.short(s.more(c, stage)) != ""
}

// fits says whether a configuration has no more replicas than it may, and no more hardware than there is. Replicas without bound are to say what they
// would bring.
func (s *search) fits(c Config) bool {
	for i, is := range c {
		stage := &s.Stages[i]
		if is.Replicas < stage.MinReplicas || stage.MaxReplicas != 0 && is.Replicas > stage.MaxReplicas && is.Replicas != estimate.Unbounded {
			return false
		}
	}
	return s.short(c) == ""
}

// short is the kind of hardware of which a configuration has more than there is, empty if there is none; the first by stage. What has replicas
// without bound is to say what they would bring, and takes nothing.
func (s *search) short(c Config) string {
	if len(s.AtMost) == 0 {
		return ""
	}
	taken := s.Taken(c)
	for i := range c {
		kind := s.at(c, i).Name
		if most, bounded := s.AtMost[kind]; bounded && taken[kind] > most {
			return kind
		}
	}
	return ""
}

// with is a configuration with another setting of a stage.
func with(c Config, stage int, is Setting) Config {
	other := slices.Clone(c)
	other[stage] = is
	return other
}
