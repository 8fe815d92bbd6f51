package planner

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"slices"

	"github.com/headgate/headgate/control/provision/estimate"
)

// Search is a planner that does a local search, followed by a proof. It improves several initial
// configurations in small steps. It then tries all settings of each pair of stages, by rising cost.
// At last, if there are at most ProofLimit cheaper configurations, it tries all of them: the
// resulting plan is optimal.
func Search(p *Problem) *Plan {
	s := newSearch(p)
	s.untilStopped(s.search)
	return &s.plan
}

func (s *search) search() {
	s.bisects = true
	var best Candidate
	take := func(is Candidate) {
		if is.Feasible && (!best.Feasible || is.Cost < best.Cost || is.Cost == best.Cost &&
			s.WorstRatio(is.Values) < s.WorstRatio(best.Values)) {
			best = is
		}
	}
	var all []Candidate // feasible candidates, cheapest first, so that an early stop returns a good plan
	for _, start := range s.starts() {
		if is, ok := s.addCapacity(start); ok {
			all = append(all, s.minimize(is))
		}
	}
	slices.SortStableFunc(all, func(a, b Candidate) int { return cmp.Compare(a.Cost, b.Cost) })
	for _, is := range all {
		take(s.pairs(is)) // simulation results are cached
	}
	if s.ProofLimit > 0 {
		is, done := s.exhaustive(best)
		take(is)
		s.plan.Optimal = done
	}
	s.plan.Found, s.plan.Candidate = best.Feasible, best
	if !best.Feasible {
		s.plan.Reason = s.reason()
	}
}

// reason returns why no plan was found.
func (s *search) reason() string {
	free := s.try(s.unbounded(s.start(least((*Hardware).unloaded)), -1), "one replica per query")
	overloaded := s.overloaded()
	switch {
	case free.Feasible && overloaded != "":
		return overloaded
	case s.plan.Optimal:
		return "no configuration meets the objectives: all were tried"
	case !free.Feasible:
		return "with one replica per query on the fastest hardware, " + s.missed(free)
	}
	return "no plan was found, and not every configuration was tried"
}

// starts returns the initial configurations of the search. In some of them, all stages use the
// fastest hardware, the cheapest hardware, or the hardware with the highest throughput per price.
// Their batches are either the smallest or those with the highest throughput. In the other
// configurations, one stage uses other hardware than the fastest.
func (s *search) starts() (all []Config) {
	add := func(c Config) {
		if !slices.ContainsFunc(all, func(other Config) bool { return slices.Equal(c, other) }) {
			all = append(all, c)
		}
	}
	fastest := s.start(least((*Hardware).unloaded))
	add(fastest)
	add(s.start(least(func(h *Hardware) float64 { return h.Price })))
	for _, c := range []Config{fastest, s.start(least(func(h *Hardware) float64 { return h.Price / h.timing.Throughput(h.bestBatch()) }))} {
		add(c)
		wide := slices.Clone(c)
		for i := range wide {
			wide[i].Batch = s.at(c, i).bestBatch()
		}
		add(wide)
	}
	for i := range s.Stages {
		for h := range s.Stages[i].Hardware {
			add(with(fastest, i, Setting{h, s.Stages[i].Hardware[h].Batches[0], s.Stages[i].MinReplicas}))
		}
	}
	return all
}

// bestBatch returns the batch size with the highest throughput. Ties go to the smallest.
func (h *Hardware) bestBatch() int {
	return slices.MaxFunc(h.Batches, func(a, b int) int {
		return cmp.Or(cmp.Compare(h.timing.Throughput(a), h.timing.Throughput(b)), cmp.Compare(b, a))
	})
}

// start returns a configuration with the smallest batch sizes and the fewest replicas. The function
// on chooses the hardware of each stage.
func (s *search) start(on func(*Stage) (hardware int)) Config {
	c := make(Config, len(s.Stages))
	for i := range s.Stages {
		is := &s.Stages[i]
		h := on(is)
		c[i] = Setting{h, is.Hardware[h].Batches[0], is.MinReplicas}
	}
	return c
}

