package learn

import (
	"math"
	"testing"

	"github.com/headgate/headgate/internal/engine"
)

// What two looks say that are one second apart is a row, unless something between them cannot have been.
func TestWhatMakesARow(t *testing.T) {
	known := engine.Known
	for _, c := range []struct {
		name  string
		after float64
		spoil func(l *engine.Load)
		want  bool
	}{
		{"as it should be", 1, func(*engine.Load) {}, true},
		{"prompt tokens fell", 1, func(l *engine.Load) { l.Totals.PromptTokens = known(10) }, false},
		{"cached tokens fell", 1, func(l *engine.Load) { l.Totals.CachedTokens = known(10) }, false},
		{"seconds fell", 1, func(l *engine.Load) { l.Totals.InterToken.Seconds = known(1) }, false},
		{"seconds are unknown", 1, func(l *engine.Load) { l.Totals.InterToken.Seconds = known(math.NaN()) }, false},
		{"nobody says how full the cache is", 1, func(l *engine.Load) { l.KVUsage = engine.Value{} }, false},
		{"prompt tokens are too many", 1, func(l *engine.Load) { l.Totals.PromptTokens = known(1e15) }, false},
		{"more decode than run", 1, func(l *engine.Load) { l.Totals.InterToken = engine.Timed{Count: known(2000), Seconds: known(150)} }, false},
		{"fewer decode than run", 1, func(l *engine.Load) { l.Running = known(100) }, false},
		{"too soon", 0.5, func(*engine.Load) {}, false},
		{"no later", 0, func(*engine.Load) {}, false},
		{"before", -1, func(*engine.Load) {}, false},
		{"far apart", 11, func(l *engine.Load) { l.Totals.InterToken = engine.Timed{Count: known(3000), Seconds: known(210)} }, false},
		{"few tokens", 1, func(l *engine.Load) { l.Totals.InterToken = engine.Timed{Count: known(1010), Seconds: known(50.5)} }, false},
	} {
		look := func(tokens, seconds, prompts float64) engine.Load {
			return engine.Load{
				Running: known(10), KVUsage: known(0.1), Totals: engine.Totals{
					InterToken: engine.Timed{Count: known(tokens), Seconds: known(seconds)}, PromptTokens: known(prompts), CachedTokens: known(100),
				},
			}
		}
		l, e := New(simple, true), Engine{}
		was, is := look(1000, 50, 5000), look(1200, 60, 6000)
		c.spoil(&is)
		l.Saw(&e, 100, &was)
		if got := l.Saw(&e, 100+c.after, &is); got != c.want || (l.Rows() > 0) != c.want {
			t.Errorf("%s: it is a row: %v", c.name, got)
		}
	}
}

// The terms of a row, by hand: 200 tokens in one second, 0.05 s apart, are 20 steps of 10 sequences; 1,000 prompt tokens of one request, 400 of
// them cached, hold up those of 11 that are not its own.
func TestARowByHand(t *testing.T) {
	p := simple
	p.Prefill.PerTokenSquared = 1e-8
	l := New(p, true)
	r, ok := l.step(&interval{seconds: 1, began: 10, tokens: 200, between: 10, prompt: 1000, cached: 400, requests: 1, held: 15000, running: 10})
	want := [terms]float64{0.04, 0.0002 * 10, 4e-7 * 15000, 600 * (0.0002 + 1e-8*1400) / 20 * 10 / 11}
	for j := range terms {
		if math.Abs(r.terms[j]-want[j]) > 1e-9 {
			t.Errorf("the terms are %v, want %v", r.terms, want)
			break
		}
	}
	if !ok || r.seconds != 0.05 {
		t.Errorf("a step took %g s", r.seconds)
	}
	// 40 requests of 1,000 tokens each, 32 of which ended after prompts of 0.25 s in the mean, while one decoded half of the time.
	p.Prefill.Base = 0.01
	l = New(p, true)
	r, ok = l.prompt(&interval{seconds: 100, between: 50, prompt: 40_000, requests: 40, ended: 32, prefilled: 8, held: 100 * 1000})
	beside := 1 - math.Exp(-0.5)
	want = [terms]float64{0.04 * beside, 0.0002 * 0.5, 4e-7 * 1000, 1000*(0.0002+1e-8*1000) + (1-beside)*0.01}
	for j := range terms {
		if math.Abs(r.terms[j]-want[j]) > 1e-9 {
			t.Errorf("the terms are %v, want %v", r.terms, want)
			break
		}
	}
	if !ok || r.seconds != 0.25 {
		t.Errorf("a prompt took %g s", r.seconds)
	}
}
