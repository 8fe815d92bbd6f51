// Package learn keeps an engine profile accurate while engines run. From pairs of scrapes of an
// engine, it learns how long the engine takes, and how far the profile's predictions can be
// trusted.
//
// The engine's counters (see [engine.Totals]) give two kinds of measurements, which are called
// rows.
//
// The first kind is the mean time between tokens in an interval. It is the mean time of a decode
// step, and is linear in the work of the steps: the terms of [profile.Decode] for sequences and
// tokens in the KV cache, plus the terms of [profile.Prefill] for the prompts in the same steps.
// These rows determine the time per prompt token.
//
// The second kind is the mean prefill time of requests, which is the time of the steps that compute
// prompts. These rows determine how much longer a step with a prompt takes, however short the
// prompt. The number of prompts per step follows from the number of steps that have more tokens
// than sequences.
//
// A [Learner] is a recursive least-squares fit of relative errors to all rows of engines of one
// kind. Old rows and outliers have less weight. The fit is regularized toward the initial profile,
// so that terms that the traffic does not show keep their configured values. Each term is limited
// to a range around its initial value. A Learner stores only sums over rows, so it needs the same
// time for each row, and does not allocate.
//
// Engines do not report adapter load times. A Learner learns these from times to first token (see
// [Learner.Began]).
//
// The package is pure: time is an argument, and the same scrapes give the same profile.
package learn

import (
	"math"
	"slices"

	"github.com/headgate/headgate/internal/profile"
)

// Parameters of the least-squares fit.
const (
	// remembers is a number of seconds, and leastRows a number of rows. When both have passed after
	// a row, the weight of that row has fallen to 1/e.
	remembers, leastRows = 300, 500
	// changed is the median error of rows above which the engines are assumed to have changed. A
	// row's weight then falls to 1/e after only changedRows rows.
	changed, changedRows = 0.15, 30
	// drawn is the weight of the initial profile; 1 is the weight of a row with a single term. For
	// the term "with", the weight is multiplied by looser, because this term is often many times
	// its configured value. If engines do not report prefill times, the weight is multiplied by
	// stiffer instead, because no row then separates the term "with" from the others.
	drawn, looser, stiffer = 0.05, 0.001, 100
	// leastUnit is the minimum of Learner.unit, the unit of the term "with", in seconds.
	leastUnit = 0.001
	// surely is a share: if a step with prompts is longer than a decode step by this share or more,
	// promptBase is at least a decode step.
	surely = 0.25
	// farthest is the largest factor between a learned term and its initial value, in both
	// directions.
	farthest = 50
	// first is the number of initial rows whose median error rescales all times.
	first = 15
	// bend is the error, in units of the usual error, above which a row has less weight (Huber's
	// weights). For deviation see package fit.
	bend, deviation = 1.345, 1.4826
	// leastUsual is the lower limit of the usual error of rows.
	leastUsual = 0.02
	// leastOff and mostOff limit a learned median error: leastOff is a ratio, mostOff the natural
	// logarithm of one.
	leastOff, mostOff = 1e-3, 10
	// follows is the share by which a row can change the running median error.
	follows = 0.05
)

// Conditions for trust. A profile becomes trusted when its median error, as a logarithm, falls
// below trusted. It stays trusted until the error rises above distrusted. After a change of trust,
// the next change is possible only after leastTrust rows.
const (
	trusted, distrusted = 0.2, 0.4
	leastTrust          = 40
	// firstTokens and the next constants delay the trust in a profile that was not configured. For
	// such a profile, the median bias of the last firstTokens predicted times to first token must
	// also be below trusted. Streams report these times only at their end, and many engines give
	// many rows before that. If fewer than firstTokens were reported in the last firstTokensFor
	// seconds, the profile is trusted after fewSeconds and withoutFirst rows. If none was reported,
	// it is trusted after noneSeconds.
	firstTokens, withoutFirst = 20, 3 * leastTrust
	firstTokensFor            = 600
	noneSeconds, fewSeconds   = 30, 120
	// mostBetween limits the time between two rows that is counted, in seconds, because a clock may
	// jump.
	mostBetween = 10
)

