// Package plan finds what hardware, batch and replicas each stage of a pipeline is to have so that its queries keep an objective at the least
// cost, by rolling a trace on with each candidate (package estimate). It is pure: equal arguments give equal plans.
//
// [Strict] is InferLine's planner (Crankshaw et al., SoCC 2020, Algorithms 1 and 2), as far as it is known; [Mended] goes on where that stops.
package plan

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/internal/profile"
)

// Problem is what is to be planned.
type Problem struct {
	Pipeline *estimate.Pipeline
	// Stages, one for each of the pipeline's.
	Stages []Stage
	// Arrivals of the sample trace, in seconds, and the seed of its chances.
	Arrivals []float64
	Seed     uint64
	Objective
	// Most is how many configurations are tried one by one, by rising cost, to prove that none is cheaper; 0 for none.
	Most int
}

// Objective is the latency in seconds that a share of the queries, such as 0.99, must keep.
type Objective struct {
	Latency, Share float64
}

// Misses is how many of n queries may take longer.
func (o Objective) Misses(n int) int { return int(float64(n)*(1-o.Share) + 1e-9) }

// Stage is what a stage may have.
type Stage struct {
	Hardware []Hardware
	// Least and most replicas; a most of 0 is no bound.
	MinReplicas, MaxReplicas int
	// Wait is how long queries may wait for a batch to fill, in seconds, and Central says that they wait in one queue: see [estimate.Setting].
	Wait    float64
	Central bool
}

// Hardware is one kind that a stage may run on.
type Hardware struct {
	Name string
	// Price of a replica, an hour, above 0.
	Price float64
	// Times of the stage's model there, and the sizes of batch that may be set, in order.
	Times   *profile.Batches
	Batches []int
}

// Setting is what one stage has: its hardware, by number, the size of its batches, and replicas.
type Setting struct{ Hardware, Batch, Replicas int }

// Config is the setting of each stage.
type Config []Setting

// Cost of a configuration, an hour.
func (p *Problem) Cost(c Config) float64 {
	cost := 0.0
	for s, is := range c {
		cost += p.Stages[s].Hardware[is.Hardware].Price * float64(is.Replicas)
	}
	return cost
}

// Settings are what an estimate has each stage of a configuration have.
func (p *Problem) Settings(c Config) []estimate.Setting {
	all := make([]estimate.Setting, len(c))
	for s, is := range c {
		stage := &p.Stages[s]
		all[s] = estimate.Setting{Times: stage.Hardware[is.Hardware].Times, Batch: is.Batch, Replicas: is.Replicas, Wait: stage.Wait, Central: stage.Central}
	}
	return all
}

// Check returns what is wrong with a problem, nil if nothing is.
func (p *Problem) Check() error {
	if err := p.Pipeline.Check(); err != nil {
		return err
	}
	if len(p.Stages) != p.Pipeline.Stages {
		return fmt.Errorf("%d stages say what they may have, of %d", len(p.Stages), p.Pipeline.Stages)
	}
	if !(p.Latency > 0) || math.IsInf(p.Latency, 0) || !(p.Share > 0 && p.Share <= 1) {
		return fmt.Errorf("the objective is %vs for a share of %v: want a time above 0, and a share above 0 and at most 1", p.Latency, p.Share)
	}
	if err := estimate.CheckArrivals(p.Arrivals); err != nil {
		return err
	}
	if len(p.Arrivals) < 2 || !(p.Arrivals[len(p.Arrivals)-1] > p.Arrivals[0]) {
		return errors.New("the trace has no two queries at different times")
	}
	for i := range p.Stages {
		if err := p.Stages[i].check(); err != nil {
			return fmt.Errorf("stage %d: %w", i, err)
		}
	}
	return nil
}

