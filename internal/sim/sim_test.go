package sim

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/internal/profile"
)

func tight() profile.Profile {
	return profile.Profile{
		Prefill:           profile.Prefill{Base: 0.01, PerToken: 0.0001},
		Decode:            profile.Decode{Base: 0.02, PerSequence: 0.0001, PerKVToken: 1e-7},
		AdapterLoad:       profile.Spread{Mean: 0.2, StdDev: 0.05},
		AdapterActivation: profile.Spread{Mean: 0.02, StdDev: 0.01},
		Limits: profile.Limits{
			MaxSequences: 5, MaxBatchedTokens: 40, KVBlocks: 25, BlockSize: 4, GPUAdapters: 2, HostAdapters: 3,
		},
	}
}

// either returns a profile whose engine schedules asynchronously for some seeds, synchronously for
// others.
func either(seed uint64) profile.Profile {
	p := tight()
	if p.AsyncScheduling = seed%2 == 1; p.AsyncScheduling {
		p.LaunchOverhead = 0.01 * float64(seed%3)
	}
	return p
}

// randomLoad returns random actions for an engine: requests that share prefixes and adapters, some
// of which are cancelled, and some adapter loads.
func randomLoad(seed uint64, n int) []step {
	r := rand.New(rand.NewPCG(seed, 1))
	var steps []step
	at := 0.0
	for range n {
		at += r.ExpFloat64() * 0.05
		s := step{at: at, cancelAfter: -1}
		switch draw := r.IntN(20); {
		case draw == 0:
			s.load = fmt.Sprintf("a%d", r.IntN(5))
		case draw < 4:
			s.cancelAfter = r.IntN(12)
		}
		if a := r.IntN(6); a > 0 {
			s.request.Adapter = fmt.Sprintf("a%d", a-1)
		}
		family := uint32(r.IntN(3))
		for i := range r.IntN(30) {
			s.request.Prompt = append(s.request.Prompt, family<<16|uint32(i))
		}
		for range 1 + r.IntN(30) {
			s.request.Prompt = append(s.request.Prompt, r.Uint32())
		}
		for range 1 + r.IntN(30) {
			s.request.Output = append(s.request.Output, r.Uint32())
		}
		steps = append(steps, s)
	}
	return steps
}

// step is one action of a test load, with its time.
type step struct {
	at          float64
	load        string
	request     Request
	cancelAfter int // number of engine steps after which the request is cancelled; -1 for never
}

// drive runs a load to its end on an engine. It calls check after every step, and returns all
// events.
func drive(t *testing.T, e *Engine, load []step, check func([]Event)) []Event {
	t.Helper()
	var all []Event
	cancels := map[int][]ID{}
	for n := 0; ; n++ {
		if n > 1e6 {
			t.Fatal("a million steps and no end")
		}
		at, ok := e.Next()
		if !ok && len(load) == 0 {
			return all
		}
		if len(load) > 0 && (!ok || load[0].at <= at) {
			s := load[0]
			load = load[1:]
			if s.load != "" {
				if _, err := e.Load(s.at, s.load); err != nil {
					t.Fatal(err)
				}
				continue
			}
			id, err := e.Submit(s.at, s.request)
			if err != nil {
				t.Fatal(err)
			}
			if s.cancelAfter >= 0 {
				cancels[n+s.cancelAfter] = append(cancels[n+s.cancelAfter], id)
			}
			continue
		}
		events := e.Advance(at)
		check(events)
		all = append(all, events...)
		for _, id := range cancels[n] {
			if e.Cancel(id) {
				all = append(all, Event{At: at, ID: id}) // an event without a kind marks a cancellation
			}
		}
	}
}

