package engine

import (
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
)

// Totals are an engine's counters over all its requests since its start. They only grow while the
// engine runs. The difference between two scrapes is what happened between them, in the engine's
// own time. With data parallelism they are sums over all ranks.
type Totals struct {
	// Times of ended requests: in the queue, in prefill, and in decode.
	Queue, Prefill, Decode Timed
	// FirstToken is the time from arrival to the first token; InterToken is the time between
	// further tokens.
	FirstToken, InterToken Timed

	// PromptTokens counts the prompt tokens of requests with a first token; CachedTokens counts
	// those of them found in the prefix cache.
	PromptTokens, CachedTokens Value
	// GeneratedTokens counts output tokens.
	GeneratedTokens Value
	// PrefillTokens counts the computed prompt tokens of the requests in Prefill.
	PrefillTokens Value
	// Steps counts the steps that produced tokens.
	Steps Steps
}

// Steps is a histogram of steps by their tokens: output tokens and computed prompt tokens.
type Steps struct {
	Count Value
	// UpTo[i] is the number of steps with at most 2^i tokens, if Count is known.
	UpTo [15]float64
}

// Timed is a number of events and their total time in seconds.
type Timed struct{ Count, Seconds Value }

// counters are a dialect's selectors of Totals.
type counters struct {
	queue, prefill, decode, firstToken, interToken []selector // histograms
	prompt, cached, generated                      []selector

	prefillTokens []selector // histogram of tokens
	steps         []selector // histogram of tokens, with buckets
}

// histograms returns the selectors of all histograms.
func (c counters) histograms() []selector {
	return slices.Concat(c.queue, c.prefill, c.decode, c.firstToken, c.interToken, c.prefillTokens, c.steps)
}

// numbers returns the selectors of all plain counters.
func (c counters) numbers() []selector { return slices.Concat(c.prompt, c.cached, c.generated) }

// read returns the selected values of a page.
func (c counters) read(page families) Totals {
	return Totals{
		Queue: page.timed(c.queue), Prefill: page.timed(c.prefill), Decode: page.timed(c.decode),
		FirstToken: page.timed(c.firstToken), InterToken: page.timed(c.interToken),
		PromptTokens: total(page.first(c.prompt)), CachedTokens: total(page.first(c.cached)),
		GeneratedTokens: total(page.first(c.generated)),
		PrefillTokens:   page.timed(c.prefillTokens).Seconds, Steps: page.steps(c.steps),
	}
}

// timed adds up the histograms of the first selector found on the page. If a series lacks a count
// or a sum, the result is unknown. Series with only buckets do not count, since buckets are not
// read.
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

// steps adds up the buckets of the first selector found on the page. A power of two without a
// bucket has the value of the next larger bucket.
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

// total adds up series if all are known: a sum without one would look like a restarted engine.
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

// plus is unknown if either value is.
func (v Value) plus(w Value) Value {
	if !v.known || !w.known {
		return Value{}
	}
	return Known(v.number + w.number)
}
