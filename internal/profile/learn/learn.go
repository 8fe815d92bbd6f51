// Package learn keeps a profile true: from two looks at an engine, some time apart, it learns how long the engine takes, and how far it is to be
// trusted with what it predicts.
//
// What engines count of themselves (see [engine.Totals]) gives rows of two kinds. The mean time between two tokens is that of a decode step, and
// over an interval it is linear in what a step does: the terms of [profile.Decode] times sequences and tokens in the KV cache, and those of
// [profile.Prefill] times the prompts that are computed beside. The mean time that requests are prefilled is that of the steps that compute
// prompts. The first kind tells exactly what the tokens of prompts take, the second what a step with a prompt takes longer than one without,
// however short the prompt is. How many prompts share a step is known by how many steps had more tokens than sequences.
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
	// drawn is how many rows, each of one term alone, weigh as much as what the Learner began with. For the term with it is looser times that,
	// for it is often many times as long as profiles say, and stiffer times that where engines do not report how long prompts take: then no row
	// tells it from others.
	drawn, looser, stiffer = 0.05, 0.001, 100
	// leastUnit is the least unit of the term with, in seconds.
	leastUnit = 0.001
	// surely is the share of a decode step by which steps with prompts are longer where promptBase is no less than a decode step.
	surely = 0.25
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
	// A profile that nobody gave is trusted only if the latest firstTokens first tokens, too, came no earlier or later in the median than predicted,
	// by trusted. Streams report them when they end, and many engines give many rows before that. So if there were fewer in the latest
	// firstTokensFor seconds, it is trusted after withoutFirst rows in fewSeconds, and if there was none, after noneSeconds.
	firstTokens, withoutFirst = 20, 3 * leastTrust
	firstTokensFor            = 600
	noneSeconds, fewSeconds   = 30, 120
	// mostBetween bounds the seconds that count from one row to the next: a clock may jump.
	mostBetween = 10
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

// The terms that are learned. All but with are factors of what the profile began with.
const (
	base = iota
	perSequence
	perKVToken
	prefill // of both terms per token, and of the floor
	with    // how much longer a step takes with a prompt than without, whatever the prompt's length, in units of Learner.unit
	terms
)

// row is a time that was measured: the sum of what its terms were at the beginning, each times what is learned of it.
type row struct {
	terms   [terms]float64 // seconds
	seconds float64
	weight  float64
	kind    kind
	only    bool // of prompts, of an engine that makes no tokens but first ones
}

// kind is what a row is of. Rows of one kind are compared with each other to find those that are far off.
type kind int

const (
	ofSteps kind = iota
	ofPrompts
	kinds
)

// Learner is what is learned of engines of one kind. Make one with [New]. It is not safe for concurrent use.
type Learner struct {
	prior  profile.Profile
	number uint64 // of prior, see Prior
	pinned bool

	// What all rows come to: the matrix and the right side of least squares, without what draws to the beginning.
	matrix [terms][terms]float64
	right  [terms]float64
	at     float64 // of the latest row

	scale    float64        // of the times that it is drawn to
	unit     float64        // of with, in seconds
	drawnTo  [terms]float64 // what terms are drawn to, times scale
	shortest float64        // about the least time that prompts took, in the mean of some requests; infinite before any was seen
	ratios   [first]float64
	now      [terms]float64 // what is learned

	loads loads

	usual [kinds]float64 // how far off rows are, in the median

	// The logarithms of the factors of so many engines come to so much, and their squares.
	engines          int
	factors, squares float64

	foretold [firstTokens]foretold // the latest first tokens
	told     int                   // how many first tokens there were
	watched  float64               // seconds from the first row of its own to the latest

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
	l := &Learner{prior: prior, number: Prior(prior), scale: 1, usual: [kinds]float64{0.2, 0.2}, off: distrusted, trusts: trusts}
	if trusts {
		l.off = trusted
	}
	longer := max(0, prior.Prefill.Base-prior.Decode.Base) + prior.Mixed
	l.unit, l.shortest = max(longer, prior.Prefill.Floor-prior.Decode.Base, prior.Launch-prior.Decode.Base, prior.Decode.Base, prior.Prefill.Base, leastUnit), math.Inf(1)
	l.drawnTo = [terms]float64{1, 1, 1, 1, longer / l.unit}
	l.now = l.drawnTo
	return l
}

