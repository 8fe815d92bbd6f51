// Package fit computes the terms of a profile from measured times, and estimates how far
// predictions with the profile are off.
//
// It uses least squares of relative errors, so that short times are as important as long ones.
// Outliers get less weight. No term is negative. All rows with the same work are merged into one
// point with their median time, so a point has the same weight however often it was measured, and
// one slow measurement has little influence.
//
// The error comes from cross-validation: one point is left out (or a tenth of the points if there
// are many), the whole fit is repeated without it, and the fit predicts the rows that were left
// out. This is repeated for all points.
//
// The package is pure: the same rows give the same fit.
package fit

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/headgate/headgate/internal/profile"
)

// Row is one measurement. It contains a prompt, a decode step, a prompt and a decode step, or a
// prompt that was sent beside decoding requests.
type Row struct {
	Set Set
	// Prefill is the work of one prompt, and PrefillSeconds is its time to first token; 0 if no
	// prompt was measured. If Prompts is above 1, that many equal prompts were sent at once, and
	// PrefillSeconds is the time until all had their first tokens. The first prompt then has a step
	// of its own, and the others arrive during that step.
	Prompts        int
	Prefill        profile.Work
	PrefillSeconds float64
	// FrontendOverhead is the part of PrefillSeconds before the prompt was in the engine's queue; 0
	// if unknown. The fit subtracts it from PrefillSeconds.
	FrontendOverhead float64
	// Step is the work of a decode step without prompts, and StepSeconds is its time; 0 if no step
	// was measured.
	Step        profile.Work
	StepSeconds float64
	// Mixed is the work of a step with a prompt and decoding sequences. MixedSeconds is its time; 0
	// if not measured. Without is the time of the steps without the prompt. FirstToken is the
	// prompt's time to first token.
	Mixed                             profile.Work
	MixedSeconds, Without, FirstToken float64
}

// Set identifies the model and hardware of a measurement. One profile is fitted to all rows of a
// set. Unknown fields are zero.
type Set struct {
	Model, Hardware string
	TensorParallel  int
}

// Fit contains the terms that were fitted to rows, and their prediction errors.
type Fit struct {
	// FrontendOverhead is the median frontend overhead in seconds; 0 if no row has one.
	FrontendOverhead float64
	Prefill          profile.Prefill
	Decode           profile.Decode
	// These terms can be fitted only from prompts that were sent beside decoding requests.
	Launch       float64
	More         float64 // becomes MixedBatchOverhead of profile.Profile
	Asynchronous bool
	// Mixed is the prediction error for measured mixed steps. The terms of prompts and decode steps
	// do not depend on mixed steps.
	Mixed Mixed
	// PrefillError and StepError are the cross-validated prediction errors of prompts and decode
	// steps.
	PrefillError, StepError Error
}

// Error describes prediction errors, as shares of the measured times.
type Error struct {
	// Rows is the number of rows that were predicted. Points is the number of different kinds of
	// work in these rows. Every point has the same weight in the quantiles, however often it was
	// measured.
	Rows, Points int
	Median, P90  float64
}

// Profile returns a profile with the fitted terms and the given limits. Its source states the
// number of rows and the error. Adapter loads were not measured, so they take no time.
func (f Fit) Profile(file string, s Set, limits profile.Limits) profile.Profile {
	return profile.Profile{
		Name: s.String(),
		Source: fmt.Sprintf("Fitted to %s, of %d prompts and %d steps. Rows that it had not seen: %s for prompts; %s for steps. "+
			"%sLimits are assumed, and loads take no time.", file, f.PrefillError.Rows, f.StepError.Rows, f.PrefillError, f.StepError,
			f.Mixed),
		FrontendOverhead:   f.FrontendOverhead,
		Prefill:            f.Prefill,
		Decode:             f.Decode,
		LaunchOverhead:     f.Launch,
		MixedBatchOverhead: f.More,
		AsyncScheduling:    f.Asynchronous,
		Limits:             limits,
	}
}

// String describes the error in messages.
func (e Error) String() string {
	return fmt.Sprintf("median error %.1f %%, 90th percentile %.1f %%", 100*e.Median, 100*e.P90)
}

// String describes the set in messages.
func (s Set) String() string {
	name := cmp.Or(s.Model, "a model")
	if s.Hardware != "" {
		name += " on " + s.Hardware
	}
	if s.TensorParallel > 0 {
		name += fmt.Sprintf(" (tensor parallel %d)", s.TensorParallel)
	}
	return name
}

