package estimate_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/test/race"
)

// timesFunc is a function that implements [estimate.Times].
type timesFunc func(size int, share float64) float64

func (f timesFunc) Time(size int, share float64) float64 { return f(size, share) }

// fixed returns deterministic service times: base seconds per batch plus each seconds per query.
func fixed(base, each float64) timesFunc {
	return func(size int, _ float64) float64 { return base + each*float64(size) }
}

// exponential returns exponentially distributed service times with the given mean. The quantile 0
// is the shortest time.
func exponential(mean float64) timesFunc {
	return func(_ int, share float64) float64 { return -mean * math.Log1p(-share) }
}

// poisson returns n arrival times of a Poisson process with a rate per second.
func poisson(seed uint64, n int, rate float64) []float64 {
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test's
	all, at := make([]float64, n), 0.0
	for i := range all {
		at += random.ExpFloat64() / rate
		all[i] = at
	}
	return all
}

// chain returns a pipeline in which each stage follows the one before it.
func chain(stages int) *estimate.Pipeline {
	p := &estimate.Pipeline{Stages: stages}
	for s := 1; s < stages; s++ {
		p.Edges = append(p.Edges, estimate.Edge{From: s - 1, To: s, Share: 1})
	}
	return p
}

// latencies runs a pipeline and returns the latency of each query.
func latencies(t *testing.T, p *estimate.Pipeline, settings []estimate.Setting, arrivals []float64, seed uint64) ([]float64,
	*estimate.Result,
) {
	t.Helper()
	all := make([]float64, len(arrivals))
	for i := range all {
		all[i] = math.NaN()
	}
	r, err := estimate.Run(p, settings, estimate.Arrivals(arrivals), seed, func(q int, took estimate.QueryTimes) bool {
		if !math.IsNaN(all[q]) {
			t.Errorf("query %d ends twice", q)
		}
		all[q] = took.Latency
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range all {
		if math.IsNaN(l) {
			t.Fatalf("query %d does not end", i)
		}
	}
	return all, r
}

func near(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if !(math.Abs(got-want) <= share*want) {
		t.Errorf("%s is %.5g, want %.5g within a share of %.2g", what, got, want, share)
	}
}

// Mean queue times agree with queueing theory for queues that have a closed-form solution.
func TestQueuesAreAsInTheory(t *testing.T) {
	race.Skip(t)
	const n, mean = 500_000, 0.02
	for _, load := range []float64{0.3, 0.7} {
		rate := load / mean
		varying := func(_ int, share float64) float64 { // 4 of 5 service times are half of the mean, and the fifth is three times the mean
			if share < 0.8 {
				return mean / 2
			}
			return 3 * mean
		}
		for _, c := range []struct {
			name  string
			times estimate.Times
			want  float64 // mean queue time by the Pollaczek-Khinchine formula λ E[S²] / 2(1−ρ)
		}{
			{"M/M/1", exponential(mean), load * mean / (1 - load)},
			{"M/D/1", fixed(mean, 0), load * mean / 2 / (1 - load)},
			{"M/G/1", timesFunc(varying), rate * (0.8*0.25 + 0.2*9) * mean * mean / 2 / (1 - load)},
		} {
			r, err := estimate.Run(chain(1), []estimate.Setting{{Times: c.times, Batch: 1, Replicas: 1}},
				estimate.Arrivals(poisson(7, n, rate)), 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			near(t, fmt.Sprintf("the wait of %s at a load of %v", c.name, load), r.Stages[0].QueueTime/n, c.want, 0.02)
		}
	}
}

// The mean queue time of M/D/c follows Crommelin's distribution, which Tijms (A First Course in
// Stochastic Models, §9.6.2) computes as a sum. Queue lengths that are one service time apart form
// a Markov chain.
func TestManyServersMatchTheory(t *testing.T) {
	race.Skip(t)
	for _, c := range []struct {
		servers int
		load    float64
	}{{2, 0.5}, {4, 0.8}, {8, 0.8}} {
		const mean = 0.02
		rate := c.load * float64(c.servers) / mean
		r, err := estimate.Run(chain(1), []estimate.Setting{{Times: fixed(mean, 0), Batch: 1, Replicas: c.servers, Central: true}},
			estimate.Arrivals(poisson(3, 1_000_000, rate)), 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		// Within one service time, all queries in service end, and Poisson arrivals join the queue:
		// n' = max(n-c, 0) + arrivals.
		const states = 400
		arrive := poissonShares(rate*mean, states)
		at := stationary(states, func(n int, to []float64) {
			for k, share := range arrive {
				to[min(max(n-c.servers, 0)+k, states-1)] += share
			}
		})
		waiting := 0.0
		for n, share := range at {
			waiting += share * float64(max(n-c.servers, 0))
		}
		near(t, fmt.Sprintf("the wait at %d servers at a load of %v", c.servers, c.load),
			r.Stages[0].QueueTime/float64(r.Stages[0].Queries), waiting/rate, 0.02)
	}
}

// In an M/D[1,b]/1 queue, the server takes up to b queued queries as a batch. Its service time
// depends on the batch size. The queue lengths at the ends of batches form a Markov chain, which
// gives the mean queue length.
func TestBulkServerIsAsInTheory(t *testing.T) {
	race.Skip(t)
	for _, c := range []struct {
		batch      int
		base, each float64
		rate       float64
	}{{4, 0.02, 0, 100}, {8, 0.02, 0.004, 120}, {8, 0.01, 0.002, 240}, {32, 0.05, 0.001, 300}} {
		times := fixed(c.base, c.each)
		r, err := estimate.Run(chain(1), []estimate.Setting{{Times: times, Batch: c.batch, Replicas: 1}},
			estimate.Arrivals(poisson(5, 500_000, c.rate)), 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		const states = 400
		size := func(left int) int { return min(max(left, 1), c.batch) } // if the queue is empty, the server waits for one query
		at := stationary(states, func(left int, to []float64) {
			for k, share := range poissonShares(c.rate*times(size(left), 0), states) {
				to[min(max(left-c.batch, 0)+k, states-1)] += share
			}
		})
		waits, seconds := 0.0, 0.0
		for left, share := range at {
			d := times(size(left), 0)
			waits += share * (float64(max(left-c.batch, 0))*d + c.rate*d*d/2)
			if seconds += share * d; left == 0 {
				seconds += share / c.rate
			}
		}
		near(t, fmt.Sprintf("the wait for batches of %d", c.batch), r.Stages[0].QueueTime/float64(r.Stages[0].Queries),
			waits/seconds/c.rate, 0.02)
	}
}

// poissonShares returns the first n probabilities of a Poisson distribution, beginning with that of
// 0.
func poissonShares(mean float64, n int) []float64 {
	all := make([]float64, n)
	log := -mean
	for k := range all {
		all[k] = math.Exp(log)
		log += math.Log(mean) - math.Log(float64(k+1))
	}
	return all
}

// stationary returns the stationary distribution of the Markov chain with the given transitions.
func stationary(states int, step func(from int, to []float64)) []float64 {
	at := make([]float64, states)
	at[0] = 1
	rows := make([][]float64, states)
	for s := range rows {
		rows[s] = make([]float64, states)
		step(s, rows[s])
	}
	for range 3000 {
		next := make([]float64, states)
		for s, share := range at {
			if share < 1e-15 {
				continue
			}
			for to, p := range rows[s] {
				next[to] += share * p
			}
		}
		at = next
	}
	return at
}

// A query waits until its batch is full or the batching delay has passed. In a full batch it does
// not wait.
func TestQueriesWaitForTheirBatch(t *testing.T) {
	setting := []estimate.Setting{{Times: fixed(1, 0), Batch: 3, Replicas: 2, Wait: 0.5, Central: true}}
	got, r := latencies(t, chain(1), setting, []float64{0, 0.2, 0.4, 0.5, 3, 9, 9.25}, 1)
	// The first three queries form a batch when the third arrives. The fourth and the fifth query
	// are each alone in a batch after the delay. The last two share a batch.
	for i, want := range []float64{1.4, 1.2, 1, 1.5, 1.5, 1.5, 1.25} {
		if math.Abs(got[i]-want) > 1e-9 {
			t.Errorf("query %d takes %v, want %v", i, got[i], want)
		}
	}
	r.Stages[0].Latency = estimate.Latencies{}
	if is := r.Stages[0]; is.Batches != 4 || is.Busy != 4 || is.Queries != 7 || is.ServiceTime != 7 || is.QueueTime != 0 ||
		math.Abs(is.BatchingDelay-(0.4+0.2+0.5+0.5+0.5+0.25)) > 1e-9 {
		t.Errorf("seven queries in four batches have %+v", is)
	}

	// With one replica, the last batch waits first for the replica and then for its last query.
	setting[0].Replicas = 1
	_, r = latencies(t, chain(1), setting, []float64{0, 0, 0, 0.9, 0.9, 1.3}, 1)
	r.Stages[0].Latency = estimate.Latencies{}
	if is := r.Stages[0]; is.Batches != 2 || math.Abs(is.QueueTime-(0.1+0.1)) > 1e-9 || math.Abs(is.BatchingDelay-(0.3+0.3)) > 1e-9 {
		t.Errorf("six queries in two batches have %+v", is)
	}
}

// With Ahead, batches close while the replica is busy, and then do not grow. Queries that arrive
// simultaneously share a batch, however short the batching delay.
func TestBatchesFillAhead(t *testing.T) {
	for name, c := range map[string]struct {
		wait           float64
		at             []float64
		want           []float64
		filled, waited float64
	}{
		"alone":                         {1, []float64{0}, []float64{3}, 1, 0},
		"full":                          {1, []float64{0, 0.25, 0.5, 0.75}, []float64{2.75, 2.5, 2.25, 2}, 0.75 + 0.5 + 0.25, 0},
		"while another one is computed": {1, []float64{0, 1.25, 2.5}, []float64{3, 3.75, 4.5}, 1 + 1 + 1, 0.75 + 1.5},
		"one that could wait longer": {1, []float64{0, 1.25, 2, 2.125}, []float64{3, 3.75, 3, 2.875}, 1 + 1 + 0.25 + 0.125, 0.75 +
			0.75 + 0.75},
		"of one time": {0, []float64{0, 0, 1}, []float64{2, 2, 3}, 0, 1},
	} {
		s := estimate.Setting{Times: fixed(2, 0), Batch: 4, Replicas: 1, Wait: c.wait, Ahead: true}
		got, r := latencies(t, chain(1), []estimate.Setting{s}, c.at, 1)
		if is := r.Stages[0]; !slices.Equal(got, c.want) || is.BatchingDelay != c.filled || is.QueueTime != c.waited {
			t.Errorf("%s: queries take %v, want %v; the batching delay is %v s and the queue time %v: want %v and %v", name, got, c.want,
				is.BatchingDelay, is.QueueTime, c.filled, c.waited)
		}
	}
}

// A query enters the queue of a stage after the gateway overhead.
func TestGatewayOverheadDelaysQueries(t *testing.T) {
	setting := []estimate.Setting{
		{Times: fixed(1, 0), Batch: 1, Replicas: 1, GatewayOverhead: 0.25},
		{Times: fixed(1, 0), Batch: 1, Replicas: 2, GatewayOverhead: 0.5},
	}
	got, r := latencies(t, chain(2), setting, []float64{0, 0.5}, 1)
	for i, want := range []float64{2.75, 3.25} {
		if math.Abs(got[i]-want) > 1e-9 {
			t.Errorf("query %d takes %v, want %v", i, got[i], want)
		}
	}
	if is := r.Stages[0]; is.QueueTime != 0.5 || is.Latency.Sum != 2.5 {
		t.Errorf("at the first stage the queue time is %v, and the latency %v", is.QueueTime, is.Latency.Sum)
	}
}

// With unbounded replicas, the batching delay applies only if the batch size is above 1.
func TestBatchingDelayWithUnboundedReplicas(t *testing.T) {
	for batch, want := range map[int]float64{1: 2, 4: 2.5} {
		s := estimate.Setting{Times: fixed(2, 0), Batch: batch, Replicas: estimate.Unbounded, Wait: 0.5}
		if got, _ := latencies(t, chain(1), []estimate.Setting{s}, []float64{0, 0.1, 7}, 1); !slices.Equal(got,
			[]float64{want, want, want}) {
			t.Errorf("in batches of %d queries take %v, want %v each", batch, got, want)
		}
	}
}

// A stage with two incoming edges waits for both if a query takes both. A query that takes no edge
// ends at the fork.
func TestForksAndJoins(t *testing.T) {
	race.Skip(t)
	p := &estimate.Pipeline{Stages: 4, Edges: []estimate.Edge{
		{From: 0, To: 1, Share: 1},
		{From: 0, To: 2, Share: 1},
		{From: 1, To: 3, Share: 1},
		{From: 2, To: 3, Share: 1},
	}}
	alone := func(d float64) estimate.Setting {
		return estimate.Setting{Times: fixed(d, 0), Batch: 1, Replicas: estimate.Unbounded}
	}
	got, _ := latencies(t, p, []estimate.Setting{alone(1), alone(2), alone(5), alone(1)}, []float64{0, 0, 3}, 1)
	for i, l := range got {
		if l != 7 {
			t.Errorf("query %d takes %v, want 7", i, l)
		}
	}
	half := &estimate.Pipeline{Stages: 3, Edges: []estimate.Edge{
		{From: 0, To: 1, Share: 0.3, Choice: 1},
		{From: 0, To: 2, Share: 0.5, Choice: 1},
	}}
	got, _ = latencies(t, half, []estimate.Setting{alone(1), alone(2), alone(5)}, make([]float64, 100_000), 9)
	count := map[float64]int{}
	for _, l := range got {
		count[l]++
	}
	near(t, "who takes the first", float64(count[3]), 30_000, 0.02)
	near(t, "who takes the second", float64(count[6]), 50_000, 0.02)
	near(t, "who takes none", float64(count[1]), 20_000, 0.02)
	if shares := half.Shares(); math.Abs(shares[1]-0.3) > 0.01 || math.Abs(shares[2]-0.5) > 0.01 || shares[0] != 1 {
		t.Errorf("shares are %v", shares)
	}
	if longest := p.ServiceTime(func(s int) float64 { return []float64{1, 2, 5, 1}[s] }); longest != 7 {
		t.Errorf("the service time is %v, want 7", longest)
	}
	if longest := half.ServiceTime(func(s int) float64 { return []float64{1, 9, 2}[s] }); longest != 10 {
		t.Errorf("the service time is %v, want 10", longest)
	}
}

// In chains with batches of 1, fixed service times and one queue per stage, no query becomes slower
// if a replica is added or a query is removed. With larger batches, queries may become slower.
func TestMonotonicity(t *testing.T) {
	race.Skip(t)
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 3)) //nolint:gosec // a test's
		p := chain(1 + random.IntN(4))
		var settings []estimate.Setting
		for range p.Stages {
			settings = append(settings, estimate.Setting{Times: fixed(0.01+0.05*random.Float64(), 0), Batch: 1, Replicas: 1 +
				random.IntN(4), Central: true})
		}
		arrivals := poisson(seed, 300, 20+60*random.Float64())
		before, _ := latencies(t, p, settings, arrivals, seed)
		at := random.IntN(p.Stages)
		settings[at].Replicas++
		after, _ := latencies(t, p, settings, arrivals, seed)
		settings[at].Replicas--
		gone := random.IntN(len(arrivals))
		fewer, _ := latencies(t, p, settings, slices.Delete(slices.Clone(arrivals), gone, gone+1), seed)
		for q := range before {
			if after[q] > before[q]+1e-9 {
				t.Fatalf("chain %d: with one more replica at stage %d query %d takes %v, and took %v before", seed, at, q, after[q], before[q])
			}
			i := q
			if q > gone {
				i--
			}
			if q != gone && fewer[i] > before[q]+1e-9 {
				t.Fatalf("chain %d: without query %d query %d takes %v, and took %v before", seed, gone, q, fewer[i], before[q])
			}
		}
	}
}

// Each query ends exactly once at each stage on its path. Equal arguments give equal results, and
// another seed gives other results.
func TestQueriesAreConserved(t *testing.T) {
	race.Skip(t)
	for seed := range uint64(200) {
		p, settings, arrivals := small(seed)
		got, r := latencies(t, p, settings, arrivals, seed)
		again, same := latencies(t, p, settings, arrivals, seed)
		if !slices.Equal(got, again) || fmt.Sprint(r) != fmt.Sprint(same) {
			t.Fatalf("pipeline %d: a second run has another result", seed)
		}
		for s, is := range r.Stages {
			batches := float64(is.Queries) / float64(settings[s].Batch)
			if is.Latency.Count != is.Queries || float64(is.Batches) < batches || is.Batches > is.Queries {
				t.Errorf("pipeline %d, stage %d: %+v", seed, s, is)
			}
			if spent := is.QueueTime + is.BatchingDelay + is.ServiceTime; math.Abs(spent-is.Latency.Sum) > 1e-6 || is.QueueTime < -1e-9 ||
				is.BatchingDelay < -1e-9 {
				t.Errorf("pipeline %d, stage %d: queries take %v s, and wait %v, wait for their batch %v, and are computed %v", seed, s,
					is.Latency.Sum, is.QueueTime, is.BatchingDelay, is.ServiceTime)
			}
			if is.Paid < is.Busy-1e-9 {
				t.Errorf("pipeline %d, stage %d: replicas are busy for %v s, but paid for %v", seed, s, is.Busy, is.Paid)
			}
		}
	}
	p := &estimate.Pipeline{Stages: 2, Edges: []estimate.Edge{{From: 0, To: 1, Share: 0.5}}}
	settings := []estimate.Setting{{Times: fixed(1, 0), Batch: 1, Replicas: 1}, {Times: fixed(1, 0), Batch: 1, Replicas: 1}}
	one, _ := latencies(t, p, settings, make([]float64, 100), 1)
	two, _ := latencies(t, p, settings, make([]float64, 100), 2)
	if slices.Equal(one, two) {
		t.Error("two seeds have the same latencies")
	}
	// A query takes the same edges for any number of replicas.
	settings[0].Replicas, settings[1].Replicas = estimate.Unbounded, estimate.Unbounded
	free, r := latencies(t, p, settings, make([]float64, 100), 1)
	_, narrow := latencies(t, p, []estimate.Setting{
		{Times: fixed(1, 0), Batch: 1, Replicas: 1},
		{Times: fixed(1, 0), Batch: 4, Replicas: 1},
	}, make([]float64, 100), 1)
	if r.Stages[1].Queries != narrow.Stages[1].Queries || slices.Max(free) != 2 {
		t.Errorf("%d queries reach the second stage, and with fewer replicas %d", r.Stages[1].Queries, narrow.Stages[1].Queries)
	}
}

func TestQuantileError(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 4)) //nolint:gosec // a test's
	var l estimate.Latencies
	if l.Quantile(0.99) != 0 || l.Mean() != 0 {
		t.Error("an empty distribution has a time")
	}
	var all []float64
	for range 100_000 {
		x := math.Exp(3 * random.NormFloat64())
		all = append(all, x)
		l.Add(x)
	}
	slices.Sort(all)
	for _, share := range []float64{0, 0.01, 0.5, 0.9, 0.99, 0.999, 1} {
		near(t, fmt.Sprintf("the quantile %v", share), l.Quantile(share), all[max(0, int(math.Ceil(share*100_000))-1)], 0.005)
	}
	for _, extreme := range []float64{0, 1e-30, 1e30} {
		l.Add(extreme)
	}
	if l.Quantile(0) > 1e-6 || l.Quantile(1) < 1e6 {
		t.Errorf("extremes are from %v to %v", l.Quantile(0), l.Quantile(1))
	}
}

