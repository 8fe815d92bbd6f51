package engine

import (
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
)

// Totals are what an engine has counted since it began, of all its requests. Each only grows while one engine lives; two looks at them tell what
// happened between, in the engine's own time. With data parallelism they are sums over all engines of the endpoint.
type Totals struct {
	// Of requests that have ended: how long they waited to be scheduled, were prefilled, and decoded.
	Queue, Prefill, Decode Timed
	// FirstToken is of requests whose first token is out, from their arrival. InterToken is of each further token, from the one before it.
	FirstToken, InterToken Timed

	// PromptTokens are those of requests whose first token is out; CachedTokens are how many of them were not computed, for a cache had them.
	PromptTokens, CachedTokens Value
	// GeneratedTokens are those that came out.
	GeneratedTokens Value
	// PrefillTokens are the prompt tokens that were computed of the requests that Prefill counts.
	PrefillTokens Value
	// Steps are the steps that gave tokens.
	Steps Steps
}

// Steps is how many steps an engine has made, by their tokens: those that came out, and those of prompts that were computed.
type Steps struct {
	Count Value
	// UpTo[i] is the number of steps with at most 2^i tokens, if Count is known.
	UpTo [15]float64
}

// Timed is how many times something happened, and how long all of them took, in seconds.
type Timed struct{ Count, Seconds Value }

// counters are where the pages of a dialect have Totals.
type counters struct {
	queue, prefill, decode, firstToken, interToken []selector // histograms
	prompt, cached, generated                      []selector

	prefillTokens []selector // a histogram of tokens
	steps         []selector // a histogram of tokens, of which the buckets count
}

// histograms returns the selectors of all histograms.
func (c counters) histograms() []selector {
	return slices.Concat(c.queue, c.prefill, c.decode, c.firstToken, c.interToken, c.prefillTokens, c.steps)
}

// numbers returns the selectors of all that are plain counters.
func (c counters) numbers() []selector { return slices.Concat(c.prompt, c.cached, c.generated) }

// read takes from a page what the selectors name.
func (c counters) read(page families) Totals {
	return Totals{
		Queue: page.timed(c.queue), Prefill: page.timed(c.prefill), Decode: page.timed(c.decode),
		FirstToken: page.timed(c.firstToken), InterToken: page.timed(c.interToken),
		PromptTokens: total(page.first(c.prompt)), CachedTokens: total(page.first(c.cached)), GeneratedTokens: total(page.first(c.generated)),
		PrefillTokens: page.timed(c.prefillTokens).Seconds, Steps: page.steps(c.steps),
	}
}

// timed adds up the histograms of the first selector that the page has. Of a series that tells no count or no sum nothing is known; one
// that has buckets alone does not count, for buckets are not read.
func (f families) timed(selectors []selector) (all Timed) {
	for _, s := range selectors {
		if f[s.name].GetType() != dto.MetricType_HISTOGRAM {
			continue
		}
		var series int
		for _, m := range f[s.name].GetMetric() {
			h := m.GetHistogram()
			if h != nil && h.SampleSum == nil && h.SampleCount == nil {
				continue
			}
			if h == nil || h.SampleSum == nil || h.SampleCount == nil {
				return Timed{}
			}
			count, seconds := Known(float64(h.GetSampleCount())), Known(h.GetSampleSum())
			if series++; series > 1 {
				count, seconds = count.plus(all.Count), seconds.plus(all.Seconds)
			}
			all = Timed{count, seconds}
		}
		if series > 0 {
			return all
		}
	}
	return Timed{}
}

// steps adds up the buckets of the first selector that the page has. A power of two without a bucket has as many steps as the next greater one.
func (f families) steps(selectors []selector) (all Steps) {
	for _, s := range selectors {
		if all.Count = f.timed([]selector{s}).Count; !all.Count.known {
			continue
		}
		for _, m := range f[s.name].GetMetric() {
			h := m.GetHistogram()
			is := [len(all.UpTo)]float64{}
			for i := range is {
				is[i] = -1
			}
			for _, b := range h.GetBucket() {
				if half, power := math.Frexp(b.GetUpperBound()); half == 0.5 && power >= 1 && power <= len(is) {
					is[power-1] = float64(b.GetCumulativeCount())
				}
			}
			next := float64(h.GetSampleCount())
			for i := len(is) - 1; i >= 0; i-- {
				if is[i] >= 0 {
					next = is[i]
				}
				all.UpTo[i] += next
			}
		}
		return all
	}
	return Steps{}
}

// total adds up series all of which are known: a sum that lacks one would look as if the engine had begun anew.
func total(series []*dto.Metric) (all Value) {
	for i, m := range series {
		n := Known(number(m))
		if i > 0 {
			n = n.plus(all)
		}
		all = n
	}
	return all
}

// plus is unknown where one of both is.
func (v Value) plus(w Value) Value {
	if !v.known || !w.known {
		return Value{}
	}
	return Known(v.number + w.number)
}
