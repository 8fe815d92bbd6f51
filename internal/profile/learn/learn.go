// Package learn keeps an engine profile accurate. From two scrapes of an engine, some time apart,
// it learns how long the engine takes and how far its predictions can be trusted.
//
// The engine's own counters (see [engine.Totals]) give two kinds of measurements, called rows. The
// mean time between tokens is the time of a decode step. Over an interval it is linear in the work
// of a step: the terms of [profile.Decode] times sequences and tokens in the KV cache, plus the
// terms of [profile.Prefill] times the prompts computed in the same steps. The mean prefill time of
// requests is that of the steps that compute prompts. The first kind determines the cost per prompt
// token; the second determines how much longer a step with a prompt takes, however short the prompt
// is. The number of prompts per step follows from the number of steps with more tokens than
// sequences.
//
// A [Learner] is a recursive least-squares fit over all rows of engines of one kind, in relative
// errors. Older rows and outliers weigh less. The fit is regularized toward the initial profile, so
// that terms that the traffic does not show stay as configured, and each term is limited to a range
// around its initial value. Only sums over rows are kept, so each row takes the same time and
// allocates nothing.
//
// Engines do not report adapter load times; these are learned from times to first token (see
// [Learner.Began]).
//
// The package is pure: time is an argument, and the same scrapes give the same profile.
package learn

import (
	"math"
	"slices"

	"github.com/headgate/headgate/internal/profile"
)

// Parameters of the fit.
const (
	// remembers and leastRows set how fast rows are forgotten. A row's weight falls to 1/e after
	// remembers seconds and at least leastRows rows.
	remembers, leastRows = 300, 500
	// changed is the median error of rows that shows a change. Above it, the engines have changed:
	// a row's weight then falls to 1/e after changedRows rows.
	changed, changedRows = 0.15, 30
	// drawn is the weight of the initial profile, in rows of one term alone. It is multiplied by
	// looser for the term with, which is often many times its configured value, and by stiffer if
	// engines do not report prefill times: then no row separates that term from the others.
	drawn, looser, stiffer = 0.05, 0.001, 100
	// leastUnit is the smallest unit of the term with, in seconds.
	leastUnit = 0.001
	// surely is how much longer than a decode step a step with prompts must be, as a share, for
	// promptBase to be at least a decode step.
	surely = 0.25
	// farthest is the largest factor by which a term may differ from its initial value.
	farthest = 50
	// first is the number of rows whose median rescales all times.
	first = 15
	// bend is the threshold of Huber's weights, in units of the usual error; see package fit, also
	// for deviation.
	bend, deviation = 1.345, 1.4826
	// leastUsual is a lower limit on the usual error of rows.
	leastUsual = 0.02
	// leastOff and mostOff are limits of a median error, the upper one as a logarithm.
	leastOff, mostOff = 1e-3, 10
	// follows is the step of the running median error, as a share of its distance.
	follows = 0.05
)

// Conditions for trust. A profile becomes trusted when its median error, as a logarithm, falls
// below trusted, and stays so until it rises above distrusted. Neither happens within leastTrust
// rows of the last change.
const (
	trusted, distrusted = 0.2, 0.4
	leastTrust          = 40
	// firstTokens and the next constants delay trust. A profile that was not configured must also
	// have predicted the last firstTokens times to first token without a median bias above trusted.
	// Streams report them at their end, and many engines yield many rows before that. So with fewer
	// of them in the last firstTokensFor seconds, the profile is trusted after withoutFirst rows in
	// fewSeconds, and without any, after noneSeconds.
	firstTokens, withoutFirst = 20, 3 * leastTrust
	firstTokensFor            = 600
	noneSeconds, fewSeconds   = 30, 120
	// mostBetween limits the seconds between two rows, since a clock may jump.
	mostBetween = 10
)

// Parameters of an engine's speed factor: it moves by a share of its error, up to a maximum step,
// both as logarithms.
const (
	factorFollows = 0.1
	factorStep    = 0.5
	// spread and alone keep random errors out of the engines' factors. These would send some
	// engines more requests than others and cost a tenth of the goodput (bench fleet, plain). So
	// engines count as equally fast if the standard deviation of their log factors is at most
	// spread, except for an engine whose own log factor is above alone.
	spread, alone = 0.1, 0.2
)

// furthest is the largest log factor of an engine.
var furthest = math.Log(8)