// Under any load, every request ends exactly once, after all its tokens in order, and the engine
// never exceeds a limit.
func TestNoRequestIsLostAndNoLimitIsExceeded(t *testing.T) {
	for seed := range uint64(40) {
		e, err := New(either(seed), rand.New(rand.NewPCG(seed, 2)).NormFloat64)
		if err != nil {
			t.Fatal(err)
		}
		load := randomLoad(seed, 150)
		all := drive(t, e, load, func(events []Event) {
			checkInvariants(t, e)
			checkAdmission(t, events)
		})

		submitted, ended := 0, 0
		for _, s := range load {
			if s.load == "" {
				submitted++
			}
		}
		next, over := map[ID]int{}, map[ID]bool{}
		last := 0.0
		for _, ev := range all {
			if ev.At < last {
				t.Fatalf("seed %d: time goes back from %v to %v", seed, last, ev.At)
			}
			last = ev.At
			if ev.ID != 0 && over[ev.ID] {
				t.Fatalf("seed %d: %+v after its end", seed, ev)
			}
			switch ev.Kind {
			case Token:
				if ev.Index != next[ev.ID] {
					t.Fatalf("seed %d: request %d has token %d, want %d", seed, ev.ID, ev.Index, next[ev.ID])
				}
				next[ev.ID]++
			case Finished:
				r := ev.Record
				if !(r.Arrived <= r.Scheduled && r.Scheduled <= r.FirstToken && r.FirstToken <= r.LastToken && r.LastToken == ev.At) {
					t.Fatalf("seed %d: times out of order: %+v", seed, r)
				}
				over[ev.ID], ended = true, ended+1
			case 0:
				over[ev.ID], ended = true, ended+1
			}
		}
		if ended != submitted {
			t.Errorf("seed %d: %d requests submitted, %d ended", seed, submitted, ended)
		}
		c := e.Counts()
		if c.Running != 0 || c.Waiting != 0 || c.Deferred != 0 || c.KVUsage != 0 || len(e.Active(nil)) != 0 || len(e.live) != 0 {
			t.Errorf("seed %d: something is left: %+v", seed, c)
		}
		if c.Preemptions == 0 || c.PrefixHits == 0 || c.HostLoads <= uint64(len(e.Host())) {
			t.Errorf("seed %d: the load is too light to show anything: %+v", seed, c)
		}
	}
}

// checkAdmission fails the test if a step with a preemption admitted a request.
func checkAdmission(t *testing.T, events []Event) {
	t.Helper()
	preempted := false
	for _, ev := range events {
		preempted = preempted || ev.Kind == Preempted
		if preempted && ev.Kind == Scheduled {
			t.Fatalf("request %d was admitted in a step that preempted", ev.ID)
		}
	}
}

// checkInvariants checks the engine's state between steps.
func checkInvariants(t *testing.T, e *Engine) {
	t.Helper()
	if limit := e.profile.Limits.MaxSequences; len(e.running) > limit {
		t.Fatalf("%d sequences run, at most %d may", len(e.running), limit)
	}
	deferred := 0
	for _, s := range e.waiting {
		if len(s.blocks) != 0 || s.computed != 0 {
			t.Fatalf("sequence %d waits and holds blocks", s.id)
		}
		if s.deferred {
			deferred++
		}
	}
	if deferred != e.deferred {
		t.Fatalf("%d deferred, counted %d", deferred, e.deferred)
	}
	checkBlocks(t, e)
	checkAdapters(t, e)
}

// checkBlocks checks that every block is either free or referenced by exactly its users.
func checkBlocks(t *testing.T, e *Engine) {
	t.Helper()
	uses := make([]int32, len(e.kv.blocks))
	for _, s := range e.running {
		if need := e.kv.blocksFor(s.computed); need != len(s.blocks) {
			t.Fatalf("sequence %d has computed %d tokens and holds %d blocks, want %d", s.id, s.computed, len(s.blocks), need)
		}
		for _, b := range s.blocks {
			uses[b]++
		}
	}
	listed := 0
	for b := e.kv.oldest; b != none; b = e.kv.blocks[b].next {
		if listed++; uses[b] != 0 {
			t.Fatalf("block %d is used and free", b)
		}
	}
	idle := 0
	for b, want := range uses {
		if e.kv.blocks[b].uses != want {
			t.Fatalf("block %d counts %d uses, has %d", b, e.kv.blocks[b].uses, want)
		}
		if want == 0 {
			idle++
		}
	}
	if listed != e.kv.listed || listed != idle {
		t.Fatalf("%d free blocks listed, counted %d, are %d", listed, e.kv.listed, idle)
	}
}

