package fit

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/headgate/headgate/internal/profile"
)

// Mixed is the prediction error for steps that compute a prompt and decoding sequences.
type Mixed struct {
	Error
	// Waited is the median number of steps for which a prompt waits before its own step begins; NaN
	// if unknown.
	Waited float64
}

// String returns a sentence about prompts beside decoding requests, with a space at its end. It
// returns "" if none were measured.
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

// mixedRow is the measurement of a prompt beside decoding requests. waited is the number of steps
// before the prompt's own step; NaN if unknown.
type mixedRow struct {
	work            profile.Work
	seconds, waited float64
}

// mixedOf returns the measurements of prompts beside decoding requests. To compute how long a
// prompt waited, it subtracts the frontend overhead of single prompts of about the same size.
func mixedOf(rows []Row, frontendOverhead float64) (mixed []mixedRow) {
	alone := map[int][]float64{} // frontend overheads of single prompts, by size
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

// size returns a number that is equal for prompts of about the same length. Prompts with the same
// requested length nearly always have the same size.
func size(w profile.Work) int { return int(math.Round(2 * math.Log2(float64(w.PromptTokens)))) }

// mix determines two properties of an engine from prompts beside decoding requests. The first is
// whether the engine schedules a step while it computes the previous one. The second is whether the
// constant time of a prompt is launch time, during which the accelerator still computes the
// previous step.
func mix(p profile.Profile, prompts []point, mixed []mixedRow) (profile.Profile, Mixed) {
	said := Mixed{Waited: waited(mixed)}
	if len(mixed) == 0 {
		return p, said
	}
	// A prompt that arrives at a random time of a step waits half a step in the median. If the next
	// step is already scheduled, the prompt waits for that step, too.
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
	if p.LaunchOverhead == 0 { // a launch overhead already explains longer mixed steps
		more := p
		more.MixedBatchOverhead = moreTogether(p, typical)
		if clearly*clearly*square(mixedMisses(typical, p)) > square(mixedMisses(typical, more)) {
			p = more
		}
	}
	said.Error = errorOf(mixedMisses(mixed, p), len(mixed))
	return p, said
}

// launches proposes profiles with a launch overhead. In the first profile, launching a step with
// prompts takes as long as the fastest prompt; in the next, as long as the fastest two, and so on.
// Each step reads the weights once, so the base of a prompt is that of a decode step, and the rest
// of its constant time is launch time. Profiles whose launch time is not clearly above a decode
// step are left out.
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

// worthAdding is the smallest extra time of mixed steps, relative to their time, that is not
// treated as noise.
const worthAdding = 0.05

// moreTogether returns by how much mixed steps take longer than predicted, in the median; 0 if that
// is below worthAdding.
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

// typicalOf returns the row with the median time for each prompt size and number of sequences, so
// that single delays have little influence.
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

// waited returns the median number of steps that prompts wait. It uses only the prompts beside the
// smallest number of sequences, because with many sequences the engine's frontend is busy, too.
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

// typicalMisses returns the median error for each prompt size. Engines count slightly different
// numbers of tokens for nearly every prompt, so single prompts are many noisy points. Without
// medians they would outweigh the few prompts beside decoding requests.
func typicalMisses(prompts []point, p profile.Profile) (misses []miss) {
	shares := map[int][]float64{}
	for _, at := range prompts {
		s := size(at.work)
		for _, m := range missesOf([]point{at}, p) {
			shares[s] = append(shares[s], m.share)
		}
	}
	for _, s := range slices.Sorted(maps.Keys(shares)) { // in a fixed order, so that rounding errors of sums are reproducible
		slices.Sort(shares[s])
		misses = append(misses, miss{Quantile(shares[s], 0.5), 1})
	}
	return misses
}

// mixedMisses returns the errors of a profile's predictions for mixed steps.
func mixedMisses(mixed []mixedRow, p profile.Profile) (misses []miss) {
	for _, is := range mixed {
		misses = append(misses, miss{mixedTime(p, is.work)/is.seconds - 1, 1})
	}
	return misses
}

// mixedTime returns by how much a prompt delays decoding sequences, plus the time of a step without
// the prompt. If the engine schedules asynchronously, the part of the launch that overlaps with the
// previous step is not included.
func mixedTime(p profile.Profile, w profile.Work) float64 {
	if !p.AsyncScheduling {
		return p.StepTime(w)
	}
	others := p.StepTime(profile.Work{Sequences: w.Sequences, KVTokens: w.KVTokens, Adapters: w.Adapters})
	return max(p.ComputeTime(w), p.LaunchTime(w)-others)
}
