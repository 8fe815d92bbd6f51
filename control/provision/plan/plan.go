// Package plan finds what hardware, batch and replicas each stage of a pipeline is to have so that its queries keep objectives at the least
// cost, by rolling a trace on with each candidate (package estimate). It is pure: equal arguments give equal plans.
//
// [Strict] is InferLine's planner (Crankshaw et al., SoCC 2020, Algorithms 1 and 2), as far as it is known; [Mended] goes on where that stops.
package plan

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

// In is that time of what a query took.
func (o Of) In(t estimate.Took) float64 { return [...]float64{t.Latency, t.FirstToken, t.PerToken}[o] }

// Objective is a time in seconds that a share of the queries, such as 0.99, must keep.
type Objective struct {
	Of      Of
	Seconds float64
	Share   float64
}

// Misses is how many of n queries may take longer.
func (o Objective) Misses(n int) int { return min(n-1, int(float64(n)*(1-o.Share)+1e-9)) }

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

// Setting is what one stage has: its hardware, by number, the size of its batches, and replicas.
type Setting struct{ Hardware, Batch, Replicas int }

// Config is the setting of each stage.
type Config []Setting

// Timetable is a configuration whose replicas change as queries come, by stage.
type Timetable struct {
	Config  Config
	Changes [][]estimate.Change
}

// Steady is a configuration whose replicas stay.
func Steady(c Config) *Timetable { return &Timetable{c, make([][]estimate.Change, len(c))} }

// From is the same from a time in seconds on, which is 0 then.
func (t *Timetable) From(at float64) *Timetable {
	is := Steady(slices.Clone(t.Config))
	for s, all := range t.Changes {
		for _, c := range all {
			if c.At < at {
				is.Config[s].Replicas = c.Replicas
				continue
			}
			c.At -= at
			is.Changes[s] = append(is.Changes[s], c)
		}
	}
	return is
}

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

// Scheduled are those of a configuration whose replicas change.
func (p *Problem) Scheduled(t *Timetable) []estimate.Setting {
	all := p.Settings(t.Config)
	for s, changes := range t.Changes {
		all[s].Changes = changes
	}
	return all
}

// Within returns an error where replicas change after the last query has come, at a time in seconds.
func (p *Problem) Within(t *Timetable, last float64) error {
	for s, all := range t.Changes {
		if n := len(all); n > 0 && all[n-1].At > last {
			return fmt.Errorf("replicas of %s change after %.4gs, and the last query comes after %.4gs", p.Stages[s].Name, all[n-1].At, last)
		}
	}
	return nil
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

// search is what is known in a search for a plan.
type search struct {
	*Problem
	rate   float64   // of the trace, queries a second
	shares []float64 // of them, by stage
	known  map[string]Candidate
	broken map[string]bool // configurations that were given up
	// bisects says that the least number of replicas of a stage alone is found by halves, and not one by one.
	bisects bool
	best    Candidate // the cheapest that keeps the objectives, of those that were tried
	plan    Plan
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
				h.pace = tokens{h.Engine, prompt, output}
			}
		}
	}
	return stages
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
			all[i] = append(all[i], o.Of.In(took))
		}
		return true
	})
	is := Candidate{Config: slices.Clone(c), Cost: s.Cost(c), Keeps: s.fits(c), By: by}
	for i, o := range s.Objectives {
		slices.Sort(all[i])
		kept := all[i][len(all[i])-1-o.Misses(len(all[i]))]
		is.Kept = append(is.Kept, kept)
	}
	is.Keeps = is.Keeps && s.met(is)
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

// keeps says whether a configuration keeps the objectives: it gives up as soon as it does not.
func (s *search) keeps(c Config) bool {
	key := fmt.Sprint(c)
	if is, known := s.known[key]; known || s.broken[key] {
		return is.Keeps
	}
	if !s.fits(c) {
		return false
	}
	left := make([]int, len(s.Objectives)) // how many may still miss
	for i, o := range s.Objectives {
		left[i] = o.Misses(len(s.Queries))
	}
	kept := true
	s.run(c, func(_ int, took estimate.Took) bool {
		for i, o := range s.Objectives {
			if o.Of.In(took) > o.Seconds {
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
				s.plan.Why = "nothing was found until the search was stopped"
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

// units that a replica takes.
func (h *Hardware) units() int { return max(1, h.Units) }

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
