package learn

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/headgate/headgate/internal/profile"
)

var simple = profile.Profile{
	Prefill: profile.Prefill{PerToken: 0.0002}, Decode: profile.Decode{Base: 0.04, PerSequence: 0.0002, PerKVToken: 4e-7},
	Limits: profile.Limits{MaxSequences: 256, MaxBatchedTokens: 8192, KVBlocks: 16384, BlockSize: 16},
}

// drawnRow returns a random row. Its time is that of the terms in truth, with noise.
func drawnRow(r *rand.Rand, truth [terms]float64) row {
	b := 1 + 30*r.Float64()
	is := row{terms: [terms]float64{
		0.04, 0.0002 * b, 4e-7 * b * 1500 * (0.5 + r.Float64()), 0.0002 * 500 * r.Float64(),
		0.04 * r.Float64(),
	}, weight: 0.5 + r.Float64()/2}
	for j, t := range is.terms {
		is.seconds += t * truth[j]
	}
	is.seconds *= math.Exp(0.05 * r.NormFloat64())
	return is
}

// batch solves the weighted least squares for all rows at once. For terms that may be at an end of
// their range, it tries every combination.
func batch(rows []row, weights []float64, scale float64, toward [terms]float64) (best [terms]float64) {
	pull := func(j int) float64 {
		if j == with {
			return stiffer * drawn
		}
		return drawn
	}
	cost := func(u [terms]float64) (sum float64) {
		for i, r := range rows {
			off := -1.0
			for j, t := range r.terms {
				off += u[j] * t / r.seconds
			}
			sum += weights[i] * off * off
		}
		for j, is := range u {
			sum += pull(j) * (is/scale - toward[j]) * (is/scale - toward[j])
		}
		return sum
	}
	fewest := math.Inf(1)
	for choice := range 243 {
		var fixed [terms]float64 // a negative value means that the term is free
		for j, rest := 0, choice; j < terms; j, rest = j+1, rest/3 {
			fixed[j] = [3]float64{-1, least(j), farthest}[rest%3]
		}
		var m [terms][terms]float64
		var x [terms]float64
		for j := range terms {
			if fixed[j] >= 0 {
				m[j][j], x[j] = 1, fixed[j]
				continue
			}
			m[j][j], x[j] = pull(j)/(scale*scale), pull(j)/scale*toward[j]
			for i, r := range rows {
				rest := 1.0
				for k := range terms {
					if fixed[k] >= 0 {
						rest -= fixed[k] * r.terms[k] / r.seconds
					} else {
						m[j][k] += weights[i] * r.terms[j] * r.terms[k] / (r.seconds * r.seconds)
					}
				}
				x[j] += weights[i] * rest * r.terms[j] / r.seconds
			}
		}
		// Solve by Gauss-Jordan elimination.
		for j := range terms {
			for i := range terms {
				if i == j {
					continue
				}
				f := m[i][j] / m[j][j]
				for k := range terms {
					m[i][k] -= f * m[j][k]
				}
				x[i] -= f * x[j]
			}
		}
		u, inside := [terms]float64{}, true
		for j := range terms {
			u[j] = x[j] / m[j][j]
			inside = inside && u[j] >= least(j)*(1-1e-9)-1e-12 && u[j] <= farthest*(1+1e-9)
		}
		if c := cost(u); inside && c < fewest {
			best, fewest = u, c
		}
	}
	return best
}

