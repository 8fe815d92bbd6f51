package profile_test

import (
	"math"
	"os"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/profile"
)

func parseFile(t *testing.T, name string) profile.Profile {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	p, err := profile.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The published profile predicts the measurements from which it was fitted. These are median times
// of single prompts of all lengths, and grow faster than linearly.
func TestProfileAgreesWithItsSource(t *testing.T) {
	p := parseFile(t, "llama-2-70b-a100x4.yaml")
	for tokens, want := range map[int]float64{
		128: 0.0637, 256: 0.0786, 512: 0.1269, 1024: 0.2271, 2048: 0.4033, 4096: 0.9652,
		8192: 2.278,
	} {
		if got := p.PrefillTime(0, tokens); math.Abs(got/want-1) > 0.08 {
			t.Errorf("prefill of %d tokens takes %.4f s, want %.4f", tokens, got, want)
		}
	}
	if got := p.StepTime(profile.Work{Sequences: 16, KVTokens: 16 * 576}); math.Abs(got/0.0497-1) > 0.02 {
		t.Errorf("a decode step of 16 sequences takes %.4f s, want 0.0497", got)
	}
}

func TestMixedStepPaysTheLargerBaseOnce(t *testing.T) {
	p := profile.Profile{
		Prefill: profile.Prefill{Base: 3, PerToken: 0.5},
		Decode:  profile.Decode{Base: 5, PerSequence: 0.25, PerKVToken: 0.125},
	}
	for _, c := range []struct {
		prefill, sequences, kv int
		want                   float64
	}{
		{0, 0, 0, 0},
		{10, 0, 0, 3 + 5},
		{0, 4, 8, 5 + 1 + 1},
		{10, 4, 8, 5 + 5 + 1 + 1},
	} {
		if got := p.StepTime(profile.Work{PromptTokens: c.prefill, Sequences: c.sequences, KVTokens: c.kv}); got != c.want {
			t.Errorf("StepTime(%d, %d, %d) = %v, want %v", c.prefill, c.sequences, c.kv, got, c.want)
		}
	}
}

// The test adds each term as the documentation describes, computed by hand. All values are sums of
// powers of two, so that they are exact.
func TestStepTime(t *testing.T) {
	full := profile.Profile{
		Prefill: profile.Prefill{Floor: 8, Base: 1, PerToken: 0.5, PerTokenSquared: 0.125},
		Decode:  profile.Decode{Base: 2, PerSequence: 0.25, PerKVToken: 0.0625, AdapterSlowdown: 2},
	}
	for _, c := range []struct {
		name string
		work profile.Work
		want float64
	}{
		{"nothing", profile.Work{}, 0},
		{"nothing with adapters", profile.Work{Adapters: true}, 0},
		{"a prompt below the floor: 1 + 2 + 2", profile.Work{PromptTokens: 4, Squares: 16}, 8},
		{"a prompt at the floor's end: 1 + 3 + 4.5", profile.Work{PromptTokens: 6, Squares: 36}, 8.5},
		{"adapters make no prompt slower", profile.Work{PromptTokens: 6, Squares: 36, Adapters: true}, 8.5},
		{"decoding knows no floor: 2 + 1 + 1", profile.Work{Sequences: 4, KVTokens: 16}, 4},
		{"decoding with adapters: 4 + 2 + 2", profile.Work{Sequences: 4, KVTokens: 16, Adapters: true}, 8},
		{"a prompt below the floor, and decoding: 8 + 1 + 1", profile.Work{PromptTokens: 4, Squares: 16, Sequences: 4, KVTokens: 16}, 10},
		{"the larger base: 2 + 3 + 4.5 + 1 + 1", profile.Work{PromptTokens: 6, Squares: 36, Sequences: 4, KVTokens: 16}, 11.5},
		{
			"the larger base with adapters: 4 + 3 + 4.5 + 2 + 2",
			profile.Work{PromptTokens: 6, Squares: 36, Sequences: 4, KVTokens: 16, Adapters: true},
			15.5,
		},
	} {
		if got := full.StepTime(c.work); got != c.want {
			t.Errorf("%s: %v s, want %v", c.name, got, c.want)
		}
	}
	for _, c := range []struct {
		context, tokens int
		want            float64
	}{
		{0, 0, 0},
		{100, 0, 0},
		{0, 1, 8},                        // the floor applies, because the terms are only 1 + 0.5 + 0.125
		{0, 8, 1 + 4 + 8},                // the square term is 8² / 8
		{8, 8, 1 + 4 + 24},               // the square term is (16² - 8²) / 8
		{1 << 20, 2, 1 + 1 + 524288.5},   // the square term is ((2^20 + 2)² - 2^40) / 8
		{0, 1 << 20, 1 + 524288 + 1<<37}, // the square term is 2^40 / 8
	} {
		if got := full.PrefillTime(c.context, c.tokens); got != c.want {
			t.Errorf("PrefillTime(%d, %d) = %v, want %v", c.context, c.tokens, got, c.want)
		}
	}
}

// If a prompt is cut into parts, the Squares of the parts add up to those of the whole prompt.
func TestAddPrompt(t *testing.T) {
	var whole, parts profile.Work
	whole.AddPrompt(0, 1000)
	for c := 0; c < 1000; c += 125 {
		parts.AddPrompt(c, 125)
	}
	if whole != parts || whole.Squares != 1e6 || whole.PromptTokens != 1000 {
		t.Errorf("the whole is %+v, its parts %+v", whole, parts)
	}
}

func BenchmarkStepTime(b *testing.B) {
	p := profile.Profile{
		Prefill: profile.Prefill{Floor: 0.02, Base: 0.01, PerToken: 0.0001, PerTokenSquared: 1e-9},
		Decode:  profile.Decode{Base: 0.01, PerSequence: 0.0001, PerKVToken: 1e-7, AdapterSlowdown: 2},
	}
	w := profile.Work{PromptTokens: 100, Squares: 1e4, Sequences: 16, KVTokens: 8000, Adapters: true}
	b.Run("step", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p.StepTime(w)
		}
	})
	b.Run("prefill", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p.PrefillTime(1000, 200)
		}
	})
}

