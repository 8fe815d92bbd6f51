package planner_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/control/provision/planner"
	"github.com/headgate/headgate/internal/profile"
)

// llm returns a problem with one LLM stage and 8 conversations per second. The stage can run on two
// kinds of hardware; the more expensive kind is twice as fast.
func llm() *planner.Problem {
	fast := profile.Profile{
		Name: "fast", Prefill: profile.Prefill{Base: 0.005, PerToken: 1e-4},
		Decode: profile.Decode{Base: 0.008, PerSequence: 1e-4, PerKVToken: 2e-8},
		Limits: profile.Limits{MaxSequences: 64, MaxBatchedTokens: 2048, KVBlocks: 6000, BlockSize: 16},
	}
	slow := fast.Times(2)
	slow.Name = "slow"
	p := &planner.Problem{
		Pipeline: &estimate.Pipeline{Stages: 1}, Objectives: []planner.Objective{
			{Metric: planner.FirstToken, Seconds: 1, Share: 0.99},
			{Metric: planner.PerToken, Seconds: 0.03, Share: 0.9},
		},
		Stages: []planner.Stage{{Name: "chat", MinReplicas: 1, Hardware: []planner.Hardware{
			{Name: "fast", Price: 3, Engine: &fast, Batches: []int{8, 64}}, {Name: "slow", Price: 1, Engine: &slow, Batches: []int{8, 64}},
		}}},
	}
	random, at := rand.New(rand.NewPCG(1, 1)), 0.0 //nolint:gosec // a test's
	for range 1000 {
		at += random.ExpFloat64() / 8
		p.Queries = append(p.Queries, estimate.Query{At: at, Prompt: 1 + random.Int32N(1000), Output: 1 + random.Int32N(200)})
	}
	return p
}

// The plan of an LLM meets every objective. The test tries all cheaper configurations: none of them
// meets every objective.
func TestAnLLMIsPlanned(t *testing.T) {
	for name, change := range map[string]func(*planner.Problem){
		"both objectives":           func(*planner.Problem) {},
		"first tokens alone":        func(p *planner.Problem) { p.Objectives = p.Objectives[:1] },
		"tokens that come fast":     func(p *planner.Problem) { p.Objectives[1].Seconds = 0.015 },
		"little of the slow kind":   func(p *planner.Problem) { p.AtMost = map[string]int{"slow": 2} },
		"two GPUs a replica, of 5":  func(p *planner.Problem) { p.AtMost = map[string]int{"slow": 5}; p.Stages[0].Hardware[1].Units = 2 },
		"the latency of the answer": func(p *planner.Problem) { p.Objectives = []planner.Objective{{Seconds: 8, Share: 0.95}} },
	} {
		p := llm()
		change(p)
		if err := p.Check(); err != nil {
			t.Fatal(err)
		}
		best, cost := planner.Setting{}, 1e9
		for h := range p.Stages[0].Hardware {
			for _, size := range p.Stages[0].Hardware[h].Batches {
				for n := 1; n <= 12; n++ {
					c := planner.Config{{Hardware: h, Batch: size, Replicas: n}}
					if p.Cost(c) < cost && thereIs(p, c) && keepsAll(p, c) {
						best, cost = c[0], p.Cost(c)
					}
				}
			}
		}
		is := planner.Search(p)
		t.Logf("%s: %v at %v keeps %.4g", name, is.Config, is.Cost, is.Values)
		if !is.Found || is.Cost != cost || !keepsAll(p, is.Config) || !thereIs(p, is.Config) {
			t.Errorf("%s: the plan is %v at %v: %s; but %v at %v keeps the objectives", name, is.Config, is.Cost, is.Reason, best, cost)
		}
	}
}

// keepsAll reports whether a configuration meets all objectives.
func keepsAll(p *planner.Problem, c planner.Config) bool {
	missed := make([]int, len(p.Objectives))
	if _, err := estimate.Run(p.Pipeline, p.Settings(c), p.Queries, p.Seed, func(_ int, took estimate.QueryTimes) bool {
		for i, o := range p.Objectives {
			if map[planner.Metric]float64{
				planner.Latency: took.Latency, planner.FirstToken: took.FirstToken,
				planner.PerToken: took.PerToken,
			}[o.Metric] > o.Seconds {
				missed[i]++
			}
		}
		return true
	}); err != nil {
		panic(err)
	}
	for i, o := range p.Objectives {
		if float64(missed[i]) > (1-o.Share)*float64(len(p.Queries))+1e-6 {
			return false
		}
	}
	return true
}