func (s *Stage) check() error {
	switch {
	case len(s.Hardware) == 0:
		return errors.New("it may run on no hardware")
	case s.MinReplicas < 1 || s.MaxReplicas != 0 && s.MaxReplicas < s.MinReplicas:
		return fmt.Errorf("it may have %d to %d replicas: want at least 1, and no more than the most", s.MinReplicas, s.MaxReplicas)
	}
	if err := estimate.CheckWait(s.Wait); err != nil {
		return err
	}
	for _, h := range s.Hardware {
		switch {
		case h.Times == nil:
			return fmt.Errorf("there is no profile for %s", h.Name)
		case !(h.Price > 0) || math.IsInf(h.Price, 0):
			return fmt.Errorf("%s costs %v: want a price above 0", h.Name, h.Price)
		case len(h.Batches) == 0 || h.Batches[0] < 1 || !slices.IsSorted(h.Batches) || len(slices.Compact(slices.Clone(h.Batches))) != len(h.Batches):
			return fmt.Errorf("batches on %s are %v: want sizes from 1 on, in order, each once", h.Name, h.Batches)
		case h.Batches[len(h.Batches)-1] > h.Times.MaxBatch():
			return fmt.Errorf("the profile for %s says nothing of batches above %d: leave out %d", h.Name, h.Times.MaxBatch(), h.Batches[len(h.Batches)-1])
		}
	}
	return nil
}

// Candidate is a configuration that was tried.
type Candidate struct {
	Config Config
	Cost   float64
	// Latency that the objective's share of the queries keeps.
	Latency float64
	// Keeps says that the objective is kept.
	Keeps bool
	// By says what led to it, such as "stage 1: remove a replica".
	By string
}

// Plan is what was found.
type Plan struct {
	// Found says that Candidate keeps the objective.
	Found bool
	Candidate
	// Optimal says that all that is cheaper was tried, or where nothing is found, that nothing keeps the objective.
	Optimal bool
	// Why nothing was found, in words for people.
	Why string
	// Tried are all whose whole latency was found out, in that order. Simulations counts these and those that were given up as soon as too many
	// queries had taken too long.
	Tried       []Candidate
	Simulations int
}

// search is what is known in a search for a plan.
type search struct {
	*Problem
	rate   float64   // of the trace, queries a second
	shares []float64 // of them, by stage
	known  map[string]Candidate
	broken map[string]bool // configurations that were given up
	plan   Plan
}

func newSearch(p *Problem) *search {
	n := len(p.Arrivals)
	return &search{
		Problem: p, rate: float64(n-1) / (p.Arrivals[n-1] - p.Arrivals[0]), shares: p.Pipeline.Shares(),
		known: make(map[string]Candidate), broken: make(map[string]bool),
	}
}

// try finds out the latency of a configuration.
func (s *search) try(c Config, by string) Candidate {
	key := fmt.Sprint(c)
	if is, known := s.known[key]; known {
		return is
	}
	all := make([]float64, 0, len(s.Arrivals))
	s.run(c, func(_ int, latency float64) bool {
		all = append(all, latency)
		return true
	})
	slices.Sort(all)
	is := Candidate{Config: slices.Clone(c), Cost: s.Cost(c), Latency: all[len(all)-1-s.Misses(len(all))], By: by}
	is.Keeps = is.Latency <= s.Latency
	s.known[key] = is
	s.plan.Tried = append(s.plan.Tried, is)
	return is
}

// keeps says whether a configuration keeps the objective: it gives up as soon as it does not.
func (s *search) keeps(c Config) bool {
	key := fmt.Sprint(c)
	if is, known := s.known[key]; known || s.broken[key] {
		return is.Keeps
	}
	misses, most := 0, s.Misses(len(s.Arrivals))
	s.run(c, func(_ int, latency float64) bool {
		if latency > s.Latency {
			misses++
		}
		return misses <= most
	})
	if misses > most {
		s.broken[key] = true
	}
	return misses <= most
}

func (s *search) run(c Config, done func(int, float64) bool) {
	s.plan.Simulations++
	if _, err := estimate.Run(s.Pipeline, s.Settings(c), s.Arrivals, s.Seed, done); err != nil {
		panic(err) // Check has found none
	}
}

// at is the hardware of a stage in a configuration.
func (s *search) at(c Config, stage int) *Hardware {
	return &s.Stages[stage].Hardware[c[stage].Hardware]
}

// throughput is how many queries of the pipeline a second a stage has room for: InferLine's k·μ/s.
func (s *search) throughput(c Config, stage int) float64 {
	return float64(c[stage].Replicas) * s.at(c, stage).Times.Throughput(c[stage].Batch) / s.shares[stage]
}

// full says that a stage has as many replicas as it may.
func (s *search) full(c Config, stage int) bool {
	most := s.Stages[stage].MaxReplicas
	return most != 0 && c[stage].Replicas >= most
}

// with is a configuration with another setting of a stage.
func with(c Config, stage int, is Setting) Config {
	other := slices.Clone(c)
	other[stage] = is
	return other
}