// alone is the ratio of the base of prefill to that of decode in the profile that learning began with, at most 1.
func (l *Learner) alone() float64 {
	if p := &l.prior; p.Prefill.Base < p.Decode.Base {
		return p.Prefill.Base / p.Decode.Base
	}
	return 1
}

// promptBase returns the learned base of prefill, in seconds: a decode step plus what a step with a prompt takes longer. The first profile may
// have a prompt on an idle engine take less than a decode step. The base rises to a decode step as steps with prompts turn out to be longer.
func (l *Learner) promptBase() float64 {
	if l.rows == 0 {
		return l.prior.Prefill.Base
	}
	step, longer := l.prior.Decode.Base*l.now[base], l.unit*l.now[with]
	alone := l.alone() * step
	return alone + longer + min(step-alone, longer/surely)
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
	p.Prefill.Floor = min(p.Prefill.Floor*l.now[prefill], l.shortest)
	p.Launch = min(p.Launch*l.now[prefill], l.shortest)
	if l.rows > 0 {
		p.Mixed = 0 // rows have it in what a step with a prompt takes longer
	}
	p.Prefill.Base = l.promptBase()
	p.Prefill.PerToken *= l.now[prefill]
	p.Prefill.PerTokenSquared *= l.now[prefill]
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
	if r.kind == ofSteps || r.only { // how long prompts take in the mean depends on how many share a step, which is known less well
		factor := e.factor + factorFollows*min(max(off-e.factor, -factorStep), factorStep)
		l.move(e, min(max(factor, -furthest), furthest))
	}
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
		return n == 0 && l.watched >= noneSeconds || l.watched >= fewSeconds && l.rows-l.taken >= withoutFirst
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
	for j, t := range r.terms {
		said += t * l.drawnTo[j]
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
		r.weight *= min(1, bend*deviation*max(l.usual[r.kind], leastUsual)/max(off, 1e-9))
	}
	l.usual[r.kind] = min(max(toward(l.usual[r.kind], off), leastOff), 1)
	keep := max(math.Exp(-min(max(at-l.at, 0), remembers)/remembers), 1-1./leastRows)
	if l.usual[r.kind] > changed && l.rows > changedRows {
		keep = min(keep, 1-1./changedRows)
	}
	if l.rows > 1 {
		l.watched += min(max(at-l.at, 0), mostBetween)
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
	l.draw(&matrix, &right)
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
			to = min(max(to/matrix[j][j], least(j)), farthest)
			moved = max(moved, math.Abs(to-best[j])/max(to, 1./farthest))
			best[j] = to
		}
		if moved < 1e-9 {
			break
		}
	}
	return best
}

// draw adds to the sums what draws terms to the profile that learning began with.
func (l *Learner) draw(matrix *[terms][terms]float64, right *[terms]float64) {
	for j := range terms {
		weight := drawn / l.scale
		switch {
		case j != with:
		case math.IsInf(l.shortest, 1):
			weight *= stiffer
		default:
			weight *= looser
		}
		matrix[j][j] += weight / l.scale
		right[j] += weight * l.drawnTo[j]
	}
}

// within says whether terms are within their range.
func within(all [terms]float64) bool {
	for j, is := range all {
		if !(is >= least(j) && is <= farthest) {
			return false
		}
	}
	return true
}

// least returns the least value of a term.
func least(term int) float64 {
	if term == with {
		return 0
	}
	return 1. / farthest
}

// took follows the least mean time of prompts: the floor of prefill is no higher.
func (l *Learner) took(seconds float64) {
	if seconds < l.shortest {
		l.shortest = seconds
	} else {
		l.shortest += (seconds - l.shortest) * follows
	}
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