// Learning row by row gives the same terms as a fit to all rows at once, even if terms are at the
// ends of their ranges.
func TestRowByRowEqualsAllAtOnce(t *testing.T) {
	for _, truth := range [][terms]float64{
		{1, 1, 1, 1, 0},
		{3, 0.5, 2, 4, 3},
		{0.1, 0.1, 0.1, 0.1, 0.1},
		{1, 0, 1, 0, 1},
		{5, 100, 0, 100, 100},
		{0.05, 0, 30, 0.001, 0},
	} {
		r := rand.New(rand.NewPCG(1, 1))
		l := New(simple, false)
		var rows []row
		var weights []float64
		at, latest := 0.0, 0.0
		for n := range 400 {
			at += r.ExpFloat64() * []float64{0.2, 20}[n%2]
			is := drawnRow(r, truth)
			if r.IntN(20) == 0 {
				is.seconds *= 3 // an outlier, as during an adapter load
			}
			was, predicted := l.matrix[base][base], 0.0
			for j, x := range is.terms {
				predicted += x * l.now[j]
			}
			l.judge(math.Log(is.seconds / predicted))
			l.rescale(is)
			l.add(at, is, predicted)
			l.now = l.solve()
			keep := max(math.Exp(-(at-latest)/remembers), 1-1./leastRows)
			if l.usual[ofSteps] > changed && n >= changedRows {
				keep = 1 - 1./changedRows
			}
			for i := range weights {
				weights[i] *= keep
			}
			latest = at
			// Compute the weight that the Learner gave to the row from the change of its sums.
			weight := (l.matrix[base][base] - keep*was) * is.seconds * is.seconds / (is.terms[base] * is.terms[base])
			if weight > is.weight*(1+1e-6) || !(weight > 0) {
				t.Fatalf("row %d of weight %g counts %g", n, is.weight, weight)
			}
			rows, weights = append(rows, is), append(weights, weight)
			if n%40 != 39 {
				continue
			}
			want := batch(rows, weights, l.scale, l.drawnTo)
			for j := range terms {
				if math.Abs(l.now[j]-want[j]) > 1e-4*max(want[j], 1e-2) {
					t.Fatalf("%v after %d rows: %v, want %v", truth, n+1, l.now, want)
				}
			}
		}
	}
}

// Outliers have little influence on the learned terms.
func TestOutliers(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 1))
	l, truth := New(simple, false), [terms]float64{2, 2, 2, 2, 2}
	l.took(1) // the engines report prefill times
	var e Engine
	for n := range 2000 {
		is := drawnRow(r, truth)
		if n%8 == 0 {
			is.seconds *= 5
		}
		l.learn(&e, float64(n), is)
	}
	var sum, want float64
	for j, x := range drawnRow(r, truth).terms {
		sum, want = sum+x*l.now[j]*math.Exp(e.factor), want+x*truth[j]
	}
	if math.Abs(sum/want-1) > 0.06 {
		t.Errorf("a row is predicted as %g, want %g", sum, want)
	}
}

// A term that no row shows keeps its ratio to the other terms for any length of time. No sum grows
// without limit.
func TestUnobservedTermsKeepTheirRatio(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	l := New(simple, false)
	var e Engine
	for n := range 100_000 {
		is := row{terms: [terms]float64{0.04, 0, 0, 0}, weight: 1, seconds: 0.12 * math.Exp(0.02*r.NormFloat64())}
		l.learn(&e, float64(n)*10, is)
	}
	for j, is := range l.now {
		if want := 3 * l.drawnTo[j]; math.Abs(is-want) > 0.15 {
			t.Errorf("term %d is %g times as long, want %g: %v", j, is, want, l.now)
		}
	}
	l.learn(&e, math.Inf(1), row{terms: [terms]float64{0.04}, weight: 1, seconds: math.NaN()})
	l.learn(&e, math.NaN(), row{weight: 1, seconds: 1})
	if !within(l.now) {
		t.Errorf("terms are %v", l.now)
	}
}

// Well-predicted rows make the profile trusted, and badly predicted rows end the trust. Errors in
// between do not change trust.
func TestTrust(t *testing.T) {
	l := New(simple, false)
	l.watched = noneSeconds
	judge := func(rows int, off float64) {
		for n := range rows {
			l.judge(off * float64(1-2*(n%2)))
		}
	}
	for _, step := range []struct {
		rows int
		off  float64
		want bool
	}{
		{leastTrust - 1, 0.01, false},
		{1, 0.01, true},
		{1000, 0.3, true},
		{leastTrust, 1, false},
		{1000, 0.3, false},
		{1000, 0.1, true},
	} {
		if judge(step.rows, step.off); l.Trusted() != step.want {
			t.Errorf("after %d rows that are off by %g it is trusted: %v; in the median they are off by %g", step.rows, step.off,
				l.Trusted(), l.off)
		}
	}
	given := New(simple, true)
	if !given.Trusted() {
		t.Error("what people say is not trusted")
	}
}

