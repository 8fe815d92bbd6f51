package planner

import (
	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/internal/profile"
)

// tokens computes service times and throughput of an LLM engine for the queries of a trace.
type tokens struct {
	engine         *profile.Profile
	queries        []estimate.Query
	prompt, output float64         // mean numbers of prompt and output tokens per query
	rates          map[int]float64 // cache of Throughput: queries per second by concurrency
}

// MeanTime returns the time in which an engine serves size average queries together: it computes
// their prompts one after another, and then a decode step for each output token.
func (t *tokens) MeanTime(size int) float64 {
	running := t.fits(size)
	step := t.engine.StepTime(profile.Work{Sequences: running, KVTokens: int(float64(running) * (t.prompt + t.output/2))})
	prompts := float64(size) * t.engine.PrefillTime(0, int(t.prompt))
	return prompts + t.output*step*float64(size)/float64(running)
}

// Throughput returns how many queries per second a saturated engine completes. It simulates queries
// of the trace that all arrive at once. It measures only the middle half of them, because the
// engine is not saturated at the start and at the end. Outputs of equal length end in waves, so the
// number of queries is a multiple of four times the concurrency.
func (t *tokens) Throughput(size int) float64 {
	if rate, known := t.rates[size]; known {
		return rate
	}
	quarter := t.fits(size)
	quarter *= (500 + quarter - 1) / quarter
	queries := make([]estimate.Query, 4*quarter)
	for i := range queries {
		queries[i] = t.queries[i*max(len(t.queries), len(queries))/len(queries)%len(t.queries)] // chosen evenly from the trace
		queries[i].At = 0
	}
	ended, first, last := 0, 0.0, 0.0
	setting := estimate.Setting{Engine: t.engine, Batch: size, Replicas: 1}
	_, err := estimate.Run(&estimate.Pipeline{Stages: 1}, []estimate.Setting{setting}, queries, 0,
		func(_ int, took estimate.QueryTimes) bool {
			switch ended++; ended {
			case quarter:
				first = took.Latency
			case 3 * quarter:
				last = took.Latency
			}
			return ended < 3*quarter
		})
	if err != nil {
		panic(err) // impossible: Check has accepted the problem
	}
	t.rates[size] = float64(2*quarter) / (last - first)
	return t.rates[size]
}

// fits returns how many of size queries can run at once: the KV cache must have room for them.
func (t *tokens) fits(size int) int {
	room := float64(t.engine.Limits.KVBlocks) * float64(t.engine.Limits.BlockSize) / (t.prompt + t.output)
	return max(1, min(size, int(room)))
}
