// Package fit makes a profile's terms from measured times, and says how far they are from times that they were not made of.
//
// A fit is least squares of relative errors, so that short times count as long ones do, with less weight for what lies far
// from all others. No term is negative: a profile says what takes time. Rows of the same work are one point, whose time is
// their median, so that what was measured often, or once with a hiccup, counts once.
//
// The error is of points that the fit has not seen: each in turn is left out (of many, a tenth of them), all is fitted and
// chosen anew without it, and its rows are predicted.
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

// Row is one measurement: of a prompt, of a decode step, of both, or of a prompt beside requests that decode.
type Row struct {
	Set Set
	// Prefill took PrefillSeconds, and is a prompt only; 0 where no prompt was measured. If Prompts is above 1, so many like it were
	// sent at once, and that is when the last of them had its first token: the first has a step of its own, in which the others come.
	Prompts        int
	Prefill        profile.Work
	PrefillSeconds float64
	// Intake is how much of PrefillSeconds passed before the prompt was in its engine's queue, in seconds, so that it is not of the prefill;
	// 0 where nobody says.
	Intake float64
	// Step took StepSeconds, and is sequences only; 0 where no step was measured.
	Step        profile.Work
	StepSeconds float64
	// Mixed is a prompt and the sequences beside it, whose steps take Without seconds before and after. The step with the prompt took
	// MixedSeconds, and the prompt had its first token after FirstToken; 0 where that was not measured.
	Mixed                             profile.Work
	MixedSeconds, Without, FirstToken float64
}

// Set names what was measured: rows of one set make one profile. What a file does not say is zero.
type Set struct {
	Model, Hardware string
	TensorParallel  int
}

// Fit is what rows came to.
type Fit struct {
	// Intake is the median of the rows that tell theirs, in seconds; 0 where none does.
	Intake  float64
	Prefill profile.Prefill
	Decode  profile.Decode
	// Launch and Asynchronous are known of prompts beside requests that decode alone.
	Launch       float64
	More         float64 // profile.Profile's Mixed
	Asynchronous bool
	// Mixed is how far off steps with both are, which were measured; none of the terms of prompts and steps is made of them.
	Mixed Mixed
	// PrefillError and StepError are of rows that the fit had not seen.
	PrefillError, StepError Error
}

// Error is how far predictions were from measured times, as a share of the measured time.
type Error struct {
	// Rows were predicted; they are of so many Points, which differ in what was computed. Every point has the same part in
	// the quantiles, however often it was measured.
	Rows, Points int
	Median, P90  float64
}

// Profile is the fit of a set as a profile: its source says of which rows, and how far off it is. Of what was not measured
// it assumes the least: loads take no time, and limits are those that are given.
func (f Fit) Profile(file string, s Set, limits profile.Limits) profile.Profile {
	return profile.Profile{
		Name: s.String(),
		Source: fmt.Sprintf("Fitted to %s, of %d prompts and %d steps. Rows that it had not seen: %s for prompts; %s for steps. "+
			"%sLimits are assumed, and loads take no time.", file, f.PrefillError.Rows, f.StepError.Rows, f.PrefillError, f.StepError, f.Mixed),
		Intake:       f.Intake,
		Prefill:      f.Prefill,
		Decode:       f.Decode,
		Launch:       f.Launch,
		Mixed:        f.More,
		Asynchronous: f.Asynchronous,
		Limits:       limits,
	}
}

// String says how large the error is, for people.
func (e Error) String() string {
	return fmt.Sprintf("median error %.1f %%, 90th percentile %.1f %%", 100*e.Median, 100*e.P90)
}

// String names a set, for people.
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

// leastPoints is how many different points prompts, and steps, need: a line through two has no error to tell of.
const leastPoints = 3

// Errors of [Of]; match them with errors.Is.
var (
	ErrFewPrompts = fmt.Errorf("prompts of at least %d different lengths are needed, with the time that each took", leastPoints)
	ErrFewSteps   = fmt.Errorf("decode steps of at least %d different batches or lengths are needed, with the time that each took", leastPoints)
)

