package learn_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/internal/profile/learn"
	"github.com/headgate/headgate/internal/profile/table"
	"github.com/headgate/headgate/internal/sim"
)

// large is the profile of a model with 70 billion parameters on four GPUs.
var large = profile.Profile{
	Prefill: profile.Prefill{Base: 0.0131, PerToken: 0.000242},
	Decode:  profile.Decode{Base: 0.0433, PerSequence: 0.000183, PerKVToken: 3.72e-07},
	Limits:  profile.Limits{MaxSequences: 256, MaxBatchedTokens: 8192, KVBlocks: 16384, BlockSize: 16, GPUAdapters: 4, HostAdapters: 16},
}

// world contains simulated engines that get random requests.
type world struct {
	engines []*sim.Engine
	random  *rand.Rand
	now     float64
	rate    float64 // requests per second at each engine
	longer  int     // factor by which prompts are longer than in conversations
	adapter func() string
	shared  int          // number of tokens in a prefix that all prompts share
	sent    []learn.Sent // requests in flight at each engine
	tokens  []map[sim.ID]float64
}

func newWorld(t testing.TB, seed uint64, rate float64, of ...profile.Profile) *world {
	t.Helper()
	w := &world{random: rand.New(rand.NewPCG(seed, 1)), rate: rate, longer: 1, adapter: func() string { return "" }}
	for _, p := range of {
		e, err := sim.New(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		w.engines = append(w.engines, e)
	}
	w.sent, w.tokens = make([]learn.Sent, len(of)), make([]map[sim.ID]float64, len(of))
	for i := range w.tokens {
		w.tokens[i] = make(map[sim.ID]float64)
	}
	return w
}

// until simulates all engines up to the time then.
func (w *world) until(then float64) {
	length := func(median, sigma float64, most int) int {
		return min(max(1, int(median*math.Exp(sigma*w.random.NormFloat64()))), most)
	}
	for n, e := range w.engines {
		at := w.now
		for {
			at += w.random.ExpFloat64() / w.rate
			w.roll(n, min(at, then))
			if at >= then {
				break
			}
			prompt := make([]uint32, w.shared+w.longer*length(1020, 0.9, 4096))
			for i := w.shared; i < len(prompt); i++ {
				prompt[i] = w.random.Uint32()
			}
			if id, err := e.Submit(at, sim.Request{
				Adapter: w.adapter(), Prompt: prompt,
				Output: make([]uint32, length(129, 1, 1000)),
			}); err == nil {
				w.tokens[n][id] = float64(len(prompt)) + meanOutput/2
				w.sent[n].Requests, w.sent[n].Tokens = w.sent[n].Requests+1, w.sent[n].Tokens+w.tokens[n][id]
			}
		}
	}
	w.now = then
}

// meanOutput is the approximate mean number of output tokens.
const meanOutput = 200

// roll runs the engine with index n up to a time.
func (w *world) roll(n int, until float64) {
	e := w.engines[n]
	for {
		at, ok := e.Next()
		if !ok || at > until {
			return
		}
		for _, ev := range e.Advance(at) {
			if ev.Kind == sim.Finished {
				w.sent[n].Requests, w.sent[n].Tokens = w.sent[n].Requests-1, w.sent[n].Tokens-w.tokens[n][ev.ID]
				delete(w.tokens[n], ev.ID)
			}
		}
	}
}

// load returns what a scrape of a simulated engine would return.
func load(e *sim.Engine, of profile.Profile) engine.Load {
	c := e.Counts()
	return engine.Load{
		Running: engine.Known(float64(c.Running)), Waiting: engine.Known(float64(c.Waiting)), KVUsage: engine.Known(c.KVUsage),
		KVTokens: engine.Known(float64(of.Limits.KVBlocks * of.Limits.BlockSize)), Active: e.Active(nil),
		Totals: engine.Totals{
			Queue: timed(c.Queue), Prefill: timed(c.Prefill), Decode: timed(c.Decode), FirstToken: timed(c.FirstToken),
			InterToken:   timed(c.InterToken),
			PromptTokens: engine.Known(float64(c.PromptTokens)), CachedTokens: engine.Known(float64(c.CachedTokens)),
			GeneratedTokens: engine.Known(float64(c.GeneratedTokens)),
			PrefillTokens:   engine.Known(float64(c.PrefillTokens)), Steps: stepsOf(c.Steps),
		},
	}
}

func stepsOf(s sim.Steps) (is engine.Steps) {
	is.Count = engine.Known(float64(s.Count))
	for i, n := range s.UpTo {
		is.UpTo[i] = float64(n)
	}
	return is
}

func timed(t sim.Timed) engine.Timed {
	return engine.Timed{Count: engine.Known(float64(t.Count)), Seconds: engine.Known(t.Seconds)}
}

// observer is a Learner with the engines that it scrapes.
type observer struct {
	*learn.Learner
	engines []learn.Engine
	trusts  []float64 // times at which trust changed
}

func newObserver(prior profile.Profile, trusts bool, engines int) *observer {
	return &observer{Learner: learn.New(prior, trusts), engines: make([]learn.Engine, engines)}
}

// scrape scrapes all engines of a world five times per second, up to a time. spoil may change the
// result of each scrape.
func (o *observer) scrape(w *world, of profile.Profile, until float64, spoil func(engine int, at *float64, found *engine.Load)) {
	trusted := o.Trusted()
	for w.now < until {
		w.until(w.now + 0.2)
		for i := range o.engines {
			found, at := load(w.engines[i], of), w.now
			if spoil != nil {
				spoil(i, &at, &found)
			}
			o.Saw(&o.engines[i], at, &found, w.sent[i])
			if o.Trusted() != trusted {
				trusted, o.trusts = !trusted, append(o.trusts, w.now)
			}
		}
	}
}

// wrong returns the largest absolute log error of predicted step times, for typical work. The
// profile is predicts the times, and the profile of has the true times.
func wrong(is, of profile.Profile, sequences int) (most float64) {
	works := []profile.Work{{Sequences: sequences, KVTokens: 1500 * sequences}, {}, {Sequences: sequences, KVTokens: 1500 * sequences}}
	works[1].AddPrompt(0, 1500)
	works[2].AddPrompt(0, 1500)
	for _, work := range works {
		most = max(most, math.Abs(math.Log(is.StepTime(work)/of.StepTime(work))))
	}
	return most
}

// A single client repeats four prompts. The mean of four prefill times is then always the same, so
// only single ones show how the time depends on the length of the prompt.
func TestSingleClientRepeatsItsPrompts(t *testing.T) {
	lengths := [...]int{56, 175, 420, 770}
	truth := profile.Profile{
		Prefill: profile.Prefill{Base: 0.025, PerToken: 0.00027},
		Decode:  profile.Decode{Base: 0.025, PerSequence: 0.0005, PerKVToken: 3e-7},
		Limits:  profile.Limits{MaxSequences: 256, MaxBatchedTokens: 8192, KVBlocks: 61000, BlockSize: 16},
	}
	prior := truth
	prior.Prefill = profile.Prefill{Base: 0.05, PerToken: 0.0002}
	w := newWorld(t, 1, 1, truth)
	o := newObserver(prior, false, 1)
	running, scraped := 0, 0.2
	for n := uint32(0); w.now < 120; {
		if running == 0 {
			prompt := make([]uint32, lengths[n%4])
			for i := range prompt {
				prompt[i] = n<<16 | uint32(i) //nolint:gosec // lengths are small
			}
			if _, err := w.engines[0].Submit(w.now, sim.Request{Prompt: prompt, Output: make([]uint32, 8+16*(n%3))}); err != nil {
				t.Fatal(err)
			}
			n, running = n+1, 1
		}
		at, ok := w.engines[0].Next()
		if !ok {
			t.Fatal("the engine does nothing")
		}
		for ; scraped < at; scraped += 0.2 {
			found := load(w.engines[0], truth)
			o.Saw(&o.engines[0], scraped, &found, learn.Sent{Requests: 1, Tokens: 400})
		}
		w.now = at
		for _, ev := range w.engines[0].Advance(at) {
			if ev.Kind == sim.Finished {
				running = 0
			}
		}
	}
	is := o.Profile()
	for _, tokens := range lengths {
		work := profile.Work{}
		work.AddPrompt(0, tokens)
		if ratio := is.StepTime(work) / truth.StepTime(work); math.Abs(math.Log(ratio)) > 0.1 {
			t.Errorf("a prompt of %d tokens is taken to need %.2f times as long as it does: %+v", tokens, ratio, is.Prefill)
		}
	}
}

// Prompts may take most of a second. They are counted when they have been computed, often in a
// later interval than the one in which they delayed others. So intervals must be much longer than
// prompts.
func TestLongPrompts(t *testing.T) {
	quick := profile.Profile{
		Prefill: profile.Prefill{Base: 0.0085, PerToken: 5.9e-05},
		Decode:  profile.Decode{Base: 0.0083, PerSequence: 0.000174, PerKVToken: 1.2e-07},
		Limits:  profile.Limits{MaxSequences: 256, MaxBatchedTokens: 2048, KVBlocks: 61000, BlockSize: 16},
	}
	for _, rate := range []float64{0.3, 0.6, 0.8} {
		w := newWorld(t, 1, rate, quick, quick, quick, quick)
		w.longer = 10
		o := newObserver(quick, true, len(w.engines))
		o.scrape(w, quick, 600, nil)
		is := o.Profile()
		t.Logf("%g a second: %+v, %+v", rate, is.Prefill, is.Decode)
		if times := is.Prefill.PerToken / quick.Prefill.PerToken; times < 0.75 || times > 1.25 || len(o.trusts) > 0 {
			t.Errorf("%g a second: prompts are taken to be %.2f times as long as they are; trust changed at %v", rate, times, o.trusts)
		}
	}
}

// The learned profile matches the engines and becomes trusted, whatever profile was configured,
// under light and heavy load. An engine that is slower than its kind is recognized.
func TestLearnedProfileMatchesTheEngines(t *testing.T) {
	for _, prior := range []struct {
		name    string
		of      profile.Profile
		trusted bool
	}{
		{"true", large, true},
		{"generic", table.Generic(), false},
		{"ten times as long", large.Times(10), true},
		{"a tenth", large.Times(0.1), true},
	} {
		for rate, sequences := range map[float64]int{0.05: 1, 0.3: 4, 1: 15} {
			o := newObserver(prior.of, prior.trusted, 4)
			o.scrape(newWorld(t, 1, rate, large, large, large, large.Times(2)), large, 600, nil)
			if off := wrong(o.Of(&o.engines[0]), large, sequences); off > 0.22 {
				t.Errorf("%s, %g a second: it is off by %.2f: %+v", prior.name, rate, off, o.Of(&o.engines[0]))
			}
			if off := wrong(o.Of(&o.engines[3]), large.Times(2), sequences); off > 0.25 ||
				o.engines[3].Factor() < 1.7*o.engines[0].Factor() {
				t.Errorf("%s, %g a second: of the slow one it is off by %.2f, its factor is %.2f", prior.name, rate, off,
					o.engines[3].Factor())
			}
			t.Logf("%s, %g a second: %+v %+v off %.2f %.2f", prior.name, rate, o.Profile().Prefill, o.Profile().Decode,
				wrong(o.Of(&o.engines[0]), large, sequences), wrong(o.Of(&o.engines[3]), large.Times(2), sequences))
			if !o.Trusted() || len(o.trusts) > 1 || o.Residual() > 0.1 {
				t.Errorf("%s, %g a second: it is trusted: %v, which changed at %v; predictions are off by %.2f", prior.name, rate,
					o.Trusted(), o.trusts, o.Residual())
			}
			p := o.Profile()
			if again, err := profile.Parse(profile.Format(p)); err != nil || again != p {
				t.Errorf("%s: what is learned cannot be written: %v", prior.name, err)
			}
		}
	}
}

// Scrapes with missing or impossible values do not harm the learned profile.
func TestBrokenScrapes(t *testing.T) {
	var random *rand.Rand // each case has its own source, so that its result does not depend on other cases
	unknown, huge := engine.Value{}, engine.Known(1e300)
	var counted [4]engine.Totals
	jumped := 0.0
	for name, spoil := range map[string]func(i int, at *float64, found *engine.Load){
		"no totals": func(i int, _ *float64, found *engine.Load) {
			if i%2 == 0 || random.IntN(10) == 0 {
				found.Totals = engine.Totals{}
			}
		},
		"NaN": func(_ int, _ *float64, found *engine.Load) {
			if random.IntN(10) == 0 {
				found.Totals.InterToken.Seconds = engine.Known(math.NaN())
			}
			if random.IntN(10) == 0 {
				found.KVUsage = unknown
			}
		},
		"huge": func(_ int, _ *float64, found *engine.Load) {
			if random.IntN(20) == 0 {
				found.Totals.InterToken.Seconds = huge
			}
			if random.IntN(20) == 0 {
				found.Totals.PromptTokens = huge
			}
		},
		"counters begin anew": func(i int, _ *float64, found *engine.Load) {
			if random.IntN(30) == 0 {
				counted[i] = found.Totals
			}
			less := func(v, by engine.Value) engine.Value { return engine.Known(max(0, v.Or(0)-by.Or(0))) }
			is, was := &found.Totals, counted[i]
			for _, f := range []struct{ is, was *engine.Timed }{
				{&is.Prefill, &was.Prefill}, {&is.FirstToken, &was.FirstToken}, {&is.InterToken, &was.InterToken},
			} {
				f.is.Count, f.is.Seconds = less(f.is.Count, f.was.Count), less(f.is.Seconds, f.was.Seconds)
			}
			is.PromptTokens, is.CachedTokens = less(is.PromptTokens, was.PromptTokens), less(is.CachedTokens, was.CachedTokens)
		},
		"the clock jumps": func(_ int, at *float64, _ *engine.Load) {
			if random.IntN(40) == 0 {
				jumped += random.NormFloat64() * 5
			}
			*at += jumped
		},
		"the clock stands": func(_ int, at *float64, _ *engine.Load) { *at = math.Floor(*at/5) * 5 },
		"no clock":         func(_ int, at *float64, _ *engine.Load) { *at = math.NaN() },
	} {
		for _, trusted := range []bool{true, false} {
			random, counted, jumped = rand.New(rand.NewPCG(1, 2)), [4]engine.Totals{}, 0
			prior := table.Generic()
			if trusted {
				prior = large
			}
			o := newObserver(prior, trusted, 4)
			o.scrape(newWorld(t, 2, 1, large, large, large, large), large, 400, spoil)
			off := wrong(o.Of(&o.engines[1]), large, 15)
			if (trusted || o.Trusted()) && off > 0.25 || len(o.trusts) > 1 || trusted && !o.Trusted() {
				t.Errorf("%s: it is off by %.2f, trusted: %v, which changed at %v: %+v", name, off, o.Trusted(), o.trusts, o.Profile())
			}
			if !trusted && !o.Trusted() && name != "no clock" && name != "the clock stands" {
				t.Errorf("%s: it is not trusted after %d rows", name, o.Rows())
			}
		}
	}
}

// An engine counts a shared prefix once, but each sequence attends to it. The learned step times
// are still those of sequences with whole prompts.
func TestSharedPrefixes(t *testing.T) {
	w := newWorld(t, 1, 2, large, large)
	w.shared, w.longer = 8000, 0
	o := newObserver(large, true, 2)
	o.scrape(w, large, 300, nil)
	is := o.Profile()
	work := profile.Work{Sequences: 20, KVTokens: 20 * (w.shared + meanOutput/2)}
	if times := is.StepTime(work) / large.StepTime(work); times < 0.9 || times > 1.1 {
		t.Errorf("a step is taken to be %.2f times as long as it is: %+v", times, is.Decode)
	}
}

// If the engines change, the learned profile follows. It is not trusted while its error is large.
func TestWorldChanges(t *testing.T) {
	o := newObserver(large, true, 2)
	o.scrape(newWorld(t, 3, 1, large, large), large, 300, nil)
	if len(o.trusts) > 0 {
		t.Errorf("trust changed at %v", o.trusts)
	}
	slow := large.Times(3)
	slow.Prefill.PerToken /= 4
	o.scrape(newWorld(t, 4, 0.5, slow, slow), large, 600, nil)
	if off := wrong(o.Of(&o.engines[0]), slow, 15); off > 0.25 || !o.Trusted() || len(o.trusts) > 2 {
		t.Errorf("it is off by %.2f, trusted: %v, which changed at %v", off, o.Trusted(), o.trusts)
	}
}

// Adapter loads delay some steps. They must not change the learned step times.
func TestAdapterLoadsDelaySteps(t *testing.T) {
	of := large
	of.AdapterLoad, of.AdapterActivation = profile.Spread{Mean: 0.25}, profile.Spread{Mean: 0.02}
	w := newWorld(t, 5, 0.5, of, of)
	w.adapter = func() string { return string(rune('a' + w.random.IntN(3)*w.random.IntN(8))) }
	o := newObserver(large, true, 2)
	o.scrape(w, of, 600, nil)
	if off := wrong(o.Of(&o.engines[0]), of, 8); off > 0.25 || !o.Trusted() {
		t.Errorf("it is off by %.2f, trusted: %v, residual %.2f: %+v", off, o.Trusted(), o.Residual(), o.Profile())
	}
}

// A pinned profile does not change.
func TestPin(t *testing.T) {
	o := newObserver(table.Generic(), false, 1)
	o.Pin()
	o.scrape(newWorld(t, 1, 1, large), large, 60, nil)
	if p := o.Of(&o.engines[0]); p != table.Generic() || !o.Trusted() || o.Rows() != 0 {
		t.Errorf("%d rows were learned: %+v", o.Rows(), p)
	}
}

func TestScrapeAllocatesNothing(t *testing.T) {
	w := newWorld(t, 1, 1, large)
	o := newObserver(large, true, 1)
	w.until(20)
	var all []engine.Load
	for range 200 {
		w.until(w.now + 1)
		all = append(all, load(w.engines[0], large))
	}
	at := 0
	if n := testing.AllocsPerRun(190, func() {
		o.Saw(&o.engines[0], float64(at)*1.1, &all[at], learn.Sent{})
		at++
	}); n != 0 || o.Rows() < 50 {
		t.Errorf("a look allocates %g times; %d rows", n, o.Rows())
	}
}

func BenchmarkLook(b *testing.B) {
	w := newWorld(b, 1, 1, large)
	o := newObserver(large, true, 1)
	var all []engine.Load
	for range 1000 {
		w.until(w.now + 1.5)
		all = append(all, load(w.engines[0], large))
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		o.Saw(&o.engines[0], float64(n)*1.5, &all[n%len(all)], learn.Sent{})
		n++
	}
}

// launched is the profile of an engine on which every step with a prompt takes long.
var launched = profile.Profile{
	Prefill: profile.Prefill{Base: 0.053, PerToken: 1e-6},
	Decode:  profile.Decode{Base: 0.008, PerSequence: 0.00005, PerKVToken: 3e-8},
	Limits:  profile.Limits{MaxSequences: 256, MaxBatchedTokens: 8192, KVBlocks: 100000, BlockSize: 16},
}

// Nearly all steps have a prompt, and the configured extra time of such steps is far too long. The
// Learner does not subtract it, because most of the measured time would be gone.
func TestConfiguredBaseThatIsTooLong(t *testing.T) {
	said, is := launched, launched
	said.Prefill.Base, is.Prefill.Base = 4*launched.Prefill.Base, is.Decode.Base
	o, w := newObserver(said, true, 1), newWorld(t, 5, 50, is)
	w.until(60)
	o.scrape(w, said, 180, nil)
	if o.Rows() < 100 || o.Residual() > 0.2 {
		t.Errorf("after %d rows the latest are off by %.2f: %+v", o.Rows(), o.Residual(), o.Profile())
	}
}

// An engine computes several prompts in some steps, and reports neither prefill times nor step
// sizes. Its profile is learned from the times between tokens.
func TestUnreportedStepsWithSeveralPrompts(t *testing.T) {
	o := newObserver(launched, true, 1)
	o.scrape(newWorld(t, 6, 30, launched), launched, 120, func(_ int, _ *float64, found *engine.Load) {
		found.Totals.Prefill, found.Totals.Queue, found.Totals.Steps = engine.Timed{}, engine.Timed{}, engine.Steps{}
		found.Totals.PrefillTokens = engine.Value{}
	})
	if off := wrong(o.Of(&o.engines[0]), launched, 60); o.Rows() < 100 || off > 0.35 {
		t.Errorf("after %d rows it is off by %.2f: %+v", o.Rows(), off, o.Profile())
	}
}

// Mixed steps take longer than the sum of their terms. The extra time is learned as one term, and
// not added a second time.
func TestMixedStepsCountOnce(t *testing.T) {
	is := large
	is.MixedBatchOverhead = 0.03
	o := newObserver(is, true, 1)
	o.scrape(newWorld(t, 7, 1, is), is, 300, nil)
	p, work := o.Profile(), profile.Work{PromptTokens: 500, Squares: 250_000, Sequences: 20, KVTokens: 20 * 1200}
	if times := p.StepTime(work) / is.StepTime(work); o.Rows() < 100 || times < 0.95 || times > 1.08 {
		t.Errorf("after %d rows a step with a prompt is taken to be %.2f times as long as it is: %+v", o.Rows(), times, p)
	}
}
