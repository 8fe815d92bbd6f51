package planner

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"slices"

	"github.com/headgate/headgate/control/provision/estimate"
)

// Mended is a planner that goes on where [Strict] stops. It looks at the whole curve of latency by batch and not at batches of 1 alone, begins
// in several places, and then tries pairs of stages in all their settings, by rising cost. At last it tries all that is cheaper than what it
// has found, if that is no more than Most: such a plan is optimal.
func Mended(p *Problem) *Plan {
	s := newSearch(p)
	s.unlessStopped(s.mend)
	return &s.plan
}

func (s *search) mend() {
	s.bisects = true
	var best Candidate
	take := func(is Candidate) {
		if is.Keeps && (!best.Keeps || is.Cost < best.Cost || is.Cost == best.Cost && s.Strain(is.Kept) < s.Strain(best.Kept)) {
			best = is
		}
	}
	var all []Candidate // that keep the objectives, the cheapest first, so that who stops early has a good one
	for _, start := range s.starts() {
		if is, ok := s.widen(start); ok {
			all = append(all, s.minimize(is))
		}
	}
	slices.SortStableFunc(all, func(a, b Candidate) int { return cmp.Compare(a.Cost, b.Cost) })
	for _, is := range all {
		take(s.pairs(is)) // what was tried already costs nothing
	}
	if s.Most > 0 {
		is, done := s.exhaust(best)
		take(is)
		s.plan.Optimal = done
	}
	s.plan.Found, s.plan.Candidate = best.Keeps, best
	if !best.Keeps {
		s.plan.Why = s.why()
	}
}

// why says why nothing was found.
func (s *search) why() string {
	free := s.try(s.unbounded(s.start(least((*Hardware).one)), -1), "as many replicas as there are queries")
	overloaded := s.overloaded()
	switch {
	case free.Keeps && overloaded != "":
		return overloaded
	case s.plan.Optimal:
		return "no configuration keeps the objectives: all were tried"
	case !free.Keeps:
		return "with as many replicas as there are queries on the fastest hardware " + s.missed(free)
	}
	return "nothing was found, and not all was tried"
}

