package learn

import (
	"math"
	"testing"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/profile"
)

// Two scrapes that are one second apart give a row, unless their difference is impossible.
func TestRows(t *testing.T) {
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
		{"more decode than run", 1, func(l *engine.Load) {
			l.Totals.InterToken = engine.Timed{Count: known(2000), Seconds: known(150)}
		}, false},
		{"fewer decode than run", 1, func(l *engine.Load) { l.Running = known(100) }, false},
		{"too soon", 0.5, func(*engine.Load) {}, false},
		{"no later", 0, func(*engine.Load) {}, false},
		{"before", -1, func(*engine.Load) {}, false},
		{"few steps, each long", 1, func(l *engine.Load) {
			l.Totals.InterToken = engine.Timed{Count: known(1050), Seconds: known(60)}
		}, false},
		{"far apart", 11, func(l *engine.Load) { l.Totals.InterToken = engine.Timed{Count: known(3000), Seconds: known(210)} }, false},
		{"few tokens", 1, func(l *engine.Load) { l.Totals.InterToken = engine.Timed{Count: known(1010), Seconds: known(50.5)} }, false},
	} {
		scrape := func(tokens, seconds, prompts float64) engine.Load {
			return engine.Load{
				Running: known(10), KVUsage: known(0.1), Totals: engine.Totals{
					InterToken: engine.Timed{Count: known(tokens), Seconds: known(seconds)}, PromptTokens: known(prompts),
					CachedTokens: known(100),
				},
			}
		}
		l, e := New(simple, true), Engine{}
		was, is := scrape(1000, 50, 5000), scrape(1200, 60, 6000)
		c.spoil(&is)
		l.Saw(&e, 100, &was, Sent{})
		if got := l.Saw(&e, 100+c.after, &is, Sent{}); got != c.want || (l.Rows() > 0) != c.want {
			t.Errorf("%s: it is a row: %v", c.name, got)
		}
	}
}

// The expected terms of a row are computed by hand. In one second, 200 tokens with 0.05 s between
// tokens are 20 steps of 10 sequences. One request has 1,000 prompt tokens, 400 of them cached, and
// delays the 10 sequences.
func TestRowByHand(t *testing.T) {
	p := simple
	p.Prefill.PerTokenSquared = 1e-8
	l := New(p, true)
	r, ok := l.step(&interval{
		seconds: 1, most: 11, tokens: 200, between: 10, prompt: 1000, cached: 400, requests: 1, held: 15000,
		running: 10,
	})
	want := [terms]float64{0.04, 0.0002 * 10, 4e-7 * 15000, 600 * (0.0002 + 1e-8*1400) / 20, l.unit / 20}
	if !alike(r.terms, want) {
		t.Errorf("the terms are %v, want %v", r.terms, want)
	}
	if !ok || r.kind != ofSteps || r.seconds != 0.05 || math.Abs(r.weight-10./12) > 1e-9 {
		t.Errorf("a step took %g s", r.seconds)
	}
	// 40 requests have 1,000 tokens each. 32 of them have ended; these have 1,100 tokens each, and
	// a mean prefill time of 0.25 s. One sequence decodes half of the time.
	p.Prefill.Base = 0.01
	l = New(p, true)
	r, ok = l.prompt(new(Engine), &interval{
		seconds: 100, between: 50, prompt: 40_000, requests: 40, ended: 32, prefilled: 8, counts: true,
		computed: 32 * 1100, held: 100 * 1000, most: 2,
	})
	beside := 1 - math.Exp(-0.5)
	want = [terms]float64{0.04*beside + 0.01*(1-beside), 0.0002 * 0.5, 4e-7 * 1000, 1100 * (0.0002 + 1e-8*1000), l.unit}
	if !alike(r.terms, want) {
		t.Errorf("the terms are %v, want %v", r.terms, want)
	}
	if !ok || r.kind != ofPrompts || r.seconds != 0.25 {
		t.Errorf("a prompt took %g s", r.seconds)
	}
}

// alike reports whether two rows have the same terms, apart from rounding.
func alike(a, b [terms]float64) bool {
	for j := range a {
		if math.Abs(a[j]-b[j]) > 1e-9 {
			return false
		}
	}
	return true
}

