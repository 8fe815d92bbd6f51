// Package estimate simulates a pipeline of models on a trace of queries, and reports the latency of
// each query. It implements the estimator of InferLine (Crankshaw et al., SoCC 2020, §4.2). It is
// pure: equal arguments give equal results.
package estimate

import (
	"errors"
	"fmt"
	"math"

	"github.com/headgate/headgate/internal/des"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/internal/sim"
)

// Query is one request to the pipeline in a trace.
type Query struct {
	At float64 // arrival time in seconds
	// Prompt and Output are numbers of tokens. For an LLM they are at least 1; other stages ignore
	// them.
	Prompt, Output int32
}

// Arrivals returns queries that arrive at the given times in seconds and have no tokens.
func Arrivals(times []float64) []Query {
	all := make([]Query, len(times))
	for i, at := range times {
		all[i].At = at
	}
	return all
}

// Rate returns the mean arrival rate per second from the first to the last query. There must be at
// least two queries.
func Rate(all []Query) float64 {
	last := len(all) - 1
	return float64(last) / (all[last].At - all[0].At)
}

// MaxArrivals returns the largest number of arrivals in any half-open window of the given length in
// seconds, which must be above 0.
func MaxArrivals(all []Query, seconds float64) int {
	most, from := 0, 0
	for i, q := range all {
		for q.At-all[from].At >= seconds {
			from++
		}
		most = max(most, i-from+1)
	}
	return most
}

// QueryTimes contains the latencies of a query in seconds.
type QueryTimes struct {
	// Latency is the time from the query's arrival until all stages on its path have ended.
	Latency float64
	// FirstToken is the time from the query's arrival to the first token, and PerToken is the mean
	// time between tokens. If the query passes several LLMs, both are of the LLM that ended last.
	// Both are 0 if the query passes no LLM. PerToken is also 0 if the output is a single token.
	FirstToken, PerToken float64
}

// Times provides the service times of batches.
type Times interface {
	// Time returns a quantile of the seconds that a batch of size queries takes. share selects the
	// quantile: 0.5 is the median.
	Time(size int, share float64) float64
}

// Unbounded is the number of replicas of a stage that always has a free replica for each query.
const Unbounded = math.MaxInt32

// Setting is the configuration of a stage.
type Setting struct {
	// Times has the service times of batches. Engine is the profile of an LLM engine. Exactly one
	// of them is set.
	Times  Times
	Engine *profile.Profile
	// Batch is the maximum batch size, at least 1. For an LLM engine it replaces
	// limits.maxSequences of the profile.
	Batch int
	// Replicas is the initial number of replicas, at least 1, or [Unbounded].
	Replicas int
	// Changes change the number of replicas later, in order of time. A removed replica finishes its
	// queries and accepts no new ones.
	Changes []Change
	// Startup is the time in seconds from requesting a new replica until it accepts queries.
	Startup float64
	// Wait is the batching delay in seconds: the maximum time that the oldest query waits for its
	// batch to fill. If it is 0, an idle replica starts with the queries in the queue.
	Wait float64
	// Ahead fills batches even if no replica is idle: a batch closes when it is full, or Wait after
	// its first query, and then waits for a replica. MLServer 1.7.1 does so
	// (mlserver/batching/adaptive.py).
	Ahead bool
	// GatewayOverhead is the time in seconds that the gateway adds before a query reaches the
	// stage.
	GatewayOverhead float64
	// Central gives all replicas of the stage one queue in order of arrival, as in InferLine.
	// Otherwise each replica has its own queue, and queries are assigned to replicas as extproc
	// would. LLM engines always have their own queues.
	Central bool
}

// Check returns an error that says what is wrong with a setting; nil if it is valid.
func (s *Setting) Check() error {
	switch {
	case (s.Times == nil) == (s.Engine == nil):
		return errors.New("want either the times of its batches or the profile of an engine")
	case s.Engine != nil && (s.Central || s.Ahead || s.Wait != 0):
		return errors.New("an engine has its own queue and no batching delay")
	case s.Batch < 1 || s.Replicas < 1:
		return fmt.Errorf("it has %d replicas and batches of %d: want at least 1 of both", s.Replicas, s.Batch)
	case s.Replicas == Unbounded && len(s.Changes) > 0:
		return errors.New("unbounded replicas cannot change")
	}
	return errors.Join(CheckTimes(s.Wait, s.GatewayOverhead, s.Startup), CheckChanges(s.Changes))
}

