package planner

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/headgate/headgate/control/provision/estimate"
)

// Strict is InferLine's planner: it begins with the fastest hardware and no batches, adds replicas where the throughput is least until the
// objective is kept (Algorithm 1), and then takes what saves most while it is, one action after the other (Algorithm 2). Where replicas are
// bounded it may find nothing though there is a plan. Problems are to be without faults ([Problem.Check]).
func Strict(p *Problem) *Plan {
	s := newSearch(p)
	s.unlessStopped(func() {
		first, why := s.initialize()
		if s.plan.Why = why; why == "" {
			s.plan.Found, s.plan.Candidate = true, s.minimize(first)
		}
	})
	return &s.plan
}

// one is the mean latency of a query alone.
func (h *Hardware) one() float64 { return h.pace.MeanTime(1) }

// Quickest is the least time that its model takes for a query, in whatever batch that may be; 0 of an engine, for there it depends on the query.
func (h *Hardware) Quickest() float64 {
	if h.Times == nil {
		return 0
	}
	least := math.Inf(1)
	for size := 1; size <= h.Batches[len(h.Batches)-1]; size++ {
		least = min(least, h.Times.Time(size, 0))
	}
	return least
}

// initialize is Algorithm 1. Before it adds replicas it asks whether there are enough of them at all.
func (s *search) initialize() (is Candidate, why string) {
	c := s.start(least((*Hardware).one))
	least := s.Pipeline.ServiceTime(func(stage int) float64 { return s.Stages[stage].Hop + s.at(c, stage).Quickest() })
	for _, o := range s.Objectives {
		if certain := s.Pipeline.Certain(); o.Of == Latency && certain && least >= o.Seconds {
			return is, fmt.Sprintf("a query that waits nowhere takes %.4gs on the fastest hardware, and is to take %.4gs", least, o.Seconds)
		}
	}
	if free := s.try(s.unbounded(c, -1), "as many replicas as there are queries"); !free.Keeps {
		return is, "with as many replicas as there are queries " + s.missed(free)
	}
	if why := s.overloaded(); why != "" {
		return is, why
	}
	is = s.try(c, "the fastest hardware")
	for !is.Keeps {
		narrow := s.narrowest(is.Config, func(int) bool { return true })
		if s.full(is.Config, narrow) || is.Config[narrow].Replicas >= len(s.Queries) {
			return is, s.bound(is.Config, narrow)
		}
		is = s.try(s.more(is.Config, narrow), fmt.Sprintf("stage %s: add a replica", s.name(narrow)))
	}
	return is, ""
}

// overloaded describes a stage that cannot keep up with the trace even in its largest configuration; empty if there is none.
func (s *search) overloaded() string {
	for i := range s.Stages {
		most, room := Config(nil), 0.0
		for h := range s.Stages[i].Hardware {
			n := s.most(i, h)
			if n == 0 {
				n = len(s.Queries)
			}
			c := make(Config, len(s.Stages))
			c[i] = Setting{h, s.Stages[i].Hardware[h].widest(), n}
			if is := s.room(c, i); is > room {
				most, room = c, is
			}
		}
		if room <= s.rate {
			return fmt.Sprintf("stage %s has room for %.4g queries a second with %d replicas of %s, which is the most, and %.4g come: they would wait longer and longer",
				s.name(i), room, most[i].Replicas, s.at(most, i).Name, s.rate)
		}
	}
	return ""
}

// missed says what is kept of the objectives that are not.
func (s *search) missed(is Candidate) string {
	var all []string
	for i, o := range s.Objectives {
		if is.Kept[i] > o.Seconds {
			all = append(all, fmt.Sprintf("a %v of %.4gs is kept, and %.4gs is wanted", o.Of, is.Kept[i], o.Seconds))
		}
	}
	return strings.Join(all, "; ")
}

