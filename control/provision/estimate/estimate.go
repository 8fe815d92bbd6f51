// Package estimate rolls a pipeline of models on through a trace of queries, and tells how long each query takes: InferLine's estimator
// (Crankshaw et al., SoCC 2020, §4.2). It is pure: equal arguments give equal results.
package estimate

import (
	"errors"
	"fmt"
	"math"

	"github.com/headgate/headgate/internal/des"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/internal/sim"
)

// Query is one that comes to a pipeline.
type Query struct {
	At float64 // seconds
	// Prompt and Output are the tokens that engines of LLMs compute and make, at least 1 each. They matter to no other stage.
	Prompt, Output int32
}

// Arrivals are queries without tokens that come at times.
func Arrivals(times []float64) []Query {
	all := make([]Query, len(times))
	for i, at := range times {
		all[i].At = at
	}
	return all
}

// Rate is how many queries come a second, from the first to the last of at least two.
func Rate(all []Query) float64 {
	last := len(all) - 1
	return float64(last) / (all[last].At - all[0].At)
}

// Most is the most queries in any window of so many seconds, above 0, of which the end is no part.
func Most(all []Query, seconds float64) int {
	most, from := 0, 0
	for i, q := range all {
		for q.At-all[from].At >= seconds {
			from++
		}
		most = max(most, i-from+1)
	}
	return most
}

// Took is how long a query took, in seconds.
type Took struct {
	// Latency is from its arrival until all that it passes has ended.
	Latency float64
	// FirstToken is from its arrival to the first token of an LLM, and PerToken from each token to the next, in the mean: of the LLM that ended last.
	// They are 0 where the query passes none, and PerToken where there is one token.
	FirstToken, PerToken float64
}

// Times is how long batches take, in seconds.
type Times interface {
	// Time is the seconds in which a share of the batches of a size is done.
	Time(size int, share float64) float64
}

// Unbounded is as many replicas as there are queries.
const Unbounded = math.MaxInt32

// Setting is what a stage has.
type Setting struct {
	// Times of its model, or Engine, which is the profile of an engine of an LLM: one of the two.
	Times  Times
	Engine *profile.Profile
	// Batch is the most queries that one replica computes at once, at least 1. Of an engine it takes the place of limits.maxSequences.
	Batch int
	// Replicas, at least 1; [Unbounded] is no bound. It has them from the first query on.
	Replicas int
	// Changes are later numbers of replicas, in order of time. A replica that goes takes no further query, and ends what it has.
	Changes []Change
	// Startup is how long a replica that comes by a change takes until it takes queries, in seconds.
	Startup float64
	// Wait is how long a replica lets the oldest query wait for a batch to fill, in seconds. With 0 it takes what is there.
	Wait float64
	// Ahead says that batches fill whether or not a replica is free: one is of what comes within Wait of its first, and waits then for a replica as it
	// is. So MLServer has it (mlserver/batching/adaptive.py of 1.7.1).
	Ahead bool
	// Hop is how long a query is on its way to the stage, through the gateway, in seconds.
	Hop float64
	// Central says that queries wait in one queue for the whole stage, in the order in which they came, as InferLine has it. Else each replica has its
	// own, and extproc's rule says which one a query goes to. Engines have queues of their own, always.
	Central bool
}

// Check returns what is wrong with a setting, nil if nothing is.
func (s *Setting) Check() error {
	switch {
	case (s.Times == nil) == (s.Engine == nil):
		return errors.New("it has no profile, or two: want the times of its batches, or the profile of an engine")
	case s.Engine != nil && (s.Central || s.Ahead || s.Wait != 0):
		return errors.New("an engine has a queue of its own, and lets nobody wait for a batch to fill")
	case s.Batch < 1 || s.Replicas < 1:
		return fmt.Errorf("it has %d replicas with batches of %d: both are at least 1", s.Replicas, s.Batch)
	case s.Replicas == Unbounded && len(s.Changes) > 0:
		return errors.New("it has replicas without bound, and changes of them: want one of both")
	}
	return errors.Join(CheckTimes(s.Wait, s.Hop, s.Startup), CheckChanges(s.Changes))
}

// CheckTimes returns what is wrong with times of a stage, nil if nothing is: see [Setting].
func CheckTimes(wait, hop, startup float64) error {
	var faults []error
	for _, is := range []struct {
		seconds float64
		words   string
	}{
		{wait, "it lets queries wait %vs for a batch"}, {hop, "queries are on their way to it for %vs"}, {startup, "its replicas start for %vs"},
	} {
		if !(is.seconds >= 0) || math.IsInf(is.seconds, 0) {
			faults = append(faults, fmt.Errorf(is.words+": want a time that is finite and not negative", is.seconds))
		}
	}
	return errors.Join(faults...)
}

