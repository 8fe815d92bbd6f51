package estimate_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/test/race"
)

// small returns a small random pipeline, the settings of its stages, and arrival times of queries.
func small(seed uint64) (*estimate.Pipeline, []estimate.Setting, []float64) {
	random := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // a test's
	p := &estimate.Pipeline{Stages: 1 + random.IntN(5)}
	var settings []estimate.Setting
	for s := range p.Stages {
		choice := random.IntN(2)
		for to := s + 1; to < p.Stages; to++ {
			if random.IntN(3) == 0 {
				continue
			}
			e := estimate.Edge{From: s, To: to, Share: 1}
			switch random.IntN(3) {
			case 0:
				e.Share = 0.1 + 0.8*random.Float64()
			case 1:
				if choice > 0 {
					e.Share, e.Choice = 0.25, choice
				}
			}
			p.Edges = append(p.Edges, e)
		}
		base, each, spread := 0.01+0.05*random.Float64(), 0.01*random.Float64(), random.Float64()
		settings = append(settings, estimate.Setting{
			Times: timesFunc(func(size int, share float64) float64 { return base*(1-spread/2+spread*share) + each*float64(size) }),
			Batch: 1 << random.IntN(4), Replicas: 1 + random.IntN(4), Wait: float64(random.IntN(3)) * 0.01 * random.Float64(),
			Central: random.IntN(2) == 0,
		})
		last := &settings[s]
		// The naive simulator cannot put simultaneous queries into one batch, so Ahead needs a
		// batching delay here.
		last.Ahead = last.Wait > 0 && random.IntN(3) == 0
		at := 0.0
		for range random.IntN(6) - 1 {
			at += 2 * random.Float64()
			last.Changes = append(last.Changes, estimate.Change{At: at, Replicas: 1 + random.IntN(4)})
			last.Startup = random.Float64()
		}
	}
	random.Shuffle(len(p.Edges), func(i, j int) { p.Edges[i], p.Edges[j] = p.Edges[j], p.Edges[i] })
	return p, settings, poisson(seed, 300, 10+100*random.Float64())
}

// For a thousand small pipelines, a naive simulator with lists of events gives the same results.
func TestNaiveSimulatorAgrees(t *testing.T) {
	race.Skip(t)
	for seed := range uint64(1000) {
		p, settings, arrivals := small(seed)
		got, _ := latencies(t, p, settings, arrivals, seed)
		for q, want := range naive(p, settings, arrivals, seed) {
			if math.Abs(got[q]-want) > 1e-9 {
				t.Fatalf("pipeline %d, query %d: %v, but the naive simulator has %v: %+v", seed, q, got[q], want, p)
			}
		}
	}
}

// members returns the number of queries in the first batch of the queue, for a stage with Ahead.
func members(queue []int, s estimate.Setting, since func(query int) float64) (n int) {
	for n < len(queue) && n < s.Batch && since(queue[n]) <= since(queue[0])+s.Wait {
		n++
	}
	return n
}