// The learned terms. All but with are factors of the initial profile's terms.
const (
	base = iota
	perSequence
	perKVToken
	prefill // both terms per token, and the floor
	with    // extra time of a step with a prompt of any length, in units of Learner.unit
	terms
)

// row is a measured time: the sum of the initial values of its terms, each times its learned
// factor.
type row struct {
	terms   [terms]float64 // seconds
	seconds float64
	weight  float64
	kind    kind
	only    bool // from prompts at an engine that only makes first tokens
}

// kind is the kind of a row. Outliers are determined within a kind.
type kind int

const (
	ofSteps kind = iota
	ofPrompts
	kinds
)

// Learner learns the profile of engines of one kind. Make one with [New]. It is not safe for
// concurrent use.
type Learner struct {
	prior  profile.Profile
	number uint64 // of the initial profile, see Prior
	pinned bool

	// Sums over all rows: the matrix and the right side of the least squares, without the
	// regularization.
	matrix [terms][terms]float64
	right  [terms]float64
	at     float64 // time of the last row

	scale    float64        // of the times that the fit is regularized toward
	unit     float64        // of the term with, in seconds
	drawnTo  [terms]float64 // initial terms times scale
	shortest float64        // about the shortest mean time of prompts; infinite before any
	ratios   [first]float64
	now      [terms]float64 // learned terms

	loads loads

	usual [kinds]float64 // median error of rows

	// The number of engines, and the sums of their log factors and of the squares of these.
	engines          int
	factors, squares float64

	predicted [firstTokens]predicted // the last times to first token
	compared  int                    // number of times to first token so far
	watched   float64                // seconds from its first own row to the last

	trusts    bool
	off       float64 // median error of predictions, as a logarithm
	rows      int
	taken     int // rows that come from another Learner
	unchanged int // rows since trusts changed
}

// predicted is the log ratio of an actual to a predicted time to first token, and the time of the
// last row then.
type predicted struct{ off, at float64 }

// New returns a Learner with an initial profile. If trusts is true, the profile is trusted until it
// proves wrong, otherwise only once it proves right.
func New(prior profile.Profile, trusts bool) *Learner {
	l := &Learner{prior: prior, number: Prior(prior), scale: 1, usual: [kinds]float64{0.2, 0.2}, off: distrusted, trusts: trusts}
	if trusts {
		l.off = trusted
	}
	longer := max(0, prior.Prefill.Base-prior.Decode.Base) + prior.MixedBatchOverhead
	l.unit, l.shortest = max(longer, prior.Prefill.Floor-prior.Decode.Base, prior.LaunchOverhead-prior.Decode.Base, prior.Decode.Base,
		prior.Prefill.Base, leastUnit), math.Inf(1)
	l.drawnTo = [terms]float64{1, 1, 1, 1, longer / l.unit}
	l.now = l.drawnTo
	return l
}

// alone is the ratio of the initial prefill base to the decode base, at most 1.
func (l *Learner) alone() float64 {
	if p := &l.prior; p.Prefill.Base < p.Decode.Base {
		return p.Prefill.Base / p.Decode.Base
	}
	return 1
}

// promptBase returns the learned base of prefill in seconds: a decode step plus the extra time of a
// step with a prompt. In the initial profile, a prompt on an idle engine may take less than a
// decode step. The base rises to a decode step as steps with prompts turn out to be longer.
func (l *Learner) promptBase() float64 {
	if l.rows == 0 {
		return l.prior.Prefill.Base
	}
	step, longer := l.prior.Decode.Base*l.now[base], l.unit*l.now[with]
	alone := l.alone() * step
	return alone + longer + min(step-alone, longer/surely)
}

// Pin ends all learning: the current profile stays and is trusted.
func (l *Learner) Pin() { l.pinned, l.trusts = true, true }

// Trusted reports whether to use the profile for predictions.
func (l *Learner) Trusted() bool { return l.trusts }

// Rows returns the number of rows so far.
func (l *Learner) Rows() int { return l.rows }

// Residual returns the recent median error of predictions, made before their rows were learned, as
// a share of the smaller of predicted and measured.
func (l *Learner) Residual() float64 { return math.Expm1(l.off) }

