package planner

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/headgate/headgate/control/provision/estimate"
)

// InferLine is the planner of the InferLine paper. It starts with the fastest hardware and batches
// of 1. Algorithm 1 adds replicas at the bottleneck until all objectives are met. Algorithm 2 then
// repeats the step that saves most while all objectives stay met. If replicas are bounded,
// InferLine may not find a plan although one exists. The problem must be valid ([Problem.Check]).
func InferLine(p *Problem) *Plan {
	s := newSearch(p)
	s.untilStopped(func() {
		first, why := s.initialize()
		if s.plan.Reason = why; why == "" {
			s.plan.Found, s.plan.Candidate = true, s.minimize(first)
		}
	})
	return &s.plan
}

// unloaded returns the mean latency of a single query.
func (h *Hardware) unloaded() float64 { return h.timing.MeanTime(1) }

// MinTime returns the shortest service time over all batch sizes. It returns 0 for an LLM engine,
// whose service time depends on the query.
func (h *Hardware) MinTime() float64 {
	if h.Times == nil {
		return 0
	}
	least := math.Inf(1)
	for size := 1; size <= h.Batches[len(h.Batches)-1]; size++ {
		least = min(least, h.Times.Time(size, 0))
	}
	return least
}

// initialize is Algorithm 1 of InferLine. It first checks whether unbounded replicas would meet the
// objectives. If it finds no configuration, why is the reason.
func (s *search) initialize() (is Candidate, why string) {
	c := s.start(least((*Hardware).unloaded))
	least := s.Pipeline.ServiceTime(func(stage int) float64 { return s.Stages[stage].GatewayOverhead + s.at(c, stage).MinTime() })
	for _, o := range s.Objectives {
		if certain := s.Pipeline.Certain(); o.Metric == Latency && certain && least >= o.Seconds {
			return is, fmt.Sprintf("a query that never waits takes %.4gs on the fastest hardware, and the objective is %.4gs", least,
				o.Seconds)
		}
	}
	if free := s.try(s.unbounded(c, -1), "one replica per query"); !free.Feasible {
		return is, "with one replica per query, " + s.missed(free)
	}
	if why := s.overloaded(); why != "" {
		return is, why
	}
	is = s.try(c, "the fastest hardware")
	for !is.Feasible {
		stage := s.bottleneck(is.Config, func(int) bool { return true })
		if s.full(is.Config, stage) || is.Config[stage].Replicas >= len(s.Queries) {
			return is, s.whyFull(is.Config, stage)
		}
		is = s.try(s.addReplica(is.Config, stage), fmt.Sprintf("stage %s: add a replica", s.name(stage)))
	}
	return is, ""
}

// overloaded describes a stage that cannot keep up with the arrival rate, even with its best
// hardware and the maximum number of replicas. It returns "" if there is no such stage.
func (s *search) overloaded() string {
	for i := range s.Stages {
		most, room := Config(nil), 0.0
		for h := range s.Stages[i].Hardware {
			n := s.maxReplicas(i, h)
			if n == 0 {
				n = len(s.Queries)
			}
			c := make(Config, len(s.Stages))
			c[i] = Setting{h, s.Stages[i].Hardware[h].bestBatch(), n}
			if is := s.capacity(c, i); is > room {
				most, room = c, is
			}
		}
		if room <= s.rate {
			return fmt.Sprintf("stage %s can serve at most %.4g queries/s, with %d replicas on %s, and %.4g arrive: its queue would keep growing",
				s.name(i), room, most[i].Replicas, s.at(most, i).Name, s.rate)
		}
	}
	return ""
}

// missed describes the objectives that a candidate misses.
func (s *search) missed(is Candidate) string {
	var all []string
	for i, o := range s.Objectives {
		if is.Values[i] > o.Seconds {
			all = append(all, fmt.Sprintf("the %v is %.4gs and the objective %.4gs", o.Metric, is.Values[i], o.Seconds))
		}
	}
	return strings.Join(all, "; ")
}

// whyFull describes why a stage cannot get another replica.
func (s *search) whyFull(c Config, stage int) string {
	why := fmt.Sprintf("stage %s is the bottleneck and has all of its %d replicas", s.name(stage), c[stage].Replicas)
	if kind := s.lacking(s.addReplica(c, stage)); kind != "" {
		why = fmt.Sprintf("stage %s is the bottleneck and there are only %d %s", s.name(stage), s.AtMost[kind], kind)
	}
	return why
}

// unbounded returns a copy of the configuration with unbounded replicas at the given stage, or at
// all stages if stage is -1.
func (s *search) unbounded(c Config, stage int) Config {
	free := slices.Clone(c)
	for i := range free {
		if stage < 0 || i == stage {
			free[i].Replicas = estimate.Unbounded
		}
	}
	return free
}