// Run stops when done returns false.
func TestRunStopsWhenDone(t *testing.T) {
	told := 0
	r, err := estimate.Run(chain(1), []estimate.Setting{{Times: fixed(1, 0), Batch: 8, Replicas: 1}}, make([]estimate.Query, 100), 1,
		func(int, estimate.QueryTimes) bool {
			told++
			return told < 3
		})
	if err != nil || told != 3 || r.Seconds != 2 {
		t.Errorf("%d queries are reported in %v s, %v", told, r.Seconds, err)
	}
}

func TestBadInputIsRejected(t *testing.T) {
	good := estimate.Setting{Times: fixed(1, 0), Batch: 1, Replicas: 1}
	two := []estimate.Setting{good, good}
	for _, c := range []struct {
		pipeline estimate.Pipeline
		settings []estimate.Setting
		arrivals []float64
		want     string
	}{
		{estimate.Pipeline{}, nil, []float64{0}, "a pipeline has at least one stage, not 0"},
		{
			estimate.Pipeline{Stages: 2, Edges: []estimate.Edge{{From: 1, To: 1, Share: 1}}},
			two,
			[]float64{0},
			"edge 0 leads from stage 1 to stage 1: it leads to a later one, of 2",
		},
		{
			estimate.Pipeline{Stages: 2, Edges: []estimate.Edge{{From: 0, To: 2, Share: 1}}},
			two,
			[]float64{0},
			"edge 0 leads from stage 0 to stage 2: it leads to a later one, of 2",
		},
		{
			estimate.Pipeline{Stages: 2, Edges: []estimate.Edge{{From: 0, To: 1, Share: 1.5}}},
			two,
			[]float64{0},
			"edge 0 has the share 1.5: it is above 0, and at most 1",
		},
		{
			estimate.Pipeline{Stages: 2, Edges: []estimate.Edge{{From: 0, To: 1, Share: math.NaN()}}},
			two,
			[]float64{0},
			"edge 0 has the share NaN: it is above 0, and at most 1",
		},
		{
			estimate.Pipeline{Stages: 2, Edges: []estimate.Edge{{To: 1, Share: 0.6, Choice: 1}, {To: 1, Share: 0.6, Choice: 1}}},
			two,
			[]float64{0},
			"edge 1 makes the shares of a choice 1.2 together: 1 is the most",
		},
		{*chain(2), two[:1], []float64{0}, "there are settings for 1 of 2 stages"},
		{
			*chain(1),
			[]estimate.Setting{{Batch: 1, Replicas: 1}},
			[]float64{0},
			"stage 0: want either the times of its batches or the profile of an engine",
		},
		{
			*chain(1),
			[]estimate.Setting{{Times: good.Times, Replicas: 1}},
			[]float64{0},
			"stage 0: it has 1 replicas and batches of 0: want at least 1 of both",
		},
		{
			*chain(1),
			[]estimate.Setting{{Times: good.Times, Batch: 1, Replicas: 1, Wait: math.NaN()}},
			[]float64{0},
			"stage 0: its batch wait is NaNs: want a time that is finite and not negative",
		},
		{
			*chain(1),
			[]estimate.Setting{{Engine: &profile.Profile{}, Batch: 1, Replicas: 1, Ahead: true}},
			[]float64{0},
			"stage 0: an engine has its own queue and no batching delay",
		},
		{
			*chain(1),
			[]estimate.Setting{{Times: good.Times, Batch: 1, Replicas: 1, GatewayOverhead: -1}},
			[]float64{0},
			"stage 0: its gateway overhead is -1s: want a time that is finite and not negative",
		},
		{
			*chain(1),
			[]estimate.Setting{{Times: good.Times, Batch: 1, Replicas: 1, Startup: -1}},
			[]float64{0},
			"stage 0: the startup of its replicas is -1s: want a time that is finite and not negative",
		},
		{
			*chain(1),
			[]estimate.Setting{{Times: good.Times, Batch: 1, Replicas: 1, Changes: []estimate.Change{{2, 1}, {1, 1}}}},
			[]float64{0},
			"stage 0: its replicas change at 1s: want finite times in ascending order",
		},
		{
			*chain(1),
			[]estimate.Setting{{Times: good.Times, Batch: 1, Replicas: 1, Changes: []estimate.Change{{2, 0}}}},
			[]float64{0},
			"stage 0: from 2s on it has 0 replicas: want at least 1, and a bound",
		},
		{
			*chain(1),
			[]estimate.Setting{{Times: good.Times, Batch: 1, Replicas: estimate.Unbounded, Changes: []estimate.Change{{2, 1}}}},
			[]float64{0},
			"stage 0: unbounded replicas cannot change",
		},
		{*chain(1), two[:1], nil, "there are no queries"},
		{*chain(1), two[:1], []float64{0, 2, 1}, "query 2 arrives at 1: want finite times from 0 on, in ascending order"},
		{*chain(1), two[:1], []float64{math.NaN()}, "query 0 arrives at NaN: want finite times from 0 on, in ascending order"},
	} {
		if _, err := estimate.Run(&c.pipeline, c.settings, estimate.Arrivals(c.arrivals), 1, nil); err == nil || err.Error() != c.want {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

// BenchmarkRun reports simulated events per second: arrivals at stages and ends of batches.
func BenchmarkRun(b *testing.B) {
	for _, c := range []struct {
		name  string
		batch int
	}{{"batch=1", 1}, {"batch=8", 8}} {
		b.Run(c.name, func(b *testing.B) {
			p := chain(3)
			var settings []estimate.Setting
			for range p.Stages {
				settings = append(settings, estimate.Setting{Times: fixed(0.01, 0.001), Batch: c.batch, Replicas: 8})
			}
			arrivals := estimate.Arrivals(poisson(1, 200_000, 400))
			events := 0
			b.ReportAllocs()
			for b.Loop() {
				r, err := estimate.Run(p, settings, arrivals, 1, nil)
				if err != nil {
					b.Fatal(err)
				}
				events += r.Events
			}
			b.ReportMetric(float64(events)/b.Elapsed().Seconds()/1e6, "million-events/s")
		})
	}
}