// CheckQueries returns what is wrong with queries, nil if nothing is.
func CheckQueries(all []Query) error {
	if len(all) == 0 {
		return errors.New("there are no queries")
	}
	for i, q := range all {
		if !(q.At >= 0) || math.IsInf(q.At, 0) || i > 0 && q.At < all[i-1].At {
			return fmt.Errorf("query %d comes at %v: times are finite, not negative, and do not go back", i, q.At)
		}
	}
	return nil
}

// CheckTokens returns what is wrong with queries for an engine, nil if nothing is.
func CheckTokens(all []Query, p *profile.Profile) error {
	e, err := sim.New(*p, nil)
	if err != nil {
		return err
	}
	for i, q := range all {
		switch n := int(q.Prompt) + int(q.Output); {
		case q.Prompt < 1 || q.Output < 1:
			return fmt.Errorf("query %d has %d tokens, and %d of an answer: an LLM wants at least one of each", i, q.Prompt, q.Output)
		case n > e.MaxTokens():
			return fmt.Errorf("query %d has %d tokens with its answer, and an engine of %s holds %d", i, n, p.Name, e.MaxTokens())
		}
	}
	return nil
}

// Run rolls a pipeline on, with a setting for each stage, through queries whose times do not go back. Done is told of each query as it ends,
// and reports whether Run is to go on; it may be nil. What Run keeps does not grow with the queries that have ended.
func Run(p *Pipeline, settings []Setting, queries []Query, seed uint64, done func(query int, took Took) bool) (*Result, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	if len(settings) != p.Stages {
		return nil, fmt.Errorf("there are settings for %d stages, of %d", len(settings), p.Stages)
	}
	if err := CheckQueries(queries); err != nil {
		return nil, err
	}
	for i := range settings {
		err := settings[i].Check()
		if err == nil && settings[i].Engine != nil {
			err = CheckTokens(queries, settings[i].Engine)
		}
		if err != nil {
			return nil, fmt.Errorf("stage %d: %w", i, err)
		}
	}
	r := newRun(p, settings, queries, seed, done)
	r.loop.At(queries[0].At, r.come)
	for !r.stopped && r.ended < len(queries) && r.loop.Step() {
	}
	return r.result(), nil
}

// run is the state of a simulation.
type run struct {
	pipeline *Pipeline
	arrivals []Query
	seed     uint64
	done     func(query int, took Took) bool
	stopped  bool // done wants no more

	loop   des.Loop
	way    *way
	stages []stage
	after  [][]int // by stage, the numbers of its edges
	come   func()  // has the next query come

	next    int // the query that comes next
	ended   int // queries
	queries []query
	free    []int32 // of queries, those that have ended
}

// query is one on its way.
type query struct {
	number int
	Query
	took  Took    // as far as LLMs have told
	left  int32   // stages that it has yet to end
	waits []int32 // by stage, for how many edges it waits
	taken []bool  // by edge
}

// stage is what serves one model.
type stage struct {
	Setting
	run    *run
	number int
	lanes  []*lane
	llms   []*llm // of which idle have nothing to do, where there may be as many as there are queries
	idle   []*llm
	picker *picker // nil where there is one lane, or no bound
	habit  habit
	pods   pods

	seen StageResult
}

