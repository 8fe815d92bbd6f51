// Package planner chooses hardware, batch size and replicas for each stage of a pipeline. The
// chosen configuration meets the latency objectives of the queries at the lowest cost. The planner
// simulates a trace with each candidate configuration (package estimate). It is pure: equal
// arguments give equal plans.
//
// [InferLine] is the planner of InferLine (Crankshaw et al., SoCC 2020, Algorithms 1 and 2), as far
// as it is published. [Search] uses the same algorithms and then searches further.
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

// Problem is the input of a planner.
type Problem struct {
	Pipeline *estimate.Pipeline
	// Stages has one entry for each stage of the pipeline.
	Stages []Stage
	// Queries is the sample trace. Seed is the random seed of its simulation.
	Queries []estimate.Query
	Seed    uint64
	// Objectives are the latency objectives. A plan must meet all of them.
	Objectives []Objective
	// AtMost has the maximum number of units of each kind of hardware, such as GPUs (see
	// [Hardware.Units]). A kind without an entry is unbounded.
	AtMost map[string]int
	// ProofLimit is the maximum number of cheaper configurations that Search tries in order to
	// prove that a plan is optimal; 0 disables the proof.
	ProofLimit int
	// Progress is called after each simulation; it may be nil. If it returns false, the search
	// stops and returns the best plan so far.
	Progress func(simulations int, best Candidate) (goOn bool)
}

// Metric selects which time of a query an objective limits.
type Metric uint8

// The metrics are the fields of [estimate.QueryTimes].
const (
	Latency Metric = iota
	FirstToken
	PerToken
)

func (o Metric) String() string {
	return [...]string{"latency", "time to first token", "time per token"}[o]
}

// Of returns the value of the metric for a query. ok is false if the query has no such value: token
// metrics need an LLM on its path, and PerToken needs at least two output tokens.
func (o Metric) Of(t estimate.QueryTimes) (seconds float64, ok bool) {
	seconds = [...]float64{t.Latency, t.FirstToken, t.PerToken}[o]
	return seconds, o == Latency || seconds > 0
}

// Objective requires that a quantile of a metric is at most Seconds. Share selects the quantile:
// 0.99 is P99.
type Objective struct {
	Metric  Metric
	Seconds float64
	Share   float64
}

// Misses returns how many of n queries may take longer than Seconds if the objective is still met.
func (o Objective) Misses(n int) int { return max(0, min(n-1, int(float64(n)*(1-o.Share)+1e-9))) }

// Stage describes a stage of the pipeline and the settings that a planner may choose for it.
type Stage struct {
	// Name is the name of the stage in messages.
	Name     string
	Hardware []Hardware
	// MinReplicas and MaxReplicas bound the number of replicas. If MaxReplicas is 0, there is no
	// upper bound.
	MinReplicas, MaxReplicas int
	// Wait is the batching delay in seconds. If Ahead is true, batches fill even if no replica is
	// idle. If Central is true, all replicas share one queue. See [estimate.Setting].
	Wait           float64
	Ahead, Central bool
	// GatewayOverhead is the time in seconds that the gateway adds before a query reaches the
	// stage.
	GatewayOverhead float64
	// Startup is the time in seconds from requesting a new replica until it accepts queries.
	Startup float64
}

// Hardware is a kind of hardware on which a stage may run.
type Hardware struct {
	// Name is the kind of hardware. All stages on hardware of the same name share its units.
	Name string
	// Units is the number of units per replica, such as GPUs; 0 means 1.
	Units int
	// Price is the price of a replica per hour. It is above 0.
	Price float64
	// Times has the service times of batches. Engine is the profile of an LLM engine. Exactly one
	// of them is set.
	Times  *profile.Batches
	Engine *profile.Profile
	// Batches lists the permitted batch sizes in ascending order. For an LLM engine, a batch size
	// is the maximum number of concurrent requests.
	Batches []int

	timing timing
}

// timing provides the mean service time of a batch, and the throughput of a replica in queries per
// second.
type timing interface {
	MeanTime(size int) float64
	Throughput(size int) float64
}

// units returns the number of units per replica.
func (h *Hardware) units() int { return max(1, h.Units) }

// Setting is the setting of one stage: the index of its hardware in [Stage], its batch size and its
// number of replicas.
type Setting struct{ Hardware, Batch, Replicas int }

// Config is a configuration of the pipeline: the setting of each stage.
type Config []Setting

