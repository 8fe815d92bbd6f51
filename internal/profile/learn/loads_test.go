package learn_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/internal/profile/learn"
)

// saying returns a profile with these configured load times.
func saying(slot, load float64) profile.Profile {
	p := large
	p.AdapterActivation.Mean, p.AdapterLoad.Mean = slot, load
	return p
}

// begin records n first tokens for each place. Each is late by its adapter load, plus the seconds
// that the function more returns.
func begin(l *learn.Learner, n int, slot, load float64, more func() float64) {
	var e learn.Engine
	for range n {
		l.Began(&e, learn.InSlot, more())
		l.Began(&e, learn.InHost, slot+more())
		l.Began(&e, learn.InStorage, slot+load+more())
	}
}

// Load times are learned whatever load times were configured. All first tokens are later than
// predicted, and some are much later.
func TestLoadsAreLearned(t *testing.T) {
	for _, prior := range []profile.Profile{saying(0, 0), saying(0.02, 0.25), saying(0.2, 2.5), saying(30, 0)} {
		for name, usually := range map[string]float64{"as predicted": 0, "late": 0.08, "early": -0.3} {
			r := rand.New(rand.NewPCG(1, 1))
			l := learn.New(prior, false)
			begin(l, 100, 0.02, 0.25, func() float64 {
				if r.IntN(5) == 0 {
					return usually + 5*r.Float64()
				}
				return usually + 0.01*r.NormFloat64()
			})
			if p := l.Profile(); math.Abs(p.AdapterActivation.Mean-0.02) > 0.01 || math.Abs(p.AdapterLoad.Mean-0.25) > 0.02 {
				t.Errorf("%s, said to take %g and %g s, a load takes %g and %g s", name, prior.AdapterActivation.Mean,
					prior.AdapterLoad.Mean, p.AdapterActivation.Mean, p.AdapterLoad.Mean)
			}
			if l.Rows() != 0 || l.Trusted() {
				t.Error("loads tell how long steps take")
			}
		}
	}
}

// The frontend overhead is learned from the delay of requests that need no load, whatever was
// configured. Until there are such requests, the configured value remains. It is never negative.
func TestIntakeIsLearned(t *testing.T) {
	for _, said := range []float64{0, 0.01, 3} {
		p := large
		p.FrontendOverhead = said
		l := learn.New(p, true)
		if is := l.Profile().FrontendOverhead; is != said {
			t.Errorf("said to be %g s, it is %g", said, is)
		}
		var usual, slow learn.Engine
		late := func(n int, seconds float64) float64 {
			for i := range n {
				l.Began(&usual, learn.InSlot, seconds+0.001*float64(i%5-2))
			}
			return l.Profile().FrontendOverhead
		}
		if is := late(2, 0.03); is != said && math.Abs(is-0.03) > 0.001 || math.Abs(is-said) > math.Abs(said-0.03) {
			t.Errorf("said to be %g s, it is %g after two", said, is)
		}
		if is := late(20, 0.03); math.Abs(is-0.03) > 0.0011 {
			t.Errorf("said to be %g s, it is %g, want 0.03", said, is)
		}
		for range 10 { // the profile of a slow engine has a longer frontend overhead
			slower := l.Slower(&slow)
			if of := l.Of(&slow).FrontendOverhead; math.Abs(of-slower*l.Profile().FrontendOverhead) > 1e-9 {
				t.Errorf("that of an engine %g times as slow is %g s, beside %g", slower, of, l.Profile().FrontendOverhead)
			}
			late(1, 0.03)
		}
		if is := late(63, 0.2); math.Abs(is-0.2) > 0.0011 {
			t.Errorf("it is %g s after it grew, want 0.2", is)
		}
		if is := late(63, -0.2); is != 0 {
			t.Errorf("it is %g s where all is early", is)
		}
	}
}

// A few loads hardly change the learned load time. Later loads replace earlier ones.
func TestLoadsThatChange(t *testing.T) {
	exact := func() float64 { return 0 }
	l := learn.New(saying(0.02, 0.25), true)
	for _, step := range []struct {
		loads            int
		takes, want, off float64
	}{{0, 0, 0.25, 0}, {2, 2, 0.25, 0.01}, {20, 2, 2, 0.01}, {63, 0.5, 0.5, 0.01}} {
		if begin(l, step.loads, 0.02, step.takes, exact); math.Abs(l.Profile().AdapterLoad.Mean-step.want) > step.off {
			t.Errorf("after %d loads of %g s one takes %g s, want %g", step.loads, step.takes, l.Profile().AdapterLoad.Mean, step.want)
		}
	}
	// Until there are loads from host memory, the configured time of these loads remains. The same
	// applies to loads from storage.
	var e learn.Engine
	for at, want := range map[learn.Place][2]float64{learn.InStorage: {0.02, 0.98}, learn.InHost: {1, 0.25}} {
		l := learn.New(saying(0.02, 0.25), true)
		for range 20 {
			l.Began(&e, at, 1)
		}
		if p := l.Profile(); math.Abs(p.AdapterActivation.Mean-want[0]) > 1e-9 || math.Abs(p.AdapterLoad.Mean-want[1]) > 1e-9 {
			t.Errorf("loads from %d alone: they take %g and %g s, want %v", at, p.AdapterActivation.Mean, p.AdapterLoad.Mean, want)
		}
	}
}

// Impossible delays do not make the profile invalid.
func TestImpossibleLoadTimes(t *testing.T) {
	l := learn.New(saying(0.02, 0.25), true)
	var e learn.Engine
	for _, late := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e300, -1e300, -5} {
		for at := range learn.Place(5) {
			for range 30 {
				l.Began(&e, at, late)
				p := l.Profile()
				if err := p.Validate(); err != nil || p.AdapterLoad.Mean > 600 || p.AdapterActivation.Mean > 600 {
					t.Fatalf("first tokens that are %g s late: %+v, %v", late, p, err)
				}
			}
		}
	}
	pinned := learn.New(saying(0.02, 0.25), true)
	pinned.Pin()
	if begin(pinned, 100, 1, 1, func() float64 { return 0 }); pinned.Profile() != saying(0.02, 0.25) {
		t.Error("of a pinned profile loads are learned")
	}
}

// Load times of a slow engine are learned after division by its factor, and predicted by
// multiplying with this factor.
func TestLoadTimesOfASlowEngine(t *testing.T) {
	o := newObserver(large, true, 4)
	o.scrape(newWorld(t, 1, 1, large, large, large, large.Times(2)), large, 300, nil)
	slow := &o.engines[3]
	for range 60 {
		o.Began(slow, learn.InHost, 0.4)
	}
	if is := o.Of(slow).AdapterActivation.Mean; math.Abs(is-0.4) > 1e-9 ||
		math.Abs(o.Profile().AdapterActivation.Mean-0.4/slow.Factor()) > 1e-9 {
		t.Errorf("it takes %g s, and its kind %g", is, o.Profile().AdapterActivation.Mean)
	}
}

func TestLoadTimeAllocatesNothing(t *testing.T) {
	l := learn.New(large, true)
	var e learn.Engine
	if n := testing.AllocsPerRun(100, func() {
		l.Began(&e, learn.InStorage, 0.3)
		_ = l.Of(&e)
	}); n != 0 {
		t.Errorf("a load allocates %g times", n)
	}
}