// bottleneck returns the stage with the lowest throughput among the stages for which the function
// may returns true. Ties go to the first stage. It returns -1 if there is no such stage.
func (s *search) bottleneck(c Config, may func(stage int) bool) int {
	stage := -1
	for i := range c {
		if may(i) && (stage < 0 || s.capacity(c, i) < s.capacity(c, stage)) {
			stage = i
		}
	}
	return stage
}

func (s *search) addReplica(c Config, stage int) Config {
	is := c[stage]
	is.Replicas++
	return with(c, stage, is)
}

// action is a step of Algorithm 2 that changes one stage. ok is false if the step is impossible.
type action func(s *search, from Candidate, stage int) (to Candidate, ok bool)

// withinStage returns the actions that keep the stage's hardware. The larger batch is listed first,
// so that it wins ties.
func withinStage() []action { return []action{(*search).increaseBatch, (*search).removeReplica} }

// allActions returns all actions of Algorithm 2.
func allActions() []action { return append(withinStage(), (*search).downgradeHardware) }

// minimize is Algorithm 2 of InferLine. In each round, it takes the feasible step that leads to the
// lowest cost. If no step lowers the cost, it increases a batch size at the same cost. It
// terminates because the cost falls, or a batch size grows up to a limit.
func (s *search) minimize(from Candidate) Candidate {
	stages := make([]int, len(s.Stages))
	for i := range stages {
		stages[i] = i
	}
	return s.minimizeAt(from, stages, allActions())
}

func (s *search) minimizeAt(from Candidate, stages []int, actions []action) Candidate {
	for {
		best, better := from, false
		for _, stage := range stages {
			for i, act := range actions {
				to, ok := act(s, from, stage)
				if !ok || !to.Feasible {
					continue
				}
				// A larger batch keeps the cost, so it is taken only if no step lowers the cost.
				if to.Cost < best.Cost || i == 0 && !better && to.Cost == from.Cost {
					best, better = to, true
				}
			}
		}
		if !better {
			return from
		}
		from = best
	}
}

// increaseBatch selects the next larger batch size if that has a higher throughput.
func (s *search) increaseBatch(from Candidate, stage int) (to Candidate, ok bool) {
	is, h := from.Config[stage], s.at(from.Config, stage)
	for _, size := range h.Batches {
		if size > is.Batch {
			if h.timing.Throughput(size) <= h.timing.Throughput(is.Batch) {
				return to, false
			}
			is.Batch = size
			return s.try(with(from.Config, stage, is), fmt.Sprintf("stage %s: batch %d", s.name(stage), size)), true
		}
	}
	return to, false
}

func (s *search) removeReplica(from Candidate, stage int) (to Candidate, ok bool) {
	is := from.Config[stage]
	if is.Replicas--; is.Replicas < s.Stages[stage].MinReplicas || !s.keepsUp(with(from.Config, stage, is)) {
		return to, false
	}
	return s.try(with(from.Config, stage, is), fmt.Sprintf("stage %s: remove a replica", s.name(stage))), true
}

// downgradeHardware moves a stage to the next cheaper hardware, and chooses its batch size and
// replicas again.
func (s *search) downgradeHardware(from Candidate, stage int) (to Candidate, ok bool) {
	all, price := s.Stages[stage].Hardware, s.at(from.Config, stage).Price
	cheaper := -1
	for i := range all {
		if all[i].Price < price && (cheaper < 0 || all[i].Price > all[cheaper].Price) {
			cheaper = i
		}
	}
	if cheaper < 0 {
		return to, false
	}
	return s.replan(from.Config, stage, cheaper)
}

// replan moves a stage to other hardware, and runs Algorithms 1 and 2 for this stage only.
func (s *search) replan(c Config, stage, hardware int) (is Candidate, ok bool) {
	h := &s.Stages[stage].Hardware[hardware]
	c = with(c, stage, Setting{hardware, h.Batches[0], s.Stages[stage].MinReplicas})
	step := fmt.Sprintf("stage %s: on %s", s.name(stage), h.Name)
	if !s.try(s.unbounded(c, stage), step+", one replica per query").Feasible {
		return is, false
	}
	if s.bisects {
		if c[stage].Replicas, ok = s.minReplicas(s.unbounded(c, stage), stage); !ok {
			return is, false
		}
	}
	for is = s.try(c, step); !is.Feasible; is = s.try(s.addReplica(is.Config, stage), step) {
		if s.full(is.Config, stage) || is.Config[stage].Replicas >= len(s.Queries) {
			return is, false
		}
	}
	return s.minimizeAt(is, []int{stage}, withinStage()), true
}