// checkAdapters checks the limits of slots and host memory, and that all adapters of the current
// step are in slots.
func checkAdapters(t *testing.T, e *Engine) {
	t.Helper()
	running := map[string]bool{}
	for _, s := range e.running {
		if s.Adapter != "" {
			running[s.Adapter] = true
		}
	}
	limits, slots, host := e.profile.Limits, e.Slots(), e.Host()
	if len(slots) > limits.GPUAdapters || len(host) > limits.HostAdapters || len(running) > limits.GPUAdapters {
		t.Fatalf("slots %v, host memory %v, running adapters %v: over the limits", slots, host, running)
	}
	for _, a := range slots {
		if !slices.Contains(host, a) {
			t.Fatalf("%s is in a slot and not in host memory", a)
		}
	}
	for _, b := range e.batch {
		// Only the sequences in this step need their adapters in slots. For lack of token budget, a
		// running sequence may be in no step.
		if a := b.s.Adapter; a != "" && e.live[b.s.id] != nil && !slices.Contains(slots, a) {
			t.Fatalf("%s is in the step and not in a slot", a)
		}
	}
}

// A step computes at most MaxBatchedTokens tokens of prompts and outputs together.
func TestStepsKeepToTheTokenBudget(t *testing.T) {
	p := tight()
	// With this profile, a step takes one second per token, so its time shows the number of tokens.
	p.Prefill, p.Decode = profile.Prefill{PerToken: 1}, profile.Decode{PerSequence: 1}
	p.AdapterLoad, p.AdapterActivation = profile.Spread{}, profile.Spread{}
	e, err := New(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	started, full := 0.0, 0
	drive(t, e, randomLoad(7, 200), func([]Event) {
		if e.busy {
			tokens := math.Round(e.until - started)
			if tokens > float64(p.Limits.MaxBatchedTokens) {
				t.Errorf("a step of %v tokens", tokens)
			}
			if tokens == float64(p.Limits.MaxBatchedTokens) {
				full++
			}
			started = e.until
			return
		}
		started, _ = e.Next()
	})
	if full == 0 {
		t.Error("no step was full")
	}
}

func TestDeterminism(t *testing.T) {
	run := func() []Event {
		e, err := New(tight(), rand.New(rand.NewPCG(3, 4)).NormFloat64)
		if err != nil {
			t.Fatal(err)
		}
		return drive(t, e, randomLoad(11, 300), func([]Event) {})
	}
	if diff := cmp.Diff(run(), run()); diff != "" {
		t.Errorf("two runs differ:\n%s", diff)
	}
}

func TestRequestThatNeverFitsIsRefused(t *testing.T) {
	p := tight()
	e, err := New(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	tokens := make([]uint32, 200)
	for _, c := range []struct {
		request Request
		want    error
	}{
		{Request{Output: tokens[:1]}, ErrEmpty},
		{Request{Prompt: tokens[:1]}, ErrEmpty},
		{Request{Prompt: tokens[:e.MaxTokens()], Output: tokens[:1]}, ErrTooLong},
		{Request{Prompt: tokens[:e.MaxTokens()-1], Output: tokens[:1]}, nil},
	} {
		if _, err := e.Submit(0, c.request); !errors.Is(err, c.want) {
			t.Errorf("%d prompt and %d output tokens: %v, want %v", len(c.request.Prompt), len(c.request.Output), err, c.want)
		}
	}
	p.Limits.GPUAdapters = 0
	if e, err = New(p, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Submit(0, Request{Adapter: "a", Prompt: tokens[:1], Output: tokens[:1]}); !errors.Is(err, ErrNoSlots) {
		t.Errorf("a request for an adapter without slots: %v", err)
	}
	if _, err := e.Load(0, "a"); !errors.Is(err, ErrNoSlots) {
		t.Errorf("a load without slots: %v", err)
	}
}

// BenchmarkDecode measures one step of a full batch that only decodes.
func BenchmarkDecode(b *testing.B) {
	p := tight()
	p.Limits = profile.Limits{MaxSequences: 256, MaxBatchedTokens: 8192, KVBlocks: 16384, BlockSize: 16, GPUAdapters: 4, HostAdapters: 16}
	e, err := New(p, nil)
	if err != nil {
		b.Fatal(err)
	}
	output := make([]uint32, 800)
	adapters := []string{"", "a", "b", "c", "d"}
	submit := func(i int) {
		prompt := []uint32{uint32(i), uint32(i >> 16), 3}
		if _, err := e.Submit(0, Request{Adapter: adapters[i%5], Prompt: prompt, Output: output[:1+i%len(output)]}); err != nil {
			b.Fatal(err)
		}
	}
	for i := range 512 {
		submit(i)
	}
	n := 512
	b.ReportAllocs()
	for b.Loop() {
		at, _ := e.Next()
		for _, ev := range e.Advance(at) {
			if ev.Kind == Finished {
				submit(n)
				n++
			}
		}
	}
}

// Cached returns the number of tokens that a request finds in the cache if it is scheduled
// immediately.
func TestCachedPredictsHits(t *testing.T) {
	e, err := New(tight(), nil)
	if err != nil {
		t.Fatal(err)
	}
	size := tight().Limits.BlockSize
	prompt := make([]uint32, 3*size)
	for i := range prompt {
		prompt[i] = uint32(i)
	}
	cached := func(adapter string, prompt []uint32) int {
		p := PrefixOf(adapter, prompt)
		if first, again := e.Cached(&p), e.Cached(&p); again != first {
			t.Errorf("Cached says %d, and then %d", first, again)
		}
		return e.Cached(&p)
	}
	now := 0.0
	run := func(r Request) (found int) {
		if _, err := e.Submit(now, r); err != nil {
			t.Fatal(err)
		}
		for {
			at, ok := e.Next()
			if !ok {
				return found
			}
			now = at
			for _, ev := range e.Advance(at) {
				if ev.Kind == Scheduled {
					found = ev.Record.Cached
				}
			}
		}
	}
	if got := cached("", prompt); got != 0 {
		t.Errorf("an engine that has done nothing has %d tokens", got)
	}
	run(Request{Prompt: prompt, Output: []uint32{1}})
	for _, r := range []Request{
		{Prompt: prompt},
		{Prompt: prompt[:2*size+1]},
		{Prompt: prompt[:size]},
		{Prompt: append(append([]uint32{}, prompt[:size]...), 99, 98, 97)},
		{Adapter: "a", Prompt: prompt},
		{Prompt: []uint32{7}},
	} {
		want := cached(r.Adapter, r.Prompt)
		r.Output = []uint32{1}
		if got := run(r); got != want {
			t.Errorf("%d tokens for %q find %d, and Cached says %d", len(r.Prompt), r.Adapter, got, want)
		}
	}
	if got := cached("", prompt); got != 2*size {
		t.Errorf("Cached says %d, want all full blocks but the last, %d", got, 2*size)
	}
	if cached("", nil) != 0 {
		t.Error("an empty prompt has tokens")
	}
}

// At any time, a copy of an engine behaves like the original. After that, the copy and the original
// do not affect each other.
func TestCopy(t *testing.T) {
	for seed := range uint64(40) {
		p := either(seed)
		random := rand.New(rand.NewPCG(seed, 1))
		e, err := New(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		now := 0.0
		ids := []ID{}
		// act performs the same action on each engine, and returns the events of each engine.
		act := func(engines ...*Engine) [][]Event {
			all := make([][]Event, len(engines))
			adapter := []string{"", "a", "b", "c"}[random.IntN(4)]
			prompt := make([]uint32, 1+random.IntN(3*p.Limits.BlockSize))
			for i := range prompt {
				prompt[i] = uint32(i / 5 * random.IntN(2))
			}
			output, which, do := make([]uint32, 1+random.IntN(6)), random.IntN(max(1, len(ids))), random.IntN(12)
			for i, e := range engines {
				switch {
				case do < 4:
					id, err := e.Submit(now, Request{Adapter: adapter, Prompt: prompt, Output: output})
					if err == nil && i == 0 {
						ids = append(ids, id)
					}
				case do == 4 && adapter != "":
					_, _ = e.Load(now, adapter)
				case do == 5 && len(ids) > 0:
					e.Cancel(ids[which])
				default:
					if at, ok := e.Next(); ok {
						all[i] = slices.Clone(e.Advance(max(at, now)))
						if i == len(engines)-1 {
							now = max(at, now)
						}
					}
				}
			}
			return all
		}
		for range random.IntN(60) {
			act(e)
		}
		c := e.Copy(nil)
		aside := e.Copy(nil)
		for range 100 {
			was, active := e.Counts(), e.Active(nil)
			aside.Cancel(ID(1 + random.IntN(20))) // must not affect the other engines
			if at, ok := aside.Next(); ok {
				aside.Advance(at)
			}
			if e.Counts() != was || !slices.Equal(e.Active(nil), active) {
				t.Fatalf("seed %d: the engine has %+v and %v once a copy has gone on, want %+v and %v", seed, e.Counts(), e.Active(nil),
					was, active)
			}
			both := act(e, c)
			if !slices.Equal(both[0], both[1]) || e.Counts() != c.Counts() || !slices.Equal(e.Slots(), c.Slots()) ||
				!slices.Equal(e.Host(), c.Host()) || !slices.Equal(e.Active(nil), c.Active(nil)) {
				t.Fatalf("seed %d: the engine says %v, %+v, and the copy %v, %+v", seed, both[0], e.Counts(), both[1], c.Counts())
			}
			at, ok := e.Next()
			if its, some := c.Next(); at != its || ok != some {
				t.Fatalf("seed %d: the engine goes on at %g, %v, and the copy at %g, %v", seed, at, ok, its, some)
			}
		}
	}
}

// The timing counters agree with the events and Records, even if requests were preempted.
func TestTotals(t *testing.T) {
	for seed := range uint64(10) {
		e, err := New(either(seed), nil)
		if err != nil {
			t.Fatal(err)
		}
		var want Counts
		latest, cached := map[ID]float64{}, map[ID]int{}
		arrived, prompt := map[ID]float64{}, map[ID]int{}
		drive(t, e, randomLoad(seed, 300), func(events []Event) {
			tokens := 0 // number of tokens in the step that has just ended
			for _, ev := range events {
				switch ev.Kind {
				case Scheduled:
					arrived[ev.ID], cached[ev.ID] = ev.Record.Arrived, ev.Record.Cached
					prompt[ev.ID] = len(e.live[ev.ID].Prompt)
				case Token:
					want.GeneratedTokens++
					tokens++
					if ev.Index == 0 {
						tokens += prompt[ev.ID] - cached[ev.ID]
						want.FirstToken.add(ev.At - arrived[ev.ID])
						want.PromptTokens += uint64(prompt[ev.ID])
						want.CachedTokens += uint64(cached[ev.ID])
					} else {
						want.InterToken.add(ev.At - latest[ev.ID])
					}
					latest[ev.ID] = ev.At
				case Finished:
					want.PrefillTokens += uint64(prompt[ev.ID] - cached[ev.ID])
					want.Queue.add(ev.Record.Scheduled - ev.Record.Arrived)
					want.Prefill.add(ev.Record.FirstToken - ev.Record.Scheduled)
					want.Decode.add(ev.Record.LastToken - ev.Record.FirstToken)
				default:
				}
			}
			if tokens > 0 {
				want.Steps.Count++
				for i := range want.Steps.UpTo {
					if tokens <= 1<<i {
						want.Steps.UpTo[i]++
					}
				}
			}
		})
		got := e.Counts()
		want.PrefixQueries, want.PrefixHits, want.Preemptions = got.PrefixQueries, got.PrefixHits, got.Preemptions
		want.SlotLoads, want.HostLoads, want.Slots = got.SlotLoads, got.HostLoads, got.Slots
		if diff := cmp.Diff(want, got); diff != "" || want.CachedTokens == 0 || want.InterToken.Count == 0 || got.Preemptions == 0 {
			t.Fatalf("seed %d: the counts are (-want +got):\n%s", seed, diff)
		}
	}
}