// Profile returns the learned profile with the initial limits.
func (l *Learner) Profile() profile.Profile {
	p := l.prior
	p.Decode.Base *= l.now[base]
	p.Decode.PerSequence *= l.now[perSequence]
	p.Decode.PerKVToken *= l.now[perKVToken]
	p.Prefill.Floor = min(p.Prefill.Floor*l.now[prefill], l.shortest)
	p.LaunchOverhead = min(p.LaunchOverhead*l.now[prefill], l.shortest)
	if l.rows > 0 {
		p.MixedBatchOverhead = 0 // included in the term with
	}
	p.Prefill.Base = l.promptBase()
	p.Prefill.PerToken *= l.now[prefill]
	p.Prefill.PerTokenSquared *= l.now[prefill]
	l.loads.tell(&p)
	return p
}

// Of returns the profile of one engine, which may be slower or faster than others of its kind.
func (l *Learner) Of(e *Engine) profile.Profile {
	p := l.Profile()
	if slower := l.Slower(e); slower != 1 {
		return p.Times(slower)
	}
	return p
}

// Slower returns the factor by which an engine is assumed to be slower than its kind.
func (l *Learner) Slower(e *Engine) float64 {
	n := float64(max(1, l.engines))
	if mean := l.factors / n; math.Abs(e.factor) < alone && l.squares/n-mean*mean < spread*spread {
		return 1
	}
	return math.Exp(e.factor)
}

// learn adds a row of an engine at a time in seconds.
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
	if r.kind == ofSteps || r.only { // the mean prefill time depends on the prompts per step, which is less certain
		factor := e.factor + factorFollows*min(max(off-e.factor, -factorStep), factorStep)
		l.move(e, min(max(factor, -furthest), furthest))
	}
	r.seconds /= math.Exp(e.factor - l.factors/float64(l.engines)) // as an average engine would take

	l.rescale(r)
	l.add(at, r, predicted)
	l.now = l.solve()
}

// move changes the factor of a counted engine.
func (l *Learner) move(e *Engine, factor float64) {
	l.factors += factor - e.factor
	l.squares += factor*factor - e.factor*e.factor
	e.factor = factor
}

// Forget removes an engine that is gone.
func (l *Learner) Forget(e *Engine) {
	if e.counted {
		l.engines--
		l.factors -= e.factor
		l.squares -= e.factor * e.factor
	}
	*e = Engine{}
}

// judge records the error of a prediction and updates trust.
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

// Predicted records the ratio of actual to predicted time to first token, whichever policy decided.
// It ignores impossible ratios.
func (l *Learner) Predicted(ratio float64) {
	if off := math.Log(ratio); !l.pinned && !math.IsNaN(off) && !math.IsInf(off, 0) {
		l.predicted[l.compared%firstTokens] = predicted{off, l.at}
		l.compared++
	}
}

// comesTrue reports whether recent times to first token, if any, match their predictions.
func (l *Learner) comesTrue() bool {
	var recent [firstTokens]float64
	n := 0
	for _, is := range l.predicted[:min(l.compared, firstTokens)] {
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

// toward moves a running median toward a value.
func toward(median, value float64) float64 {
	switch {
	case value > median:
		return min(value, median*(1+follows))
	case value < median:
		return max(value, median/(1+follows))
	}
	return median
}

// rescale scales the regularization target to the times of the first rows.
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

// solve minimizes the sum of squares over the permitted ranges.
func (l *Learner) solve() [terms]float64 {
	matrix, right := l.matrix, l.right
	l.draw(&matrix, &right)
	if best, ok := linear(matrix, right); ok && within(best) {
		return best
	}
	// Coordinate descent: the sum is convex, and each step reduces it.
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

// draw adds the regularization to the sums.
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

// within reports whether all terms are in their ranges.
func within(all [terms]float64) bool {
	for j, is := range all {
		if !(is >= least(j) && is <= farthest) {
			return false
		}
	}
	return true
}

// least returns the smallest permitted value of a term.
func least(term int) float64 {
	if term == with {
		return 0
	}
	return 1. / farthest
}

// took updates the shortest mean time of prompts, an upper limit of prefill's floor.
func (l *Learner) took(seconds float64) {
	if seconds < l.shortest {
		l.shortest = seconds
	} else {
		l.shortest += (seconds - l.shortest) * follows
	}
}

// linear solves a system with a symmetric positive definite matrix, which regularization ensures.
// It returns false if rounding has destroyed that.
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