// leastPoints is the minimum number of different points, both for prompts and for decode steps. A
// line fits any two points exactly, so two would leave no error to estimate.
const leastPoints = 3

// The errors of [Of], for use with errors.Is.
var (
	ErrFewPrompts = fmt.Errorf("prompts of at least %d different lengths are needed, with the time that each took", leastPoints)
	ErrFewSteps   = fmt.Errorf("decode steps of at least %d different batches or lengths are needed, with the time that each took",
		leastPoints)
)

// Of fits the terms of a profile to the rows of one set.
func Of(rows []Row) (Fit, error) {
	frontendOverhead := frontendOverheadOf(rows)
	var prompts, steps []sample
	for _, r := range rows {
		if r.Prompts > 1 {
			continue
		}
		if seconds := r.PrefillSeconds - cmp.Or(r.FrontendOverhead, frontendOverhead); r.PrefillSeconds > 0 && seconds > 0 {
			prompts = append(prompts, sample{r.Prefill, seconds})
		}
		if r.StepSeconds > 0 {
			steps = append(steps, sample{r.Step, r.StepSeconds})
		}
	}
	byPrompt, byStep := pointsOf(prompts), pointsOf(steps)
	var faults []error
	if len(byPrompt) < leastPoints {
		faults = append(faults, fmt.Errorf("%d prompts: %w", len(byPrompt), ErrFewPrompts))
	}
	if len(byStep) < leastPoints {
		faults = append(faults, fmt.Errorf("%d steps: %w", len(byStep), ErrFewSteps))
	}
	if err := errors.Join(faults...); err != nil {
		return Fit{}, err
	}
	if more := atOnce(rows, frontendOverhead, profile.Profile{Prefill: fitPrefill(byPrompt)}); len(more) > 0 {
		byPrompt = pointsOf(append(more, prompts...))
	}
	decode, beside := fitDecode(byStep), mixedOf(rows, frontendOverhead)
	ofPrompts := func(of []point) profile.Profile {
		p, _ := mix(profile.Profile{Prefill: fitPrefill(of), Decode: decode}, of, beside)
		return p
	}
	p, mixed := mix(profile.Profile{Prefill: fitPrefill(byPrompt), Decode: decode}, byPrompt, beside)
	p = rounded(p)
	p.Prefill.MaxMeasuredTokens = longest(prompts)
	return Fit{
		FrontendOverhead: profile.Rounded(frontendOverhead),
		Prefill:          p.Prefill,
		Decode:           p.Decode,
		Launch:           p.LaunchOverhead,
		More:             p.MixedBatchOverhead,
		Asynchronous:     p.AsyncScheduling,
		Mixed:            mixed,
		PrefillError:     errorOf(heldOut(byPrompt, ofPrompts), len(byPrompt)),
		StepError: errorOf(heldOut(byStep, func(of []point) profile.Profile { return profile.Profile{Decode: fitDecode(of)} }),
			len(byStep)),
	}, nil
}

// frontendOverheads is the minimum time of a prompt, in frontend overheads, for which rows of
// several prompts are used. The first prompt's step must be long enough for all others to arrive
// during it; otherwise each prompt may have a step of its own.
const frontendOverheads = 2

// atOnce returns samples of steps that computed several prompts. In a row of several prompts,
// either the first prompt had a step of its own and the next step computed the others, or one step
// computed all. The times of single prompts show which case fits a row better. For each prompt
// size, the more frequent case is used for all rows.
func atOnce(rows []Row, frontendOverhead float64, alone profile.Profile) (steps []sample) {
	type kind struct{ prompts, size int }
	var kinds []kind
	together, apart := map[kind][]sample{}, map[kind][]sample{}
	for _, r := range rows {
		if r.Prompts < 2 || r.PrefillSeconds == 0 {
			continue
		}
		several := func(n int) profile.Work {
			return profile.Work{PromptTokens: n * r.Prefill.PromptTokens, Squares: float64(n) * r.Prefill.Squares}
		}
		one, all, others := alone.StepTime(r.Prefill), several(r.Prompts), several(r.Prompts-1)
		if one < frontendOverheads*frontendOverhead {
			continue
		}
		k := kind{r.Prompts, size(r.Prefill)}
		if !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
		seconds := r.PrefillSeconds - frontendOverhead
		switch inOne, inTwo := alone.StepTime(all), one+alone.StepTime(others); {
		case math.Abs(seconds-inOne) < math.Abs(seconds-inTwo):
			together[k] = append(together[k], sample{all, max(seconds, one)})
		case seconds > one:
			apart[k] = append(apart[k], sample{others, seconds - one})
		}
	}
	for _, k := range kinds {
		if len(together[k]) > len(apart[k]) {
			steps = append(steps, together[k]...)
		} else {
			steps = append(steps, apart[k]...)
		}
	}
	return steps
}