// Unbounded reports whether any stage has unbounded replicas. Such a configuration cannot be a
// plan; the search uses it to get bounds.
func (c Config) Unbounded() bool {
	return slices.ContainsFunc(c, func(is Setting) bool { return is.Replicas == estimate.Unbounded })
}

// Cost returns the cost of a configuration per hour.
func (p *Problem) Cost(c Config) float64 {
	cost := 0.0
	for s, is := range c {
		cost += p.Stages[s].Hardware[is.Hardware].Price * float64(is.Replicas)
	}
	return cost
}

// TrafficIntensity returns, for each stage, the arrival rate divided by the stage's throughput
// (InferLine's rho). If it is 1 or more, the queue keeps growing. It is 0 if there are as many
// replicas as queries.
func (p *Problem) TrafficIntensity(c Config) []float64 { return p.TrafficIntensities()(c) }

// TrafficIntensities returns a function like [Problem.TrafficIntensity]. The function is faster for
// many configurations, because it computes the throughput of each LLM engine only once.
func (p *Problem) TrafficIntensities() func(c Config) []float64 {
	s := newSearch(p)
	return func(c Config) []float64 {
		all := make([]float64, len(c))
		for i := range c {
			all[i] = s.rate / s.capacity(c, i)
		}
		return all
	}
}

// ServiceTimes returns two values for each stage: the throughput of one replica in queries per
// second (InferLine's mu), and the latency of a single query. For an LLM it uses the mean token
// counts.
func (p *Problem) ServiceTimes(c Config) (throughput, alone []float64) {
	timed := p.timed()
	for i, is := range c {
		pace := timed[i].Hardware[is.Hardware].timing
		throughput = append(throughput, pace.Throughput(is.Batch))
		alone = append(alone, pace.MeanTime(1))
	}
	return throughput, alone
}

// timed returns a copy of the stages. In the copy, the field timing is set for all hardware.
func (p *Problem) timed() []Stage {
	prompt, output := 0.0, 0.0 // mean numbers of prompt and output tokens per query
	for _, q := range p.Queries {
		prompt += float64(q.Prompt) / float64(len(p.Queries))
		output += float64(q.Output) / float64(len(p.Queries))
	}
	stages := slices.Clone(p.Stages)
	for i := range stages {
		stages[i].Hardware = slices.Clone(stages[i].Hardware)
		for j := range stages[i].Hardware {
			h := &stages[i].Hardware[j]
			if h.timing = h.Times; h.Engine != nil {
				h.timing = &tokens{h.Engine, p.Queries, prompt, output, make(map[int]float64)}
			}
		}
	}
	return stages
}

// Tokens reports whether any stage is an LLM.
func (p *Problem) Tokens() bool {
	return slices.ContainsFunc(p.Stages, func(s Stage) bool { return s.Hardware[0].Engine != nil })
}

// WorstRatio returns the largest ratio of a value to its objective. The values are those of
// [Candidate.Values]. A ratio above 1 means that an objective is missed.
func (p *Problem) WorstRatio(kept []float64) (most float64) {
	for i, o := range p.Objectives {
		most = max(most, kept[i]/o.Seconds)
	}
	return most
}

// UnitsUsed returns how many units of each kind of hardware a configuration uses. Stages with
// unbounded replicas are not included.
func (p *Problem) UnitsUsed(c Config) map[string]int {
	units := make(map[string]int)
	for i, is := range c {
		if h := &p.Stages[i].Hardware[is.Hardware]; is.Replicas != estimate.Unbounded {
			units[h.Name] += is.Replicas * h.units()
		}
	}
	return units
}

// InBounds reports whether a configuration respects the bounds on replicas and on hardware units.
func (p *Problem) InBounds(c Config) bool {
	s := search{Problem: p}
	return s.inBounds(c)
}

// Settings converts a configuration to the settings for [estimate.Run].
func (p *Problem) Settings(c Config) []estimate.Setting {
	all := make([]estimate.Setting, len(c))
	for s, is := range c {
		stage := &p.Stages[s]
		h := &stage.Hardware[is.Hardware]
		all[s] = estimate.Setting{Batch: is.Batch, Replicas: is.Replicas, GatewayOverhead: stage.GatewayOverhead, Startup: stage.Startup}
		if h.Engine != nil {
			all[s].Engine = h.Engine
			continue
		}
		all[s].Times, all[s].Wait, all[s].Ahead, all[s].Central = h.Times, stage.Wait, stage.Ahead, stage.Central
	}
	return all
}

