package planner

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"slices"

	"github.com/headgate/headgate/control/provision/estimate"
)

// Search is a local search followed by a proof. It starts at several configurations, considers all
// batch sizes, and then tries all settings of each pair of stages by rising cost. At last it tries
// every cheaper configuration, if there are no more than ProofLimit: the plan is then optimal.
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
	var all []Candidate // feasible ones, cheapest first, so that an early stop has a good plan
	for _, start := range s.starts() {
		if is, ok := s.addCapacity(start); ok {
			all = append(all, s.minimize(is))
		}
	}
	slices.SortStableFunc(all, func(a, b Candidate) int { return cmp.Compare(a.Cost, b.Cost) })
	for _, is := range all {
		take(s.pairs(is)) // results are cached
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

// reason says why nothing was found.
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

// starts returns the initial configurations. Each stage runs on the fastest hardware, on the
// cheapest, or on that with the most throughput for its price, with its smallest batch or its
// best. In others one stage leaves the fastest hardware.
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

// bestBatch returns the smallest batch size with the highest throughput.
func (h *Hardware) bestBatch() int {
	return slices.MaxFunc(h.Batches, func(a, b int) int {
		return cmp.Or(cmp.Compare(h.timing.Throughput(a), h.timing.Throughput(b)), cmp.Compare(b, a))
	})
}

// start returns a configuration with chosen hardware, the smallest batches and the fewest
// replicas.
func (s *search) start(on func(*Stage) (hardware int)) Config {
	c := make(Config, len(s.Stages))
	for i := range s.Stages {
		is := &s.Stages[i]
		h := on(is)
		c[i] = Setting{h, is.Hardware[h].Batches[0], is.MinReplicas}
	}
	return c
}

// least chooses the hardware with the least value; ties go to the cheapest, then to the first.
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

// addCapacity adds replicas at the bottleneck until the objectives are met. If no number of
// replicas suffices, it increases the batch size at the bottleneck instead.
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

// replicas returns the replicas of each stage.
func replicas(c Config) (all []int) {
	for _, is := range c {
		all = append(all, is.Replicas)
	}
	return all
}

// maxConfig returns a configuration with as many replicas as the bounds permit. A stage that is
// full stays as it is: other stages may use its hardware.
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

// maxReplicas returns the bound on replicas of a stage on some hardware; 0 is no bound.
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

// option is a setting of a stage with its cost.
type option struct {
	Setting
	cost float64
}

// options returns the settings of a stage up to a cost, by rising cost, without those that cannot
// keep up with the queries.
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
				bound = max(first, len(s.Queries)) // more gain nothing
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

// tooSlow reports whether the service time on some hardware exceeds an objective for any batch
// size, and too many queries pass the stage to miss it.
func (s *search) tooSlow(stage, hardware int) bool {
	least := s.Stages[stage].Hardware[hardware].MinTime()
	return slices.ContainsFunc(s.Objectives, func(o Objective) bool {
		// The trace may send slightly fewer queries to the stage than its share.
		return o.Metric == Latency && least > o.Seconds && s.shares[stage] > 2*(1-o.Share)+0.01
	})
}

// pairs tries all settings of two stages at a time, by rising cost, until no pair improves. With a
// single stage it tries that stage.
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

// manySettings is the number of settings of two stages from which on the search first finds the
// fewest replicas that each stage needs. With fewer settings it just tries them.
const manySettings = 4096

// enoughReplicas reports whether each of the stages has the replicas that it needs even if the
// other ones had unbounded replicas. It caches the bounds in least. It assumes that more replicas
// are never worse, which is nearly always true.
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

// minReplicas returns the fewest replicas of a stage with which a configuration is feasible, given
// that it is with unbounded replicas.
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

// cheaper ignores differences within floating-point error.
func cheaper(a, b float64) bool { return a < b*(1-1e-9) }

// minKeepUp returns the fewest replicas with which a stage keeps up with its queries, at least
// MinReplicas. More replicas than queries gain nothing.
func (s *search) minKeepUp(c Config, stage int) int {
	is := c[stage]
	is.Replicas = 1
	n := math.Floor(s.rate/s.throughput(with(c, stage, is), stage)*(1-1e-9)) + 1
	return max(s.Stages[stage].MinReplicas, int(min(n, float64(len(s.Queries)))))
}

// exhaustive tries every configuration that is cheaper than the best one, by rising cost, if there
// are no more than ProofLimit. done reports whether it did. Without a best one it tries all, if
// replicas are bounded.
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

// byRisingCost calls the function of the same name and reports progress.
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
// show returns false. Ties are in order of the lists.
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
		// Successors advance one list, no earlier one than the last advance: so each combination
		// is visited once.
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

// combination selects one option of each list.
type combination struct {
	at    []int
	cost  float64
	moved int
}

// queue is a heap of combinations by cost, then by options.
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
