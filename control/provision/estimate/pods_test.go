package estimate_test

import (
	"math"
	"slices"
	"testing"

	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/test/race"
)

// A second replica is requested at 0.5 s and accepts queries 1 s later. The expected queue times
// were computed by hand.
func TestReplicasStart(t *testing.T) {
	second := estimate.Setting{Times: fixed(1, 0), Batch: 1, Replicas: 1, Startup: 1}
	for name, c := range map[string]struct {
		changes []estimate.Change
		central bool
		at      []float64
		want    []float64
		paid    float64
	}{
		"none": {nil, true, []float64{0, 0, 0, 0}, []float64{1, 2, 3, 4}, 4},
		"one more for the queue of all": {
			[]estimate.Change{{At: 0.5, Replicas: 2}}, true, []float64{0, 0, 0, 0}, []float64{1, 2, 2.5, 3}, 3 + 2.5,
		},
		"one more, to which new queries go": {
			[]estimate.Change{{At: 0.5, Replicas: 2}}, false, []float64{0, 0, 0, 1.25, 1.75}, []float64{1, 2, 3, 2.75, 1}, 4 + 3.5,
		},
		"it is no longer wanted before it is there": {
			[]estimate.Change{{At: 0.5, Replicas: 2}, {At: 1.25, Replicas: 1}},
			true,
			[]float64{0, 0, 0, 0},
			[]float64{1, 2, 3, 4},
			4 + 0.75,
		},
		"asked for again, it starts anew": {
			[]estimate.Change{{At: 0.5, Replicas: 2}, {At: 1.25, Replicas: 1}, {At: 1.5, Replicas: 2}},
			true,
			[]float64{0, 0, 0, 0},
			[]float64{1, 2, 3, 3.5},
			3.5 + 0.75 + 2,
		},
		"after all has ended": {[]estimate.Change{{At: 100, Replicas: 2}}, true, []float64{0, 0, 0, 0}, []float64{1, 2, 3, 4}, 4},
		"more than one": {
			[]estimate.Change{{At: 0, Replicas: 3}}, true, []float64{0, 0, 0, 0}, []float64{1, 2, 2, 2}, 6,
		},
	} {
		s := second
		s.Changes, s.Central = c.changes, c.central
		got, r := latencies(t, chain(1), []estimate.Setting{s}, c.at, 1)
		if !slices.Equal(got, c.want) || math.Abs(r.Stages[0].Paid-c.paid) > 1e-9 {
			t.Errorf("%s: queries take %v, and replicas cost %v s; want %v and %v", name, got, r.Stages[0].Paid, c.want, c.paid)
		}
	}
}

// One of two replicas is removed while it serves a query. It gets no other query. Its time is paid
// until that query ends.
func TestReplicasGo(t *testing.T) {
	less := []estimate.Change{{At: 0.5, Replicas: 1}}
	for name, c := range map[string]struct {
		changes []estimate.Change
		central bool
		at      []float64
		want    []float64
		paid    float64
	}{
		"of the queue of all one replica takes on":   {less, true, []float64{0, 0, 0, 0}, []float64{1, 1, 2, 3}, 3 + 1},
		"what waits at it is computed there":         {less, false, []float64{0, 0, 0, 0, 0.75}, []float64{1, 1, 2, 2, 2.25}, 3 + 2},
		"one that has nothing to do is gone at once": {less, true, []float64{0, 0.75}, []float64{1, 1.25}, 2 + 0.5},
		"and so is one with a queue of its own":      {less, false, []float64{0, 0.75}, []float64{1, 1.25}, 2 + 0.5},
		"while it ends what it has another comes": {
			append(less, estimate.Change{At: 0.6, Replicas: 2}), true, []float64{0, 0, 0}, []float64{1, 1, 1.75}, 1.75 + 1 + 1.15,
		},
	} {
		s := estimate.Setting{Times: fixed(1, 0), Batch: 1, Replicas: 2, Changes: c.changes, Central: c.central, Startup: 0.15}
		got, r := latencies(t, chain(1), []estimate.Setting{s}, c.at, 1)
		for q := range got {
			got[q] = math.Round(1e9*got[q]) / 1e9
		}
		if paid := r.Stages[0].Paid; !slices.Equal(got, c.want) || math.Abs(paid-c.paid) > 1e-9 {
			t.Errorf("%s: queries take %v, and replicas cost %v s; want %v and %v", name, got, paid, c.want, c.paid)
		}
	}
}

