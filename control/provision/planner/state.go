package planner

import (
	"fmt"
	"math"
	"slices"

	"github.com/headgate/headgate/control/provision/estimate"
)

// search is the state of a planner's search.
type search struct {
	*Problem
	rate   float64   // arrival rate in queries per second
	shares []float64 // for each stage, the share of queries that pass it
	known  map[string]Candidate
	broken map[string]bool // configurations whose simulation was abandoned: they miss an objective
	// counts has, for each objective, the number of queries that have its metric. It is the same
	// for all configurations, and is set by the first simulation.
	counts []int
	// If bisects is true, replan finds the smallest number of replicas by bisection instead of one
	// by one.
	bisects bool
	best    Candidate // cheapest feasible candidate so far
	plan    Plan
}

func newSearch(p *Problem) *search {
	own := *p
	own.Stages = p.timed()
	return &search{
		Problem: &own, rate: estimate.Rate(p.Queries), shares: p.Pipeline.Shares(),
		known: make(map[string]Candidate), broken: make(map[string]bool),
	}
}

// try simulates a configuration to the end, or returns the cached result. step describes what led
// to the configuration.
func (s *search) try(c Config, step string) Candidate {
	key := fmt.Sprint(c)
	if is, known := s.known[key]; known {
		return is
	}
	all := make([][]float64, len(s.Objectives))
	for i := range all {
		all[i] = make([]float64, 0, len(s.Queries))
	}
	s.run(c, func(_ int, took estimate.QueryTimes) bool {
		for i, o := range s.Objectives {
			if seconds, has := o.Metric.Of(took); has {
				all[i] = append(all[i], seconds)
			}
		}
		return true
	})
	var counts []int
	is := Candidate{Config: slices.Clone(c), Cost: s.Cost(c), Feasible: s.inBounds(c), Step: step}
	for i, o := range s.Objectives {
		slices.Sort(all[i])
		n, kept := len(all[i]), 0.0
		if n > 0 {
			kept = all[i][n-1-o.Misses(n)]
		}
		is.Values, counts = append(is.Values, kept), append(counts, n)
	}
	s.counts = counts
	is.Feasible = is.Feasible && s.meets(is) && s.keepsUp(c)
	s.known[key] = is
	s.plan.Tried = append(s.plan.Tried, is)
	if !c.Unbounded() && is.Feasible && (!s.best.Feasible || is.Cost < s.best.Cost) {
		s.best = is
	}
	return is
}

// meets reports whether the candidate meets all objectives. It ignores the bounds.
func (s *search) meets(is Candidate) bool {
	for i, o := range s.Objectives {
		if is.Values[i] > o.Seconds {
			return false
		}
	}
	return true
}

// keepsUp reports whether the throughput of each stage exceeds its arrival rate. Otherwise the
// queue of a stage would keep growing. If the trace is short relative to the objective, the
// simulated latencies do not show that.
func (s *search) keepsUp(c Config) bool {
	for i := range c {
		if s.capacity(c, i) <= s.rate {
			return false
		}
	}
	return true
}

// feasible reports whether a configuration is feasible. It stops the simulation when too many
// queries have missed an objective. try must have been called at least once before.
func (s *search) feasible(c Config) bool {
	key := fmt.Sprint(c)
	if is, known := s.known[key]; known || s.broken[key] {
		return is.Feasible
	}
	if !s.inBounds(c) || !s.keepsUp(c) {
		return false
	}
	left := make([]int, len(s.Objectives)) // for each objective, how many more queries may miss it
	for i, o := range s.Objectives {
		left[i] = o.Misses(s.counts[i])
	}
	kept := true
	s.run(c, func(_ int, took estimate.QueryTimes) bool {
		for i, o := range s.Objectives {
			if seconds, _ := o.Metric.Of(took); seconds > o.Seconds {
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

func (s *search) run(c Config, done func(int, estimate.QueryTimes) bool) {
	s.plan.Simulations++
	if _, err := estimate.Run(s.Pipeline, s.Settings(c), s.Queries, s.Seed, done); err != nil {
		panic(err) // impossible: Check has accepted the problem
	}
	s.report()
}

// report reports the progress of the search. It stops the search with a panic if Progress returns
// false.
func (s *search) report() {
	if s.Progress != nil && !s.Progress(s.plan.Simulations, s.best) {
		panic(stopped{})
	}
}

// stopped is the value of the panic that stops a search.
type stopped struct{}

// untilStopped calls do, which runs a search. If the search is stopped, the plan is the best
// candidate so far.
func (s *search) untilStopped(do func()) {
	defer func() {
		switch is := recover().(type) {
		case nil:
		case stopped:
			s.plan.Found, s.plan.Candidate, s.plan.Optimal, s.plan.Stopped = s.best.Feasible, s.best, false, true
			if !s.best.Feasible {
				s.plan.Reason = "the search was stopped before a plan was found"
			}
		default:
			panic(is)
		}
	}()
	do()
}

// at returns the hardware that a stage uses.
func (s *search) at(c Config, stage int) *Hardware {
	return &s.Stages[stage].Hardware[c[stage].Hardware]
}

// throughput returns how many queries per second may enter the pipeline until this stage is
// saturated: k·mu/s in InferLine.
func (s *search) throughput(c Config, stage int) float64 {
	return float64(c[stage].Replicas) * s.at(c, stage).timing.Throughput(c[stage].Batch) / s.shares[stage]
}

// capacity returns the throughput of a stage; infinity if there are as many replicas as queries.
func (s *search) capacity(c Config, stage int) float64 {
	if c[stage].Replicas >= len(s.Queries) {
		return math.Inf(1)
	}
	return s.throughput(c, stage)
}

// full reports whether the bounds permit no other replica of a stage.
func (s *search) full(c Config, stage int) bool {
	most := s.Stages[stage].MaxReplicas
	return most != 0 && c[stage].Replicas >= most || s.lacking(s.addReplica(c, stage)) != ""
}

// inBounds reports whether a configuration respects the bounds on replicas and hardware units. It
// accepts unbounded replicas, which the search uses to get bounds.
func (s *search) inBounds(c Config) bool {
	for i, is := range c {
		stage := &s.Stages[i]
		if is.Replicas < stage.MinReplicas || stage.MaxReplicas != 0 && is.Replicas > stage.MaxReplicas &&
			is.Replicas != estimate.Unbounded {
			return false
		}
	}
	return s.lacking(c) == ""
}

// lacking returns the first kind of hardware of which a configuration uses more units than there
// are; "" if there is none. Stages with unbounded replicas are ignored.
func (s *search) lacking(c Config) string {
	if len(s.AtMost) == 0 {
		return ""
	}
	taken := s.UnitsUsed(c)
	for i := range c {
		kind := s.at(c, i).Name
		if most, bounded := s.AtMost[kind]; bounded && taken[kind] > most {
			return kind
		}
	}
	return ""
}

// with copies a configuration, and changes the setting of one stage in the copy.
func with(c Config, stage int, is Setting) Config {
	other := slices.Clone(c)
	other[stage] = is
	return other
}