func TestFaultyProfileIsRefusedByField(t *testing.T) {
	good, err := os.ReadFile("testdata/llama-2-70b-a100x4.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{"perToken: 0.0001567", "perToken: -1", "prefill.perToken is -1"},
		{"maxSequences: 256", "maxSequences: 0", "limits.maxSequences is 0: it must be at least 1"},
		{"hostAdapters: 16", "hostAdapters: 3", "limits.hostAdapters is 3: it must be at least 4"},
		{"prefill:", "prefil:", "prefil"},
		{"prefill: {", "frontendOverhead: -1\nprefill: {", "frontendOverhead is -1"},
		{"prefill: {", "prefill: {floor: -0.5, ", "prefill.floor is -0.5"},
		{"perTokenSquared: 1", "perTokenSquared: -1", "prefill.perTokenSquared is -1"},
		{"maxMeasuredTokens: 8192", "maxMeasuredTokens: -1", "prefill.maxMeasuredTokens is -1: it must be at least 0"},
		{
			"decode: {", "decode: {adapterSlowdown: 0.9, ",
			"decode.adapterSlowdown is 0.9: it is how many times as long a step takes with adapters, at least 1",
		},
		{"decode: {", "decode: {adapterSlowdown: -2, ", "decode.adapterSlowdown is -2"},
	} {
		text := strings.Replace(string(good), c.old, c.new, 1)
		if _, err := profile.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("with %q the error is %v, want it to say %q", c.new, err, c.want)
		}
	}
}

// An engine with half the speed takes twice as long for everything.
func TestTimes(t *testing.T) {
	p := parseFile(t, "llama-2-70b-a100x4.yaml")
	p.FrontendOverhead, p.Prefill.Floor, p.Prefill.PerTokenSquared, p.Decode.AdapterSlowdown = 0.01, 0.05, 1e-8, 2
	mixed := profile.Work{PromptTokens: 100, Squares: 1e4, Sequences: 8, KVTokens: 4000, Adapters: true}
	twice := p.Times(2)
	for _, pair := range [][2]float64{
		{twice.FrontendOverhead, 2 * p.FrontendOverhead},
		{twice.PrefillTime(0, 1000), 2 * p.PrefillTime(0, 1000)},
		{twice.PrefillTime(0, 1), 2 * p.PrefillTime(0, 1)},
		{twice.StepTime(profile.Work{Sequences: 8, KVTokens: 4000}), 2 * p.StepTime(profile.Work{Sequences: 8, KVTokens: 4000})},
		{twice.StepTime(mixed), 2 * p.StepTime(mixed)},
		{twice.AdapterLoad.Mean, 2 * p.AdapterLoad.Mean},
		{twice.AdapterLoad.StdDev, 2 * p.AdapterLoad.StdDev},
		{twice.AdapterActivation.Mean, 2 * p.AdapterActivation.Mean},
		{twice.AdapterActivation.StdDev, 2 * p.AdapterActivation.StdDev},
	} {
		if math.Abs(pair[0]-pair[1]) > 1e-12 || pair[0] == 0 {
			t.Errorf("a time is %g, want %g", pair[0], pair[1])
		}
	}
	if twice.Limits != p.Limits || p.Times(1) != p {
		t.Error("the limits are others, or once as long is not as long")
	}
}
