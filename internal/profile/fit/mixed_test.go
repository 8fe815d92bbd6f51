package fit

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/internal/sim"
)

// besideOthers generates rows of an engine: single prompts with frontend overhead, decode steps,
// and prompts beside 1 and 8 decoding sequences.
func besideOthers(p profile.Profile) (rows []Row) {
	for _, n := range []int{16, 128, 512, 2048, 7680} {
		var alone profile.Work
		alone.AddPrompt(0, n)
		rows = append(rows, Row{
			Prefill: alone, PrefillSeconds: p.FrontendOverhead + p.StepTime(alone),
			FrontendOverhead: p.FrontendOverhead,
		})
		if n <= 2048 { // four prompts at once: the first is computed alone, then the other three
			three := profile.Work{PromptTokens: 3 * n, Squares: 3 * alone.Squares}
			rows = append(rows, Row{Prompts: 4, Prefill: alone, PrefillSeconds: p.FrontendOverhead + p.StepTime(alone) + p.StepTime(three)})
		}
		for _, sequences := range []int{1, 8} {
			step := profile.Work{Sequences: sequences, KVTokens: sequences * n}
			rows = append(rows, Row{Step: step, StepSeconds: p.StepTime(step)})
			rows = append(rows, beside(p, sequences, n))
		}
	}
	return rows
}

// beside simulates an engine and returns the row of a prompt of n tokens that is sent beside
// decoding sequences. The prompt arrives in the middle of a step.
func beside(p profile.Profile, sequences, n int) Row {
	const context, outputs, before, after = 40, 64, 10, 40
	p.Limits = profile.Limits{MaxSequences: 16, MaxBatchedTokens: 8192, KVBlocks: 4000, BlockSize: 16}
	// run returns the token times of one decoding sequence, and the time of the prompt's first
	// token. If at is above 0, the prompt arrives at that time.
	run := func(at float64) (tokens []float64, first float64) {
		e, err := sim.New(p, nil)
		if err != nil {
			panic(err)
		}
		submit := func(at float64, prompt, output int) sim.ID {
			id, err := e.Submit(at, sim.Request{PromptTokens: prompt, OutputTokens: output})
			if err != nil {
				panic(err)
			}
			return id
		}
		var prompt sim.ID
		for range sequences {
			submit(0, context, outputs)
		}
		for {
			next, ok := e.Next()
			if !ok {
				return tokens, first
			}
			if at > 0 && prompt == 0 && next > at {
				prompt = submit(at, n, 1)
			}
			for _, is := range e.Advance(next) {
				switch {
				case is.Kind != sim.Token:
				case is.ID == 1:
					tokens = append(tokens, is.At)
				case is.ID == prompt:
					first = is.At
				}
			}
		}
	}
	alone, _ := run(0)
	arrives := (alone[before] + alone[before+1]) / 2
	with, first := run(arrives)
	row := Row{
		Mixed:   profile.Work{Sequences: sequences, KVTokens: sequences * (context + before)},
		Without: alone[before+1] - alone[before],
	}
	row.Mixed.AddPrompt(0, n)
	row.MixedSeconds = with[after] - alone[after] + row.Without
	row.FirstToken = p.FrontendOverhead + first - arrives
	return row
}

// The fit detects whether an engine schedules a step while it computes the previous one, and
// whether launching a step with a prompt takes most of the step's time.
func TestPromptsBesideOthers(t *testing.T) {
	launching := profile.Profile{
		FrontendOverhead: 0.006, LaunchOverhead: 0.053,
		Prefill: profile.Prefill{Floor: 0.053, Base: 0.005, PerToken: 2.4e-5},
		Decode:  profile.Decode{Base: 0.005, PerSequence: 1e-5, PerKVToken: 3e-8},
	}
	ahead := launching
	ahead.AsyncScheduling = true
	plain := launching
	plain.LaunchOverhead, plain.Prefill.Floor, plain.Prefill.Base = 0, 0, 0.02
	together := plain
	together.MixedBatchOverhead = 0.006
	plainAhead := plain
	plainAhead.AsyncScheduling = true
	for name, c := range map[string]struct {
		p     profile.Profile
		waits float64 // mean number of steps that a prompt waits before its own step
	}{
		"launches, and waits for each step": {launching, 0.5},
		"launches ahead":                    {ahead, 1.5},
		"computes for as long as alone":     {plain, 0.5},
		"schedules ahead":                   {plainAhead, 1.5},
		"takes longer for both":             {together, 0.5},
	} {
		f := fitted(t, besideOthers(c.p))
		if f.Asynchronous != c.p.AsyncScheduling || math.Abs(f.Mixed.Waited-c.waits) > 0.01 {
			t.Errorf("%s: asynchronous is %v, and prompts wait for %v steps", name, f.Asynchronous, f.Mixed.Waited)
		}
		near(t, name+": launch", f.Launch, c.p.LaunchOverhead, 0.01)
		near(t, name+": mixed", f.More, c.p.MixedBatchOverhead, 0.03)
		got := f.Profile("x.csv", Set{}, profile.Limits{})
		for _, n := range []int{16, 600, 8000} {
			near(t, name+": a prompt alone", got.PrefillTime(0, n), c.p.PrefillTime(0, n), 0.03)
		}
		if f.Mixed.P90 > 0.05 || f.PrefillError.Median > 0.05 {
			t.Errorf("%s: %v", name, f.Profile("x.csv", Set{}, profile.Limits{}).Source)
		}
	}
}