// A second replica starts while the first computes a batch. Queries wait for the replica until it
// has started, and then for their batch to fill.
func TestWaitsWhileAReplicaStarts(t *testing.T) {
	s := estimate.Setting{
		Times: fixed(2, 0), Batch: 4, Replicas: 1, Wait: 1, Central: true,
		Changes: []estimate.Change{{At: 2, Replicas: 2}},
	}
	got, r := latencies(t, chain(1), []estimate.Setting{s}, []float64{0, 1.5}, 1)
	if is := r.Stages[0]; !slices.Equal(got, []float64{3, 3}) || is.BatchingDelay != 1+0.5 || is.QueueTime != 0.5 {
		t.Errorf("queries take %v; the queue time is %v s, and the batching delay %v", got, is.QueueTime, is.BatchingDelay)
	}
}

// Replicas that are requested at time 0 and need no time to start give the same latencies as
// initial replicas. This includes LLM engines.
func TestEarlyReplicasEqualInitialOnes(t *testing.T) {
	race.Skip(t)
	for seed := range uint64(200) {
		p, settings, arrivals := small(seed)
		for i := range settings {
			settings[i].Changes, settings[i].Replicas = nil, max(2, settings[i].Replicas)
		}
		want, _ := latencies(t, p, settings, arrivals, seed)
		for i := range settings {
			settings[i].Changes = []estimate.Change{{Replicas: settings[i].Replicas}}
			settings[i].Replicas, settings[i].Startup = 1, 0
		}
		if got, _ := latencies(t, p, settings, arrivals, seed); !slices.Equal(got, want) {
			t.Fatalf("pipeline %d: latencies differ", seed)
		}
	}
}

// Changes also apply to LLM engines: added engines lower latency, but only after they have started.
func TestEnginesStart(t *testing.T) {
	queries := conversations(1, 400, 2)
	run := func(s estimate.Setting) (all []float64) {
		all = make([]float64, len(queries))
		_, err := estimate.Run(chain(1), []estimate.Setting{s}, queries, 1, func(q int, took estimate.QueryTimes) bool {
			all[q] = took.Latency
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	_, one := engine(1)
	_, three := engine(3)
	slow, fast := run(one), run(three)
	one.Changes, one.Startup = []estimate.Change{{At: 40, Replicas: 3}, {At: 150, Replicas: 1}}, 5
	both := run(one)
	early, late, mean := 0, 0.0, 0.0
	for q := range queries {
		switch at := queries[q].At; {
		case at+both[q] < 45:
			early++
			if both[q] != slow[q] {
				t.Fatalf("query %d ends after %v s, before the engine starts, but its latency differs", q, at+both[q])
			}
		case at > 45:
			late += both[q]
			mean += slow[q]
		}
	}
	if early < 20 || !(late < 0.9*mean) || slices.Max(fast) > slices.Max(slow) {
		t.Errorf("%d queries end before the engines start; later ones take %.3g s, and %.3g s without these engines", early, late, mean)
	}
}

// A replica that was requested before time 0 accepts queries as soon as its startup time has
// passed.
func TestReplicasThatStartWhenQueriesBegin(t *testing.T) {
	for _, c := range []struct{ asked, second float64 }{{-0.5, 2}, {-0.3, 3.4}, {-9, 2}} { // ready at 0.5 s, 0.7 s and 0 s
		setting := estimate.Setting{
			Times: fixed(2, 0), Batch: 1, Replicas: 1, Startup: 1,
			Changes: []estimate.Change{{At: c.asked, Replicas: 2}},
		}
		var took [2]float64
		if _, err := estimate.Run(chain(1), []estimate.Setting{setting}, estimate.Arrivals([]float64{0, 0.6}), 1,
			func(q int, is estimate.QueryTimes) bool {
				took[q] = is.Latency
				return true
			}); err != nil {
			t.Fatal(err)
		}
		if took[0] != 2 || math.Abs(took[1]-c.second) > 1e-9 {
			t.Errorf("with a replica requested at %v s queries take %v, want 2 and %v", c.asked, took, c.second)
		}
	}
}