// longest returns the number of tokens of the longest prompt, including the context before it.
func longest(prompts []sample) (tokens int) {
	for _, s := range prompts {
		// The Squares of a prompt of n tokens after c tokens are n*(2c+n).
		n := float64(s.work.PromptTokens)
		tokens = max(tokens, int((s.work.Squares/n+n)/2))
	}
	return tokens
}

// frontendOverheadOf returns the median frontend overhead of the rows that have one; 0 if none has.
// Rows without one are assumed to have had the median.
func frontendOverheadOf(rows []Row) float64 {
	var told []float64
	for _, r := range rows {
		if r.FrontendOverhead > 0 {
			told = append(told, r.FrontendOverhead)
		}
	}
	if len(told) == 0 {
		return 0
	}
	slices.Sort(told)
	return Quantile(told, 0.5)
}

// sample is the work of a step or prompt, and its measured time in seconds.
type sample struct {
	work    profile.Work
	seconds float64
}

// point contains all samples with the same work.
type point struct {
	work    profile.Work
	times   []float64 // measured times in seconds, sorted
	seconds float64   // median of times
}

// pointsOf merges samples with the same work into points, and sorts the points by work.
func pointsOf(samples []sample) (points []point) {
	index := map[profile.Work]int{}
	for _, s := range samples {
		i, ok := index[s.work]
		if !ok {
			i = len(points)
			index[s.work] = i
			points = append(points, point{work: s.work})
		}
		points[i].times = append(points[i].times, s.seconds)
	}
	for i := range points {
		slices.Sort(points[i].times)
		points[i].seconds = Quantile(points[i].times, 0.5)
	}
	slices.SortFunc(points, func(a, b point) int {
		return cmp.Or(
			cmp.Compare(a.work.PromptTokens, b.work.PromptTokens), cmp.Compare(a.work.Squares, b.work.Squares),
			cmp.Compare(a.work.Sequences, b.work.Sequences), cmp.Compare(a.work.KVTokens, b.work.KVTokens),
			cmp.Compare(sign(a.work.Adapters), sign(b.work.Adapters)),
		)
	})
	return points
}

// sign is a sort key that puts points without adapters first.
func sign(adapters bool) int {
	if adapters {
		return 1
	}
	return 0
}

// rounded rounds the terms of a profile to four digits.
func rounded(p profile.Profile) profile.Profile {
	for _, term := range []*float64{
		&p.Prefill.Floor, &p.Prefill.Base, &p.Prefill.PerToken, &p.Prefill.PerTokenSquared,
		&p.Decode.Base, &p.Decode.PerSequence, &p.Decode.PerKVToken, &p.Decode.AdapterSlowdown, &p.LaunchOverhead, &p.MixedBatchOverhead,
	} {
		*term = profile.Rounded(*term)
	}
	return p
}

// clearly is a ratio of errors: a fit keeps an additional term only if the error with the term is
// below clearly times the error without it.
const clearly = 0.9

// fitPrefill fits a line through the times of prompts. It adds a floor, a term for the square of
// the context, or both, if that clearly reduces the cross-validated error.
func fitPrefill(points []point) profile.Prefill {
	forms := []func([]point) profile.Prefill{
		func(of []point) profile.Prefill { return line(of, false) },
		func(of []point) profile.Prefill { return floored(of, false) },
		func(of []point) profile.Prefill { return line(of, true) },
		func(of []point) profile.Prefill { return floored(of, true) },
	}
	best, least := forms[0], math.Inf(1)
	for _, form := range forms {
		if len(points) <= leastPoints { // too few points to leave one out
			break
		}
		missed := square(heldOut(points, func(of []point) profile.Profile { return profile.Profile{Prefill: form(of)} }))
		if missed < clearly*clearly*least {
			best, least = form, missed
		}
	}
	return best(points)
}

// line fits the terms of prefill without a floor. squared adds the term for the square of the
// context.
func line(points []point, squared bool) profile.Prefill {
	columns := []column{ones, promptTokens}
	if squared {
		columns = append(columns, squares)
	}
	x := solve(points, columns)
	p := profile.Prefill{Base: x[0], PerToken: x[1]}
	if squared {
		p.PerTokenSquared = x[2]
	}
	return p
}

