// Package learn keeps a profile true: from two looks at an engine, some time apart, it learns how long the engine takes, and how far it is to be
// trusted with what it predicts.
//
// What engines count of themselves (see [engine.Totals]) gives rows. The mean time between two tokens is that of a decode step, and over an
// interval it is linear in what a step does: the terms of [profile.Decode] times sequences and tokens in the KV cache, and those of
// [profile.Prefill] times the prompts that are computed beside. The mean time that requests are prefilled gives rows of a second kind where
// an engine has little to do.
//
// A [Learner] is least squares over all rows of engines of one kind, in relative errors, in which older rows count less and less and those
// far from all others do too. It is drawn to the profile that it began with, so that what no traffic shows stays as it was said, and
// no term leaves a range around it. The sums over rows are all that is kept: a row takes as long as any other, and allocates nothing.
//
// How long loads of adapters take no engine counts: that is learned of first tokens (see [Learner.Began]).
//
// The package is pure: time is an argument, and the same looks give the same profile.
package learn

import (
	"math"
	"slices"

	"github.com/headgate/headgate/internal/profile"
)

// How a Learner learns.
const (
	// remembers is after how many seconds, and least after how many rows, a row counts 1/e of a new one.
	remembers, leastRows = 300, 500
	// Where rows are off by more than changed in the median, the world has changed: a row counts 1/e of a new one after so many rows then.
	changed, changedRows = 0.15, 30
	// drawn is how many rows, each of one term alone, weigh as much as what the Learner began with.
	drawn = 0.05
	// farthest is how many times as much as at the beginning, or as little, a term is at most.
	farthest = 50
	// first is how many rows tell by how much all times are longer than they were said to be: the median of them.
	first = 15
	// bend is how many times as far off as usual a row is that counts fully, after Huber: see package fit, where deviation is said too.
	bend, deviation = 1.345, 1.4826
	// leastUsual is how far off a row is at least taken to be usually.
	leastUsual = 0.02
	// What a median of misses is at least, and as a logarithm at most.
	leastOff, mostOff = 1e-3, 10
	// follows is the part of what it is off by that the tracked median of misses moves with each row.
	follows = 0.05
)

// When a Learner is trusted. What it is off by in the median, as a logarithm, is to be below trusted; it is trusted until that is above
// distrusted. Neither changes within fewer rows than leastTrust of each other.
const (
	trusted, distrusted = 0.2, 0.4
	leastTrust          = 40
	// What nobody said is trusted once the latest firstTokens first tokens, too, came no earlier or later in the median than predicted, by trusted.
	// Where there were fewer in the latest firstTokensFor seconds, it is trusted after so many rows.
	firstTokens, withoutFirst = 20, 3 * leastTrust
	firstTokensFor            = 600
)

// How the factor of an engine follows: by a part of what it is off by, no more than at most at once, both as logarithms.
const (
	factorFollows = 0.1
	factorStep    = 0.5
	// What factors are off by chance would have some engines get more requests than others, and goodput fall by a tenth (bench fleet, plain). So
	// engines are taken to be equally fast whose factors, as logarithms, are apart by no more than spread, as a standard deviation; but for one
	// whose own is above alone.
	spread, alone = 0.1, 0.2
)

// furthest is the greatest logarithm of an engine's factor.
var furthest = math.Log(8)

// The terms that are learned, each as a factor of what it was at the beginning. The whole of prefill is one: its shape is as it was said.
const (
	base = iota
	perSequence
	perKVToken
	prefill
	terms
)

// row is a time that was measured: the sum of what its terms were at the beginning, each times what is learned of it.
type row struct {
	terms   [terms]float64 // seconds
	seconds float64
	weight  float64
}

// Learner is what is learned of engines of one kind. Make one with [New]. It is not safe for concurrent use.
type Learner struct {
	prior  profile.Profile
	number uint64 // of prior, see Prior
	pinned bool

	// What all rows come to: the matrix and the right side of least squares, without what draws to the beginning.
	matrix [terms][terms]float64
	right  [terms]float64
	at     float64 // of the latest row

	scale  float64 // of the times that it is drawn to
	ratios [first]float64
	now    [terms]float64 // what is learned

	loads loads

	usual float64 // how far off rows are, in the median

	// The logarithms of the factors of so many engines come to so much, and their squares.
	engines          int
	factors, squares float64

	foretold [firstTokens]foretold // the latest first tokens
	told     int                   // how many first tokens there were

	trusts    bool
	off       float64 // how far off predictions are in the median, as a logarithm
	rows      int
	taken     int // of rows, those that another Learner has seen
	unchanged int // rows since trusts changed
}