// least returns a function that chooses the hardware of a stage with the lowest value. The function
// of returns the value of each hardware. Ties go to the cheapest hardware, then to the first.
func least(of func(*Hardware) float64) func(*Stage) int {
	return func(s *Stage) int {
		best := 0
		for i := range s.Hardware {
			h, b := &s.Hardware[i], &s.Hardware[best]
			if cmp.Or(cmp.Compare(of(h), of(b)), cmp.Compare(h.Price, b.Price)) < 0 {
				best = i
			}
		}
		return best
	}
}

// addCapacity adds replicas at the bottleneck until all objectives are met. If no number of
// replicas would be enough, it increases the batch size of the bottleneck instead.
func (s *search) addCapacity(c Config) (is Candidate, ok bool) {
	c = slices.Clone(c)
	for i := range c {
		if n := s.minKeepUp(c, i); n > c[i].Replicas {
			if most := s.maxReplicas(i, c[i].Hardware); most != 0 {
				n = min(n, most)
			}
			c[i].Replicas = n
		}
	}
	is = s.try(c, "start")
	for !is.Feasible {
		most := s.try(s.maxConfig(is.Config), "maximum replicas")
		enough := s.meets(most) && s.keepsUp(most.Config) && slices.Max(replicas(is.Config)) < len(s.Queries)
		stage := s.bottleneck(is.Config, func(stage int) bool {
			if enough {
				return !s.full(is.Config, stage)
			}
			_, can := s.increaseBatch(is, stage)
			return can
		})
		switch {
		case stage < 0:
			return is, false
		case enough:
			is = s.try(s.addReplica(is.Config, stage), fmt.Sprintf("stage %s: add a replica", s.name(stage)))
		default:
			is, _ = s.increaseBatch(is, stage)
		}
	}
	return is, true
}

// replicas returns the number of replicas of each stage.
func replicas(c Config) (all []int) {
	for _, is := range c {
		all = append(all, is.Replicas)
	}
	return all
}

// maxConfig returns the configuration with as many replicas at each stage as the bounds permit. If
// a stage cannot get another replica, its number of replicas does not change, because other stages
// may use its hardware.
func (s *search) maxConfig(c Config) Config {
	all := s.unbounded(c, -1)
	for i := range all {
		if s.full(c, i) {
			all[i].Replicas = c[i].Replicas
			continue
		}
		if most := s.maxReplicas(i, all[i].Hardware); most != 0 {
			all[i].Replicas = most
		}
	}
	return all
}

// maxReplicas returns the maximum number of replicas of a stage on the given hardware; 0 if there
// is no bound.
func (s *search) maxReplicas(stage, hardware int) int {
	is := &s.Stages[stage]
	most, h := is.MaxReplicas, &is.Hardware[hardware]
	if units, bounded := s.AtMost[h.Name]; bounded {
		if there := max(1, units/h.units()); most == 0 || there < most {
			most = there
		}
	}
	return most
}

// option is a possible setting of a stage, with its cost per hour.
type option struct {
	Setting
	cost float64
}