// Parameters of an engine's speed factor. Each row moves the logarithm of the factor by the share
// factorFollows of its error, but at most by factorFollows times factorStep.
const (
	factorFollows = 0.1
	factorStep    = 0.5
	// spread and alone prevent random differences between engines' factors. Such differences would
	// send some engines more requests than others, and cost a tenth of the goodput (bench fleet,
	// plain). Engines are treated as equally fast if the standard deviation of their log factors is
	// below spread. An engine whose log factor is above alone always keeps its own factor.
	spread, alone = 0.1, 0.2
)

// furthest is the limit of an engine's log factor: an engine is at most 8 times faster or slower.
var furthest = math.Log(8)

// The learned terms. Except for the term "with", they are factors of terms of the initial profile.
const (
	base = iota
	perSequence
	perKVToken
	prefill // factor of Prefill's PerToken, PerTokenSquared and Floor
	with    // extra time of a step with prompts, however short, in units of Learner.unit
	terms
)

// row is a measured time with the work that it measures. The time is predicted as the sum of terms,
// each multiplied by its learned factor.
type row struct {
	terms   [terms]float64 // in seconds, by the initial profile
	seconds float64
	weight  float64
	kind    kind
	only    bool // from prompts at an engine that generates only first tokens
}

// kind is the kind of a row: decode steps or prompts. Each kind has its own usual error.
type kind int

const (
	ofSteps kind = iota
	ofPrompts
	kinds
)

// Learner learns the profile of engines of one kind. Use [New] to create a Learner. It is not safe
// for concurrent use.
type Learner struct {
	prior  profile.Profile
	number uint64 // hash of the initial profile, see Prior
	pinned bool

	// matrix and right are the sums over all rows: both sides of the normal equations, without the
	// regularization.
	matrix [terms][terms]float64
	right  [terms]float64
	at     float64 // time of the last row, in seconds

	scale    float64        // factor on the initial terms, from the first rows
	unit     float64        // unit of the term "with", in seconds
	drawnTo  [terms]float64 // initial terms, toward which the fit is regularized after multiplying by scale
	shortest float64        // about the shortest mean prefill time so far; +Inf if there is none
	ratios   [first]float64
	now      [terms]float64 // current values of the learned terms

	loads loads

	usual [kinds]float64 // median error of rows, by kind

	// engines is the number of engines. factors is the sum of their log factors, and squares is the
	// sum of the squares of these.
	engines          int
	factors, squares float64

	predicted [firstTokens]predicted // ring of the latest times to first token
	compared  int                    // number of times to first token that were compared
	watched   float64                // seconds from the Learner's own first row to its last row

	trusts    bool
	off       float64 // median absolute log error of predictions
	rows      int
	taken     int // number of rows that come from a Lesson
	unchanged int // number of rows since trusts changed, at most leastTrust
}

// predicted compares a time to first token with its prediction: off is the logarithm of actual
// divided by predicted, and at is the time of the last row when it was reported.
type predicted struct{ off, at float64 }

// New returns a Learner with an initial profile. If trusts is true, the profile is trusted until
// its predictions prove wrong. Otherwise it is trusted only after its predictions have proved
// right.
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

// alone returns the ratio of prefill base to decode base in the initial profile, at most 1.
func (l *Learner) alone() float64 {
	if p := &l.prior; p.Prefill.Base < p.Decode.Base {
		return p.Prefill.Base / p.Decode.Base
	}
	return 1
}

// promptBase returns the learned prefill base in seconds. In the initial profile, a prompt alone
// may take less than a decode step. The longer steps with prompts turn out to be, the more the base
// rises from there to a decode step, plus the extra time of a step with prompts.
func (l *Learner) promptBase() float64 {
	if l.rows == 0 {
		return l.prior.Prefill.Base
	}
	step, longer := l.prior.Decode.Base*l.now[base], l.unit*l.now[with]
	alone := l.alone() * step
	return alone + longer + min(step-alone, longer/surely)
}

// Pin stops learning. The current profile remains and is trusted.
func (l *Learner) Pin() { l.pinned, l.trusts = true, true }

// Trusted reports whether the profile's predictions should be used.
func (l *Learner) Trusted() bool { return l.trusts }

// Rows returns the number of rows that were learned so far.
func (l *Learner) Rows() int { return l.rows }

// Residual returns the recent median error of predictions for new rows. It is relative to the
// predicted or the measured time, whichever is smaller.
func (l *Learner) Residual() float64 { return math.Expm1(l.off) }