// lane is a queue, and the replicas that serve it.
type lane struct {
	stage *stage
	queue fifo
	idle  []*replica
	made  int // replicas, as they are needed
	most  int // of them, without those that are leaving
	// leaving is how many replicas go as soon as they have ended a batch.
	leaving int
	free    float64 // since when a replica has been idle, or could be made
	timed   bool    // somebody looks at the queue when its oldest has waited long enough
	look    func()
	ahead   ahead
	gone    func() // a query has left it; nil where nobody asks
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

func newRun(p *Pipeline, settings []Setting, arrivals []Query, seed uint64, done func(int, Took) bool) *run {
	r := &run{pipeline: p, arrivals: arrivals, seed: seed, done: done, way: newWay(p), after: make([][]int, p.Stages)}
	for i, e := range p.Edges {
		r.after[e.From] = append(r.after[e.From], i)
	}
	r.stages = make([]stage, p.Stages)
	for i := range r.stages {
		s := &r.stages[i]
		*s = stage{Setting: settings[i], run: r, number: i}
		s.schedule()
		if s.Engine != nil {
			s.addEngines()
			continue
		}
		if s.Replicas == Unbounded && !s.Central {
			// Each query has a replica to itself, which waits in vain for a batch to fill.
			if s.Batch > 1 {
				s.Hop += s.Wait
			}
			s.Batch, s.Wait = 1, 0
		}
		if s.Central || s.Replicas == Unbounded || s.Replicas == 1 && len(s.Changes) == 0 {
			s.lanes = []*lane{s.newLane(s.Replicas)}
			continue
		}
		s.picker = newPicker(s.Replicas, nil)
		for n := range s.Replicas {
			s.addLane(n)
		}
	}
	r.come = r.arrive
	return r
}

// arrive has a query come, and the one after it at its time.
func (r *run) arrive() {
	q := r.begin(r.next)
	if r.next++; r.next < len(r.arrivals) {
		r.loop.At(r.arrivals[r.next].At, r.come)
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
	is.number, is.Query, is.took, is.left = number, r.arrivals[number], Took{}, 0
	copy(is.waits, r.way.waits)
	copy(is.taken, r.way.taken)
	return q
}

func (s *stage) newLane(replicas int) *lane {
	l := &lane{stage: s, most: replicas}
	l.look = func() {
		l.timed = false
		if s.Ahead {
			l.expire()
		}
		l.dispatch()
	}
	return l
}

// addLane adds the queue of a replica of its own.
func (s *stage) addLane(replica int) {
	l := s.newLane(1)
	l.gone = func() {
		if s.picker.ended(replica, nothing) {
			s.pods.left()
		}
	}
	s.lanes = append(s.lanes, l)
}

// enter has a query come to a stage, after its hop.
func (s *stage) enter(q int32) {
	if s.Hop > 0 {
		s.run.loop.At(s.run.loop.Now()+s.Hop, func() { s.arrive(q) })
		return
	}
	s.arrive(q)
}

// arrive has a query wait at a stage.
func (s *stage) arrive(q int32) {
	if s.Engine != nil {
		s.enterEngine(q)
		return
	}
	now, l := s.run.loop.Now(), s.lanes[0]
	if s.picker != nil {
		l = s.lanes[s.picker.pick(s.lot(q))]
	}
	l.queue.push(waiting{q, now})
	if s.Ahead {
		l.gather()
	}
	l.dispatch()
}

// lot is by which of several replicas that are as good a query goes to one.
func (s *stage) lot(q int32) uint64 {
	return mixed(s.run.seed ^ uint64(s.run.queries[q].number)<<8 ^ uint64(s.number)) //nolint:gosec // a number from 0 on
}

// dispatch has replicas that are idle take what is there.
func (l *lane) dispatch() {
	s, now := l.stage, l.stage.run.loop.Now()
	if s.Ahead {
		l.takeTurns()
		return
	}
	for l.queue.len() > 0 && l.hasRoom() {
		if due := l.queue.first().since + s.Wait; l.queue.len() < s.Batch && now < due {
			l.lookAt(due)
			return
		}
		l.start(min(s.Batch, l.queue.len()), l.free, now)
	}
}

// lookAt has somebody look at the queue, who may have been asked to look sooner.
func (l *lane) lookAt(due float64) {
	if !l.timed {
		l.timed = true
		l.stage.run.loop.At(due, l.look)
	}
}

// hasRoom says whether a replica is idle, or could be made.
func (l *lane) hasRoom() bool { return len(l.idle) > 0 || l.made-l.leaving < l.most }

// start has a replica that is idle compute a batch of the first queries, which filled between two times.
func (l *lane) start(size int, from, to float64) {
	var r *replica
	if n := len(l.idle); n > 0 {
		r, l.idle = l.idle[n-1], l.idle[:n-1]
	} else {
		r = new(replica)
		l.made++
		r.ends = func() { l.end(r) }
	}
	s, now := l.stage, l.stage.run.loop.Now()
	for range size {
		r.batch = append(r.batch, l.queue.pop())
	}
	first := s.run.queries[r.batch[0].query].number
	takes := s.Times.Time(size, chance(s.run.seed, uint64(first), drawn+uint64(s.number)))
	for _, w := range r.batch {
		filled := to - max(w.since, from)
		s.seen.Filled += filled
		s.seen.Waited += now - w.since - filled
		s.seen.Computed += takes
		s.seen.Latency.Add(now - w.since + takes)
	}
	s.seen.Queries += size
	s.seen.Batches++
	s.seen.Busy += takes
	s.run.loop.At(now+takes, r.ends)
}

// end has the queries of a batch go on.
func (l *lane) end(r *replica) {
	if l.leaving == 0 && !l.hasRoom() {
		l.free = l.stage.run.loop.Now()
	}
	batch := r.batch
	r.batch = r.batch[:0]
	for _, w := range batch {
		if l.gone != nil {
			l.gone()
		}
		l.stage.run.goOn(w.query, l.stage.number)
	}
	if l.leaving > 0 {
		l.leaving--
		l.made--
		l.stage.pods.left()
	} else {
		l.idle = append(l.idle, r)
	}
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
		r.ended++
		r.free = append(r.free, q)
		if r.done != nil && !r.stopped {
			is.took.Latency = r.loop.Now() - is.At
			r.stopped = !r.done(is.number, is.took)
		}
	}
}
