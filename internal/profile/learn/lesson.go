package learn

import (
	"math"

	"github.com/headgate/headgate/internal/hash"
	"github.com/headgate/headgate/internal/profile"
)

// Lesson is the state of a Learner, from which a new Learner of the same engines can continue.
type Lesson struct {
	// Prior identifies the initial profile, see [Prior].
	Prior uint64
	// Rows is the number of rows, the last of them at At, in seconds; 0 if there are too few to
	// share. The other fields are the upper half of the matrix, row by row, the right side of the
	// least squares, and the state of trust.
	Rows, Unchanged int
	At              float64
	Trusted         bool
	Off, Scale      float64
	Usual           [kinds]float64 // of steps and of prompts
	Shortest        float64        // 0 if no prompt was seen
	Matrix          [terms * (terms + 1) / 2]float64
	Right           [terms]float64
	// Late is how late first tokens were, in seconds, by where the adapters were, the newest last;
	// see [Learner.Began].
	Late [places][]float64
}

// form is the version of a Lesson's sums. It changes when rows are computed differently, so that
// sums of different versions are not mixed.
const form = "4"

// Prior returns a hash of an initial profile's numbers; names do not matter.
func Prior(p profile.Profile) uint64 {
	p.Name, p.Source = form, ""
	return hash.Of(profile.Format(p))
}

// Limits of a plausible Lesson.
const (
	mostRows = 1 << 53
	mostSum  = 1e15
)

// Founded returns the number of measurements in a Lesson, as far as they count.
func (is *Lesson) Founded() int {
	n := min(max(is.Rows, 0), leastRows)
	for _, late := range is.Late {
		n += min(len(late), recent)
	}
	return n
}

// Teach returns the current state, and whether there is any. A pinned profile has none.
func (l *Learner) Teach() (is Lesson, any bool) {
	if l.pinned {
		return Lesson{}, false
	}
	is.Prior = l.number
	if l.rows > first {
		is.Rows, is.Unchanged, is.At, is.Trusted = l.rows, l.unchanged, l.at, l.trusts
		is.Off, is.Usual, is.Scale, is.Right = l.off, l.usual, l.scale, l.right
		if !math.IsInf(l.shortest, 1) {
			is.Shortest = l.shortest
		}
		n := 0
		for j := range terms {
			n += copy(is.Matrix[n:], l.matrix[j][j:])
		}
	}
	for at := range l.loads.late {
		is.Late[at] = l.loads.late[at].inOrder()
	}
	return is, is.Founded() > 0
}

// Take continues from a Lesson if it contains more than l has learned itself. It reports whether it
// took rows, after which the caller must [Learner.Meet] the engines, and whether it took first
// tokens. It takes nothing from a Lesson with another initial profile or with impossible values.
func (l *Learner) Take(is *Lesson) (rows, late bool) {
	if l.pinned || is.Prior != l.number || !is.possible() {
		return false, false
	}
	if l.rows < min(is.Rows, leastRows) {
		next := *l
		next.watched = 0
		next.rows, next.unchanged, next.at, next.trusts = is.Rows, is.Unchanged, is.At, is.Trusted
		// it saw first tokens that contradicted the predictions
		if next.taken = is.Rows; !is.Trusted && is.Unchanged >= leastTrust && is.Off < trusted {
			next.unchanged = 0
		}
		next.off, next.usual, next.scale, next.right = is.Off, is.Usual, is.Scale, is.Right
		if next.shortest = is.Shortest; next.shortest == 0 {
			next.shortest = math.Inf(1)
		}
		n := 0
		for j := range terms {
			for k := j; k < terms; k++ {
				next.matrix[j][k], next.matrix[k][j] = is.Matrix[n], is.Matrix[n]
				n++
			}
		}
		if !next.solvable() {
			return false, false
		}
		for j := range next.now {
			next.now[j] = next.scale * next.drawnTo[j]
		}
		next.now = next.solve()
		*l, rows = next, true
	}
	for at := range is.Late {
		if r := &l.loads.late[at]; r.n < len(is.Late[at]) {
			r.n = copy(r.values[:], is.Late[at])
			l.loads.made, late = false, true
		}
	}
	return rows, late
}

// possible reports whether each number is one that a Learner could have.
func (is *Lesson) possible() bool {
	within := func(value, least, most float64) bool { return value >= least && value <= most } // false for NaN
	ok := is.Rows == 0 || is.Rows > first && is.Rows <= mostRows && is.Unchanged >= 0 && is.Unchanged <= leastTrust &&
		within(is.At, -math.MaxFloat64, math.MaxFloat64) && within(is.Off, leastOff, mostOff) && within(is.Usual[ofSteps], leastOff, 1) &&
		within(is.Usual[ofPrompts], leastOff, 1) && within(is.Shortest, 0, mostSum) && within(is.Scale, 1./farthest, farthest)
	for _, sum := range is.Matrix {
		ok = ok && within(sum, 0, mostSum)
	}
	for _, sum := range is.Right {
		ok = ok && within(sum, 0, mostSum)
	}
	for _, late := range is.Late {
		ok = ok && len(late) <= recent
		for _, seconds := range late {
			ok = ok && within(seconds, -latest, latest)
		}
	}
	return ok
}

// solvable reports whether the regularized matrix is positive definite, as it is for sums over
// rows.
func (l *Learner) solvable() bool {
	matrix, right := l.matrix, l.right
	l.draw(&matrix, &right)
	_, ok := linear(matrix, right)
	return ok
}

// Known returns the engine's log factor, and whether anything is known of the engine.
func (e *Engine) Known() (factor float64, known bool) { return e.factor, e.counted }

// Meet sets an engine's log factor as another Learner knew it. An impossible value is ignored.
func (l *Learner) Meet(e *Engine, factor float64) {
	if l.pinned || !(math.Abs(factor) <= furthest) {
		return
	}
	if !e.counted {
		e.counted, l.engines = true, l.engines+1
	}
	l.move(e, factor)
}

// inOrder returns the values, the newest last.
func (r *ring) inOrder() (all []float64) {
	kept := min(r.n, recent)
	for i := r.n - kept; i < r.n; i++ {
		all = append(all, r.values[i%recent])
	}
	return all
}
