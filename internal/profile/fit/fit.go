// Package fit computes a profile's terms from measured times, with an estimate of the prediction
// error.
//
// A fit is least squares of relative errors, so that short times count as much as long ones, with
// less weight for outliers. No term is negative. Rows with the same work are merged into one point
// with their median time, so that work that was measured often, or once with a hiccup, counts once.
//
// The error is cross-validated: each point in turn (with many points, a tenth of them) is left out,
// everything is fitted and chosen again without it, and its rows are predicted.
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

// Row is one measurement: of a prompt, of a decode step, of both, or of a prompt beside decoding
// requests.
type Row struct {
	Set Set
	// Prefill took PrefillSeconds and contains only a prompt; 0 if no prompt was measured. If
	// Prompts is above 1, that many equal prompts were sent at once, and PrefillSeconds is when the
	// last one had its first token: the first prompt has a step of its own, during which the others
	// arrive.
	Prompts        int
	Prefill        profile.Work
	PrefillSeconds float64
	// FrontendOverhead is the frontend overhead: the part of PrefillSeconds before the prompt was
	// in the engine's queue. It is not part of the prefill; 0 if unknown.
	FrontendOverhead float64
	// Step took StepSeconds and contains only sequences; 0 if no step was measured.
	Step        profile.Work
	StepSeconds float64
	// Mixed is a prompt and the decoding sequences in the same step. Steps without the prompt take
	// Without seconds. The step with the prompt took MixedSeconds, and the prompt had its first
	// token after FirstToken; 0 if not measured.
	Mixed                             profile.Work
	MixedSeconds, Without, FirstToken float64
}

// Set identifies what was measured: the rows of one set make one profile. Unknown fields are zero.
type Set struct {
	Model, Hardware string
	TensorParallel  int
}

// Fit is the result of fitting rows.
type Fit struct {
	// FrontendOverhead is the median frontend overhead in seconds; 0 if no row states it.
	FrontendOverhead float64
	Prefill          profile.Prefill
	Decode           profile.Decode
	// Launch and Asynchronous are known only from prompts beside decoding requests.
	Launch       float64
	More         float64 // profile.Profile's Mixed
	Asynchronous bool
	// Mixed is the prediction error for measured mixed steps. The terms of prompts and steps do not
	// depend on them.
	Mixed Mixed
	// PrefillError and StepError are cross-validated.
	PrefillError, StepError Error
}

// Error is the error of predictions relative to the measured time.
type Error struct {
	// Rows were predicted; they belong to this many Points, which differ in their work. Every point
	// has the same weight in the quantiles, however often it was measured.
	Rows, Points int
	Median, P90  float64
}

// Profile returns the fit as a profile with the given limits. Its source names the rows and the
// error. Loads were not measured and take no time.
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

// String describes the error for people.
func (e Error) String() string {
	return fmt.Sprintf("median error %.1f %%, 90th percentile %.1f %%", 100*e.Median, 100*e.P90)
}

// String describes a set for people.
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

// leastPoints is the minimum number of different points for prompts and for steps: a line through
// two points leaves no error to estimate.
const leastPoints = 3

// Errors of [Of], for errors.Is.
var (
	ErrFewPrompts = fmt.Errorf("prompts of at least %d different lengths are needed, with the time that each took", leastPoints)
	ErrFewSteps   = fmt.Errorf("decode steps of at least %d different batches or lengths are needed, with the time that each took",
		leastPoints)
)

// Of fits the rows of one set.
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

// frontendOverheads is how many times the frontend overhead a prompt must take for the assumption
// that the first of several prompts has a step of its own, during which all others arrive. In
// shorter steps, each prompt may have its own.
const frontendOverheads = 2

// atOnce returns steps with several prompts. Either the first prompt had a step of its own, and the
// rest of the time belongs to the others, or all were in one step. For each prompt size, the times
// of single prompts decide by majority which is the case.
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