// options returns all settings of a stage whose cost does not exceed most, by rising cost. It omits
// settings that cannot keep up with the arrival rate.
func (s *search) options(stage int, most float64) (all []option) {
	is := &s.Stages[stage]
	for h := range is.Hardware {
		if s.tooSlow(stage, h) {
			continue
		}
		for _, size := range is.Hardware[h].Batches {
			c := make(Config, len(s.Stages))
			c[stage] = Setting{h, size, 1}
			first, bound := s.minKeepUp(c, stage), s.maxReplicas(stage, h)
			if bound == 0 {
				bound = max(first, len(s.Queries)) // more replicas than queries have no benefit
			}
			for n := first; n <= bound; n++ {
				cost := is.Hardware[h].Price * float64(n)
				if cost > most {
					break
				}
				all = append(all, option{Setting{h, size, n}, cost})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b option) int { return cmp.Compare(a.cost, b.cost) })
	return all
}

// tooSlow reports whether a stage on the given hardware makes an objective impossible: even the
// shortest service time exceeds the objective, and more queries pass the stage than may miss the
// objective.
func (s *search) tooSlow(stage, hardware int) bool {
	least := s.Stages[stage].Hardware[hardware].MinTime()
	return slices.ContainsFunc(s.Objectives, func(o Objective) bool {
		// A stage may get slightly fewer queries of the trace than its expected share.
		return o.Metric == Latency && least > o.Seconds && s.shares[stage] > 2*(1-o.Share)+0.01
	})
}

// pairs tries all settings of every two stages, by rising cost. It repeats this until no two stages
// have cheaper feasible settings. If the pipeline has a single stage, it tries the settings of that
// stage.
func (s *search) pairs(best Candidate) Candidate {
	for again := true; again; {
		again = false
		for a := range s.Stages {
			for b := a; b < len(s.Stages); b++ {
				if a == b && len(s.Stages) > 1 {
					continue
				}
				if is, found := s.pair(best, a, b); found {
					best, again = is, true
				}
			}
		}
	}
	return best
}

func (s *search) pair(best Candidate, a, b int) (is Candidate, found bool) {
	stages := []int{a, b}
	if a == b {
		stages = stages[:1]
	}
	others := best.Cost
	for _, stage := range stages {
		others -= s.Stages[stage].Hardware[best.Config[stage].Hardware].Price * float64(best.Config[stage].Replicas)
	}
	var lists [][]option
	for _, stage := range stages {
		lists = append(lists, s.options(stage, best.Cost-others))
	}
	least, many := make(map[string][]int), len(lists) == 1 || len(lists[0])*len(lists[1]) > manySettings
	s.byRisingCost(lists, func(at []int, _ float64) bool {
		c := slices.Clone(best.Config)
		for i, stage := range stages {
			c[stage] = lists[i][at[i]].Setting
		}
		if !cheaper(s.Cost(c), best.Cost) {
			return false
		}
		if found = s.keepsUp(c) && (!many || s.enoughReplicas(c, stages, least)) && s.feasible(c); found {
			is = s.try(c, fmt.Sprintf("all settings of stages %v", stages))
		}
		return !found
	})
	return is, found
}

// manySettings limits how many combined settings of two stages are all simulated. If there are
// more, the search first finds the fewest replicas that each stage needs.
const manySettings = 4096

// enoughReplicas reports whether each of the stages has at least the replicas that it needs if the
// other given stages have unbounded replicas. It caches these minimums in least. It assumes that
// more replicas never make a configuration infeasible, which is nearly always true.
func (s *search) enoughReplicas(c Config, stages []int, least map[string][]int) bool {
	free := slices.Clone(c)
	for _, stage := range stages {
		free[stage].Replicas = estimate.Unbounded
	}
	kind := fmt.Sprint(free)
	needs, known := least[kind]
	if !known {
		if s.feasible(free) {
			for _, stage := range stages {
				n, ok := s.minReplicas(free, stage)
				if !ok {
					needs = nil
					break
				}
				needs = append(needs, n)
			}
		}
		least[kind] = needs
	}
	for i, stage := range stages {
		if needs == nil || c[stage].Replicas < needs[i] {
			return false
		}
	}
	return true
}

// minReplicas returns the smallest number of replicas of a stage for which the configuration is
// feasible. The configuration must be feasible with unbounded replicas of the stage. ok is false if
// the bounds permit too few replicas.
func (s *search) minReplicas(c Config, stage int) (n int, ok bool) {
	keeps := func(n int) bool {
		is := c[stage]
		is.Replicas = n
		return s.feasible(with(c, stage, is))
	}
	most := s.maxReplicas(stage, c[stage].Hardware)
	if most == 0 {
		most = len(s.Queries)
	}
	low := s.minKeepUp(c, stage)
	high := low
	for low <= most && !keeps(high) {
		low, high = high+1, min(2*high, most)
	}
	for low < min(high, most) {
		if middle := (low + high) / 2; keeps(middle) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low, low <= most
}

// cheaper reports whether the cost a is below b by more than a floating-point error.
func cheaper(a, b float64) bool { return a < b*(1-1e-9) }

// minKeepUp returns the smallest number of replicas with which a stage keeps up with its arrival
// rate. The result is at most the number of queries, but at least MinReplicas.
func (s *search) minKeepUp(c Config, stage int) int {
	is := c[stage]
	is.Replicas = 1
	n := math.Floor(s.rate/s.throughput(with(c, stage, is), stage)*(1-1e-9)) + 1
	return max(s.Stages[stage].MinReplicas, int(min(n, float64(len(s.Queries)))))
}

// exhaustive tries every configuration that is cheaper than best, by rising cost. It does nothing
// if there are more than ProofLimit of them. If best is not feasible, it tries all configurations,
// provided that replicas are bounded. done reports whether all were tried.
func (s *search) exhaustive(best Candidate) (is Candidate, done bool) {
	most := best.Cost
	if !best.Feasible {
		most = 0
		for i := range s.Stages {
			dearest := 0.0
			for h := range s.Stages[i].Hardware {
				bound := s.maxReplicas(i, h)
				if bound == 0 {
					return is, false
				}
				dearest = max(dearest, s.Stages[i].Hardware[h].Price*float64(bound))
			}
			most += dearest
		}
		most *= 1 + 1e-6
	}
	var lists [][]option
	for i := range s.Stages {
		lists = append(lists, s.options(i, most))
	}
	count := 0
	s.byRisingCost(lists, func(_ []int, cost float64) bool {
		if !cheaper(cost, most) {
			return false
		}
		count++
		return count <= s.ProofLimit
	})
	if count > s.ProofLimit {
		return is, false
	}
	s.byRisingCost(lists, func(at []int, cost float64) bool {
		if !cheaper(cost, most) {
			return false
		}
		c := make(Config, len(at))
		for i := range at {
			c[i] = lists[i][at[i]].Setting
		}
		if s.feasible(c) {
			is = s.try(c, "cheaper configurations")
		}
		return !is.Feasible
	})
	return is, true
}

// byRisingCost is like the function byRisingCost, but also reports progress every 4096
// combinations.
func (s *search) byRisingCost(lists [][]option, show func(at []int, cost float64) bool) {
	n := 0
	byRisingCost(lists, func(at []int, cost float64) bool {
		if n++; n%4096 == 0 {
			s.report()
		}
		return show(at, cost)
	})
}

// byRisingCost calls show for each combination of one option per list, by rising total cost, until
// show returns false. at has the index of the option in each list. Combinations of equal cost are
// ordered by these indexes.
func byRisingCost(lists [][]option, show func(at []int, cost float64) bool) {
	if slices.ContainsFunc(lists, func(l []option) bool { return len(l) == 0 }) {
		return
	}
	w := queue{{at: make([]int, len(lists))}}
	for i := range lists {
		w[0].cost += lists[i][0].cost
	}
	for len(w) > 0 {
		is := heap.Pop(&w).(combination)
		if !show(is.at, is.cost) {
			return
		}
		// A successor advances one list by one option. It never advances a list before the one that
		// was advanced last, so each combination is visited once.
		for i := is.moved; i < len(lists); i++ {
			if is.at[i]+1 < len(lists[i]) {
				next := combination{at: slices.Clone(is.at), moved: i}
				next.at[i]++
				for j := range lists {
					next.cost += lists[j][next.at[j]].cost
				}
				heap.Push(&w, next)
			}
		}
	}
}

// combination selects one option from each list of options.
type combination struct {
	at    []int
	cost  float64
	moved int
}

// queue is a heap of combinations, ordered by cost and then by indexes of options.
type queue []combination

func (w queue) Len() int { return len(w) }
func (w queue) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(w[i].cost, w[j].cost), slices.Compare(w[i].at, w[j].at)) < 0
}
func (w queue) Swap(i, j int) { w[i], w[j] = w[j], w[i] }
func (w *queue) Push(x any)   { *w = append(*w, x.(combination)) }
func (w *queue) Pop() any {
	last := len(*w) - 1
	x := (*w)[last]
	*w = (*w)[:last]
	return x
}
