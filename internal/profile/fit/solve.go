package fit

import (
	"math"
	"slices"

	"github.com/headgate/headgate/internal/profile"
)

// column returns, for a piece of work, the number by which a term is multiplied.
type column func(w profile.Work) float64

func ones(profile.Work) float64           { return 1 }
func promptTokens(w profile.Work) float64 { return float64(w.PromptTokens) }
func squares(w profile.Work) float64      { return w.Squares }
func sequences(w profile.Work) float64    { return float64(w.Sequences) }
func kvTokens(w profile.Work) float64     { return float64(w.KVTokens) }

// Parameters of Huber's weights: a point has less weight if its error is more than bend times the
// usual error. In a normal distribution, deviation times the median error is the standard
// deviation, and this bend keeps 95 % of the efficiency of least squares. The usual error is at
// least usualLeast.
const (
	bend       = 1.345
	deviation  = 1.4826
	usualLeast = 0.005
	rounds     = 20 // maximum number of iterations until the weights hardly change
)

// solve returns the non-negative terms with the smallest weighted sum of squared relative errors.
func solve(points []point, columns []column) []float64 {
	n := len(columns)
	scale := make([]float64, n) // by column: divisor that gives all columns similar values
	rows := make([][]float64, len(points))
	for i, p := range points {
		rows[i] = make([]float64, n)
		for j, c := range columns {
			rows[i][j] = c(p.work) / p.seconds
			scale[j] = max(scale[j], rows[i][j])
		}
	}
	for _, r := range rows {
		for j := range r {
			if scale[j] > 0 {
				r[j] /= scale[j]
			}
		}
	}
	weights := make([]float64, len(rows))
	for i := range weights {
		weights[i] = 1
	}
	best := weighted(rows, weights)
	off := make([]float64, len(rows))
	for range rounds {
		for i, r := range rows {
			off[i] = math.Abs(dot(r, best) - 1)
		}
		usual := max(usualLeast, deviation*Quantile(slices.Sorted(slices.Values(off)), 0.5))
		var changed float64
		for i := range off {
			weight := min(1, bend*usual/off[i])
			changed = max(changed, math.Abs(weight-weights[i]))
			weights[i] = weight
		}
		if changed < 1e-3 {
			break
		}
		best = weighted(rows, weights)
	}
	for j := range best {
		if scale[j] > 0 {
			best[j] /= scale[j]
		}
	}
	return best
}

// weighted returns the best non-negative terms for the given weights. For each choice of columns it
// solves plain least squares, and sets the other terms to 0. It tries all choices, because there
// are at most three columns.
func weighted(rows [][]float64, weights []float64) []float64 {
	n := len(rows[0])
	best, least := make([]float64, n), math.Inf(1)
	for chosen := 1; chosen < 1<<n; chosen++ {
		x, ok := plain(rows, weights, chosen)
		if !ok {
			continue
		}
		var missed float64
		for i, r := range rows {
			off := dot(r, x) - 1
			missed += weights[i] * off * off
		}
		if missed < least*(1-1e-12) {
			best, least = x, missed
		}
	}
	return best
}

func dot(r, x []float64) (sum float64) {
	for j := range r {
		sum += r[j] * x[j]
	}
	return sum
}

// plain solves weighted least squares of rows*x = 1 by the normal equations. It uses only the
// chosen columns, and sets the other terms to 0. It returns false if the columns are linearly
// dependent or a term would be negative.
func plain(rows [][]float64, weights []float64, chosen int) ([]float64, bool) {
	n := len(rows[0])
	var at []int
	for j := range n {
		if chosen&(1<<j) != 0 {
			at = append(at, j)
		}
	}
	k := len(at)
	m := make([][]float64, k) // matrix of the normal equations, with the right side as its last column
	for a := range m {
		m[a] = make([]float64, k+1)
		for i, r := range rows {
			for b := range k {
				m[a][b] += weights[i] * r[at[a]] * r[at[b]]
			}
			m[a][k] += weights[i] * r[at[a]]
		}
	}
	for a := range k {
		pivot := a
		for b := a + 1; b < k; b++ {
			if math.Abs(m[b][a]) > math.Abs(m[pivot][a]) {
				pivot = b
			}
		}
		if math.Abs(m[pivot][a]) < 1e-12 {
			return nil, false
		}
		m[a], m[pivot] = m[pivot], m[a]
		for b := range k {
			if b == a {
				continue
			}
			f := m[b][a] / m[a][a]
			for c := a; c <= k; c++ {
				m[b][c] -= f * m[a][c]
			}
		}
	}
	x := make([]float64, n)
	for a, j := range at {
		if x[j] = m[a][k] / m[a][a]; x[j] < 0 {
			return nil, false
		}
	}
	return x, true
}