// foretold is the logarithm of how many times as long as predicted a first token took, and the time of the latest row then.
type foretold struct{ off, at float64 }

// New returns a Learner that begins with a profile, which is trusted until it turns out to be wrong, or is not until it turns out right.
func New(prior profile.Profile, trusts bool) *Learner {
	l := &Learner{prior: prior, number: Prior(prior), scale: 1, usual: 0.2, off: distrusted, trusts: trusts}
	if trusts {
		l.off = trusted
	}
	for j := range l.now {
		l.now[j] = 1
	}
	return l
}

// Pin ends all learning: what is known by now stays, and is trusted.
func (l *Learner) Pin() { l.pinned, l.trusts = true, true }

// Trusted says whether the profile is to be predicted by.
func (l *Learner) Trusted() bool { return l.trusts }

// Rows is how many rows it has learned from.
func (l *Learner) Rows() int { return l.rows }

// Residual is how far off the latest predictions were in the median, before their rows were learned: as a share of the smaller of what was
// predicted and what was measured.
func (l *Learner) Residual() float64 { return math.Expm1(l.off) }

// Profile is what is known by now. Limits are those of the beginning.
func (l *Learner) Profile() profile.Profile {
	p := l.prior
	p.Decode.Base *= l.now[base]
	p.Decode.PerSequence *= l.now[perSequence]
	p.Decode.PerKVToken *= l.now[perKVToken]
	for _, t := range []*float64{&p.Prefill.Floor, &p.Prefill.Base, &p.Prefill.PerToken, &p.Prefill.PerTokenSquared} {
		*t *= l.now[prefill]
	}
	l.loads.tell(&p)
	return p
}

// Of is the profile of an engine, which may be slower than others of its kind or faster.
func (l *Learner) Of(e *Engine) profile.Profile {
	p := l.Profile()
	if slower := l.Slower(e); slower != 1 {
		return p.Times(slower)
	}
	return p
}

// Slower is how many times as long an engine is taken to need as its kind.
func (l *Learner) Slower(e *Engine) float64 {
	n := float64(max(1, l.engines))
	if mean := l.factors / n; math.Abs(e.factor) < alone && l.squares/n-mean*mean < spread*spread {
		return 1
	}
	return math.Exp(e.factor)
}

// learn takes a row of an engine at a time, in seconds.
func (l *Learner) learn(e *Engine, at float64, r row) {
	predicted := 0.0
	for j, t := range r.terms {
		predicted += t * l.now[j]
	}
	if !(predicted > 0) || !(r.seconds > 0) || math.IsInf(predicted, 0) || math.IsInf(r.seconds, 0) {
		return
	}
	off := math.Log(r.seconds / predicted)
	l.judge(off - e.factor)
	if !e.counted {
		e.counted, l.engines = true, l.engines+1
	}
	factor := e.factor + factorFollows*min(max(off-e.factor, -factorStep), factorStep)
	l.move(e, min(max(factor, -furthest), furthest))
	r.seconds /= math.Exp(e.factor - l.factors/float64(l.engines)) // as one of engines as they are in the mean takes

	l.rescale(r)
	l.add(at, r, predicted)
	l.now = l.solve()
}

// move gives an engine that counts another factor.
func (l *Learner) move(e *Engine, factor float64) {
	l.factors += factor - e.factor
	l.squares += factor*factor - e.factor*e.factor
	e.factor = factor
}

// Forget tells of an engine that is gone.
func (l *Learner) Forget(e *Engine) {
	if e.counted {
		l.engines--
		l.factors -= e.factor
		l.squares -= e.factor * e.factor
	}
	*e = Engine{}
}

// judge notes by how much a prediction was off, and changes what is trusted.
func (l *Learner) judge(off float64) {
	if l.rows < math.MaxInt {
		l.rows++
	}
	l.unchanged = min(l.unchanged+1, leastTrust)
	l.off = min(max(toward(l.off, math.Abs(off)), leastOff), mostOff)
	switch {
	case l.unchanged < leastTrust:
	case l.trusts && l.off >= distrusted, !l.trusts && l.off < trusted && l.comesTrue():
		l.trusts, l.unchanged = !l.trusts, 0
	}
}