// longest is the longest context after a prompt, in tokens.
func longest(prompts []sample) (tokens int) {
	for _, s := range prompts {
		// A prompt of n tokens after c has n*(2c+n) squares.
		n := float64(s.work.PromptTokens)
		tokens = max(tokens, int((s.work.Squares/n+n)/2))
	}
	return tokens
}

// frontendOverheadOf is the median frontend overhead of the rows that state it, 0 if none does; the
// others are assumed to have had the same.
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

// sample is work and its time in seconds.
type sample struct {
	work    profile.Work
	seconds float64
}

// point is all samples of the same work.
type point struct {
	work    profile.Work
	times   []float64 // in seconds, sorted
	seconds float64   // the median
}

// pointsOf merges samples, sorted by their work.
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

// sign sorts points without adapters first.
func sign(adapters bool) int {
	if adapters {
		return 1
	}
	return 0
}

// rounded rounds the terms to four digits.
func rounded(p profile.Profile) profile.Profile {
	for _, term := range []*float64{
		&p.Prefill.Floor, &p.Prefill.Base, &p.Prefill.PerToken, &p.Prefill.PerTokenSquared,
		&p.Decode.Base, &p.Decode.PerSequence, &p.Decode.PerKVToken, &p.Decode.AdapterSlowdown, &p.LaunchOverhead, &p.MixedBatchOverhead,
	} {
		*term = profile.Rounded(*term)
	}
	return p
}

// clearly is the ratio by which an additional term must reduce the error to be kept.
const clearly = 0.9

// fitPrefill fits a line, and adds a floor, a term for the square of the context, or both if that
// clearly reduces the cross-validated error.
func fitPrefill(points []point) profile.Prefill {
	forms := []func([]point) profile.Prefill{
		func(of []point) profile.Prefill { return line(of, false) },
		func(of []point) profile.Prefill { return floored(of, false) },
		func(of []point) profile.Prefill { return line(of, true) },
		func(of []point) profile.Prefill { return floored(of, true) },
	}
	best, least := forms[0], math.Inf(1)
	for _, form := range forms {
		if len(points) <= leastPoints { // nothing could be left out
			break
		}
		missed := square(heldOut(points, func(of []point) profile.Profile { return profile.Profile{Prefill: form(of)} }))
		if missed < clearly*clearly*least {
			best, least = form, missed
		}
	}
	return best(points)
}

// line fits prefill without a floor.
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

// floors is about how many floors are tried.
const floors = 20

// floored tries floors at the time of the fastest point, of the fastest two, and so on, each with a
// line through the other points, and keeps the best fit. At most half of the points may lie on the
// floor.
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

// level is the constant time with the least squared relative error.
func level(points []point) float64 {
	return solve(points, []column{ones})[0]
}

// fitDecode fits the terms of a step. If only some points have adapters, it alternates with fitting
// the adapter factor.
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

// steps fits the terms of a step, given the factor for points with adapters.
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

// folds is the number of parts of cross-validation. With up to wholly points, each is left out in
// turn.
const folds, wholly = 10, 20

// miss is the relative error of the prediction for one row; weight is the row's share of its point.
type miss struct{ share, weight float64 }

// heldOut predicts each point with a fit to the others.
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

// missesOf compares each row of the points with a profile's prediction.
func missesOf(points []point, p profile.Profile) (misses []miss) {
	for _, at := range points {
		predicted := p.StepTime(at.work)
		for _, t := range at.times {
			misses = append(misses, miss{predicted/t - 1, 1 / float64(len(at.times))})
		}
	}
	return misses
}

// square is the sum of squares, with the same weight for every point.
func square(misses []miss) (sum float64) {
	for _, m := range misses {
		sum += m.weight * m.share * m.share
	}
	return sum
}

// errorOf summarizes misses, with the same weight for every point, however often it was measured.
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

// Quantile is the smallest of the sorted values that is at least the given quantile; NaN without
// values.
func Quantile(sorted []float64, share float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}
