package fleet

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/profile"
)

// Fault is a fault in what pickers see of endpoints.
type Fault uint8

// Faults of scrapes and clocks.
const (
	NoFault Fault = iota
	// NaN replaces counters of engines by NaN in one scrape of five.
	NaN
	// Missing removes the counters of engines from scrapes.
	Missing
	// Reset sets the counters of a random engine back to zero from time to time.
	Reset
	// Clock makes the clocks of pickers jump.
	Clock
	// Half makes every second engine report only its running and waiting requests.
	Half
)

var faultNames = [...]string{NoFault: "none", NaN: "nan", Missing: "missing", Reset: "reset", Clock: "clock", Half: "half"}

func (b Fault) String() string { return faultNames[b] }

// parseFault returns the fault with a name.
func parseFault(name string) (Fault, error) {
	for i, n := range faultNames {
		if n == name {
			return Fault(i), nil
		}
	}
	return 0, fmt.Errorf("unknown name %q: use one of %s", name, strings.Join(faultNames[:], ", "))
}

// assumedProfiles lists, by name, the profiles with which pickers may start.
var assumedProfiles = []struct {
	name    string
	assumed func(profile.Profile) *profile.Profile
}{
	{"true", nil},
	{"none", func(profile.Profile) *profile.Profile { return nil }},
	{"x10", timesAs(10)},
	{"x0.1", timesAs(0.1)},
}

// parseAssumed returns the assumed profile with a name, as a function of the true profile.
func parseAssumed(name string) (func(profile.Profile) *profile.Profile, error) {
	names := make([]string, len(assumedProfiles))
	for i, g := range assumedProfiles {
		if g.name == name {
			return g.assumed, nil
		}
		names[i] = g.name
	}
	return nil, fmt.Errorf("unknown name %q: use one of %s", name, strings.Join(names, ", "))
}

func timesAs(factor float64) func(profile.Profile) *profile.Profile {
	return func(p profile.Profile) *profile.Profile {
		p = p.Times(factor)
		return &p
	}
}

// faultInjector applies a fault to scrapes.
type faultInjector struct {
	fault   Fault
	random  *rand.Rand
	counted []engine.Totals // by endpoint: its counters at the last reset
}

func newFaultInjector(b Fault, seed uint64, endpoints int) faultInjector {
	return faultInjector{b, rand.New(rand.NewPCG(seed, 3)), make([]engine.Totals, endpoints)} //nolint:gosec // no secret
}

// resets is the mean number of scrapes between two resets of an endpoint.
const resets = 50

// inject returns what a scrape of endpoint i with the true load l reports under the fault.
func (s *faultInjector) inject(i int, l engine.Load) engine.Load {
	switch {
	case s.fault == NaN && s.random.IntN(5) == 0:
		for _, v := range []*engine.Value{&l.Totals.InterToken.Seconds, &l.Totals.PromptTokens, &l.Totals.Prefill.Seconds, &l.KVUsage} {
			if s.random.IntN(2) == 0 {
				*v = engine.Known(math.NaN())
			}
		}
	case s.fault == Missing:
		l.Totals = engine.Totals{}
	case s.fault == Reset:
		is := l.Totals
		if s.random.IntN(resets) == 0 {
			s.counted[i] = is
		}
		was := &s.counted[i]
		less := func(v *engine.Value, by engine.Value) { *v = engine.Known(v.Or(0) - by.Or(0)) }
		for _, t := range []struct{ is, was *engine.Timed }{
			{&is.Queue, &was.Queue},
			{&is.Prefill, &was.Prefill},
			{&is.Decode, &was.Decode},
			{&is.FirstToken, &was.FirstToken},
			{&is.InterToken, &was.InterToken},
		} {
			less(&t.is.Count, t.was.Count)
			less(&t.is.Seconds, t.was.Seconds)
		}
		less(&is.PromptTokens, was.PromptTokens)
		less(&is.CachedTokens, was.CachedTokens)
		less(&is.GeneratedTokens, was.GeneratedTokens)
		l.Totals = is
	case s.fault == Half && i%2 == 1:
		l = engine.Load{Kind: engine.TGI, Running: l.Running, Waiting: l.Waiting}
	}
	return l
}

// jumps are the offsets of a jumping clock in seconds. Each lasts jumpsAfter seconds.
var jumps = []float64{0, 3, -2, 40, 0, -600, 0.3, 3600}

const jumpsAfter = 20

// clock returns what the clock of a picker shows at the simulation time now.
func (b Fault) clock(now float64) float64 {
	if b != Clock {
		return now
	}
	return now + jumps[int(now/jumpsAfter)%len(jumps)]
}
