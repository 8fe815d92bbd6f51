package flow

import (
	"math"
	"slices"

	"github.com/headgate/headgate/bench/fleet"
)

// figures are what one run of one policy gives.
type figures struct {
	ttft50, ttft99, perToken99 float64 // seconds
	tokens                     float64 // output tokens per second
	allTokens                  float64 // prompt and output tokens per second
	hits                       float64 // share of prompt tokens that were cached
	refused                    float64 // share of requests that were refused and did not return
	inversions                 int
	unused                     float64 // longest time of unused room in seconds
	jain                       float64 // lowest index of Jain in a minute
	extra                      float64 // a figure of one part only
}

func ttft99(f figures) float64     { return f.ttft99 }
func perToken99(f figures) float64 { return f.perToken99 }
func tokens(f figures) float64     { return f.tokens }
func allTokens(f figures) float64  { return f.allTokens }

// bySeed has the figures of one policy by seed.
type bySeed []figures

// median returns the median of a figure over the seeds.
func (all bySeed) median(of func(figures) float64) float64 {
	values := make([]float64, len(all))
	for i, f := range all {
		values[i] = of(f)
	}
	return median(values)
}

// most returns the highest value of a figure.
func (all bySeed) most(of func(figures) float64) float64 {
	most := math.Inf(-1)
	for _, f := range all {
		most = max(most, of(f))
	}
	return most
}

// ratio returns the median over the seeds of a figure relative to that of another policy.
func (all bySeed) ratio(to bySeed, of func(figures) float64) float64 {
	values := make([]float64, len(all))
	for i, f := range all {
		values[i] = of(f) / of(to[i])
	}
	return median(values)
}

func median(values []float64) float64 { return quantile(values, 0.5) }

// quantile returns the smallest of the values that is at least as large as the given share of
// them.
func quantile(all []float64, share float64) float64 {
	if len(all) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}

// figuresOf returns the figures of the requests that which selects. A request that was refused has
// no first token, and counts as one that waits for ever.
func figuresOf(o fleet.Outcome, which func(fleet.Result) bool) (is figures) {
	var ttft, perToken []float64
	var cached, prompts, refused int
	for _, r := range o.Results {
		if !which(r) {
			continue
		}
		ttft = append(ttft, r.FirstToken-r.At)
		if r.Refused {
			refused++
			continue
		}
		perToken = append(perToken, r.PerToken())
		cached, prompts = cached+r.Cached, prompts+r.Prompt
	}
	is.ttft50, is.ttft99, is.perToken99 = quantile(ttft, 0.5), quantile(ttft, 0.99), quantile(perToken, 0.99)
	is.hits, is.refused = float64(cached)/float64(max(1, prompts)), float64(refused)/float64(max(1, len(ttft)))
	return is
}

// tokensPerSecond returns the output tokens per second between two times, from the samples.
func tokensPerSecond(o fleet.Outcome, from, until float64) float64 {
	a, b := sampleAt(o, from), sampleAt(o, until)
	return float64(b.Tokens-a.Tokens) / (b.At - a.At)
}

// allTokensPerSecond returns the prompt and output tokens per second between two times, from the
// samples.
func allTokensPerSecond(o fleet.Outcome, from, until float64) float64 {
	a, b := sampleAt(o, from), sampleAt(o, until)
	return tokensPerSecond(o, from, until) + float64(b.PromptTokens-a.PromptTokens)/(b.At-a.At)
}

// sampleAt returns the first sample at a time or later; the last sample if there is none.
func sampleAt(o fleet.Outcome, at float64) fleet.Sample {
	for _, s := range o.Samples {
		if s.At >= at {
			return s
		}
	}
	return o.Samples[len(o.Samples)-1]
}