// Profile returns the learned profile. Its limits are those of the initial profile.
func (l *Learner) Profile() profile.Profile {
	p := l.prior
	p.Decode.Base *= l.now[base]
	p.Decode.PerSequence *= l.now[perSequence]
	p.Decode.PerKVToken *= l.now[perKVToken]
	p.Prefill.Floor = min(p.Prefill.Floor*l.now[prefill], l.shortest)
	p.LaunchOverhead = min(p.LaunchOverhead*l.now[prefill], l.shortest)
	if l.rows > 0 {
		p.MixedBatchOverhead = 0 // included in the learned term "with"
	}
	p.Prefill.Base = l.promptBase()
	p.Prefill.PerToken *= l.now[prefill]
	p.Prefill.PerTokenSquared *= l.now[prefill]
	l.loads.tell(&p)
	return p
}

// Of returns the profile of one engine, which may be slower or faster than the average of its kind.
func (l *Learner) Of(e *Engine) profile.Profile {
	p := l.Profile()
	if slower := l.Slower(e); slower != 1 {
		return p.Times(slower)
	}
	return p
}

// Slower returns by how many times an engine is assumed to be slower than the average of its kind.
func (l *Learner) Slower(e *Engine) float64 {
	n := float64(max(1, l.engines))
	if mean := l.factors / n; math.Abs(e.factor) < alone && l.squares/n-mean*mean < spread*spread {
		return 1
	}
	return math.Exp(e.factor)
}

// learn adds a row of an engine. at is the time of the row in seconds.
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
	if r.kind == ofSteps || r.only { // other rows of prompts are too inexact to learn the factor
		factor := e.factor + factorFollows*min(max(off-e.factor, -factorStep), factorStep)
		l.move(e, min(max(factor, -furthest), furthest))
	}
	r.seconds /= math.Exp(e.factor - l.factors/float64(l.engines)) // the time that an average engine would take

	l.rescale(r)
	l.add(at, r, predicted)
	l.now = l.solve()
}

// move sets the log factor of an engine and updates the sums over engines.
func (l *Learner) move(e *Engine, factor float64) {
	l.factors += factor - e.factor
	l.squares += factor*factor - e.factor*e.factor
	e.factor = factor
}

// Forget removes an engine that no longer exists.
func (l *Learner) Forget(e *Engine) {
	if e.counted {
		l.engines--
		l.factors -= e.factor
		l.squares -= e.factor * e.factor
	}
	*e = Engine{}
}

// judge records the log error of a prediction for a row, and updates trust.
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

// Predicted records a time to first token, divided by its prediction. It does so whichever policy
// chose the endpoint. It ignores impossible ratios.
func (l *Learner) Predicted(ratio float64) {
	if off := math.Log(ratio); !l.pinned && !math.IsNaN(off) && !math.IsInf(off, 0) {
		l.predicted[l.compared%firstTokens] = predicted{off, l.at}
		l.compared++
	}
}

// comesTrue reports whether recent times to first token match their predictions. If there are too
// few, it reports whether the Learner has waited long enough for them.
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

// toward moves a running median by a limited step toward a new value, and returns the result.
func toward(median, value float64) float64 {
	switch {
	case value > median:
		return min(value, median*(1+follows))
	case value < median:
		return max(value, median/(1+follows))
	}
	return median
}

// rescale updates scale with one of the first rows, so that the regularization matches the measured
// times.
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

// add adds a row to the sums and reduces the weight of older rows.
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

// solve returns the terms within their permitted ranges that minimize the sum of squares.
func (l *Learner) solve() [terms]float64 {
	matrix, right := l.matrix, l.right
	l.draw(&matrix, &right)
	if best, ok := linear(matrix, right); ok && within(best) {
		return best
	}
	// Use coordinate descent. It converges because the sum is convex.
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

// draw adds the regularization to the sums, which draws the terms toward the initial profile.
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

// within reports whether all terms are within their permitted ranges.
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

// took updates the estimate of the shortest prefill time with the mean prefill time of a new row.
// The estimate limits the floor of prefill.
func (l *Learner) took(seconds float64) {
	if seconds < l.shortest {
		l.shortest = seconds
	} else {
		l.shortest += (seconds - l.shortest) * follows
	}
}

// linear solves a system of equations with a symmetric positive definite matrix. Regularization
// makes the matrix so; linear returns false if rounding errors have destroyed this property.
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