// floors is the approximate number of floors that floored tries.
const floors = 20

// floored fits prefill with a floor. It tries several floors: the time of the fastest point, of the
// fastest two, and so on up to half of the points. For each floor it fits a line through the other
// points. It returns the best fit.
func floored(points []point, squared bool) profile.Prefill {
	best := line(points, squared)
	least := square(missesOf(points, profile.Profile{Prefill: best}))
	byTime := slices.SortedFunc(slices.Values(points), func(a, b point) int { return cmp.Compare(a.seconds, b.seconds) })
	for below := 1; below <= len(byTime)/2; below += 1 + len(byTime)/floors {
		p := line(byTime[below:], squared)
		p.Floor = level(byTime[:below])
		if missed := square(missesOf(points, profile.Profile{Prefill: p})); missed < least {
			best, least = p, missed
		}
	}
	return best
}

// level returns the constant time with the least squared relative error for the points.
func level(points []point) float64 {
	return solve(points, []column{ones})[0]
}

// fitDecode fits the terms of a decode step. If only some points have adapters, it alternately fits
// these terms and the factor for adapters.
func fitDecode(points []point) profile.Decode {
	var with, without int
	for _, p := range points {
		if p.work.Adapters {
			with++
		} else {
			without++
		}
	}
	d := steps(points, 1)
	if with == 0 || without == 0 {
		return d
	}
	factor := 1.0
	for range 100 {
		d = steps(points, factor)
		plain := profile.Profile{Decode: d}
		var above, below float64
		for _, p := range points {
			if p.work.Adapters {
				w := p.work
				w.Adapters = false
				ratio := plain.StepTime(w) / p.seconds
				above, below = above+ratio, below+ratio*ratio
			}
		}
		next := max(1, above/below)
		if math.Abs(next-factor) < 1e-9*factor {
			break
		}
		factor = next
	}
	if factor > 1 {
		d.AdapterSlowdown = factor
	}
	return d
}

// steps fits the terms of a decode step. factor is how much longer steps with adapters take.
func steps(points []point, factor float64) profile.Decode {
	times := slices.Clone(points)
	for i := range times {
		if times[i].work.Adapters {
			times[i].seconds /= factor
		}
	}
	x := solve(times, []column{ones, sequences, kvTokens})
	return profile.Decode{Base: x[0], PerSequence: x[1], PerKVToken: x[2]}
}

// folds is the number of parts of the points for cross-validation. If there are at most wholly
// points, each point is a part.
const folds, wholly = 10, 20

// miss is the relative error of one row's prediction. weight is 1 divided by the number of rows of
// its point.
type miss struct{ share, weight float64 }

// heldOut predicts each point with a fit to other points, and returns the errors.
func heldOut(points []point, fit func([]point) profile.Profile) (misses []miss) {
	parts := len(points)
	if parts > wholly {
		parts = folds
	}
	for part := range parts {
		var seen, left []point
		for i, p := range points {
			if i%parts == part {
				left = append(left, p)
			} else {
				seen = append(seen, p)
			}
		}
		misses = append(misses, missesOf(left, fit(seen))...)
	}
	return misses
}

// missesOf returns the errors of a profile's predictions for all rows of the points.
func missesOf(points []point, p profile.Profile) (misses []miss) {
	for _, at := range points {
		predicted := p.StepTime(at.work)
		for _, t := range at.times {
			misses = append(misses, miss{predicted/t - 1, 1 / float64(len(at.times))})
		}
	}
	return misses
}

// square returns the sum of squared errors, in which every point has the same weight.
func square(misses []miss) (sum float64) {
	for _, m := range misses {
		sum += m.weight * m.share * m.share
	}
	return sum
}

// errorOf summarizes errors. Every point has the same weight, however often it was measured.
func errorOf(misses []miss, points int) Error {
	sorted := slices.SortedFunc(slices.Values(misses), func(a, b miss) int { return cmp.Compare(math.Abs(a.share), math.Abs(b.share)) })
	at := func(share float64) float64 {
		var sum float64
		for _, m := range sorted {
			if sum += m.weight; sum >= share*float64(points)-1e-9 {
				return math.Abs(m.share)
			}
		}
		return math.NaN()
	}
	return Error{len(misses), points, at(0.5), at(0.9)}
}

// Quantile returns a quantile of sorted values: the smallest value that is at least as large as the
// given share of all values. It returns NaN if there are no values.
func Quantile(sorted []float64, share float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}