// Foretold records the ratio of actual to predicted time to first token, whichever policy decided. It ignores impossible ratios.
func (l *Learner) Foretold(ratio float64) {
	if off := math.Log(ratio); !l.pinned && !math.IsNaN(off) && !math.IsInf(off, 0) {
		l.foretold[l.told%firstTokens] = foretold{off, l.at}
		l.told++
	}
}

// comesTrue says whether first tokens come when they are predicted to, as far as any were seen lately.
func (l *Learner) comesTrue() bool {
	var recent [firstTokens]float64
	n := 0
	for _, is := range l.foretold[:min(l.told, firstTokens)] {
		if l.at-is.at <= firstTokensFor {
			recent[n] = is.off
			n++
		}
	}
	if n < firstTokens {
		return n == 0 || l.rows-l.taken >= withoutFirst
	}
	slices.Sort(recent[:])
	return math.Abs(recent[firstTokens/2-1]+recent[firstTokens/2])/2 < trusted
}

// toward moves a median toward a value: as often up as down where it is the median.
func toward(median, value float64) float64 {
	switch {
	case value > median:
		return min(value, median*(1+follows))
	case value < median:
		return max(value, median/(1+follows))
	}
	return median
}

// rescale has what is learned be drawn to times as long as the first rows say.
func (l *Learner) rescale(r row) {
	if l.rows > first {
		return
	}
	said := 0.0
	for _, t := range r.terms {
		said += t
	}
	l.ratios[l.rows-1] = r.seconds / said
	sorted := l.ratios
	slices.Sort(sorted[:l.rows])
	l.scale = min(max(sorted[(l.rows-1)/2], 1./farthest), farthest)
}

// add adds a row to the sums.
func (l *Learner) add(at float64, r row, predicted float64) {
	off := math.Abs(1 - predicted/r.seconds)
	if l.rows > first {
		r.weight *= min(1, bend*deviation*max(l.usual, leastUsual)/max(off, 1e-9))
	}
	l.usual = min(max(toward(l.usual, off), leastOff), 1)
	keep := max(math.Exp(-min(max(at-l.at, 0), remembers)/remembers), 1-1./leastRows)
	if l.usual > changed && l.rows > changedRows {
		keep = min(keep, 1-1./changedRows)
	}
	l.at = at
	for j, x := range r.terms {
		for k, y := range r.terms {
			l.matrix[j][k] = keep*l.matrix[j][k] + r.weight*x*y/(r.seconds*r.seconds)
		}
		l.right[j] = keep*l.right[j] + r.weight*x/r.seconds
	}
}

// solve finds the terms within their range whose sum of squares is least.
func (l *Learner) solve() [terms]float64 {
	matrix, right := l.matrix, l.right
	for j := range terms {
		matrix[j][j] += drawn / (l.scale * l.scale)
		right[j] += drawn / l.scale
	}
	if best, ok := linear(matrix, right); ok && within(best) {
		return best
	}
	// One term after the other, where the others are as they are: the sum has one least value, and each step is closer to it.
	best := l.now
	for range 1000 {
		var moved float64
		for j := range terms {
			to := right[j]
			for k := range terms {
				if k != j {
					to -= matrix[j][k] * best[k]
				}
			}
			to = min(max(to/matrix[j][j], 1./farthest), farthest)
			moved = max(moved, math.Abs(to-best[j])/to)
			best[j] = to
		}
		if moved < 1e-9 {
			break
		}
	}
	return best
}

// within says whether terms are within their range.
func within(all [terms]float64) bool {
	for _, is := range all {
		if !(is >= 1./farthest && is <= farthest) {
			return false
		}
	}
	return true
}

// linear solves equations whose matrix is symmetric and positive definite, as one that draws to somewhere is. It reports false where rounding
// has it be neither.
func linear(m [terms][terms]float64, x [terms]float64) ([terms]float64, bool) {
	for j := range terms {
		if !(m[j][j] > 0) {
			return x, false
		}
		for i := j + 1; i < terms; i++ {
			f := m[i][j] / m[j][j]
			for k := j; k < terms; k++ {
				m[i][k] -= f * m[j][k]
			}
			x[i] -= f * x[j]
		}
	}
	for j := terms - 1; j >= 0; j-- {
		for k := j + 1; k < terms; k++ {
			x[j] -= m[j][k] * x[k]
		}
		x[j] /= m[j][j]
	}
	return x, true
}