// thereIs reports whether enough units of hardware exist for a configuration with one stage.
func thereIs(p *planner.Problem, c planner.Config) bool {
	h := p.Stages[0].Hardware[c[0].Hardware]
	most, bounded := p.AtMost[h.Name]
	return !bounded || c[0].Replicas*max(1, h.Units) <= most
}

// Two stages on the same kind of hardware share its units.
func TestStagesShareHardware(t *testing.T) {
	p := two()
	p.Objectives[0].Seconds = 0.23
	p.AtMost = map[string]int{"fast": 2, "slow": 1}
	if is := planner.Search(p); text(is) != "[{1 2 1} {0 2 2}] at 7, 0.22s" {
		t.Error(text(is))
	}
	p.AtMost = map[string]int{"fast": 3, "slow": 0}
	if is := planner.Search(p); text(is) != "[{0 2 1} {0 2 2}] at 9, 0.17s" {
		t.Error(text(is))
	}
	p.AtMost = map[string]int{"fast": 2, "slow": 0}
	p.ProofLimit = 1000
	if is := planner.Search(p); is.Found || !is.Optimal {
		t.Errorf("plan %s, optimal: %v", text(is), is.Optimal)
	}
	if is := planner.InferLine(p); text(is) != "stage 1 is the bottleneck and there are only 2 fast" {
		t.Error(text(is))
	}
}

// The callback Progress gets the number of simulations and the best candidate so far.
func TestProgress(t *testing.T) {
	p, told, last := two(), 0, planner.Candidate{}
	p.Progress = func(simulations int, best planner.Candidate) bool {
		if simulations <= told || last.Feasible && best.Cost > last.Cost {
			t.Errorf("the progress goes from %d simulations and %v to %d and %v", told, last.Cost, simulations, best.Cost)
		}
		told, last = simulations, best
		return true
	}
	if is := planner.Search(p); told != is.Simulations || last.Cost != is.Cost {
		t.Errorf("the progress counts %d of %d simulations, and the cost %v of %v", told, is.Simulations, last.Cost, is.Cost)
	}
}

// If Progress stops the search, the result is the best plan so far, and it meets the objectives.
func TestSearchIsStopped(t *testing.T) {
	for after := 0; after < 200; after += 11 {
		for name, find := range map[string]func(*planner.Problem) *planner.Plan{"inferline": planner.InferLine, "search": planner.Search} {
			p := two()
			p.ProofLimit = 1000
			best := planner.Candidate{}
			p.Progress = func(simulations int, is planner.Candidate) bool {
				best = is
				return simulations <= after
			}
			is := find(p)
			if is.Found != best.Feasible || is.Found && is.Cost > best.Cost || !is.Found && is.Reason == "" || is.Simulations > after+1 {
				t.Fatalf("%s stopped after %d: %s after %d simulations, although %v was the best", name, after, text(is), is.Simulations, best)
			}
		}
	}
}

func TestProblemsWithBadLLMs(t *testing.T) {
	p := llm()
	p.Queries[7].Output = 0
	if err := p.Check(); err == nil || !strings.Contains(err.Error(), "stage chat: on fast: query 7 has") {
		t.Error(err)
	}
	p = llm()
	p.Objectives = nil
	if err := p.Check(); err == nil || err.Error() != "there is no objective" {
		t.Error(err)
	}
}

// A TrafficIntensity of 1 is the highest load that an engine can sustain: at 0.9 the latency stays
// constant, and at 1.1 it keeps growing.
func TestTrafficIntensity(t *testing.T) {
	p := llm()
	c := planner.Config{{Hardware: 0, Batch: 8, Replicas: 1}}
	rate := estimate.Rate(p.Queries)
	for load, grows := range map[float64]bool{0.9: false, 1.1: true} {
		by := load / p.TrafficIntensity(c)[0] // factor by which to multiply the arrival rate
		var all []estimate.Query
		for _, q := range slices.Concat(p.Queries, p.Queries, p.Queries, p.Queries) {
			q.At = float64(len(all)) / (rate * by)
			all = append(all, q)
		}
		n, early, late := len(all), 0.0, 0.0
		_, err := estimate.Run(p.Pipeline, p.Settings(c), all, p.Seed, func(number int, took estimate.QueryTimes) bool {
			switch {
			case number >= n/4 && number < n/2:
				early += took.Latency
			case number >= 3*n/4:
				late += took.Latency
			}
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("at traffic intensity %v: %.3gs, then %.3gs", load, early/float64(n/4), late/float64(n/4))
		if (late > 1.5*early) != grows {
			t.Errorf("at traffic intensity %v queries take %.3gs, and later %.3gs", load, early/float64(n/4), late/float64(n/4))
		}
	}
}