// naive is a direct implementation of InferLine's estimator, with plain lists of events and queues.
func naive(p *estimate.Pipeline, settings []estimate.Setting, arrivals []float64, seed uint64) []float64 {
	type occurrence struct {
		at    float64
		asked int
		kind  string
		stage int
		lane  int
		batch []int
	}
	var events []occurrence
	asked := 0
	post := func(at float64, kind string, stage, lane int, batch ...int) {
		events = append(events, occurrence{at, asked, kind, stage, lane, batch})
		asked++
	}
	type at struct{ query, stage int }
	type lane struct {
		closed   bool // accepts no more queries
		queue    []int
		has      int // number of queries in the queue or in service
		busy     int // number of busy replicas
		going    int // number of busy replicas that will be removed when their batch ends
		replicas int
		last     int // sequence number of the latest query that was sent to this lane
	}
	lanes := make([][]lane, p.Stages)
	for s, is := range settings {
		lanes[s] = []lane{{replicas: is.Replicas}}
		if !is.Central {
			lanes[s] = slices.Repeat([]lane{{replicas: 1}}, is.Replicas)
		}
	}
	since := map[at]float64{}
	arrived, ended := map[at]int{}, make([]float64, len(arrivals))
	now, sent := 0.0, 0
	dispatch := func(s, n int) {
		if settings[s].Ahead {
			for l := &lanes[s][n]; len(l.queue) > 0 && l.busy-l.going < l.replicas; l.busy++ {
				size := members(l.queue, settings[s], func(q int) float64 { return since[at{q, s}] })
				first := since[at{l.queue[0], s}]
				if size < settings[s].Batch && now < first+settings[s].Wait {
					return // the first batch is still filling
				}
				batch := slices.Clone(l.queue[:size])
				l.queue = l.queue[size:]
				post(now+settings[s].Times.Time(size, estimate.DrawOf(seed, batch[0], s)), "end", s, n, batch...)
			}
			return
		}
		for l := &lanes[s][n]; len(l.queue) > 0 && l.busy-l.going < l.replicas; {
			oldest := since[at{l.queue[0], s}]
			if len(l.queue) < settings[s].Batch && now < oldest+settings[s].Wait {
				post(oldest+settings[s].Wait, "look", s, n)
				return
			}
			size := min(settings[s].Batch, len(l.queue))
			batch := slices.Clone(l.queue[:size])
			l.queue = l.queue[size:]
			l.busy++
			post(now+settings[s].Times.Time(size, estimate.DrawOf(seed, batch[0], s)), "end", s, n, batch...)
		}
	}
	arrive := func(q, s int) {
		since[at{q, s}] = now
		best := slices.IndexFunc(lanes[s], func(l lane) bool { return !l.closed })
		for n, l := range lanes[s] {
			if b := lanes[s][best]; !l.closed && (l.has < b.has || l.has == b.has && l.last < b.last) {
				best = n
			}
		}
		l := &lanes[s][best]
		sent++
		l.queue, l.has, l.last = append(l.queue, q), l.has+1, sent
		if settings[s].Ahead { // check again after the batching delay, when the batch closes
			post(now+settings[s].Wait, "look", s, best)
		}
		dispatch(s, best)
	}
	root := func(s int) bool {
		return !slices.ContainsFunc(p.Edges, func(e estimate.Edge) bool { return e.To == s })
	}
	// needs returns how many incoming edges of stage s the query q takes.
	var needs func(q, s int) int
	needs = func(q, s int) (n int) {
		for i, e := range p.Edges {
			if e.To == s && (root(e.From) || needs(q, e.From) > 0) && estimate.Coin(p, seed, q, i) {
				n++
			}
		}
		return n
	}
	for q, when := range arrivals {
		events = append(events, occurrence{when, -len(arrivals) + q, "query", 0, 0, []int{q}})
	}
	for s, is := range settings {
		for when, more := range comeAndGo(is) {
			kind := "grow"
			if more < 0 {
				kind = "shrink"
			}
			for range max(more, -more) {
				post(when, kind, s, 0)
			}
		}
	}
	for len(events) > 0 {
		i := 0
		for j, e := range events {
			if e.at < events[i].at || e.at == events[i].at && e.asked < events[i].asked {
				i = j
			}
		}
		e := events[i]
		events = slices.Delete(events, i, i+1)
		now = e.at
		switch e.kind {
		case "query":
			for s := range p.Stages {
				if root(s) {
					arrive(e.batch[0], s)
				}
			}
		case "look":
			dispatch(e.stage, e.lane)
		case "grow":
			if settings[e.stage].Central {
				lanes[e.stage][0].replicas++
				dispatch(e.stage, 0)
				break
			}
			lanes[e.stage] = append(lanes[e.stage], lane{replicas: 1})
		case "shrink":
			if settings[e.stage].Central {
				l := &lanes[e.stage][0]
				if l.replicas--; l.busy-l.going > l.replicas {
					l.going++
				}
				break
			}
			for n, l := range slices.Backward(lanes[e.stage]) {
				if !l.closed {
					lanes[e.stage][n].closed = true
					break
				}
			}
		case "end":
			for _, q := range e.batch {
				lanes[e.stage][e.lane].has--
				ended[q] = max(ended[q], now-arrivals[q])
				for i, out := range p.Edges {
					if out.From != e.stage || !estimate.Coin(p, seed, q, i) {
						continue
					}
					if arrived[at{q, out.To}]++; arrived[at{q, out.To}] == needs(q, out.To) {
						arrive(q, out.To)
					}
				}
			}
			l := &lanes[e.stage][e.lane]
			l.busy--
			l.going = max(0, l.going-1)
			dispatch(e.stage, e.lane)
		}
	}
	return ended
}

// comeAndGo returns by how much the number of replicas that accept queries changes at each time.
func comeAndGo(s estimate.Setting) map[float64]int {
	all := make(map[float64]int)
	var come []float64 // times at which added replicas start to accept queries
	for range s.Replicas {
		come = append(come, 0)
	}
	for _, c := range s.Changes {
		for len(come) < c.Replicas {
			come = append(come, c.At+s.Startup)
			all[c.At+s.Startup]++
		}
		for len(come) > c.Replicas {
			latest := slices.Index(come, slices.Max(come))
			if come[latest] > c.At {
				all[come[latest]]--
			} else {
				all[c.At]--
			}
			come = slices.Delete(come, latest, latest+1)
		}
	}
	return all
}