// bound says why a stage has no further replica.
func (s *search) bound(c Config, stage int) string {
	why := fmt.Sprintf("stage %s has the least throughput, and all of its %d replicas", s.name(stage), c[stage].Replicas)
	if kind := s.short(s.more(c, stage)); kind != "" {
		why = fmt.Sprintf("stage %s has the least throughput, and there are no more than %d of %s", s.name(stage), s.AtMost[kind], kind)
	}
	return why
}

// unbounded is a configuration with replicas without bound, at one stage or, where it is -1, at each.
func (s *search) unbounded(c Config, stage int) Config {
	free := slices.Clone(c)
	for i := range free {
		if stage < 0 || i == stage {
			free[i].Replicas = estimate.Unbounded
		}
	}
	return free
}

// narrowest is the stage with the least throughput, of those that may be it; the first of several; -1 if there is none.
func (s *search) narrowest(c Config, may func(stage int) bool) int {
	narrow := -1
	for i := range c {
		if may(i) && (narrow < 0 || s.room(c, i) < s.room(c, narrow)) {
			narrow = i
		}
	}
	return narrow
}

func (s *search) more(c Config, stage int) Config {
	is := c[stage]
	is.Replicas++
	return with(c, stage, is)
}

// action is what one step of Algorithm 2 may do to a stage: ok is false where it cannot.
type action func(s *search, from Candidate, stage int) (to Candidate, ok bool)

// withinStage are the actions for a stage whose hardware is chosen, in the order in which they count where they save as much: a larger batch is
// the first.
func withinStage() []action { return []action{(*search).increaseBatch, (*search).removeReplica} }

// allActions are those of Algorithm 2.
func allActions() []action { return append(withinStage(), (*search).downgradeHardware) }

// minimize is Algorithm 2: of what keeps the objective it takes what costs least, and where that is as much as before a larger batch, until
// there is nothing. It ends: the cost falls, or it is the same and batches grow, of which there is a largest.
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
				if !ok || !to.Keeps {
					continue
				}
				// A larger batch costs the same: it is taken only where nothing is cheaper.
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

// increaseBatch takes the next larger batch, if a replica computes more queries a second by it.
func (s *search) increaseBatch(from Candidate, stage int) (to Candidate, ok bool) {
	is, h := from.Config[stage], s.at(from.Config, stage)
	for _, size := range h.Batches {
		if size > is.Batch {
			if h.pace.Throughput(size) <= h.pace.Throughput(is.Batch) {
				return to, false
			}
			is.Batch = size
			return s.try(with(from.Config, stage, is), fmt.Sprintf("stage %s: batches of %d", s.name(stage), size)), true
		}
	}
	return to, false
}

func (s *search) removeReplica(from Candidate, stage int) (to Candidate, ok bool) {
	is := from.Config[stage]
	if is.Replicas--; is.Replicas < s.Stages[stage].MinReplicas || !s.able(with(from.Config, stage, is)) {
		return to, false
	}
	return s.try(with(from.Config, stage, is), fmt.Sprintf("stage %s: remove a replica", s.name(stage))), true
}

// downgradeHardware takes the next cheaper hardware, and plans batch and replicas of this stage anew while the others stay as they are.
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

// replan finds batch and replicas of a stage on other hardware, by Algorithms 1 and 2 for it alone.
func (s *search) replan(c Config, stage, hardware int) (is Candidate, ok bool) {
	h := &s.Stages[stage].Hardware[hardware]
	c = with(c, stage, Setting{hardware, h.Batches[0], s.Stages[stage].MinReplicas})
	by := fmt.Sprintf("stage %s: on %s", s.name(stage), h.Name)
	if !s.try(s.unbounded(c, stage), by+", as many replicas as there are queries").Keeps {
		return is, false
	}
	if s.bisects {
		if c[stage].Replicas, ok = s.needs(s.unbounded(c, stage), stage); !ok {
			return is, false
		}
	}
	for is = s.try(c, by); !is.Keeps; is = s.try(s.more(is.Config, stage), by) {
		if s.full(is.Config, stage) || is.Config[stage].Replicas >= len(s.Queries) {
			return is, false
		}
	}
	return s.minimizeAt(is, []int{stage}, withinStage()), true
}