// A profile that was not configured is trusted only when its predicted times to first token are
// right, too, or if few or none are reported for a while.
func TestTrustOfFirstTokens(t *testing.T) {
	for _, c := range []struct {
		name    string
		ratios  []float64 // actual divided by predicted times to first token; used one after another
		each    int       // rows per first token (0: no first tokens); if negative, with ten rows per second instead of one
		trusted int       // expected number of rows until the profile is trusted
	}{
		{"none", nil, 0, leastTrust},
		{"none, and many rows at once", nil, -1, 10 * noneSeconds},
		{"right", []float64{0.9, 1.1}, 1, leastTrust},
		{"off, and right in the median", []float64{0.5, 1, 2}, 1, leastTrust},
		{"too late", []float64{3, 4, 5}, 1, 2000},
		{"too early", []float64{0.3}, 1, 2000},
		{"too few to tell", []float64{3}, 10, withoutFirst},
		{"too few to tell, and many rows at once", []float64{3}, -100, 10*fewSeconds + 1},
		{"no numbers", []float64{math.NaN(), math.Inf(1), 0, -1}, 1, leastTrust},
	} {
		l, rows, pause := New(simple, false), 0, 1.
		each := c.each
		if each < 0 {
			each, pause = -each, 0.1
		}
		for ; rows < 2000 && !l.Trusted(); rows++ {
			if len(c.ratios) > 0 && rows%each == 0 {
				l.Predicted(c.ratios[rows/each%len(c.ratios)])
			}
			l.watched += pause
			l.judge(0.01 * float64(1-2*(rows%2)))
		}
		if rows != c.trusted {
			t.Errorf("%s: it is trusted after %d rows, want %d", c.name, rows, c.trusted)
		}
		if c.name == "too late" {
			for range firstTokens {
				l.Predicted(1)
			}
			if l.judge(0.01); !l.Trusted() {
				t.Error("once first tokens come true it is not trusted")
			}
		}
	}
}

// Wrong predictions of old first tokens no longer prevent trust if rows are predicted well and no
// newer first tokens are reported.
func TestOldFirstTokensDoNotCount(t *testing.T) {
	l := New(simple, false)
	for range firstTokens {
		l.Predicted(3)
	}
	for range 10 * withoutFirst {
		l.watched++
		l.judge(0.01)
	}
	if l.Trusted() {
		t.Error("it is trusted though first tokens did not come true")
	}
	l.at += firstTokensFor + 1
	if l.judge(0.01); !l.Trusted() {
		t.Error("it is not trusted ten minutes later")
	}
}

// A Learner may take over an untrusted profile from another Learner. It trusts the profile only
// after observations of its own, because the other Learner may have seen wrong predictions of first
// tokens.
func TestUntrustedProfileIsNotTrusted(t *testing.T) {
	l := New(simple, false)
	is := Lesson{Prior: l.number, Rows: leastRows, Unchanged: leastTrust, Off: 0.05, Usual: [kinds]float64{0.05, 0.05}, Scale: 1}
	if rows, _ := l.Take(&is); !rows {
		t.Fatal("it is not taken")
	}
	l.Predicted(3)
	for n := range withoutFirst {
		if l.Trusted() {
			t.Fatalf("it is trusted after %d rows of its own", n)
		}
		l.watched++
		l.judge(0.01)
	}
	if !l.Trusted() {
		t.Error("it is not trusted after as many rows as others are that see few first tokens")
	}
}

