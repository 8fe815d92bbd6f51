package fleet

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/profile"
)

// Broken is what is wrong with what pickers see of endpoints.
type Broken uint8

// What may be broken.
const (
	Nothing Broken = iota
	// NaN: of what engines have counted, something is no number, in one look of five.
	NaN
	// Silent: engines do not say what they have counted.
	Silent
	// Reset: counts begin anew now and then.
	Reset
	// Clock: pickers' clocks jump.
	Clock
	// Half of the engines are of a kind that says how many requests run and wait, and no more.
	Half
)

var brokenNames = [...]string{Nothing: "nothing", NaN: "nan", Silent: "silent", Reset: "reset", Clock: "clock", Half: "half"}

func (b Broken) String() string { return brokenNames[b] }

// parseBroken returns what is broken by its name.
func parseBroken(name string) (Broken, error) {
	for i, n := range brokenNames {
		if n == name {
			return Broken(i), nil
		}
	}
	return 0, fmt.Errorf("there is no %q: use one of %s", name, strings.Join(brokenNames[:], ", "))
}

// givens are what pickers may be told of endpoints, by name.
var givens = []struct {
	name  string
	given func(profile.Profile) *profile.Profile
}{
	{"true", nil},
	{"none", func(profile.Profile) *profile.Profile { return nil }},
	{"x10", timesAs(10)},
	{"x0.1", timesAs(0.1)},
}

// parseGiven returns what pickers are told, by its name.
func parseGiven(name string) (func(profile.Profile) *profile.Profile, error) {
	names := make([]string, len(givens))
	for i, g := range givens {
		if g.name == name {
			return g.given, nil
		}
		names[i] = g.name
	}
	return nil, fmt.Errorf("there is no %q: use one of %s", name, strings.Join(names, ", "))
}

func timesAs(factor float64) func(profile.Profile) *profile.Profile {
	return func(p profile.Profile) *profile.Profile {
		p = p.Times(factor)
		return &p
	}
}

// spoiler breaks looks.
type spoiler struct {
	broken  Broken
	random  *rand.Rand
	counted []engine.Totals // by endpoint, since when it counts
}

func newSpoiler(b Broken, seed uint64, endpoints int) spoiler {
	return spoiler{b, rand.New(rand.NewPCG(seed, 3)), make([]engine.Totals, endpoints)} //nolint:gosec // no secret
}

// resets is how many looks at an endpoint there are from one time that its counts begin anew to the next, in the mean.
const resets = 50

// spoil returns what a look at an endpoint finds.
func (s *spoiler) spoil(i int, l engine.Load) engine.Load {
	switch {
	case s.broken == NaN && s.random.IntN(5) == 0:
		for _, v := range []*engine.Value{&l.Totals.InterToken.Seconds, &l.Totals.PromptTokens, &l.Totals.Prefill.Seconds, &l.KVUsage} {
			if s.random.IntN(2) == 0 {
				*v = engine.Known(math.NaN())
			}
		}
	case s.broken == Silent:
		l.Totals = engine.Totals{}
	case s.broken == Reset:
		is := l.Totals
		if s.random.IntN(resets) == 0 {
			s.counted[i] = is
		}
		was := &s.counted[i]
		less := func(v *engine.Value, by engine.Value) { *v = engine.Known(v.Or(0) - by.Or(0)) }
		for _, t := range []struct{ is, was *engine.Timed }{
			{&is.Queue, &was.Queue}, {&is.Prefill, &was.Prefill}, {&is.Decode, &was.Decode}, {&is.FirstToken, &was.FirstToken}, {&is.InterToken, &was.InterToken},
		} {
			less(&t.is.Count, t.was.Count)
			less(&t.is.Seconds, t.was.Seconds)
		}
		less(&is.PromptTokens, was.PromptTokens)
		less(&is.CachedTokens, was.CachedTokens)
		less(&is.GeneratedTokens, was.GeneratedTokens)
		l.Totals = is
	case s.broken == Half && i%2 == 1:
		l = engine.Load{Kind: engine.TGI, Running: l.Running, Waiting: l.Waiting}
	}
	return l
}

// jumps are by how many seconds a clock that jumps is ahead, one after the other, each for jumpsAfter seconds.
var jumps = []float64{0, 3, -2, 40, 0, -600, 0.3, 3600}

const jumpsAfter = 20

// clock is what a picker's clock says.
func (b Broken) clock(now float64) float64 {
	if b != Clock {
		return now
	}
	return now + jumps[int(now/jumpsAfter)%len(jumps)]
}