// CheckTimes returns an error if the batching delay, gateway overhead or startup time of a stage is
// invalid. See [Setting].
func CheckTimes(wait, overhead, startup float64) error {
	var faults []error
	for _, is := range []struct {
		seconds float64
		words   string
	}{
		{wait, "its batch wait is %vs"}, {overhead, "its gateway overhead is %vs"}, {startup, "the startup of its replicas is %vs"},
	} {
		if !(is.seconds >= 0) || math.IsInf(is.seconds, 0) {
			faults = append(faults, fmt.Errorf(is.words+": want a time that is finite and not negative", is.seconds))
		}
	}
	return errors.Join(faults...)
}

// CheckQueries returns an error if the arrival times of the queries are invalid.
func CheckQueries(all []Query) error {
	if len(all) == 0 {
		return errors.New("there are no queries")
	}
	for i, q := range all {
		if !(q.At >= 0) || math.IsInf(q.At, 0) || i > 0 && q.At < all[i-1].At {
			return fmt.Errorf("query %d arrives at %v: want finite times from 0 on, in ascending order", i, q.At)
		}
	}
	return nil
}

// CheckTokens returns an error if an engine with this profile cannot serve all queries.
func CheckTokens(all []Query, p *profile.Profile) error {
	e, err := sim.New(*p, nil)
	if err != nil {
		return err
	}
	for i, q := range all {
		switch n := int(q.Prompt) + int(q.Output); {
		case q.Prompt < 1 || q.Output < 1:
			return fmt.Errorf("query %d has %d prompt and %d output tokens: an LLM needs at least one of each", i, q.Prompt, q.Output)
		case n > e.MaxTokens():
			return fmt.Errorf("query %d has %d tokens in total, and an engine of %s has room for %d", i, n, p.Name, e.MaxTokens())
		}
	}
	return nil
}