// starts are where the search begins: at each stage the fastest hardware, the cheapest, that with the most throughput for its price, each with its
// smallest batch and with that of the most throughput; and the fastest with one stage on each other hardware.
func (s *search) starts() (all []Config) {
	add := func(c Config) {
		if !slices.ContainsFunc(all, func(other Config) bool { return slices.Equal(c, other) }) {
			all = append(all, c)
		}
	}
	fastest := s.start(least((*Hardware).one))
	add(fastest)
	add(s.start(least(func(h *Hardware) float64 { return h.Price })))
	for _, c := range []Config{fastest, s.start(least(func(h *Hardware) float64 { return h.Price / h.pace.Throughput(h.widest()) }))} {
		add(c)
		wide := slices.Clone(c)
		for i := range wide {
			wide[i].Batch = s.at(c, i).widest()
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

// widest is the batch by which a replica computes most queries a second; of several the smallest.
func (h *Hardware) widest() int {
	return slices.MaxFunc(h.Batches, func(a, b int) int {
		return cmp.Or(cmp.Compare(h.pace.Throughput(a), h.pace.Throughput(b)), cmp.Compare(b, a))
	})
}

// start has each stage on the hardware of a number that it is asked for, in its smallest batch.
func (s *search) start(on func(*Stage) (hardware int)) Config {
	c := make(Config, len(s.Stages))
	for i := range s.Stages {
		is := &s.Stages[i]
		h := on(is)
		c[i] = Setting{h, is.Hardware[h].Batches[0], is.MinReplicas}
	}
	return c
}

// least is the hardware of which something is least; of several the cheapest, then the first.
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

// widen adds a replica where the throughput is least and there may be one more, until the objective is kept. Where no replicas would be enough it takes
// a larger batch instead, where the throughput is least.
func (s *search) widen(c Config) (is Candidate, ok bool) {
	c = slices.Clone(c)
	for i := range c {
		if n := s.atLeast(c, i); n > c[i].Replicas {
			if most := s.most(i, c[i].Hardware); most != 0 {
				n = min(n, most)
			}
			c[i].Replicas = n
		}
	}
	is = s.try(c, "a start")
	for !is.Keeps {
		most := s.try(s.atMost(is.Config), "as many replicas as there may be")
		enough := s.met(most) && s.able(most.Config) && slices.Max(replicas(is.Config)) < len(s.Queries)
		narrow := s.narrowest(is.Config, func(stage int) bool {
			if enough {
				return !s.full(is.Config, stage)
			}
			_, can := s.increaseBatch(is, stage)
			return can
		})
		switch {
		case narrow < 0:
			return is, false
		case enough:
			is = s.try(s.more(is.Config, narrow), fmt.Sprintf("stage %s: add a replica", s.name(narrow)))
		default:
			is, _ = s.increaseBatch(is, narrow)
		}
	}
	return is, true
}

// replicas of each stage.
func replicas(c Config) (all []int) {
	for _, is := range c {
		all = append(all, is.Replicas)
	}
	return all
}

// atMost is a configuration with as many replicas as there may be. A stage for which there is no other stays as it is: others may have what it
// would need.
func (s *search) atMost(c Config) Config {
	all := s.unbounded(c, -1)
	for i := range all {
		if s.full(c, i) {
			all[i].Replicas = c[i].Replicas
			continue
		}
		if most := s.most(i, all[i].Hardware); most != 0 {
			all[i].Replicas = most
		}
	}
	return all
}

// most is how many replicas a stage may have on hardware of a number, others being as they are; 0 is no bound.
func (s *search) most(stage, hardware int) int {
	is := &s.Stages[stage]
	most, h := is.MaxReplicas, &is.Hardware[hardware]
	if units, bounded := s.AtMost[h.Name]; bounded {
		if there := max(1, units/h.units()); most == 0 || there < most {
			most = there
		}
	}
	return most
}

// option is a setting of a stage, and what it costs.
type option struct {
	Setting
	cost float64
}

// options returns the settings of a stage that cost at most so much, by rising cost, without those whose replicas are too few for the queries.
func (s *search) options(stage int, most float64) (all []option) {
	is := &s.Stages[stage]
	for h := range is.Hardware {
		if s.hopeless(stage, h) {
			continue
		}
		for _, size := range is.Hardware[h].Batches {
			c := make(Config, len(s.Stages))
			c[stage] = Setting{h, size, 1}
			first, bound := s.atLeast(c, stage), s.most(stage, h)
			if bound == 0 {
				bound = max(first, len(s.Queries)) // more do nothing
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

// hopeless says whether a model alone takes longer on some hardware than queries may, whatever the batch, and more of them pass the stage than may
// miss.
func (s *search) hopeless(stage, hardware int) bool {
	least := s.Stages[stage].Hardware[hardware].Quickest()
	return slices.ContainsFunc(s.Objectives, func(o Objective) bool {
		// Of the queries of the trace a few less may pass than do of all.
		return o.Of == Latency && least > o.Seconds && s.shares[stage] > 2*(1-o.Share)+0.01
	})
}

// pairs tries two stages at a time in all their settings, by rising cost, the others as they are, until that finds nothing for any two. Of a
// pipeline of one stage it tries that.
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
		if found = s.able(c) && (!many || s.enough(c, stages, least)) && s.keeps(c); found {
			is = s.try(c, fmt.Sprintf("stages %v in all their settings", stages))
		}
		return !found
	})
	return is, found
}

// manySettings is of how many settings of two stages on it is first found out how many replicas each needs at least: of fewer it is as well to try
// them.
const manySettings = 4096

// enough says whether each of some stages has the replicas that it needs on its hardware in its batch even if the others of them had as many as
// there are queries. That is found once for all their numbers of replicas, and kept in least. It takes a larger number to be no worse, as it nearly
// always is.
func (s *search) enough(c Config, stages []int, least map[string][]int) bool {
	free := slices.Clone(c)
	for _, stage := range stages {
		free[stage].Replicas = estimate.Unbounded
	}
	kind := fmt.Sprint(free)
	needs, known := least[kind]
	if !known {
		if s.keeps(free) {
			for _, stage := range stages {
				n, ok := s.needs(free, stage)
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

// needs is the least number of replicas of a stage, of those that there may be, with which a configuration keeps the objectives that does with as
// many as there are queries.
func (s *search) needs(c Config, stage int) (n int, ok bool) {
	keeps := func(n int) bool {
		is := c[stage]
		is.Replicas = n
		return s.keeps(with(c, stage, is))
	}
	most := s.most(stage, c[stage].Hardware)
	if most == 0 {
		most = len(s.Queries)
	}
	low := s.atLeast(c, stage) // the least that may do
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

// cheaper is by more than what sums of prices are inexact by.
func cheaper(a, b float64) bool { return a < b*(1-1e-9) }

// atLeast returns the fewest replicas with which a stage keeps up with the queries, but at least MinReplicas. More replicas than queries gain
// nothing.
func (s *search) atLeast(c Config, stage int) int {
	is := c[stage]
	is.Replicas = 1
	n := math.Floor(s.rate/s.throughput(with(c, stage, is), stage)*(1-1e-9)) + 1
	return max(s.Stages[stage].MinReplicas, int(min(n, float64(len(s.Queries)))))
}

// exhaust tries all that is cheaper than the best that is known, by rising cost, and reports whether it did: it does where that is no more than
// Most. Where nothing is known and replicas are bounded, that is all there is.
func (s *search) exhaust(best Candidate) (is Candidate, done bool) {
	most := best.Cost
	if !best.Keeps {
		most = 0
		for i := range s.Stages {
			dearest := 0.0
			for h := range s.Stages[i].Hardware {
				bound := s.most(i, h)
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
		return count <= s.Most
	})
	if count > s.Most {
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
		if s.keeps(c) {
			is = s.try(c, "all that is cheaper")
		}
		return !is.Keeps
	})
	return is, true
}

// byRisingCost is the function of that name, and stops where who looks on wants no more.
func (s *search) byRisingCost(lists [][]option, show func(at []int, cost float64) bool) {
	n := 0
	byRisingCost(lists, func(at []int, cost float64) bool {
		if n++; n%4096 == 0 {
			s.tell()
		}
		return show(at, cost)
	})
}

// byRisingCost shows each way to take one option of every list, by rising cost of all together, until show reports false. Of ways that cost as
// much the first in order of the lists comes first.
func byRisingCost(lists [][]option, show func(at []int, cost float64) bool) {
	if slices.ContainsFunc(lists, func(l []option) bool { return len(l) == 0 }) {
		return
	}
	w := ways{{at: make([]int, len(lists))}}
	for i := range lists {
		w[0].cost += lists[i][0].cost
	}
	for len(w) > 0 {
		is := heap.Pop(&w).(way)
		if !show(is.at, is.cost) {
			return
		}
		// What comes next takes the next option of a list, no earlier one than the last that was moved: so each way comes once.
		for i := is.moved; i < len(lists); i++ {
			if is.at[i]+1 < len(lists[i]) {
				next := way{at: slices.Clone(is.at), moved: i}
				next.at[i]++
				for j := range lists {
					next.cost += lists[j][next.at[j]].cost
				}
				heap.Push(&w, next)
			}
		}
	}
}

// way is which option of each list is taken.
type way struct {
	at    []int
	cost  float64
	moved int
}

// ways are a heap in order of cost, then of options.
type ways []way

func (w ways) Len() int { return len(w) }
func (w ways) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(w[i].cost, w[j].cost), slices.Compare(w[i].at, w[j].at)) < 0
}
func (w ways) Swap(i, j int) { w[i], w[j] = w[j], w[i] }
func (w *ways) Push(x any)   { *w = append(*w, x.(way)) }
func (w *ways) Pop() any {
	last := len(*w) - 1
	x := (*w)[last]
	*w = (*w)[:last]
	return x
}