// If the frontend overhead is unknown, so is the time that prompts wait. The fit then assumes that
// the engine schedules synchronously.
func TestPromptsBesideOthersWithoutFrontendOverhead(t *testing.T) {
	p := truth
	p.AsyncScheduling = true
	rows := besideOthers(p)
	if f := fitted(t, rows); f.Asynchronous || !math.IsNaN(f.Mixed.Waited) {
		t.Errorf("it is asynchronous: %v, and waits for %v", f.Asynchronous, f.Mixed.Waited)
	}
}

// Noise in many single prompts neither hides effects that a few prompts beside decoding requests
// show, nor creates effects.
func TestPromptsBesideOthersWithNoise(t *testing.T) {
	// All single prompts take as long as the launch. So only prompts beside decoding requests show
	// that this time is launch time.
	launching := profile.Profile{
		FrontendOverhead: 0.006, LaunchOverhead: 0.053, AsyncScheduling: true,
		Prefill: profile.Prefill{Floor: 0.053, Base: 0.005, PerToken: 1e-6},
		Decode:  profile.Decode{Base: 0.005, PerSequence: 1e-5, PerKVToken: 3e-8},
	}
	computing := launching
	computing.LaunchOverhead, computing.Prefill = 0, profile.Prefill{Base: 0.053, PerToken: 1e-6}
	plain := computing
	plain.AsyncScheduling, plain.Prefill = false, profile.Prefill{Base: 0.02, PerToken: 2.4e-5}
	for name, p := range map[string]profile.Profile{
		"launches": launching, "computes for as long": computing,
		"computes, and waits for each step": plain,
	} {
		for seed := range uint64(4) {
			random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test's
			var rows []Row
			for range 12 {
				for _, r := range besideOthers(p) {
					if r.PrefillSeconds > 0 {
						n := r.Prefill.PromptTokens + random.IntN(1+r.Prefill.PromptTokens/16)
						r.Prefill = profile.Work{}
						r.Prefill.AddPrompt(0, n)
						r.PrefillSeconds = r.FrontendOverhead + (r.PrefillSeconds-r.FrontendOverhead)*(1+0.07*random.NormFloat64())
					}
					r.MixedSeconds *= 1 + 0.07*random.NormFloat64()
					rows = append(rows, r)
				}
			}
			f := fitted(t, rows)
			if math.Abs(f.Launch-p.LaunchOverhead) > 0.15*p.LaunchOverhead {
				t.Errorf("%s, seed %d: launch is %v, want %v", name, seed, f.Launch, p.LaunchOverhead)
			}
		}
	}
}

// If several short prompts take less than about twice the frontend overhead, each may have had a
// step of its own. The fit therefore ignores such rows.
func TestShortConcurrentPromptsDoNotCount(t *testing.T) {
	p := profile.Profile{
		FrontendOverhead: 0.006, Prefill: profile.Prefill{Base: 0.005, PerToken: 1e-5},
		Decode: profile.Decode{Base: 0.005, PerSequence: 1e-5, PerKVToken: 3e-8},
	}
	rows := besideOthers(p)
	for i, r := range rows {
		if r.Prompts > 1 && r.Prefill.PromptTokens <= 512 { // each of these prompts has a step of its own
			rows[i].PrefillSeconds = p.FrontendOverhead + 4*p.StepTime(r.Prefill)
		}
	}
	steps := atOnce(rows, p.FrontendOverhead, p)
	if len(steps) == 0 {
		t.Error("prompts of 2048 at once do not count")
	}
	for _, is := range steps {
		if is.work.PromptTokens < 2048 || math.Abs(is.seconds/p.StepTime(is.work)-1) > 0.01 {
			t.Errorf("%d tokens at once count as a step of %.4f s, want %.4f or none", is.work.PromptTokens, is.seconds,
				p.StepTime(is.work))
		}
	}
}
