package estimate_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/bench/fleet"
	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/headgate/simulated/llm"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/internal/sim"
	"github.com/headgate/headgate/test/race"
)

// conversations returns n queries with Poisson arrivals and with varying prompt and output lengths.
func conversations(seed uint64, n int, rate float64) []estimate.Query {
	random := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // a test's
	all := estimate.Arrivals(poisson(seed, n, rate))
	for i := range all {
		all[i].Prompt = 1 + int32(math.Min(4000, 800*random.ExpFloat64()))
		all[i].Output = 1 + int32(math.Min(800, 150*random.ExpFloat64()))
	}
	return all
}

// engine returns the profile of an LLM engine, and the setting of a stage with replicas of that
// engine.
func engine(replicas int) (*profile.Profile, estimate.Setting) {
	p := llm.DefaultProfile()
	return &p, estimate.Setting{Engine: &p, Batch: p.Limits.MaxSequences, Replicas: replicas}
}

// A stage with one engine gives each query the same times as package sim, for the same batch size.
func TestEngineMatchesSim(t *testing.T) {
	p, setting := engine(1)
	setting.Batch = 8
	own := *p
	own.Limits.MaxSequences = 8
	own.FrontendOverhead = 0.002
	setting.Engine = &own
	queries := conversations(1, 300, 3)
	e, err := sim.New(own, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := make([]sim.Record, len(queries))
	for next := 0; ; {
		at, busy := e.Next()
		if next < len(queries) && (!busy || queries[next].At+own.FrontendOverhead < at) {
			q := queries[next]
			if _, err := e.Submit(q.At+own.FrontendOverhead,
				sim.Request{PromptTokens: int(q.Prompt), OutputTokens: int(q.Output)}); err != nil {
				t.Fatal(err)
			}
			next++
			continue
		}
		if !busy {
			break
		}
		for _, ev := range e.Advance(at) {
			if ev.Kind == sim.Finished {
				want[ev.ID-1] = ev.Record
			}
		}
	}
	waited := false
	r, err := estimate.Run(chain(1), []estimate.Setting{setting}, queries, 1, func(q int, took estimate.QueryTimes) bool {
		is, at, output := want[q], queries[q].At, float64(queries[q].Output)
		waited = waited || is.Scheduled > is.Arrived+0.1
		if took.Latency != is.LastToken-at || took.FirstToken != is.FirstToken-at || output > 1 &&
			took.PerToken != (is.LastToken-is.FirstToken)/(output-1) {
			t.Errorf("query %d took %+v, but its record is %+v", q, took, is)
		}
		return true
	})
	if err != nil || !waited {
		t.Fatalf("%v, or no query waits: %v", err, !waited)
	}
	is := r.Stages[0]
	if sum := is.QueueTime + is.ServiceTime; is.Queries != len(queries) || math.Abs(sum-is.Latency.Sum) > 1e-6 || is.Busy > r.Seconds ||
		is.Busy < 0.5*r.Seconds {
		t.Errorf("%d queries waited for %v and were computed for %v, of %v; the engine was busy for %v of %v", is.Queries, is.QueueTime,
			is.ServiceTime, is.Latency.Sum, is.Busy, r.Seconds)
	}
}

// Latencies of several engines agree with those of bench fleet, where extproc picks by its own
// endpoint states and scrapes the engines.
func TestEnginesAreAsInAFleet(t *testing.T) {
	race.Skip(t)
	p, setting := engine(8)
	queries := conversations(3, 4000, 16)
	requests := func(yield func(fleet.Request) bool) {
		for i, q := range queries {
			prompt := make([]uint32, q.Prompt)
			prompt[0] = uint32(i) //nolint:gosec // few
			if !yield(fleet.Request{At: q.At, Prompt: prompt, Output: int(q.Output)}) {
				return
			}
		}
	}
	o, err := fleet.Fleet{Profile: *p, Endpoints: 8, Pickers: 1, ScrapeInterval: 0.2}.Run(1, requests, fleet.Headgate(pick.Latency))
	if err != nil {
		t.Fatal(err)
	}
	var first, last [2][]float64
	for _, is := range o.Results {
		first[0], last[0] = append(first[0], is.FirstToken-is.At), append(last[0], is.LastToken-is.At)
	}
	if _, err := estimate.Run(chain(1), []estimate.Setting{setting}, queries, 1, func(_ int, took estimate.QueryTimes) bool {
		first[1], last[1] = append(first[1], took.FirstToken), append(last[1], took.Latency)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	for what, is := range map[string][2][]float64{"time to first token": first, "latency": last} {
		for i := range is {
			slices.Sort(is[i])
		}
		for _, share := range []float64{0.5, 0.9, 0.99} {
			a, b := is[0][int(share*float64(len(is[0])))], is[1][int(share*float64(len(is[1])))]
			t.Logf("%s, %v: %.4g in the fleet, %.4g estimated", what, share, a, b)
			near(t, what, b, a, 0.15)
		}
	}
}

// If a query passes two LLMs in a chain, its token times are those of the second LLM.
func TestTokenTimesOfTheLastLLM(t *testing.T) {
	_, setting := engine(estimate.Unbounded)
	query := []estimate.Query{{At: 1, Prompt: 100, Output: 20}}
	var one, two estimate.QueryTimes
	for stages, is := range map[int]*estimate.QueryTimes{1: &one, 2: &two} {
		if _, err := estimate.Run(chain(stages), slices.Repeat([]estimate.Setting{setting}, stages), query, 1,
			func(_ int, took estimate.QueryTimes) bool {
				*is = took
				return true
			}); err != nil {
			t.Fatal(err)
		}
	}
	near(t, "the latency", two.Latency, 2*one.Latency, 1e-9)
	near(t, "the time to the first token", two.FirstToken, one.Latency+one.FirstToken, 1e-9)
	near(t, "the time per token", two.PerToken, one.PerToken, 1e-9)
}

// With unbounded replicas each query has its own engine.
func TestUnboundedEngines(t *testing.T) {
	p, setting := engine(estimate.Unbounded)
	queries := conversations(1, 500, 50)
	if _, err := estimate.Run(chain(1), []estimate.Setting{setting}, queries, 1, func(q int, took estimate.QueryTimes) bool {
		near(t, "the time to the first token", took.FirstToken, p.FrontendOverhead+p.PrefillTime(0, int(queries[q].Prompt)), 1e-9)
		return true
	}); err != nil {
		t.Fatal(err)
	}
}

func TestBadLLMsAreRejected(t *testing.T) {
	p, setting := engine(1)
	good := []estimate.Query{{Prompt: 1, Output: 1}}
	for want, change := range map[string]func(s *estimate.Setting, q *estimate.Query){
		"query 0 has 0 prompt and 1 output tokens": func(_ *estimate.Setting, q *estimate.Query) { q.Prompt = 0 },
		"query 0 has 1 prompt and 0 output tokens": func(_ *estimate.Setting, q *estimate.Query) { q.Output = 0 },
		"and an engine of": func(_ *estimate.Setting, q *estimate.Query) {
			q.Prompt = int32(p.Limits.KVBlocks * p.Limits.BlockSize) //nolint:gosec // few
		},
		"an engine has its own queue": func(s *estimate.Setting, _ *estimate.Query) {
			s.Central = true
		},
		"want either the times of its batches or the profile of an engine": func(s *estimate.Setting, _ *estimate.Query) {
			s.Times = fixed(1, 1)
		},
	} {
		s, q := setting, good[0]
		change(&s, &q)
		if _, err := estimate.Run(chain(1), []estimate.Setting{s}, []estimate.Query{q}, 1, nil); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// BenchmarkHour simulates an hour of conversations on 100 engines. The rate and the mean token
// counts are those of Azure's trace of 2023.
func BenchmarkHour(b *testing.B) {
	_, setting := engine(100)
	queries := conversations(1, 19_366, 5.53)
	for i := range queries {
		queries[i].Prompt, queries[i].Output = queries[i].Prompt*13/10, queries[i].Output*14/10
	}
	for b.Loop() {
		if _, err := estimate.Run(chain(1), []estimate.Setting{setting}, queries, 1, nil); err != nil {
			b.Fatal(err)
		}
	}
}
