// Package estimate rolls a pipeline of models on through a trace of queries, and tells how long each query takes: InferLine's estimator
// (Crankshaw et al., SoCC 2020, §4.2). It is pure: equal arguments give equal results.
package estimate

import (
	"errors"
	"fmt"
	"math"

	"github.com/headgate/headgate/internal/event"
)

// Times is how long batches take, in seconds.
type Times interface {
	// Time is the seconds in which a share of the batches of a size is done.
	Time(size int, share float64) float64
}

// Unbounded is as many replicas as there are queries.
const Unbounded = math.MaxInt32

// Setting is what a stage has.
type Setting struct {
	Times Times
	// Batch is the most queries that one replica computes at once, at least 1.
	Batch int
	// Replicas, at least 1; [Unbounded] is no bound.
	Replicas int
	// Wait is how long a replica lets the oldest query wait for a batch to fill, in seconds. With 0 it takes what is there.
	Wait float64
	// Central says that queries wait in one queue for the whole stage, in the order in which they came, as InferLine has it. Else each replica has its
	// own, and extproc's rule for requests without tokens says which one a query goes to.
	Central bool
}

// Check returns what is wrong with a setting, nil if nothing is.
func (s *Setting) Check() error {
	switch {
	case s.Times == nil:
		return errors.New("it has no profile")
	case s.Batch < 1 || s.Replicas < 1:
		return fmt.Errorf("it has %d replicas with batches of %d: both are at least 1", s.Replicas, s.Batch)
	}
	return CheckWait(s.Wait)
}

// CheckWait returns what is wrong with a time that queries may wait for a batch to fill, nil if nothing is.
func CheckWait(seconds float64) error {
	if !(seconds >= 0) || math.IsInf(seconds, 0) {
		return fmt.Errorf("it lets queries wait %vs for a batch: want a time that is finite and not negative", seconds)
	}
	return nil
}

// CheckArrivals returns what is wrong with the times at which queries come, nil if nothing is.
func CheckArrivals(all []float64) error {
	if len(all) == 0 {
		return errors.New("there are no queries")
	}
	for i, at := range all {
		if !(at >= 0) || math.IsInf(at, 0) || i > 0 && at < all[i-1] {
			return fmt.Errorf("query %d comes at %v: times are finite, not negative, and do not go back", i, at)
		}
	}
	return nil
}

// Run rolls a pipeline on, with a setting for each stage, through queries that come at times in seconds, which do not go back. Done is told
// of each query as it ends, and reports whether Run is to go on; it may be nil. What Run keeps does not grow with the queries that have
// ended.
func Run(p *Pipeline, settings []Setting, arrivals []float64, seed uint64, done func(query int, latency float64) bool) (*Result, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	if len(settings) != p.Stages {
		return nil, fmt.Errorf("there are settings for %d stages, of %d", len(settings), p.Stages)
	}
	for i := range settings {
		if err := settings[i].Check(); err != nil {
			return nil, fmt.Errorf("stage %d: %w", i, err)
		}
	}
	if err := CheckArrivals(arrivals); err != nil {
		return nil, err
	}
	r := newRun(p, settings, arrivals, seed, done)
	r.loop.At(arrivals[0], r.come)
	for !r.stopped && r.loop.Step() {
	}
	return r.result(), nil
}

// run is the state of a simulation.
type run struct {
	pipeline *Pipeline
	arrivals []float64
	seed     uint64
	done     func(query int, latency float64) bool
	stopped  bool // done wants no more

	loop   event.Loop
	way    *way
	stages []stage
	after  [][]int // by stage, the numbers of its edges
	come   func()  // has the next query come

	next    int // the query that comes next
	queries []query
	free    []int32 // of queries, those that have ended
}

// query is one on its way.
type query struct {
	number int
	at     float64
	left   int32   // stages that it has yet to end
	waits  []int32 // by stage, for how many edges it waits
	taken  []bool  // by edge
}

// stage is what serves one model.
type stage struct {
	Setting
	run    *run
	number int
	lanes  []*lane
	picker *picker // nil where there is one lane

	seen StageResult
}

// lane is a queue, and the replicas that serve it.
type lane struct {
	stage *stage
	queue fifo
	idle  []*replica
	made  int  // replicas, as they are needed
	most  int  // of them
	timed bool // somebody looks at the queue when its oldest has waited long enough
	look  func()
	gone  func() // a query has left it; nil where nobody asks
}

// waiting is a query in a queue.
type waiting struct {
	query int32
	since float64
}

// replica computes a batch at a time.
type replica struct {
	batch []waiting
	ends  func()
}

