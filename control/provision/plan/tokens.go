package plan

import "github.com/headgate/headgate/internal/profile"

// tokens is how long an engine of an LLM takes for queries that are as those of the trace in the mean. It says which stage is the bottleneck, and
// where to begin: what an engine really does is for the estimate to say.
type tokens struct {
	engine         *profile.Profile
	prompt, output float64 // of a query
}

// MeanTime is how long an engine takes for so many queries that run together: for their prompts, one after the other, and for a step for each token
// of the answers.
func (t tokens) MeanTime(size int) float64 {
	running := t.fits(size)
	step := t.engine.StepTime(profile.Work{Sequences: running, KVTokens: int(float64(running) * (t.prompt + t.output/2))})
	prompts := float64(size) * t.engine.PrefillTime(0, int(t.prompt))
	return prompts + t.output*step*float64(size)/float64(running)
}

// Throughput is queries a second.
func (t tokens) Throughput(size int) float64 { return float64(size) / t.MeanTime(size) }

// fits is how many of so many queries run at once: there is room in the KV cache for so many.
func (t tokens) fits(size int) int {
	room := float64(t.engine.Limits.KVBlocks) * float64(t.engine.Limits.BlockSize) / (t.prompt + t.output)
	return max(1, min(size, int(room)))
}