// For the same interval, a different profile or different counters give a row with different terms.
func TestOtherRows(t *testing.T) {
	steps := interval{seconds: 1, most: 11, tokens: 200, between: 10, prompt: 1000, requests: 1, running: 10}
	with := func(change func(i *interval)) interval {
		i := steps
		change(&i)
		return i
	}
	prompts := interval{seconds: 100, between: 50, prompt: 40_000, requests: 40, ended: 32, prefilled: 8, most: 2}
	beside := 1 - math.Exp(-0.5)
	for name, c := range map[string]struct {
		of       func(*profile.Profile)
		i        interval
		isPrompt bool
		want     [terms]float64 // terms of the row; the last one in units of Learner.unit
	}{
		"as it is": {nil, steps, false, [terms]float64{0.04, 0.002, 0, 0.2 / 20, 1. / 20}},
		"slow with adapters": {
			func(p *profile.Profile) { p.Decode.AdapterSlowdown = 2 }, with(func(i *interval) { i.adapters = true }),
			false,
			[terms]float64{0.08, 0.004, 0, 0.2 / 20, 1. / 20},
		},
		"slow with them, and without": {
			func(p *profile.Profile) { p.Decode.AdapterSlowdown = 2 }, steps, false, [terms]float64{0.04, 0.002, 0, 0.2 / 20, 1. / 20},
		},
		"nobody decodes beside a prompt": {
			nil, with(func(i *interval) { i.most = 1; i.running = 1; i.between = 1 }), false,
			[terms]float64{0.04, 0.0002, 0, 0, 0},
		},
		// The engine counts 25 steps of 8 sequences. Two steps have more than 16 tokens; they
		// computed four prompts.
		"engines count steps": {
			nil, with(func(i *interval) {
				i.sizes, i.steps, i.requests, i.prompt = true, 25, 4, 4000
				for k := range i.upTo {
					i.upTo[k] = 23
				}
			}), false, [terms]float64{0.04, 0.0016, 0, 0.8 / 25, 2. / 25},
		},
		// Steps with short prompts have no more tokens than steps without prompts. So it is assumed
		// that requests arrive at random. They waited 0.05 s each, which is half of a step.
		"prompts are too short to be counted": {
			nil, with(func(i *interval) {
				i.sizes, i.steps, i.requests, i.prompt, i.ended, i.queued, i.prefilled = true, 25, 4, 40, 4, 0.2, 0.4
			}), false, [terms]float64{0.04, 0.0016, 0, 0.008 / 25, 4 * -math.Expm1(-0.4) / 0.4 / 25},
		},
		"prompts": {nil, prompts, true, [terms]float64{0.04 * beside, 0.0001, 0, 0.2, 1}},
		"prompts that take longer than steps": {
			func(p *profile.Profile) { p.Prefill.Base = 0.1 }, prompts, true, [terms]float64{0.04, 0.0001, 0, 0.2, 1},
		},
		"prompts in two steps": {
			func(p *profile.Profile) { p.Limits.MaxBatchedTokens = 500 }, prompts, true,
			[terms]float64{2 * 0.04 * beside, 2 * 0.0001, 0, 0.2, 2},
		},
	} {
		p := simple
		if c.of != nil {
			c.of(&p)
		}
		l := New(p, true)
		read := l.step
		if c.isPrompt {
			read = func(i *interval) (row, bool) { return l.prompt(new(Engine), i) }
		}
		c.want[len(c.want)-1] *= l.unit
		if r, ok := read(&c.i); !ok || !alike(r.terms, c.want) {
			t.Errorf("%s: the terms are %v, want %v", name, r.terms, c.want)
		}
	}
}

// Rows of prompts use the prefill times of ended requests.
func TestRowsOfPrompts(t *testing.T) {
	known := engine.Known
	for _, c := range []struct {
		name  string
		spoil func(was, is *engine.Load)
		want  bool
	}{
		{"as it should be", func(_, _ *engine.Load) {}, true},
		{"somebody waits, and many run", func(_, is *engine.Load) { is.Waiting, is.Running = known(1), known(5) }, true},
		{"few have ended", func(_, is *engine.Load) { is.Totals.Prefill = engine.Timed{Count: known(3), Seconds: known(0.3)} }, false},
		{"it is not known for how long", func(_, is *engine.Load) { is.Totals.Prefill.Seconds = engine.Value{} }, false},
	} {
		scrape := func(requests float64) engine.Load {
			return engine.Load{
				Running: known(1), Waiting: known(0), KVUsage: known(0.1), Totals: engine.Totals{
					InterToken: engine.Timed{Count: known(0), Seconds: known(0)}, PromptTokens: known(100 * requests),
					CachedTokens: known(0),
					FirstToken:   engine.Timed{Count: known(requests), Seconds: known(requests)},
					Prefill:      engine.Timed{Count: known(requests), Seconds: known(0.1 * requests)},
				},
			}
		}
		l, e := New(simple, true), Engine{}
		was, is := scrape(0), scrape(40)
		c.spoil(&was, &is)
		l.Saw(&e, 100, &was, Sent{})
		if got := l.Saw(&e, 109, &is, Sent{}); got != c.want {
			t.Errorf("%s: it is a row: %v", c.name, got)
		}
	}
}

// If the senders know at least half of the running requests, the tokens of these requests determine
// what a step attends to. Otherwise the engine's number of cached tokens does.
func TestAttendedTokensOfAStep(t *testing.T) {
	for _, c := range []struct{ sent, context, want float64 }{
		{0, 0, 8000}, {4, 4000, 8000}, {5, 5000, 10_000}, {10, 20_000, 20_000},
	} {
		i := interval{seconds: 2, running: 2 * 10, held: 2 * 8000, sent: 2 * c.sent, context: 2 * c.context}
		if got := i.contexts(10); got != c.want {
			t.Errorf("with %v of 10 requests sent it is %v tokens, want %v", c.sent, got, c.want)
		}
	}
}
