package learn

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/headgate/headgate/internal/profile"
)

// taught returns a Learner that has learned rows of two engines, the second of which is slower.
// next returns more rows of these engines.
func taught(t *testing.T, rows int, truth [terms]float64) (l *Learner, engines []Engine, next func(at float64) (int, row)) {
	t.Helper()
	r := rand.New(rand.NewPCG(4, 1))
	l, engines = New(simple, false), make([]Engine, 2)
	next = func(float64) (int, row) {
		is, of := drawnRow(r, truth), r.IntN(2)
		is.seconds *= []float64{1, 1.8}[of]
		return of, is
	}
	for n := range rows {
		of, is := next(float64(n))
		l.learn(&engines[of], float64(n), is)
	}
	for n := range 300 {
		l.Began(&engines[0], Place(n%3), float64(n%3)*0.2+0.001*float64(n))
	}
	return l, engines, next
}

// hand creates a Learner that continues from the Lesson of another Learner. It also returns the new
// Learner's engines.
func hand(t *testing.T, from *Learner, of []Engine) (*Learner, []Engine) {
	t.Helper()
	l, engines := New(simple, false), make([]Engine, len(of))
	is, any := from.Teach()
	if rows, late := l.Take(&is); !any || !rows || !late {
		t.Fatalf("it is not taken: %+v", is)
	}
	for i := range of {
		factor, known := of[i].Known()
		if !known {
			t.Fatal("nothing is known of an engine")
		}
		l.Meet(&engines[i], factor)
	}
	l.watched = noneSeconds // skip the wait for first tokens after taking a Lesson
	return l, engines
}

func near(p, q profile.Profile) bool {
	for _, pair := range [][2]float64{
		{p.Decode.Base, q.Decode.Base},
		{p.Decode.PerSequence, q.Decode.PerSequence},
		{p.Decode.PerKVToken, q.Decode.PerKVToken},
		{p.Prefill.PerToken, q.Prefill.PerToken},
		{p.Prefill.Base, q.Prefill.Base},
		{p.Prefill.Floor, q.Prefill.Floor},
		{p.AdapterActivation.Mean, q.AdapterActivation.Mean},
		{p.AdapterLoad.Mean, q.AdapterLoad.Mean},
	} {
		if math.Abs(pair[0]-pair[1]) > 1e-6*pair[1] {
			return false
		}
	}
	return true
}

// A Learner that takes a Lesson predicts and learns exactly as the original Learner does, even if
// terms are at the ends of their ranges.
func TestLearnedProfileIsComplete(t *testing.T) {
	for _, truth := range [][terms]float64{{2, 0.5, 3, 1.5, 1}, {1, 0, 1, 0, 0}, {5, 100, 0, 100, 100}} {
		for _, rows := range []int{first + 1, 60, 800} {
			l, engines, next := taught(t, rows, truth)
			other, others := hand(t, l, engines)
			for n := range 200 {
				for i := range engines {
					if p, q := l.Of(&engines[i]), other.Of(&others[i]); !near(p, q) || l.Trusted() != other.Trusted() ||
						math.Abs(l.Residual()-other.Residual()) > 1e-6 || l.Rows() != other.Rows() {
						t.Fatalf("%v: after %d rows and %d more, of engine %d is learned\n%+v, and by who took it\n%+v; trusted %v, %v",
							truth, rows, n, i, p, q, l.Trusted(), other.Trusted())
					}
				}
				at := float64(rows+n) * 3
				of, is := next(at)
				l.learn(&engines[of], at, is)
				other.learn(&others[of], at, is)
				l.Began(&engines[0], InHost, 0.5)
				other.Began(&others[0], InHost, 0.5)
			}
			if !l.Trusted() && truth[1] == 0.5 {
				t.Error("it is not trusted after all that")
			}
		}
	}
}

// A Learner ignores a Lesson that has less data, or the same amount. If the Lesson has more data of
// some kind, the Learner takes over that kind.
func TestMergingLearnedProfiles(t *testing.T) {
	l, _, _ := taught(t, 300, [terms]float64{2, 2, 2, 2})
	is, _ := l.Teach()
	for _, c := range []struct {
		name string
		of   *Learner
		rows int
		want bool
	}{
		{"who has just begun", New(simple, false), 300, true},
		{"who was told", New(simple, true), 300, true},
		{"who began with something else", New(simple.Times(2), false), 0, false},
		{"who has as many rows", func() *Learner { l, _, _ := taught(t, 300, [terms]float64{1, 1, 1, 1}); return l }(), 300, false},
		{"who has fewer", func() *Learner { l, _, _ := taught(t, 100, [terms]float64{1, 1, 1, 1}); return l }(), 300, true},
		{"who is pinned", func() *Learner { l := New(simple, false); l.Pin(); return l }(), 0, false},
	} {
		if got, _ := c.of.Take(&is); got != c.want || c.of.Rows() != c.rows {
			t.Errorf("%s takes it: %v, and has %d rows", c.name, got, c.of.Rows())
		}
	}
	renamed := simple
	renamed.Name, renamed.Source = "other", "words"
	if Prior(renamed) != Prior(simple) || Prior(simple.Times(2)) == Prior(simple) {
		t.Error("what a Learner began with is told by its name")
	}
	pinned := New(simple, true)
	pinned.Pin()
	if _, any := pinned.Teach(); any {
		t.Error("a pinned one teaches")
	}
	if _, any := New(simple, true).Teach(); any {
		t.Error("one that knows nothing teaches")
	}
	// A Learner with too few rows can share only its adapter loads.
	young, _, _ := taught(t, first, [terms]float64{2, 2, 2, 2})
	some, any := young.Teach()
	next := New(simple, false)
	if rows, late := next.Take(&some); !any || some.Rows != 0 || rows || !late || next.Rows() != 0 ||
		next.Profile().AdapterActivation.Mean != young.Profile().AdapterActivation.Mean {
		t.Errorf("of one that has seen few rows is taken %+v", next.Profile())
	}
}

