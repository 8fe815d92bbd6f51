package fleet

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"

	"github.com/headgate/headgate/internal/profile"
)

// Objectives are what a request is to keep.
type Objectives struct {
	// Base, and so many times as long as the prompt takes alone, is when its first token is to be out, in seconds.
	Base, Prompt float64
	// PerToken is how long each further token may take in the mean, in seconds.
	PerToken float64
	// Share of the requests that are to keep them, 0 to 1.
	Share float64
}

// DefaultObjectives are those by which policies are judged.
var DefaultObjectives = Objectives{Base: 1, Prompt: 2, PerToken: 0.1, Share: 0.99}

// keeps says whether a request kept its objectives.
func (o Objectives) keeps(p profile.Profile, r Result) bool {
	return r.FirstToken-r.At <= o.Base+o.Prompt*p.PrefillTime(0, r.Prompt) && r.perToken() <= o.PerToken
}

// perToken is how long each token took after the first, in the mean; 0 where there is no other.
func (r Result) perToken() float64 {
	if r.Output < 2 {
		return 0
	}
	return (r.LastToken - r.FirstToken) / float64(r.Output-1)
}

// Figures are what Results come to.
type Figures struct {
	// TTFT is the time to the first token: its median and 99th percentile. PerToken is the 99th percentile of the mean time per token.
	TTFT50, TTFT99, PerToken99 float64 // seconds
	// Kept is the share of requests that kept their objectives, Hits that of prompt tokens which a cache held.
	Kept, Hits float64
	// SlotLoads is how often adapters were brought into slots, per minute.
	SlotLoads float64
}

// warming is the share of requests, of the first, that are not measured: caches are cold.
const warming = 0.1

// FiguresOf computes the figures of all requests on endpoints of a profile, except cancelled ones.
func FiguresOf(all Outcome, p profile.Profile, o Objectives) Figures {
	results := all.Results[int(warming*float64(len(all.Results))):]
	var ttft, perToken []float64
	var kept, cached, prompts int
	for _, r := range results {
		if r.Left {
			continue
		}
		ttft, perToken = append(ttft, r.FirstToken-r.At), append(perToken, r.perToken())
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

// ratio is how many times another is, seed by seed: the mean in the geometric sense, and within how much of it, as a share, the true one is in
// 95 of 100 cases (Student's t); 0 where there are fewer than two seeds, or one of them is 0.
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

// quantile is the smallest value that is no smaller than a share of all.
func quantile(all []float64, share float64) float64 {
	if len(all) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}

// precision is how far apart the two rates are, as a ratio, between which [Goodput] ends its search.
const precision = 1.01

// Goodput is the highest rate, in requests a second, at which enough requests keep their objectives: between it and 1 % more they do not
// any more. It begins to look at a rate. It is 0 where there is none above a thousandth of that.
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
