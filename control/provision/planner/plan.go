// Package planner finds what hardware, batch and replicas each stage of a pipeline is to have so that its queries keep objectives at the least
// cost, by rolling a trace on with each candidate (package estimate). It is pure: equal arguments give equal plans.
//
// [Strict] is InferLine's planner (Crankshaw et al., SoCC 2020, Algorithms 1 and 2), as far as it is known; [Mended] goes on where that stops.
package planner

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/internal/profile"
)

// Problem is what is to be planned.
type Problem struct {
	Pipeline *estimate.Pipeline
	// Stages, one for each of the pipeline's.
	Stages []Stage
	// Queries of the sample trace, and the seed of its chances.
	Queries []estimate.Query
	Seed    uint64
	// Objectives that are to be kept, each of them.
	Objectives []Objective
	// AtMost is how many units there are of a kind of hardware, such as GPUs: see [Hardware.Units]. There is no bound on kinds that are not in it.
	AtMost map[string]int
	// Most is how many configurations are tried one by one, by rising cost, to prove that none is cheaper; 0 for none.
	Most int
	// Told is called with what is known after each simulation, and says whether to go on; nil if nobody wants to know. Who stops gets the best plan
	// so far.
	Told func(simulations int, best Candidate) (goOn bool)
}

// Of is which time of a query an objective is for.
type Of uint8

// Times of queries, as [estimate.Took] has them.
const (
	Latency Of = iota
	FirstToken
	PerToken
)

func (o Of) String() string {
	return [...]string{"latency", "time to first token", "time per token"}[o]
}

// In is that time of what a query took, and whether it has one: there are no tokens where it passes no LLM, and no time per token of one token.
func (o Of) In(t estimate.Took) (seconds float64, has bool) {
	seconds = [...]float64{t.Latency, t.FirstToken, t.PerToken}[o]
	return seconds, o == Latency || seconds > 0
}

// Objective is a time in seconds that a share of the queries that have it, such as 0.99, must keep.
type Objective struct {
	Of      Of
	Seconds float64
	Share   float64
}

// Misses is how many of n queries may take longer.
func (o Objective) Misses(n int) int { return max(0, min(n-1, int(float64(n)*(1-o.Share)+1e-9))) }

// Stage is what a stage may have.
type Stage struct {
	// Name, for people.
	Name     string
	Hardware []Hardware
	// Least and most replicas; a most of 0 is no bound.
	MinReplicas, MaxReplicas int
	// Wait is how long queries may wait for a batch to fill, in seconds, Ahead says that batches fill whether or not a replica is free, and
	// Central that queries wait in one queue: see [estimate.Setting].
	Wait           float64
	Ahead, Central bool
	// Hop is how long a query is on its way to the stage, in seconds.
	Hop float64
	// Startup is how long a replica takes to start that comes while queries do, in seconds.
	Startup float64
}

// Hardware is one kind that a stage may run on.
type Hardware struct {
	// Name is the kind: stages that run on the same share what there is of it.
	Name string
	// Units that a replica takes of the kind, such as GPUs; 0 is 1.
	Units int
	// Price of a replica, an hour, above 0.
	Price float64
	// Times of the stage's model there, or Engine, if it is an LLM.
	Times  *profile.Batches
	Engine *profile.Profile
	// Batches are the sizes that may be set, in order: of an engine what it has running at once.
	Batches []int

	pace pace
}

// pace is how long a model takes for batches of a size, and how many queries a second a replica computes by them.
type pace interface {
	MeanTime(size int) float64
	Throughput(size int) float64
}

// units that a replica takes.
func (h *Hardware) units() int { return max(1, h.Units) }

// Setting is what one stage has: its hardware, by number, the size of its batches, and replicas.
type Setting struct{ Hardware, Batch, Replicas int }

// Config is the setting of each stage.
type Config []Setting

// Unbounded says that a stage has replicas without bound: such a configuration says what they would bring, and nobody can have it.
func (c Config) Unbounded() bool {
	return slices.ContainsFunc(c, func(is Setting) bool { return is.Replicas == estimate.Unbounded })
}

// Cost of a configuration, an hour.
func (p *Problem) Cost(c Config) float64 {
	cost := 0.0
	for s, is := range c {
		cost += p.Stages[s].Hardware[is.Hardware].Price * float64(is.Replicas)
	}
	return cost
}

// Utilization is what share of its room each stage needs for the queries of the trace (InferLine's ρ): where it is 1 or more, they wait longer and
// longer. It is 0 where there are as many replicas as queries.
func (p *Problem) Utilization(c Config) []float64 { return p.Utilizations()(c) }

// Utilizations returns [Problem.Utilization] for many configurations: the throughput of LLM engines is computed only once.
func (p *Problem) Utilizations() func(c Config) []float64 {
	s := newSearch(p)
	return func(c Config) []float64 {
		all := make([]float64, len(c))
		for i := range c {
			all[i] = s.rate / s.room(c, i)
		}
		return all
	}
}

// Pace is how many queries a second a replica of each stage computes (InferLine's μ), and how long each takes alone, by their mean tokens if it is
// an LLM.
func (p *Problem) Pace(c Config) (throughput, alone []float64) {
	paced := p.paced()
	for i, is := range c {
		pace := paced[i].Hardware[is.Hardware].pace
		throughput = append(throughput, pace.Throughput(is.Batch))
		alone = append(alone, pace.MeanTime(1))
	}
	return throughput, alone
}

