package fit

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/headgate/headgate/internal/profile"
)

// Mixed is the error of predictions for steps with a prompt and sequences.
type Mixed struct {
	Error
	// Waited is the median number of other steps that a prompt waits before its own begins; NaN if
	// unknown.
	Waited float64
}

// String summarizes prompts beside others for people, as a sentence and a space; empty if there
// were none.
func (m Mixed) String() string {
	if m.Rows == 0 {
		return ""
	}
	text := fmt.Sprintf("Prompts beside others: %s", m.Error)
	if !math.IsNaN(m.Waited) {
		text += fmt.Sprintf("; they wait for %.1f steps", m.Waited)
	}
	return text + ". "
}

// mixedRow is a prompt beside others. Waited is the number of steps before its own, NaN if unknown.
type mixedRow struct {
	work            profile.Work
	seconds, waited float64
}

// mixedOf returns the rows of prompts beside others. A prompt's frontend overhead is that of single
// prompts of about the same size.
func mixedOf(rows []Row, frontendOverhead float64) (mixed []mixedRow) {
	alone := map[int][]float64{} // by size
	for _, r := range rows {
		if r.FrontendOverhead > 0 {
			alone[size(r.Prefill)] = append(alone[size(r.Prefill)], r.FrontendOverhead)
		}
	}
	for _, r := range rows {
		if r.MixedSeconds == 0 {
			continue
		}
		is := mixedRow{r.Mixed, r.MixedSeconds, math.NaN()}
		if r.FirstToken > 0 && r.Without > 0 && frontendOverhead > 0 {
			its := frontendOverhead
			if all := slices.Sorted(slices.Values(alone[size(r.Mixed)])); len(all) > 0 {
				its = Quantile(all, 0.5)
			}
			is.waited = (r.FirstToken - its - r.MixedSeconds) / r.Without
		}
		mixed = append(mixed, is)
	}
	return mixed
}

// size groups prompts by approximate size, so that prompts with the same requested length nearly
// always have the same size.
func size(w profile.Work) int { return int(math.Round(2 * math.Log2(float64(w.PromptTokens)))) }

// mix determines how an engine computes prompts beside sequences: whether it schedules a step while
// the previous one is computed, and whether the constant time of a prompt is launch time, during
// which the accelerator still computes the previous step.
func mix(p profile.Profile, prompts []point, mixed []mixedRow) (profile.Profile, Mixed) {
	said := Mixed{Waited: waited(mixed)}
	if len(mixed) == 0 {
		return p, said
	}
	// A prompt that arrives during a step waits half a step in the median, and one step more if the
	// next one is already scheduled.
	p.AsyncScheduling = said.Waited > 1
	typical := typicalOf(mixed)
	missed := func(p profile.Profile) float64 {
		return square(typicalMisses(prompts, p)) + square(mixedMisses(typical, p))
	}
	least := clearly * clearly * missed(p)
	for _, launched := range launches(p, prompts) {
		if m := missed(launched); m < least {
			p, least = launched, m
		}
	}
	if p.LaunchOverhead == 0 { // otherwise every step takes at least its launch time
		more := p
		more.MixedBatchOverhead = moreTogether(p, typical)
		if clearly*clearly*square(mixedMisses(typical, p)) > square(mixedMisses(typical, more)) {
			p = more
		}
	}
	said.Error = errorOf(mixedMisses(mixed, p), len(mixed))
	return p, said
}

