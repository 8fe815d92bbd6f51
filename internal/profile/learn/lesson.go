package learn

import (
	"hash/fnv"
	"math"

	"github.com/headgate/headgate/internal/profile"
)

// Lesson is what one Learner knows, for another of the same engines that has just begun: it goes on as the first would.
type Lesson struct {
	// Prior tells apart what Learners began with, see [Prior].
	Prior uint64
	// Rows is how many rows it is of, the latest of them at At, in seconds; 0 where there are too few to tell. The rest is what they come to: the
	// upper half of the matrix, row by row, and the right side of least squares, and what says how far to trust that.
	Rows, Unchanged int
	At              float64
	Trusted         bool
	Off, Scale      float64
	Usual           [kinds]float64 // of steps and of prompts
	Shortest        float64        // 0 where no prompt was seen
	Matrix          [terms * (terms + 1) / 2]float64
	Right           [terms]float64
	// Late is by how many seconds first tokens were late, by where adapters were, the latest last; see [Learner.Began].
	Late [places][]float64
}

// form is of what a Lesson's sums are: another where rows are made in another way, or what was learned by the one would be taken for the other.
const form = "4"

// Prior is a number of a profile to begin with: equal for those of equal figures, whatever their names are.
func Prior(p profile.Profile) uint64 {
	p.Name, p.Source = form, ""
	h := fnv.New64a()
	_, _ = h.Write(profile.Format(p))
	return h.Sum64()
}

// Most of what a Lesson is believed to be.
const (
	mostRows = 1 << 53
	mostSum  = 1e15
)

// Founded is of how many measurements a Lesson is, as many as count.
func (is *Lesson) Founded() int {
	n := min(max(is.Rows, 0), leastRows)
	for _, late := range is.Late {
		n += min(len(late), recent)
	}
	return n
}

// Teach is what is known by now, and whether that is anything. Of a pinned profile it is nothing.
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

// Take goes on from a Lesson as who gave it would, where that is of more than what l knows itself. It reports whether rows were taken, and then l
// is to [Learner.Meet] engines, and whether first tokens were: of a Lesson that began with something else, and of one that cannot be, nothing is.
func (l *Learner) Take(is *Lesson) (rows, late bool) {
	if l.pinned || is.Prior != l.number || !is.possible() {
		return false, false
	}
	if l.rows < min(is.Rows, leastRows) {
		next := *l
		next.watched = 0
		next.rows, next.unchanged, next.at, next.trusts = is.Rows, is.Unchanged, is.At, is.Trusted
		if next.taken = is.Rows; !is.Trusted && is.Unchanged >= leastTrust && is.Off < trusted { // it saw first tokens that did not come true
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

// possible says whether each figure is one that a Learner could have.
func (is *Lesson) possible() bool {
	within := func(value, least, most float64) bool { return value >= least && value <= most } // NaN is not
	ok := is.Rows == 0 || is.Rows > first && is.Rows <= mostRows && is.Unchanged >= 0 && is.Unchanged <= leastTrust &&
		within(is.At, -math.MaxFloat64, math.MaxFloat64) && within(is.Off, leastOff, mostOff) && within(is.Usual[ofSteps], leastOff, 1) && within(is.Usual[ofPrompts], leastOff, 1) && within(is.Shortest, 0, mostSum) && within(is.Scale, 1./farthest, farthest)
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

// solvable says whether the sums are such as rows come to: the matrix, with what draws to the beginning, is positive definite.
func (l *Learner) solvable() bool {
	matrix, right := l.matrix, l.right
	l.draw(&matrix, &right)
	_, ok := linear(matrix, right)
	return ok
}

// Known is the logarithm of how many times as long the engine takes as its kind, and whether anything is known of it.
func (e *Engine) Known() (factor float64, known bool) { return e.factor, e.counted }

// Meet has an engine take so many times as long as its kind, as a logarithm, as another Learner knew it. What cannot be is not believed.
func (l *Learner) Meet(e *Engine, factor float64) {
	if l.pinned || !(math.Abs(factor) <= furthest) {
		return
	}
	if !e.counted {
		e.counted, l.engines = true, l.engines+1
	}
	l.move(e, factor)
}

// inOrder are the values, the latest last.
func (r *ring) inOrder() (all []float64) {
	kept := min(r.n, recent)
	for i := r.n - kept; i < r.n; i++ {
		all = append(all, r.values[i%recent])
	}
	return all
}