// Of fits the rows of one set.
func Of(rows []Row) (Fit, error) {
	intake := intakeOf(rows)
	var prompts, steps []sample
	for _, r := range rows {
		if r.Prompts > 1 {
			continue
		}
		if seconds := r.PrefillSeconds - cmp.Or(r.Intake, intake); r.PrefillSeconds > 0 && seconds > 0 {
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
	if more := atOnce(rows, intake, profile.Profile{Prefill: fitPrefill(byPrompt)}); len(more) > 0 {
		byPrompt = pointsOf(append(more, prompts...))
	}
	decode, beside := fitDecode(byStep), mixedOf(rows, intake)
	ofPrompts := func(of []point) profile.Profile {
		p, _ := mix(profile.Profile{Prefill: fitPrefill(of), Decode: decode}, of, beside)
		return p
	}
	p, mixed := mix(profile.Profile{Prefill: fitPrefill(byPrompt), Decode: decode}, byPrompt, beside)
	p = rounded(p)
	p.Prefill.MeasuredTo = longest(prompts)
	return Fit{
		Intake:       profile.Rounded(intake),
		Prefill:      p.Prefill,
		Decode:       p.Decode,
		Launch:       p.Launch,
		More:         p.Mixed,
		Asynchronous: p.Asynchronous,
		Mixed:        mixed,
		PrefillError: errorOf(heldOut(byPrompt, ofPrompts), len(byPrompt)),
		StepError:    errorOf(heldOut(byStep, func(of []point) profile.Profile { return profile.Profile{Decode: fitDecode(of)} }), len(byStep)),
	}, nil
}

// intakes is how many times as long as its intake a prompt takes at least where the first of several has a step of its own, in which all others come:
// if steps are shorter, each of them may have its own.
const intakes = 2

// atOnce are steps of several prompts: of those that were sent at once, what is left of the time of all when the first had a step of its own, or
// all of it where they were in one step. The times of prompts alone decide which is closer, and most prompts of a size decide which of them count.
func atOnce(rows []Row, intake float64, alone profile.Profile) (steps []sample) {
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
		if one < intakes*intake {
			continue
		}
		k := kind{r.Prompts, size(r.Prefill)}
		if !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
		seconds := r.PrefillSeconds - intake
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

// longest is the tokens of the longest of the prompts, with those that were there already.
func longest(prompts []sample) (tokens int) {
	for _, s := range prompts {
		// A prompt of n tokens behind c has n*(2c+n) squares.
		n := float64(s.work.PromptTokens)
		tokens = max(tokens, int((s.work.Squares/n+n)/2))
	}
	return tokens
}

// intakeOf is the median of the intakes that rows tell; those that tell none had about as much. Of none it is 0.
func intakeOf(rows []Row) float64 {
	var told []float64
	for _, r := range rows {
		if r.Intake > 0 {
			told = append(told, r.Intake)
		}
	}
	if len(told) == 0 {
		return 0
	}
	slices.Sort(told)
	return Quantile(told, 0.5)
}

// sample is work and the seconds that it took.
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

// pointsOf gathers samples, sorted by their work.
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

// sign orders what has adapters after what has none.
func sign(adapters bool) int {
	if adapters {
		return 1
	}
	return 0
}

// rounded has the terms to four digits.
func rounded(p profile.Profile) profile.Profile {
	for _, term := range []*float64{
		&p.Prefill.Floor, &p.Prefill.Base, &p.Prefill.PerToken, &p.Prefill.PerTokenSquared,
		&p.Decode.Base, &p.Decode.PerSequence, &p.Decode.PerKVToken, &p.Decode.Adapters, &p.Launch, &p.Mixed,
	} {
		*term = profile.Rounded(*term)
	}
	return p
}

// clearly is how much smaller an error must be, as a ratio, for a further term to be worth having.
const clearly = 0.9

// fitPrefill fits a line, and keeps a floor, the square of what is before, or both where points that were left out are
// clearly closer then.
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

// floors is how many floors are tried, about.
const floors = 20

// floored tries as the floor the time of the one point that took least, of two, and so on, with the line through all
// others, and keeps what is closest to all. At most half of the points lie on a floor: more would be no short prompts.
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

// level is the time that is closest to all points, in least squares of relative errors.
func level(points []point) float64 {
	return solve(points, []column{ones})[0]
}

// fitDecode fits the terms of a step; where some points have adapters and others have none, the factor too, by turns.
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
		d.Adapters = factor
	}
	return d
}

// steps fits the terms of a step, with a factor for points that have adapters.
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

// wholly is how many points are left out one by one; more of them are in so many folds.
const folds, wholly = 10, 20

// miss is by what share of the measured time the prediction is above it, of one row; weight is its part of its point.
type miss struct{ share, weight float64 }

// heldOut predicts every point by a fit of others.
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

// missesOf compares each row of the points with what a profile predicts.
func missesOf(points []point, p profile.Profile) (misses []miss) {
	for _, at := range points {
		predicted := p.StepTime(at.work)
		for _, t := range at.times {
			misses = append(misses, miss{predicted/t - 1, 1 / float64(len(at.times))})
		}
	}
	return misses
}

// square is the sum of squares, in which every point has the same part.
func square(misses []miss) (sum float64) {
	for _, m := range misses {
		sum += m.weight * m.share * m.share
	}
	return sum
}

// errorOf says how large misses are; every point has the same part, however often it was measured.
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

// Quantile is the smallest of sorted values that is no smaller than a share of all; of none it is NaN.
func Quantile(sorted []float64, share float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}