// launches returns profiles of an engine whose launch time for a step with prompts is the time of
// its fastest prompt, of the fastest two, and so on. A step reads the weights once, so its base is
// at most that of a step without prompts; the rest is launch time. Candidates whose launch time is
// not clearly above such a step are left out.
func launches(p profile.Profile, prompts []point) (all []profile.Profile) {
	byTime := slices.SortedFunc(slices.Values(prompts), func(a, b point) int { return cmp.Compare(a.seconds, b.seconds) })
	for n := 1; n <= len(byTime); n++ {
		launched := p
		launched.LaunchOverhead = level(byTime[:n])
		if clearly*launched.LaunchOverhead < p.Decode.Base {
			continue
		}
		longer := slices.Clone(byTime[n:])
		for i := range longer {
			longer[i].seconds = max(longer[i].seconds-p.Decode.Base, launched.LaunchOverhead-p.Decode.Base)
		}
		launched.Prefill = profile.Prefill{Floor: launched.LaunchOverhead, Base: p.Decode.Base}
		if len(longer) > 0 {
			launched.Prefill.PerToken = solve(longer, []column{promptTokens})[0]
		}
		all = append(all, launched)
		if len(longer) > 1 {
			x := solve(longer, []column{promptTokens, squares})
			launched.Prefill.PerToken, launched.Prefill.PerTokenSquared = x[0], x[1]
			all = append(all, launched)
		}
	}
	return all
}

// worthAdding is the relative extra time of mixed steps that is more than noise.
const worthAdding = 0.05

// moreTogether is the median extra time of mixed steps over a profile's predictions; 0 if small.
func moreTogether(p profile.Profile, mixed []mixedRow) float64 {
	var more, all []float64
	for _, is := range mixed {
		more, all = append(more, is.seconds-mixedTime(p, is.work)), append(all, is.seconds)
	}
	slices.Sort(more)
	slices.Sort(all)
	if by := Quantile(more, 0.5); by > worthAdding*Quantile(all, 0.5) {
		return by
	}
	return 0
}

// typicalOf returns the row with the median time of each kind, so that single delays count little.
func typicalOf(mixed []mixedRow) (typical []mixedRow) {
	type kind struct{ size, sequences int }
	kinds := map[kind][]mixedRow{}
	var order []kind
	for _, is := range mixed {
		k := kind{size(is.work), is.work.Sequences}
		if kinds[k] == nil {
			order = append(order, k)
		}
		kinds[k] = append(kinds[k], is)
	}
	for _, k := range order {
		all := kinds[k]
		slices.SortStableFunc(all, func(a, b mixedRow) int { return cmp.Compare(a.seconds, b.seconds) })
		typical = append(typical, all[(len(all)-1)/2])
	}
	return typical
}

// waited is the median number of steps that prompts wait beside the smallest number of others: with
// many others, the engine's frontend is busy, too.
func waited(mixed []mixedRow) float64 {
	fewest := math.MaxInt
	for _, is := range mixed {
		fewest = min(fewest, is.work.Sequences)
	}
	var all []float64
	for _, is := range mixed {
		if is.work.Sequences == fewest && !math.IsNaN(is.waited) {
			all = append(all, is.waited)
		}
	}
	slices.Sort(all)
	return Quantile(all, 0.5)
}

// typicalMisses returns the median errors for each prompt size. An engine counts slightly different
// tokens for nearly every prompt, so prompts are many noisy points, while prompts beside others are
// few.
func typicalMisses(prompts []point, p profile.Profile) (misses []miss) {
	shares := map[int][]float64{}
	for _, at := range prompts {
		s := size(at.work)
		for _, m := range missesOf([]point{at}, p) {
			shares[s] = append(shares[s], m.share)
		}
	}
	for _, s := range slices.Sorted(maps.Keys(shares)) { // in order, for a reproducible sum
		slices.Sort(shares[s])
		misses = append(misses, miss{Quantile(shares[s], 0.5), 1})
	}
	return misses
}

// mixedMisses compares the times of mixed steps with a profile's predictions.
func mixedMisses(mixed []mixedRow, p profile.Profile) (misses []miss) {
	for _, is := range mixed {
		misses = append(misses, miss{mixedTime(p, is.work)/is.seconds - 1, 1})
	}
	return misses
}

// mixedTime is how long decoding sequences take for a step with a prompt, beyond a step without
// one, plus one step of their own. The part of the launch that overlaps with the previous step does
// not count.
func mixedTime(p profile.Profile, w profile.Work) float64 {
	if !p.AsyncScheduling {
		return p.StepTime(w)
	}
	others := p.StepTime(profile.Work{Sequences: w.Sequences, KVTokens: w.KVTokens, Adapters: w.Adapters})
	return max(p.ComputeTime(w), p.LaunchTime(w)-others)
}