// A Learner rejects an impossible Lesson, and does not change.
func TestImpossibleLearnedProfiles(t *testing.T) {
	l, _, _ := taught(t, 300, [terms]float64{2, 2, 2, 2})
	for name, spoil := range map[string]func(is *Lesson){
		"no number in the matrix":         func(is *Lesson) { is.Matrix[3] = math.NaN() },
		"infinite":                        func(is *Lesson) { is.Matrix[0] = math.Inf(1) },
		"less than nothing":               func(is *Lesson) { is.Right[1] = -1 },
		"no number on the right":          func(is *Lesson) { is.Right[0] = math.NaN() },
		"huge":                            func(is *Lesson) { is.Right[0] = 1e300 },
		"of no rows":                      func(is *Lesson) { is.Matrix[1] = 1e9 },
		"a scale that is out of range":    func(is *Lesson) { is.Scale = 1e6 },
		"a scale of zero":                 func(is *Lesson) { is.Scale = 0 },
		"off by no number":                func(is *Lesson) { is.Off = math.NaN() },
		"usually off by nothing":          func(is *Lesson) { is.Usual[ofPrompts] = 0 },
		"rows below zero":                 func(is *Lesson) { is.Rows = -5 },
		"too few rows":                    func(is *Lesson) { is.Rows = first },
		"too many rows":                   func(is *Lesson) { is.Rows = math.MaxInt },
		"unchanged for less than nothing": func(is *Lesson) { is.Unchanged = -1 },
		"at no time":                      func(is *Lesson) { is.At = math.Inf(-1) },
		"late by no number":               func(is *Lesson) { is.Late[1] = []float64{0.1, math.NaN()} },
		"late by years":                   func(is *Lesson) { is.Late[1] = []float64{1e9} },
		"too many first tokens":           func(is *Lesson) { is.Late[1] = make([]float64, recent+1) },
	} {
		is, _ := l.Teach()
		spoil(&is)
		next := New(simple, false)
		was := *next
		if rows, late := next.Take(&is); rows || late || *next != was {
			t.Errorf("%s: it is taken", name)
		}
	}
	var e Engine
	for _, factor := range []float64{0.5, -0.7, 0.2} {
		if l.Meet(&e, factor); e.factor != factor || l.engines != 3 {
			t.Errorf("of %d engines one has the factor %g, want %g", l.engines, e.factor, factor)
		}
	}
	l.Forget(&e)
	for _, factor := range []float64{math.NaN(), math.Inf(1), 3, -3} {
		if l.Meet(&e, factor); e.counted {
			t.Errorf("an engine is met that takes exp(%g) times as long", factor)
		}
	}
}

// After a Learner has taken any Lesson, its profile is still valid.
func FuzzLearnedProfile(f *testing.F) {
	f.Add(uint64(1), 3, 1e9)
	f.Fuzz(func(t *testing.T, seed uint64, field int, value float64) {
		l, _, next := taught(t, 100, [terms]float64{2, 2, 2, 2})
		is, _ := l.Teach()
		figures := slices.Concat([]*float64{&is.At, &is.Off, &is.Usual[ofSteps], &is.Usual[ofPrompts], &is.Shortest, &is.Scale},
			pointers(is.Matrix[:]), pointers(is.Right[:]), pointers(is.Late[0]))
		*figures[int(uint(field)%uint(len(figures)))] = value
		*figures[int(seed%uint64(len(figures)))] = value
		other, engines := New(simple, false), make([]Engine, 2)
		other.Take(&is)
		for n := range 5 {
			of, is := next(float64(n))
			other.learn(&engines[of], float64(n), is)
			if err := other.Profile().Validate(); err != nil || !within(other.now) {
				t.Fatal(err, other.now)
			}
		}
	})
}

func pointers(all []float64) (to []*float64) {
	for i := range all {
		to = append(to, &all[i])
	}
	return to
}
