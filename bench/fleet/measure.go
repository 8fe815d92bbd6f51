package fleet

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"

	"github.com/headgate/headgate/internal/profile"
)

// Objectives are the latency objectives of requests.
type Objectives struct {
	// Base and Prompt define the limit of the time to first token: Base seconds, plus Prompt times
	// the prefill time without load.
	Base, Prompt float64
	// PerToken limits the mean time per output token, in seconds.
	PerToken float64
	// Share is the share of requests that must meet both limits, from 0 to 1.
	Share float64
}

// DefaultObjectives are the objectives for judging policies.
var DefaultObjectives = Objectives{Base: 1, Prompt: 2, PerToken: 0.1, Share: 0.99}

// keeps returns true if a request met its objectives.
func (o Objectives) keeps(p profile.Profile, r Result) bool {
	return r.FirstToken-r.At <= o.Base+o.Prompt*p.PrefillTime(0, r.Prompt) && r.PerToken() <= o.PerToken
}

// PerToken returns the mean time per output token after the first in seconds; 0 if there is only
// one token.
func (r Result) PerToken() float64 {
	if r.Output < 2 {
		return 0
	}
	return (r.LastToken - r.FirstToken) / float64(r.Output-1)
}

// Figures summarizes the results of a simulation.
type Figures struct {
	// TTFT50 and TTFT99 are the median and the 99th percentile of the time to first token.
	// PerToken99 is the 99th percentile of the mean time per output token.
	TTFT50, TTFT99, PerToken99 float64 // all in seconds
	// Kept is the share of requests that met their objectives. Hits is the share of prompt tokens
	// that were cached.
	Kept, Hits float64
	// SlotLoads is the number of adapter loads per minute.
	SlotLoads float64
}

// warming is the share of requests that are not measured: the first ones, because caches are cold.
const warming = 0.1

// FiguresOf returns the figures of all requests except cancelled ones.
func FiguresOf(all Outcome, p profile.Profile, o Objectives) Figures {
	results := all.Results[int(warming*float64(len(all.Results))):]
	var ttft, perToken []float64
	var kept, cached, prompts int
	for _, r := range results {
		if r.Left {
			continue
		}
		ttft, perToken = append(ttft, r.FirstToken-r.At), append(perToken, r.PerToken())
		if o.keeps(p, r) {
			kept++
		}
		cached, prompts = cached+r.Cached, prompts+r.Prompt
	}
	return Figures{
		quantile(ttft, 0.5), quantile(ttft, 0.99), quantile(perToken, 0.99),
		float64(kept) / float64(len(ttft)), float64(cached) / float64(prompts), float64(all.SlotLoads) / all.Seconds * 60,
	}
}

// ratio returns the geometric mean of is[i]/to[i] over seeds i, and the relative half width of its
// 95 % confidence interval by Student's t. Both are 0 for fewer than two seeds or if a value is 0.
func ratio(is, to []float64) (mean, within float64) {
	var logs []float64
	for i := range is {
		if is[i] <= 0 || to[i] <= 0 {
			return 0, 0
		}
		logs = append(logs, math.Log(is[i]/to[i]))
	}
	m, deviation := stat.MeanStdDev(logs, nil)
	if len(logs) < 2 {
		return math.Exp(m), 0
	}
	n := float64(len(logs))
	t := distuv.StudentsT{Sigma: 1, Nu: n - 1}.Quantile(0.975)
	return math.Exp(m), math.Expm1(t * deviation / math.Sqrt(n))
}

// quantile returns the smallest of the values that is at least as large as the given share of them.
func quantile(all []float64, share float64) float64 {
	if len(all) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}

// precision is the ratio of upper to lower rate at which the bisection of [Goodput] ends.
const precision = 1.01

// Goodput returns the highest rate, to within 1 %, at which enough requests meet their objectives,
// in requests per second. from is the rate at which the search starts. Goodput returns 0 if even a
// thousandth of it is too high.
func Goodput(from float64, keptAt func(rate float64) (share float64, err error), o Objectives) (float64, error) {
	good, bad := 0.0, math.Inf(1)
	for rate := from; bad/good > precision || good == 0; {
		share, err := keptAt(rate)
		if err != nil {
			return 0, err
		}
		if share >= o.Share {
			good = rate
		} else {
			bad = rate
		}
		switch {
		case good == 0 && bad < from/1000:
			return 0, nil
		case good == 0:
			rate = bad / 2
		case math.IsInf(bad, 1):
			rate = good * 2
		default:
			rate = math.Sqrt(good * bad)
		}
	}
	return good, nil
}