// paced are the stages, of whose hardware the pace is known.
func (p *Problem) paced() []Stage {
	prompt, output := 0.0, 0.0 // tokens of a query, in the mean
	for _, q := range p.Queries {
		prompt += float64(q.Prompt) / float64(len(p.Queries))
		output += float64(q.Output) / float64(len(p.Queries))
	}
	stages := slices.Clone(p.Stages)
	for i := range stages {
		stages[i].Hardware = slices.Clone(stages[i].Hardware)
		for j := range stages[i].Hardware {
			h := &stages[i].Hardware[j]
			if h.pace = h.Times; h.Engine != nil {
				h.pace = &tokens{h.Engine, p.Queries, prompt, output, make(map[int]float64)}
			}
		}
	}
	return stages
}

// Tokens says whether a stage is an LLM.
func (p *Problem) Tokens() bool {
	return slices.ContainsFunc(p.Stages, func(s Stage) bool { return s.Hardware[0].Engine != nil })
}

// Strain is by what share of its time the objective is kept that is nearest to being missed, of times as [Candidate.Kept] has them: above 1 it is
// missed.
func (p *Problem) Strain(kept []float64) (most float64) {
	for i, o := range p.Objectives {
		most = max(most, kept[i]/o.Seconds)
	}
	return most
}

// Taken is how many units of each kind of hardware a configuration takes. Replicas without bound take nothing.
func (p *Problem) Taken(c Config) map[string]int {
	units := make(map[string]int)
	for i, is := range c {
		if h := &p.Stages[i].Hardware[is.Hardware]; is.Replicas != estimate.Unbounded {
			units[h.Name] += is.Replicas * h.units()
		}
	}
	return units
}

// Fits says whether a configuration has no more replicas than it may, and no more hardware than there is.
func (p *Problem) Fits(c Config) bool {
	s := search{Problem: p}
	return s.fits(c)
}

// Settings are what an estimate has each stage of a configuration have.
func (p *Problem) Settings(c Config) []estimate.Setting {
	all := make([]estimate.Setting, len(c))
	for s, is := range c {
		stage := &p.Stages[s]
		h := &stage.Hardware[is.Hardware]
		all[s] = estimate.Setting{Batch: is.Batch, Replicas: is.Replicas, Hop: stage.Hop, Startup: stage.Startup}
		if h.Engine != nil {
			all[s].Engine = h.Engine
			continue
		}
		all[s].Times, all[s].Wait, all[s].Ahead, all[s].Central = h.Times, stage.Wait, stage.Ahead, stage.Central
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
	if len(p.Objectives) == 0 {
		return errors.New("there is no objective")
	}
	for _, o := range p.Objectives {
		if !(o.Seconds > 0) || math.IsInf(o.Seconds, 0) || !(o.Share > 0 && o.Share <= 1) {
			return fmt.Errorf("the objective is a %v of %vs for a share of %v: want a time above 0, and a share above 0 and at most 1", o.Of, o.Seconds, o.Share)
		}
	}
	if err := estimate.CheckQueries(p.Queries); err != nil {
		return err
	}
	if len(p.Queries) < 2 || !(p.Queries[len(p.Queries)-1].At > p.Queries[0].At) {
		return errors.New("the trace has no two queries at different times")
	}
	for i := range p.Stages {
		if err := p.Stages[i].check(p.Queries); err != nil {
			return fmt.Errorf("stage %s: %w", p.name(i), err)
		}
	}
	return nil
}

// name of a stage: its number, where it has none.
func (p *Problem) name(stage int) string { return cmp.Or(p.Stages[stage].Name, strconv.Itoa(stage)) }

func (s *Stage) check(queries []estimate.Query) error {
	switch {
	case len(s.Hardware) == 0:
		return errors.New("it may run on no hardware")
	case s.MinReplicas < 1 || s.MaxReplicas != 0 && s.MaxReplicas < s.MinReplicas:
		return fmt.Errorf("it may have %d to %d replicas: want at least 1, and no more than the most", s.MinReplicas, s.MaxReplicas)
	}
	if err := estimate.CheckTimes(s.Wait, s.Hop, s.Startup); err != nil {
		return err
	}
	for _, h := range s.Hardware {
		switch {
		case (h.Times == nil) == (h.Engine == nil):
			return fmt.Errorf("there is no profile for %s, or there are two", h.Name)
		case h.Units < 0:
			return fmt.Errorf("a replica takes %d units of %s", h.Units, h.Name)
		case !(h.Price > 0) || math.IsInf(h.Price, 0):
			return fmt.Errorf("%s costs %v: want a price above 0", h.Name, h.Price)
		case len(h.Batches) == 0 || h.Batches[0] < 1 || !slices.IsSorted(h.Batches) || len(slices.Compact(slices.Clone(h.Batches))) != len(h.Batches):
			return fmt.Errorf("batches on %s are %v: want sizes from 1 on, in order, each once", h.Name, h.Batches)
		case h.Times != nil && h.Batches[len(h.Batches)-1] > h.Times.MaxBatch():
			return fmt.Errorf("the profile for %s says nothing of batches above %d: leave out %d", h.Name, h.Times.MaxBatch(), h.Batches[len(h.Batches)-1])
		}
		if h.Engine != nil {
			if err := estimate.CheckTokens(queries, h.Engine); err != nil {
				return fmt.Errorf("on %s: %w", h.Name, err)
			}
		}
	}
	return nil
}

// Candidate is a configuration that was tried.
type Candidate struct {
	Config Config
	Cost   float64
	// Kept are the times that the share of each objective keeps, in order of objectives.
	Kept []float64
	// Keeps says that each objective is kept, and that there is as much hardware.
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
	// Stopped says that who looks on wanted no more.
	Stopped bool
	// Tried are all whose whole latency was found out, in that order. Simulations counts these and those that were given up as soon as too many
	// queries had taken too long.
	Tried       []Candidate
	Simulations int
}
