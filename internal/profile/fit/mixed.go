package fit

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/headgate/headgate/internal/profile"
)

// Mixed is how far predictions of steps with a prompt and sequences are from measured times.
type Mixed struct {
	Error
	// Waited is how many steps of the others a prompt waits, in the median, before its own begins; NaN where nobody knows.
	Waited float64
}

// String says what prompts beside others showed, for people, as a sentence and a space; nothing where there were none.
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

// mixedRow is a prompt beside others. Waited is how many steps it waited before its own, NaN where nobody knows.
type mixedRow struct {
	work            profile.Work
	seconds, waited float64
}

// mixedOf are the rows of prompts beside others. The intake of a prompt is that of prompts alone that have about as many tokens.
func mixedOf(rows []Row, intake float64) (mixed []mixedRow) {
	alone := map[int][]float64{} // by size
	for _, r := range rows {
		if r.Intake > 0 {
			alone[size(r.Prefill)] = append(alone[size(r.Prefill)], r.Intake)
		}
	}
	for _, r := range rows {
		if r.MixedSeconds == 0 {
			continue
		}
		is := mixedRow{r.Mixed, r.MixedSeconds, math.NaN()}
		if r.FirstToken > 0 && r.Without > 0 && intake > 0 {
			its := intake
			if all := slices.Sorted(slices.Values(alone[size(r.Mixed)])); len(all) > 0 {
				its = Quantile(all, 0.5)
			}
			is.waited = (r.FirstToken - its - r.MixedSeconds) / r.Without
		}
		mixed = append(mixed, is)
	}
	return mixed
}

// size is about how large a prompt is: those that were asked to have as many tokens are of one size, nearly always.
func size(w profile.Work) int { return int(math.Round(2 * math.Log2(float64(w.PromptTokens)))) }

// mix finds out how the engine of a profile computes prompts beside sequences: whether it schedules a step while one is computed, and whether the
// time that prompts take whatever their length is one in which it launches a step, while the accelerator computes.
func mix(p profile.Profile, prompts []point, mixed []mixedRow) (profile.Profile, Mixed) {
	said := Mixed{Waited: waited(mixed)}
	if len(mixed) == 0 {
		return p, said
	}
	// A prompt that comes while a step is computed waits for half of it in the median, and for the next one where that is scheduled already.
	p.Asynchronous = said.Waited > 1
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
	if p.Launch == 0 { // else a step takes as long as it is launched, whatever else it has
		more := p
		more.Mixed = moreTogether(p, typical)
		if clearly*clearly*square(mixedMisses(typical, p)) > square(mixedMisses(typical, more)) {
			p = more
		}
	}
	said.Error = errorOf(mixedMisses(mixed, p), len(mixed))
	return p, said
}

// launches are profiles of an engine that takes as long as some prompts to launch a step that has any: of those that took least one, two, and so
// on. The weights are read once for a step, so that its base is that of steps without prompts at most; what prompts take more is launching. It is
// clearly more than such a step takes, or it is none.
func launches(p profile.Profile, prompts []point) (all []profile.Profile) {
	byTime := slices.SortedFunc(slices.Values(prompts), func(a, b point) int { return cmp.Compare(a.seconds, b.seconds) })
	for n := 1; n <= len(byTime); n++ {
		launched := p
		launched.Launch = level(byTime[:n])
		if clearly*launched.Launch < p.Decode.Base {
			continue
		}
		longer := slices.Clone(byTime[n:])
		for i := range longer {
			longer[i].seconds = max(longer[i].seconds-p.Decode.Base, launched.Launch-p.Decode.Base)
		}
		launched.Prefill = profile.Prefill{Floor: launched.Launch, Base: p.Decode.Base}
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

// worthAdding is the share of its time by which a step with both must take longer for that to be no chance.
const worthAdding = 0.05

// moreTogether is by how much longer steps with both take than a profile predicts, in the median; 0 where that is little.
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

// typicalOf is the one that took the median time of each kind: what was hindered once counts for little.
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

// waited is how many steps prompts wait in the median beside the fewest others: beside many, the engine's frontend is busy too.
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

// typicalMisses are the median misses of prompts of each size. An engine counts other tokens in nearly each prompt, so that prompts are many points
// with noise; prompts beside others are few.
func typicalMisses(prompts []point, p profile.Profile) (misses []miss) {
	shares := map[int][]float64{}
	for _, at := range prompts {
		s := size(at.work)
		for _, m := range missesOf([]point{at}, p) {
			shares[s] = append(shares[s], m.share)
		}
	}
	for _, s := range slices.Sorted(maps.Keys(shares)) { // in order, so that the sum is the same each time
		slices.Sort(shares[s])
		misses = append(misses, miss{Quantile(shares[s], 0.5), 1})
	}
	return misses
}

// mixedMisses compares what steps with both took with what a profile predicts.
func mixedMisses(mixed []mixedRow, p profile.Profile) (misses []miss) {
	for _, is := range mixed {
		misses = append(misses, miss{mixedTime(p, is.work)/is.seconds - 1, 1})
	}
	return misses
}

// mixedTime is how much longer others take for a step that has a prompt than without it, and a step of theirs. Where the engine launches it while
// the step before is computed, they wait for the rest alone.
func mixedTime(p profile.Profile, w profile.Work) float64 {
	if !p.Asynchronous {
		return p.StepTime(w)
	}
	others := p.StepTime(profile.Work{Sequences: w.Sequences, KVTokens: w.KVTokens, Adapters: w.Adapters})
	return max(p.ComputeTime(w), p.LaunchTime(w)-others)
}
