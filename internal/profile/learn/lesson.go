package learn

import (
	"math"

	"github.com/headgate/headgate/internal/hash"
	"github.com/headgate/headgate/internal/profile"
)

// Lesson is the state of a Learner. Another Learner of the same engines can continue from it.
type Lesson struct {
	// Prior identifies the initial profile. See the function [Prior].
	Prior uint64
	// Rows is the number of rows, 0 if there are too few to share. At is the time of the last row
	// in seconds. Matrix is the upper half of the Learner's matrix, row by row, and Right is its
	// right side. The other fields are the state of trust and the scale.
	Rows, Unchanged int
	At              float64
	Trusted         bool
	Off, Scale      float64
	Usual           [kinds]float64 // median errors of steps and of prompts
	Shortest        float64        // about the shortest mean prefill time in seconds; 0 if none
	Matrix          [terms * (terms + 1) / 2]float64
	Right           [terms]float64
	// Late contains, for each Place of a request's adapter, how many seconds first tokens were
	// late, the newest last. See [Learner.Began].
	Late [places][]float64
}

// form is the version of the sums in a Lesson. It must change whenever rows are computed
// differently, so that sums of different versions are not mixed.
const form = "4"

// Prior returns a hash of the numbers in an initial profile. Names are not included.
func Prior(p profile.Profile) uint64 {
	p.Name, p.Source = form, ""
	return hash.Of(profile.Format(p))
}

// Limits of plausible values in a Lesson.
const (
	mostRows = 1 << 53
	mostSum  = 1e15
)

// Founded returns how many measurements support a Lesson. Measurements beyond the number that a
// Learner remembers are not included.
func (is *Lesson) Founded() int {
	n := min(max(is.Rows, 0), leastRows)
	for _, late := range is.Late {
		n += min(len(late), recent)
	}
	return n
}

// Teach returns the Learner's state as a Lesson. any is false if there is nothing to share, or if
// the profile is pinned.
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

// Take continues from a Lesson, if the Lesson contains more than this Learner has learned itself.
// rows reports whether it took over the rows; the caller must then call [Learner.Meet] for the
// engines. late reports whether it took over first tokens. Take ignores a Lesson that has another
// initial profile or impossible values.
func (l *Learner) Take(is *Lesson) (rows, late bool) {
	if l.pinned || is.Prior != l.number || !is.possible() {
		return false, false
	}
	if l.rows < min(is.Rows, leastRows) {
		next := *l
		next.watched = 0
		next.rows, next.unchanged, next.at, next.trusts = is.Rows, is.Unchanged, is.At, is.Trusted
		// If the other Learner was not trusted despite a small error, its predictions of first
		// tokens were wrong.
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

// possible reports whether all values of the Lesson are values that a Learner could have.
func (is *Lesson) possible() bool {
	within := func(value, least, most float64) bool { return value >= least && value <= most } // within is false for NaN
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

// solvable reports whether the matrix with regularization is positive definite. This is so for all
// sums over rows.
func (l *Learner) solvable() bool {
	matrix, right := l.matrix, l.right
	l.draw(&matrix, &right)
	_, ok := linear(matrix, right)
	return ok
}

// Known returns the engine's log factor. known is false if nothing has been learned about the
// engine.
func (e *Engine) Known() (factor float64, known bool) { return e.factor, e.counted }

// Meet sets an engine's log factor to the value that another Learner has learned. It ignores an
// impossible value.
func (l *Learner) Meet(e *Engine, factor float64) {
	if l.pinned || !(math.Abs(factor) <= furthest) {
		return
	}
	if !e.counted {
		e.counted, l.engines = true, l.engines+1
	}
	l.move(e, factor)
}

// inOrder returns the values in the ring, the newest last.
func (r *ring) inOrder() (all []float64) {
	kept := min(r.n, recent)
	for i := r.n - kept; i < r.n; i++ {
		all = append(all, r.values[i%recent])
	}
	return all
}