// Run simulates a pipeline on queries, which are in order of arrival. settings has one entry for
// each stage. Run calls done when a query ends, and stops if done returns false; done may be nil.
// Memory use depends only on the number of queries in flight.
func Run(p *Pipeline, settings []Setting, queries []Query, seed uint64, done func(query int, times QueryTimes) bool) (*Result, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	if len(settings) != p.Stages {
		return nil, fmt.Errorf("there are settings for %d of %d stages", len(settings), p.Stages)
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
	done     func(query int, times QueryTimes) bool
	stopped  bool // the callback done has returned false

	loop   des.Loop
	way    *path
	stages []stage
	after  [][]int // for each stage, the indexes of the edges that leave it
	come   func()  // the method arrive, as a callback for the event loop

	next    int // number of the next query that arrives
	ended   int // number of queries that have ended
	queries []query
	free    []int32 // indexes of ended queries in the slice queries, to be reused
}

// query is the state of a query in flight.
type query struct {
	number int
	Query
	times QueryTimes // FirstToken and PerToken are set when an LLM ends
	left  int32      // number of stages on the query's path that have not ended
	waits []int32    // for each stage, how many incoming edges the query still waits for
	taken []bool     // for each edge, whether the query takes it
}

// stage is the state of a stage in a simulation.
type stage struct {
	Setting
	run        *run
	number     int
	lanes      []*lane
	llms       []*llm // all engines; the next field, idle, has those without a query if replicas are unbounded
	idle       []*llm
	picker     *picker // nil if the stage has one lane or unbounded replicas
	outputMean outputMean
	pods       pods

	result StageResult
}

// lane is a queue with the replicas that serve its queries.
type lane struct {
	stage *stage
	queue fifo
	idle  []*replica
	made  int // number of existing replicas, idle or busy
	most  int // number of replicas that may exist, without the leaving ones
	// leaving is the number of replicas that will be removed when their current batch ends.
	leaving int
	free    float64 // when a replica last became available after all were busy
	timed   bool    // a timer for the batching delay is pending
	onTimer func()
	ahead   ahead
	onEnd   func() // called whenever a query has ended; may be nil
}

// waiting is a query in a queue. since is when it entered the queue.
type waiting struct {
	query int32
	since float64
}

// replica computes one batch at a time.
type replica struct {
	batch []waiting
	ends  func()
}

func newRun(p *Pipeline, settings []Setting, arrivals []Query, seed uint64, done func(int, QueryTimes) bool) *run {
	r := &run{pipeline: p, arrivals: arrivals, seed: seed, done: done, way: newPath(p), after: make([][]int, p.Stages)}
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
			// Each query has its own replica. For a batch size above 1, the replica waits the whole
			// batching delay, because no other query arrives.
			if s.Batch > 1 {
				s.GatewayOverhead += s.Wait
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

// arrive handles the arrival of a query and schedules the next one.
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

// begin stores a query that arrives, computes its path, and returns its index in queries.
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
	is.number, is.Query, is.times, is.left = number, r.arrivals[number], QueryTimes{}, 0
	copy(is.waits, r.way.waits)
	copy(is.taken, r.way.taken)
	return q
}

func (s *stage) newLane(replicas int) *lane {
	l := &lane{stage: s, most: replicas}
	l.onTimer = func() {
		l.timed = false
		if s.Ahead {
			l.expire()
		}
		l.dispatch()
	}
	return l
}

// addLane adds a replica that has its own queue.
func (s *stage) addLane(replica int) {
	l := s.newLane(1)
	l.onEnd = func() {
		if s.picker.ended(replica, noClaim) {
			s.pods.left()
		}
	}
	s.lanes = append(s.lanes, l)
}

// enter sends a query to a stage. The query arrives there after the gateway overhead.
func (s *stage) enter(q int32) {
	if s.GatewayOverhead > 0 {
		s.run.loop.At(s.run.loop.Now()+s.GatewayOverhead, func() { s.arrive(q) })
		return
	}
	s.arrive(q)
}

// arrive adds a query to a queue of the stage.
func (s *stage) arrive(q int32) {
	if s.Engine != nil {
		s.enterEngine(q)
		return
	}
	now, l := s.run.loop.Now(), s.lanes[0]
	if s.picker != nil {
		l = s.lanes[s.picker.pick(s.random(q))]
	}
	l.queue.push(waiting{q, now})
	if s.Ahead {
		l.gather()
	}
	l.dispatch()
}

// random returns a random number for the query, which breaks ties between equally good replicas.
func (s *stage) random(q int32) uint64 {
	return splitmix(s.run.seed ^ uint64(s.run.queries[q].number)<<8 ^ uint64(s.number)) //nolint:gosec // a number from 0 on
}

// dispatch starts batches that are full, or whose batching delay has passed, as long as a replica
// is available.
func (l *lane) dispatch() {
	s, now := l.stage, l.stage.run.loop.Now()
	if s.Ahead {
		l.dispatchClosed()
		return
	}
	for l.queue.len() > 0 && l.hasRoom() {
		if due := l.queue.first().since + s.Wait; l.queue.len() < s.Batch && now < due {
			l.setTimer(due)
			return
		}
		l.start(min(s.Batch, l.queue.len()), l.free, now)
	}
}

// setTimer sets a timer for the batching delay, unless a timer is already pending.
func (l *lane) setTimer(due float64) {
	if !l.timed {
		l.timed = true
		l.stage.run.loop.At(due, l.onTimer)
	}
}

// hasRoom reports whether the lane has an idle replica or may create a replica.
func (l *lane) hasRoom() bool { return len(l.idle) > 0 || l.made-l.leaving < l.most }

// start starts a batch on an idle or new replica. It takes the first size queries of the queue. The
// batch began to fill at the time from, and was full or due at the time to.
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
	takes := s.Times.Time(size, chance(s.run.seed, uint64(first), timeHash+uint64(s.number)))
	for _, w := range r.batch {
		filled := to - max(w.since, from)
		s.result.BatchingDelay += filled
		s.result.QueueTime += now - w.since - filled
		s.result.ServiceTime += takes
		s.result.Latency.Add(now - w.since + takes)
	}
	s.result.Queries += size
	s.result.Batches++
	s.result.Busy += takes
	s.run.loop.At(now+takes, r.ends)
}

// end sends the queries of a batch to their next stages and frees the replica.
func (l *lane) end(r *replica) {
	if l.leaving == 0 && !l.hasRoom() {
		l.free = l.stage.run.loop.Now()
	}
	batch := r.batch
	r.batch = r.batch[:0]
	for _, w := range batch {
		if l.onEnd != nil {
			l.onEnd()
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

// goOn sends a query to its next stages, after the query has ended at the stage from.
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
			is.times.Latency = r.loop.Now() - is.At
			r.stopped = !r.done(is.number, is.times)
		}
	}
}
