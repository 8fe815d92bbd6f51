package planner

import (
	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/internal/profile"
)

// tokens is the service time of an LLM engine for the queries of a trace.
type tokens struct {
	engine         *profile.Profile
	queries        []estimate.Query
	prompt, output float64         // of a mean query
	rates          map[int]float64 // queries a second, by how many run at once; computed on demand
}

// MeanTime returns the time of an engine for size mean queries that run together: their prompts one after the other, and a step for each token of
// the answers.
func (t *tokens) MeanTime(size int) float64 {
	running := t.fits(size)
	step := t.engine.StepTime(profile.Work{Sequences: running, KVTokens: int(float64(running) * (t.prompt + t.output/2))})
	prompts := float64(size) * t.engine.PrefillTime(0, int(t.prompt))
	return prompts + t.output*step*float64(size)/float64(running)
}

// Throughput is how many queries a second one engine ends, of which so many may run at once, while more wait than it can run. It is found by
// simulating queries of the trace that come all at once: by the middle half of them, for the first find the engine idle, and the last leave it so.
// They are four times as many as run at once, or a multiple of that, so that they have the mean tokens of the trace, nearly: answers that are as long
// as each other end in waves of as many as run.
func (t *tokens) Throughput(size int) float64 {
	if rate, known := t.rates[size]; known {
		return rate
	}
	quarter := t.fits(size)
	quarter *= (500 + quarter - 1) / quarter
	crowd := make([]estimate.Query, 4*quarter)
	for i := range crowd {
		crowd[i] = t.queries[i*max(len(t.queries), len(crowd))/len(crowd)%len(t.queries)] // from the whole of the trace
		crowd[i].At = 0
	}
	ended, first, last := 0, 0.0, 0.0
	setting := estimate.Setting{Engine: t.engine, Batch: size, Replicas: 1}
	_, err := estimate.Run(&estimate.Pipeline{Stages: 1}, []estimate.Setting{setting}, crowd, 0, func(_ int, took estimate.Took) bool {
		switch ended++; ended {
		case quarter:
			first = took.Latency
		case 3 * quarter:
			last = took.Latency
		}
		return ended < 3*quarter
	})
	if err != nil {
		panic(err) // Check has ruled this out
	}
	t.rates[size] = float64(2*quarter) / (last - first)
	return t.rates[size]
}

// fits is how many of so many queries run at once: there is room in the KV cache for so many.
func (t *tokens) fits(size int) int {
	room := float64(t.engine.Limits.KVBlocks) * float64(t.engine.Limits.BlockSize) / (t.prompt + t.output)
	return max(1, min(size, int(room)))
}