// Check returns an error if the problem is invalid.
func (p *Problem) Check() error {
	if err := p.Pipeline.Check(); err != nil {
		return err
	}
	if len(p.Stages) != p.Pipeline.Stages {
		return fmt.Errorf("there are choices for %d of %d stages", len(p.Stages), p.Pipeline.Stages)
	}
	if len(p.Objectives) == 0 {
		return errors.New("there is no objective")
	}
	for _, o := range p.Objectives {
		if !(o.Seconds > 0) || math.IsInf(o.Seconds, 0) || !(o.Share > 0 && o.Share <= 1) {
			return fmt.Errorf("the objective is a %v of %vs for a share of %v: want a time above 0, and a share above 0 up to 1", o.Metric,
				o.Seconds, o.Share)
		}
	}
	if err := estimate.CheckQueries(p.Queries); err != nil {
		return err
	}
	if len(p.Queries) < 2 || !(p.Queries[len(p.Queries)-1].At > p.Queries[0].At) {
		return errors.New("the trace needs two queries at different times")
	}
	for i := range p.Stages {
		if err := p.Stages[i].check(p.Queries); err != nil {
			return fmt.Errorf("stage %s: %w", p.name(i), err)
		}
	}
	return nil
}

// name returns the name of a stage, or its number if it has none.
func (p *Problem) name(stage int) string { return cmp.Or(p.Stages[stage].Name, strconv.Itoa(stage)) }

func (s *Stage) check(queries []estimate.Query) error {
	switch {
	case len(s.Hardware) == 0:
		return errors.New("it has no hardware")
	case s.MinReplicas < 1 || s.MaxReplicas != 0 && s.MaxReplicas < s.MinReplicas:
		return fmt.Errorf("replicas are %d to %d: want at least 1, and no more than the maximum", s.MinReplicas, s.MaxReplicas)
	}
	if err := estimate.CheckTimes(s.Wait, s.GatewayOverhead, s.Startup); err != nil {
		return err
	}
	for _, h := range s.Hardware {
		switch {
		case (h.Times == nil) == (h.Engine == nil):
			return fmt.Errorf("want exactly one profile for %s", h.Name)
		case h.Units < 0:
			return fmt.Errorf("a replica has %d units of %s", h.Units, h.Name)
		case !(h.Price > 0) || math.IsInf(h.Price, 0):
			return fmt.Errorf("%s costs %v: want a price above 0", h.Name, h.Price)
		case len(h.Batches) == 0 || h.Batches[0] < 1 || !slices.IsSorted(h.Batches) ||
			len(slices.Compact(slices.Clone(h.Batches))) != len(h.Batches):
			return fmt.Errorf("batches on %s are %v: want ascending sizes from 1 on", h.Name, h.Batches)
		case h.Times != nil && h.Batches[len(h.Batches)-1] > h.Times.MaxBatch():
			return fmt.Errorf("the profile for %s has no batches above %d: leave out %d", h.Name, h.Times.MaxBatch(),
				h.Batches[len(h.Batches)-1])
		}
		if h.Engine != nil {
			if err := estimate.CheckTokens(queries, h.Engine); err != nil {
				return fmt.Errorf("on %s: %w", h.Name, err)
			}
		}
	}
	return nil
}

// Candidate is a configuration that was simulated.
type Candidate struct {
	Config Config
	Cost   float64
	// Values has, for each objective, the quantile that was reached, in seconds.
	Values []float64
	// Feasible is true if the candidate meets all objectives and respects all bounds.
	Feasible bool
	// Step is the search step that led to this candidate, such as "stage 1: remove a replica".
	Step string
}

// Plan is the result of a planner.
type Plan struct {
	// Found is true if there is a plan: Candidate is then feasible.
	Found bool
	Candidate
	// Optimal is true if every cheaper configuration was tried. If no plan was found, it is true if
	// every configuration was tried.
	Optimal bool
	// Reason says why no plan was found.
	Reason string
	// Stopped is true if the callback Progress stopped the search.
	Stopped bool
	// Tried lists the candidates that were simulated to the end, in order. Simulations is the
	// number of all simulations, including those that stopped early because too many queries missed
	// an objective.
	Tried       []Candidate
	Simulations int
}