// Engines that differ only by chance share one profile. If one engine is slower, it gets its own
// profile. If several engines differ, each gets its own.
func TestSimilarEngines(t *testing.T) {
	learned := func(factors ...float64) (base []float64) {
		l := New(simple, true)
		engines := make([]Engine, len(factors))
		for i, f := range factors {
			engines[i] = Engine{factor: f, counted: true}
			l.engines, l.factors, l.squares = l.engines+1, l.factors+f, l.squares+f*f
		}
		for i := range engines {
			p := l.Of(&engines[i])
			base = append(base, math.Log(p.Decode.Base/simple.Decode.Base))
		}
		return base
	}
	many := func(factor float64) []float64 {
		all := make([]float64, 64)
		all[0] = factor
		return all
	}
	for _, c := range []struct{ factors, want []float64 }{
		{[]float64{0.05, -0.06, 0.08, 0}, []float64{0, 0, 0, 0}},
		{[]float64{0.45, -0.15, -0.15, -0.15}, []float64{0.45, -0.15, -0.15, -0.15}},
		{many(0.6), many(0.6)},
		{many(0.19), many(0)},
		{[]float64{0.1}, []float64{0}},
	} {
		for i, got := range learned(c.factors...) {
			if math.Abs(got-c.want[i]) > 1e-9 {
				t.Errorf("of engines with %v the %dth has %g, want %g", c.factors, i, got, c.want[i])
			}
		}
	}
}

// An engine that was removed is not included in the comparison of engines.
func TestRemovedEngine(t *testing.T) {
	l := New(simple, true)
	engines := []Engine{{factor: 1, counted: true}, {factor: 0.15, counted: true}, {counted: true}, {counted: true}}
	for _, e := range engines {
		l.engines, l.factors, l.squares = l.engines+1, l.factors+e.factor, l.squares+e.factor*e.factor
	}
	if p := l.Of(&engines[1]); p.Decode.Base == simple.Decode.Base {
		t.Error("beside one that is slower, each has its own")
	}
	l.Forget(&engines[0])
	l.Forget(&engines[0]) // engine 0 is no longer compared
	if p := l.Of(&engines[1]); p.Decode.Base != simple.Decode.Base {
		t.Errorf("once that has gone, all are alike: a step takes %g s", p.Decode.Base)
	}
	for i := range engines {
		l.Forget(&engines[i])
	}
	if l.engines != 0 || math.Abs(l.factors) > 1e-9 || math.Abs(l.squares) > 1e-9 {
		t.Errorf("of no engine there are %d, of factors %g and %g", l.engines, l.factors, l.squares)
	}
}

// The factor of a very slow engine is limited to 8.
func TestFactorIsLimited(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	l := New(simple, true)
	var usual, slow Engine
	for n := range 2000 {
		is := drawnRow(r, [terms]float64{1, 1, 1, 1})
		l.learn(&usual, float64(n), is)
		is.seconds *= 1e4
		l.learn(&slow, float64(n), is)
	}
	if f := slow.Factor(); f > 8.001 || f < 7.9 {
		t.Errorf("one that takes 10,000 times as long has the factor %g, want 8", f)
	}
}

// The median of the first rows rescales all times. The first rows have full weight, even with large
// errors.
func TestFirstRows(t *testing.T) {
	l := New(simple, false)
	for i, c := range []struct{ ratio, want float64 }{{3, 3}, {0.1, 0.1}, {3, 3}, {4, 3}, {3, 3}, {1e9, 3}} {
		l.judge(0)
		if l.rescale(row{terms: [terms]float64{0.03, 0.01}, seconds: 0.04 * c.ratio}); math.Abs(l.scale/c.want-1) > 1e-9 {
			t.Errorf("after %d rows the scale is %g, want %g", i+1, l.scale, c.want)
		}
	}
	l.add(0, row{terms: [terms]float64{0.04}, seconds: 0.4, weight: 1}, 0.04)
	if got := l.matrix[base][base]; math.Abs(got/0.01-1) > 1e-9 {
		t.Errorf("one of the first rows that is off by far counts %g of itself", got/0.01)
	}
}
