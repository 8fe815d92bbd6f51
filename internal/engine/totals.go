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

// plus is unknown if either value is.
func (v Value) plus(w Value) Value {
	if !v.known || !w.known {
		return Value{}
	}
	return Known(v.number + w.number)
}

// totalsSelection is the part of a selection that makes up Totals.
type totalsSelection struct {
	queue, prefill, decode, firstToken, interToken, prefillTokens []histogram

	prompt, cached, generated []float64
	steps                     []stepHistogram
}

// histogram is a count and a sum.
type histogram struct{ count, sum float64 }

// stepHistogram is a count and the buckets of Steps. A missing value is absent.
type stepHistogram struct {
	count float64
	upTo  [len(Steps{}.UpTo)]float64
}

const absent = -1

// selects returns the series of a page that the selectors select.
func (c counters) selects(page families) totalsSelection {
	return totalsSelection{
		queue: page.histograms(c.queue), prefill: page.histograms(c.prefill), decode: page.histograms(c.decode),
		firstToken: page.histograms(c.firstToken), interToken: page.histograms(c.interToken),
		prefillTokens: page.histograms(c.prefillTokens),
		prompt:        numbers(page.first(c.prompt)), cached: numbers(page.first(c.cached)),
		generated: numbers(page.first(c.generated)), steps: page.steps(c.steps),
	}
}

// histograms returns the series of the first selector found on the page, or none if a series lacks
// a count or a sum. Series with only buckets do not count, since buckets are not read.
func (f families) histograms(selectors []selector) []histogram {
	for _, s := range selectors {
		if f[s.name].GetType() != dto.MetricType_HISTOGRAM {
			continue
		}
		var all []histogram
		for _, m := range f[s.name].GetMetric() {
			h := m.GetHistogram()
			if h != nil && h.SampleSum == nil && h.SampleCount == nil {
				continue
			}
			if h == nil || h.SampleSum == nil || h.SampleCount == nil {
				return nil
			}
			all = append(all, histogram{float64(h.GetSampleCount()), h.GetSampleSum()})
		}
		if len(all) > 0 {
			return all
		}
	}
	return nil
}

// steps returns the histograms of the first selector found on the page.
func (f families) steps(selectors []selector) []stepHistogram {
	for _, s := range selectors {
		if f.histograms([]selector{s}) == nil {
			continue
		}
		all := make([]stepHistogram, 0, len(f[s.name].GetMetric()))
		for _, m := range f[s.name].GetMetric() {
			h := m.GetHistogram()
			one := stepHistogram{count: absent}
			if h != nil && h.SampleCount != nil {
				one.count = float64(h.GetSampleCount())
			}
			for i := range one.upTo {
				one.upTo[i] = absent
			}
			for _, b := range h.GetBucket() {
				if half, power := math.Frexp(b.GetUpperBound()); half == 0.5 && power >= 1 && power <= len(one.upTo) {
					one.upTo[power-1] = float64(b.GetCumulativeCount())
				}
			}
			all = append(all, one)
		}
		return all
	}
	return nil
}

// load returns the Totals of the selected series.
func (s *totalsSelection) load(v values) Totals {
	return Totals{
		Queue: v.timed(s.queue), Prefill: v.timed(s.prefill), Decode: v.timed(s.decode),
		FirstToken: v.timed(s.firstToken), InterToken: v.timed(s.interToken),
		PromptTokens: v.total(s.prompt), CachedTokens: v.total(s.cached), GeneratedTokens: v.total(s.generated),
		PrefillTokens: v.timed(s.prefillTokens).Seconds, Steps: v.steps(s.steps),
	}
}

// timed adds up histograms.
func (v values) timed(series []histogram) (all Timed) {
	for i, h := range series {
		count, seconds := Known(v.at(h.count)), Known(v.at(h.sum))
		if i > 0 {
			count, seconds = count.plus(all.Count), seconds.plus(all.Seconds)
		}
		all = Timed{count, seconds}
	}
	return all
}

// steps adds up the buckets of histograms. A power of two without a bucket has the value of the
// next larger bucket.
func (v values) steps(series []stepHistogram) (all Steps) {
	for _, h := range series {
		var next float64
		if h.count != absent {
			next = v.at(h.count)
			all.Count = Known(all.Count.Or(0) + next)
		}
		for i := len(h.upTo) - 1; i >= 0; i-- {
			if h.upTo[i] != absent {
				next = v.at(h.upTo[i])
			}
			all.UpTo[i] += next
		}
	}
	return all
}
