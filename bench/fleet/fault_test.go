package fleet

import (
	"math"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
)

// keptBy simulates n requests with a rule. It returns the share of requests that meet their
// objectives, first of all requests, then of those after the first 2,000; and the number of trust
// changes.
func keptBy(t *testing.T, f Fleet, w Workload, rate float64, n int, rule pick.Rule) (all, late float64, trusts int) {
	t.Helper()
	o := outcome(t, f, 1, w.Requests(1, rate, n), Headgate(rule))
	all = FiguresOf(o, f.Profile, DefaultObjectives).Kept
	if n > 2000 {
		o.Results = o.Results[2000:]
		late = FiguresOf(o, f.Profile, DefaultObjectives).Kept
	}
	return all, late, o.Trusts
}

// With every assumed profile and every fault, near the highest rate, the latency policy meets about
// as many objectives as the rule without predictions. Trust changes at most twice.
func TestPredictionsNeverHurt(t *testing.T) {
	const rate, n = 3, 1200
	w := Plain(Conversation())
	for fault := NoFault; fault <= Half; fault++ {
		t.Run(fault.String(), func(t *testing.T) {
			t.Parallel()
			f := four()
			f.Fault = fault
			least := 0.95
			if fault == Clock { // a jumping clock costs nothing: pending work uses one that never jumps
				least = 1
			}
			proposal, _, _ := keptBy(t, f, w, rate, n, pick.Proposal)
			if proposal < 0.9 {
				t.Fatalf("proposal keeps %.3f: the rate is too high", proposal)
			}
			for _, g := range assumedProfiles {
				if wrong := g.name != "none" && g.assumed != nil; wrong && fault != NoFault {
					continue
				}
				f.Assumed = g.assumed
				latency, _, trusts := keptBy(t, f, w, rate, n, pick.Latency)
				if latency < least*proposal || trusts > 2 {
					t.Errorf("told %s, latency keeps %.3f, proposal %.3f; trust changed %d times", g.name, latency, proposal, trusts)
				}
				if knows := fault != Missing; g.name == "none" && (trusts == 1) != knows {
					t.Errorf("told nothing, it predicts: trust changed %d times", trusts)
				}
			}
		})
	}
}

// After 2,000 requests, predictions are as good as with the true profile, even if extproc started
// without a profile or with one that is wrong by a factor of ten.
func TestLearnedProfilePredictsAsWellAsTheTrueOne(t *testing.T) {
	for _, c := range []struct {
		w       Workload
		rate    float64
		assumed int
	}{{Plain(Conversation()), 3, len(assumedProfiles)}, {Prefixes(16, 2048, Conversation()), 2.6, 2}} {
		t.Run(c.w.Name, func(t *testing.T) {
			t.Parallel()
			f := four()
			_, by, _ := keptBy(t, f, c.w, c.rate, 3000, pick.Latency)
			for _, g := range assumedProfiles[1:c.assumed] {
				f.Assumed = g.assumed
				if _, late, trusts := keptBy(t, f, c.w, c.rate, 3000, pick.Latency); late < 0.95*by || trusts > 2 {
					t.Errorf("told %s, of the later requests %.3f keep their objectives, and %.3f by the true profile; trust changed %d times",
						g.name, late,
						by, trusts)
				}
			}
		})
	}
}

// Each fault takes effect; otherwise the tests above would show nothing.
func TestFaultsAreInjected(t *testing.T) {
	whole := func() engine.Load {
		some := func(n float64) engine.Timed {
			return engine.Timed{Count: engine.Known(n), Seconds: engine.Known(n / 10)}
		}
		return engine.Load{
			Kind: engine.VLLM, Running: engine.Known(3), Waiting: engine.Known(1), KVUsage: engine.Known(0.5), Totals: engine.Totals{
				InterToken: some(500), Prefill: some(20), FirstToken: some(21), PromptTokens: engine.Known(2000),
				GeneratedTokens: engine.Known(521),
			},
		}
	}
	unknown, fell, alike := 0, 0, 0
	for _, b := range []Fault{NoFault, NaN, Missing, Reset, Clock, Half} {
		s := newFaultInjector(b, 1, 2)
		latest := math.Inf(-1)
		for range 1000 {
			l := s.inject(1, whole())
			tokens, known := l.Totals.InterToken.Seconds.Get()
			switch {
			case b == Missing && (known || l.KVUsage != whole().KVUsage), b == Half &&
				(known || l.Kind == engine.VLLM || l.Running != whole().Running):
				t.Fatalf("%s: a look finds %+v", b, l)
			case b == Half && s.inject(0, whole()).Totals != whole().Totals:
				t.Fatal("the other half is fault too")
			case b == NaN && !known:
				unknown++
			case b == Reset && tokens < latest:
				fell++
			case (b == NoFault || b == Clock) && l.Totals == whole().Totals:
				alike++
			}
			latest = tokens
		}
	}
	if unknown < 50 || unknown > 200 || fell == 0 || alike != 2000 {
		t.Errorf("of 1000 looks %d lack the time between tokens; it fell %d times; %d of 2000 are as they should be", unknown, fell, alike)
	}
	back := false
	for now := 1.0; now < 400; now++ {
		if NoFault.clock(now) != now {
			t.Fatal("a clock is wrong that nobody broke")
		}
		back = back || Clock.clock(now) < Clock.clock(now-1)
	}
	if !back {
		t.Error("the fault clock is never set back")
	}
}