func newRun(p *Pipeline, settings []Setting, arrivals []float64, seed uint64, done func(int, float64) bool) *run {
	r := &run{pipeline: p, arrivals: arrivals, seed: seed, done: done, way: newWay(p), after: make([][]int, p.Stages)}
	for i, e := range p.Edges {
		r.after[e.From] = append(r.after[e.From], i)
	}
	r.stages = make([]stage, p.Stages)
	for i := range r.stages {
		s := &r.stages[i]
		*s = stage{Setting: settings[i], run: r, number: i}
		if s.Central || s.Replicas == Unbounded || s.Replicas == 1 {
			s.lanes = []*lane{s.newLane(s.Replicas)}
			continue
		}
		s.picker = newPicker(s.Replicas)
		for n := range s.Replicas {
			l := s.newLane(1)
			l.gone = func() { s.picker.ended(n) }
			s.lanes = append(s.lanes, l)
		}
	}
	r.come = r.arrive
	return r
}

// arrive has a query come, and the one after it at its time.
func (r *run) arrive() {
	q := r.begin(r.next)
	if r.next++; r.next < len(r.arrivals) {
		r.loop.At(r.arrivals[r.next], r.come)
	}
	is := &r.queries[q]
	for s := range r.stages {
		if r.way.passes[s] {
			is.left++
		}
	}
	for s := range r.stages {
		if r.way.passes[s] && is.waits[s] == 0 {
			r.stages[s].enter(q)
		}
	}
}

// begin keeps a query, and finds its way.
func (r *run) begin(number int) int32 {
	if !r.way.certain || number == 0 {
		r.way.of(r.seed, uint64(number))
	}
	var q int32
	if n := len(r.free); n > 0 {
		q, r.free = r.free[n-1], r.free[:n-1]
	} else {
		q = int32(len(r.queries))
		r.queries = append(r.queries, query{waits: make([]int32, r.pipeline.Stages), taken: make([]bool, len(r.pipeline.Edges))})
	}
	is := &r.queries[q]
	is.number, is.at, is.left = number, r.arrivals[number], 0
	copy(is.waits, r.way.waits)
	copy(is.taken, r.way.taken)
	return q
}

func (s *stage) newLane(replicas int) *lane {
	l := &lane{stage: s, most: replicas}
	l.look = func() {
		l.timed = false
		l.dispatch()
	}
	return l
}

// enter has a query wait at a stage.
func (s *stage) enter(q int32) {
	now, l := s.run.loop.Now(), s.lanes[0]
	if s.picker != nil {
		l = s.lanes[s.picker.pick(mixed(s.run.seed^uint64(s.run.queries[q].number)<<8^uint64(s.number)))]
	}
	l.queue.push(waiting{q, now})
	l.dispatch()
}

// dispatch has replicas that are idle take what is there.
func (l *lane) dispatch() {
	s, now := l.stage, l.stage.run.loop.Now()
	for l.queue.len() > 0 && (len(l.idle) > 0 || l.made < l.most) {
		if due := l.queue.first().since + s.Wait; l.queue.len() < s.Batch && now < due {
			if !l.timed {
				l.timed = true
				s.run.loop.At(due, l.look)
			}
			return
		}
		l.start(now)
	}
}

// start has a replica that is idle compute a batch.
func (l *lane) start(now float64) {
	var r *replica
	if n := len(l.idle); n > 0 {
		r, l.idle = l.idle[n-1], l.idle[:n-1]
	} else {
		r = new(replica)
		l.made++
		r.ends = func() { l.end(r) }
	}
	s := l.stage
	size := min(s.Batch, l.queue.len())
	for range size {
		r.batch = append(r.batch, l.queue.pop())
	}
	first := s.run.queries[r.batch[0].query].number
	takes := s.Times.Time(size, chance(s.run.seed, uint64(first), drawn+uint64(s.number)))
	for _, w := range r.batch {
		s.seen.Waited += now - w.since
		s.seen.Latency.Add(now - w.since + takes)
	}
	s.seen.Queries += size
	s.seen.Batches++
	s.seen.Busy += takes
	s.run.loop.At(now+takes, r.ends)
}

// end has the queries of a batch go on.
func (l *lane) end(r *replica) {
	batch := r.batch
	r.batch = r.batch[:0]
	for _, w := range batch {
		if l.gone != nil {
			l.gone()
		}
		l.stage.run.goOn(w.query, l.stage.number)
	}
	l.idle = append(l.idle, r)
	l.dispatch()
}

// goOn has a query that has ended a stage take its edges from there.
func (r *run) goOn(q int32, from int) {
	is := &r.queries[q]
	is.left--
	for _, i := range r.after[from] {
		if !is.taken[i] {
			continue
		}
		to := r.pipeline.Edges[i].To
		if is.waits[to]--; is.waits[to] == 0 {
			r.stages[to].enter(q)
		}
	}
	if is.left == 0 {
		r.free = append(r.free, q)
		if r.done != nil && !r.stopped {
			r.stopped = !r.done(is.number, r.loop.Now()-is.at)
		}
	}
}
