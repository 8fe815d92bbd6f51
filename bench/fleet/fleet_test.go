package fleet

import (
	"errors"
	"iter"
	"math"
	"reflect"
	"slices"
	"testing"

	"gonum.org/v1/gonum/stat"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/headgate/simulated/llm"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/internal/sim"
	"github.com/headgate/headgate/test/race"
)

func four() Fleet {
	return Fleet{Profile: llm.DefaultProfile(), Endpoints: 4, Pickers: 1, ScrapeInterval: 0.2, AdapterSync: 1}
}

func outcome(t *testing.T, f Fleet, seed uint64, requests iter.Seq[Request], p Policy) Outcome {
	t.Helper()
	o, err := f.Run(seed, requests, p)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// to is a picker that sends every request to one endpoint and records what it is notified of.
type to struct {
	endpoint     int
	scrapes      []float64
	sent, ended  int
	waiting, ran float64
	active       map[string]bool
}

func (p *to) Pick(float64, *Request) int { p.sent++; return p.endpoint }
func (p *to) Scraped(now float64, endpoint int, load engine.Load) {
	if endpoint == p.endpoint {
		p.scrapes = append(p.scrapes, now)
		p.waiting, p.ran = max(p.waiting, load.Waiting.Or(0)), max(p.ran, load.Running.Or(0))
		for _, adapter := range load.Active {
			p.active[adapter] = true
		}
	}
}

func (p *to) Ended(_ float64, r *Request, endpoint int) {
	if endpoint == p.endpoint && r != nil {
		p.ended++
	}
}

// If all requests go to one endpoint, the fleet behaves like the step model of that engine.
func TestFleetIsItsEngines(t *testing.T) {
	f := four()
	w := Adapters(10, Conversation())
	f.Adapters = w.Adapters
	f.Profile.AdapterLoad.StdDev, f.Profile.AdapterActivation.StdDev = 0, 0
	p := &to{endpoint: 2, active: make(map[string]bool)}
	got := outcome(t, f, 7, w.Requests(3, 3, 300), func(Fleet, uint64) (Picker, error) { return p, nil })
	e, err := sim.New(f.Profile, nil)
	if err != nil {
		t.Fatal(err)
	}
	records := make(map[sim.ID]sim.Record)
	advance := func(until float64) {
		for {
			at, ok := e.Next()
			if !ok || at >= until {
				return
			}
			for _, ev := range e.Advance(at) {
				if ev.Kind == sim.Finished {
					records[ev.ID] = ev.Record
				}
			}
		}
	}
	var ids []sim.ID
	for r := range w.Requests(3, 3, 300) {
		advance(r.At)
		id, err := e.Submit(r.At, sim.Request{Adapter: r.Adapter, Prompt: r.Prompt, Output: make([]uint32, r.Output)})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	advance(math.Inf(1))
	for i, is := range got.Results {
		want := records[ids[i]]
		if is.At != want.Arrived || is.FirstToken != want.FirstToken || is.LastToken != want.LastToken || is.Cached != want.Cached ||
			is.Endpoint != 2 {
			t.Fatalf("request %d: %+v, want %+v", i, is, want)
		}
	}
	if p.sent != 300 || p.ended != 300 {
		t.Errorf("%d were sent and %d have ended, want 300", p.sent, p.ended)
	}
	if c := e.Counts(); got.SlotLoads != c.SlotLoads || c.SlotLoads == 0 {
		t.Errorf("there were %d loads of slots, want %d", got.SlotLoads, c.SlotLoads)
	}
	if p.waiting == 0 || len(p.active) != 10 {
		t.Errorf("scrapes saw at most %g waiting, and the adapters %v", p.waiting, p.active)
	}
	if p.ran == 0 || len(p.scrapes) < int(got.Seconds/0.2) || p.scrapes[1] > 0.2 || math.Abs(p.scrapes[2]-p.scrapes[1]-0.2) > 1e-9 {
		t.Errorf("looks were at %v…, and saw at most %g running", p.scrapes[:3], p.ran)
	}
}

// Equal arguments give equal results; a different seed gives different results.
func TestRunsAreRepeatable(t *testing.T) {
	race.Skip(t)
	f := four()
	f.Pickers = 3
	w := Adapters(50, Conversation())
	f.Adapters = w.Adapters
	for _, rule := range []pick.Rule{pick.Proposal, pick.Random} {
		first := outcome(t, f, 1, w.Requests(1, 5, 400), Headgate(rule))
		if again := outcome(t, f, 1, w.Requests(1, 5, 400), Headgate(rule)); !reflect.DeepEqual(first, again) {
			t.Errorf("%v: a second run gives something else", rule)
		}
		if other := outcome(t, f, 2, w.Requests(1, 5, 400), Headgate(rule)); reflect.DeepEqual(first, other) {
			t.Errorf("%v: another seed gives the same", rule)
		}
	}
}

// Policies have their intended effect: packing adapters saves loads, and policies that see queues
// keep them shorter.
func TestPoliciesHaveTheirEffect(t *testing.T) {
	race.Skip(t)
	f := four()
	w := Adapters(50, Conversation())
	f.Adapters = w.Adapters
	of := func(w Workload, rate float64, rule pick.Rule) Figures {
		return FiguresOf(outcome(t, f, 1, w.Requests(1, rate, 1500), Headgate(rule)), f.Profile, DefaultObjectives)
	}
	packed, anywhere := of(w, 2, pick.Proposal), of(w, 2, pick.Random)
	if packed.SlotLoads > 0.8*anywhere.SlotLoads {
		t.Errorf("proposal has %.0f loads of slots in a minute, by chance there are %.0f", packed.SlotLoads, anywhere.SlotLoads)
	}
	plain := Plain(Conversation())
	least, random := of(plain, 4, pick.LeastRequest), of(plain, 4, pick.Random)
	if least.TTFT99 > random.TTFT99 || least.Kept < random.Kept {
		t.Errorf("least requests: %+v, by chance %+v", least, random)
	}
}

// Prefixes that an endpoint has cached are hits, and requests on a slower endpoint take longer.
func TestPrefixesAndSpeeds(t *testing.T) {
	race.Skip(t)
	f := four()
	w := Prefixes(4, 2048, Lengths{{Prompt: 100, Output: 10}})
	o := outcome(t, f, 1, w.Requests(1, 1, 200), Headgate(pick.RoundRobin))
	if hits := FiguresOf(o, f.Profile, DefaultObjectives).Hits; hits < 0.9 {
		t.Errorf("%.2f of the prompts were found", hits)
	}
	f.Speeds = []float64{1, 0.5, 1, 1}
	o = outcome(t, f, 1, w.Requests(1, 1, 200), Headgate(pick.RoundRobin))
	var took [4][]float64
	for _, r := range o.Results {
		took[r.Endpoint] = append(took[r.Endpoint], r.LastToken-r.At)
	}
	fast, slow := quantile(took[0], 0.5), quantile(took[1], 0.5)
	if slow < 1.9*fast || slow > 2.2*fast {
		t.Errorf("a request takes %.3f s at half speed, %.3f s elsewhere", slow, fast)
	}
}

// Sessions with a shared prefix meet their objectives: learned step times are not too long, and a
// step slightly above its objective does not move a session away from its cache. The same holds if
// half of the engines run at half speed.
func TestLatencyMeetsObjectivesWithSharedPrompts(t *testing.T) {
	race.Skip(t)
	slow := make([]float64, 16)
	for i := range slow {
		slow[i] = []float64{0.5, 1}[i%2]
	}
	for _, c := range []struct {
		of     Workload
		speeds []float64
		rate   float64
		least  float64
	}{
		{Chat(1000, Conversation().messages()), nil, 21.5, 0.95},
		{Prefixes(128, 2048, Conversation()), slow, 7, 0.84},
	} {
		f := four()
		f.Endpoints, f.Speeds = 16, c.speeds
		got := FiguresOf(outcome(t, f, 0, c.of.Requests(0, c.rate, 5000), Headgate(pick.Latency)), f.Profile, DefaultObjectives)
		if got.Kept < c.least {
			t.Errorf("%s at %g a second: %.1f %% keep their objectives, want %.0f %%: %+v", c.of.Name, c.rate, 100*got.Kept,
				100*c.least, got)
		}
	}
}

// Tiny prompts run in the same steps as decodes, so none delays others by a whole step. When
// predictions included such a delay, requests gathered on few engines, and times to first token
// tripled.
func TestTinyPromptsAreSpread(t *testing.T) {
	race.Skip(t)
	w := Plain(Lengths{{Prompt: 20, Output: 20}, {Prompt: 10, Output: 10}, {Prompt: 40, Output: 5}})
	launching := dummy
	launching.LaunchOverhead, launching.Prefill.Base, launching.Prefill.Floor = dummy.Prefill.Base, dummy.Decode.Base, 0
	for _, p := range []*profile.Profile{new(four().Profile), smallProfile(), &dummy, &launching} {
		f := four()
		f.Profile = *p
		of := func(rule pick.Rule) Figures {
			return FiguresOf(outcome(t, f, 1, w.Requests(1, 300, 4000), Headgate(rule)), f.Profile, DefaultObjectives)
		}
		latency, least := of(pick.Latency), of(pick.LeastRequest)
		if latency.TTFT99 > 1.1*least.TTFT99 || latency.PerToken99 > 1.1*least.PerToken99 || latency.Kept < 0.999 {
			t.Errorf("%s: latency: %+v, least requests: %+v", p.Name, latency, least)
		}
	}
}

// The engine stops serving a cancelled request. Figures exclude it, and learned output lengths do
// not depend on it. All other requests complete.
func TestClientsCancel(t *testing.T) {
	f := four()
	w := Cancelled(Lengths{{Prompt: 100, Output: 200}})
	var h *headgate
	o := outcome(t, f, 1, w.Requests(1, 5, 1000), func(f Fleet, seed uint64) (Picker, error) {
		made, err := Headgate(pick.Latency)(f, seed)
		h, _ = made.(*headgate)
		return h, err
	})
	left := 0
	for _, r := range o.Results {
		if r.Left {
			left++
		}
		if r.Left == (r.LastToken > 0) {
			t.Fatalf("it has left and ended, or neither: %+v", r)
		}
	}
	if left < 250 || left > 350 || len(h.inFlight) > 0 || int(h.requestStats(&Request{}).Output()) != 200 {
		t.Errorf("%d of 1000 have left, of which %d are still counted; answers are taken to have %g tokens", left, len(h.inFlight),
			h.requestStats(&Request{}).Output())
	}
	if kept := FiguresOf(o, f.Profile, DefaultObjectives).Kept; kept < 0.99 {
		t.Errorf("%g keep their objectives", kept)
	}
	to := &to{active: make(map[string]bool)}
	if outcome(t, f, 1, w.Requests(1, 1, 100), func(Fleet, uint64) (Picker, error) { return to, nil }); to.ended != 100 {
		t.Errorf("who does not tell them apart is told of %d ends of 100", to.ended)
	}
}

// Bursts has the requested rate and coefficient of variation.
func TestBursts(t *testing.T) {
	var gaps []float64
	before := 0.0
	for r := range Bursts(Lengths{{Prompt: 1, Output: 1}}).Requests(1, 10, 50_000) {
		gaps, before = append(gaps, r.At-before), r.At
	}
	mean, deviation := stat.MeanStdDev(gaps, nil)
	if math.Abs(mean/0.1-1) > 0.1 || math.Abs(deviation/mean/4-1) > 0.1 {
		t.Errorf("the times between are %g s in the mean, and vary by %g of that, want 0.1 and 4", mean, deviation/mean)
	}
}

// The prompt of each turn extends the conversation up to then.
func TestChat(t *testing.T) {
	latest, before, turns, sessions := map[int]Request{}, 0.0, 0, 0
	for r := range Chat(100, Lengths{{Prompt: 20, Output: 30}}).Requests(1, 5, 5000) {
		if r.At < before || len(r.Prompt) < 120 || (len(r.Prompt)-120)%50 != 0 || len(r.Prompt) > 120+50*(mostTurns-1) {
			t.Fatalf("at %g s, after %g s, a prompt has %d tokens", r.At, before, len(r.Prompt))
		}
		turns++
		if len(r.Prompt) == 120 {
			sessions++
		} else if was, known := latest[int(r.Prompt[100])]; !known || !slices.Equal(r.Prompt[:len(was.Prompt)], was.Prompt) ||
			len(r.Prompt) != len(was.Prompt)+50 || r.At <= was.At {
			t.Fatalf("a turn does not go on from the one before")
		}
		before, latest[int(r.Prompt[100])] = r.At, r
	}
	if each := float64(turns) / float64(sessions); each < 4.5 || each > 5.5 || before < 900 || before > 1100 {
		t.Errorf("sessions have %g turns in the mean, and 5000 come within %g s, want 5 and 1000 s", each, before)
	}
}

// Pickers that synchronize know how many requests for adapters other pickers have in flight.
func TestPickersSync(t *testing.T) {
	f := four()
	f.Pickers, f.AdapterSync, f.ScrapeInterval, f.Adapters = 2, 0.5, 0, []string{"a"}
	requests := func(yield func(Request) bool) {
		for i := range 20 {
			if !yield(Request{At: float64(i), Adapter: "a", Prompt: []uint32{uint32(i)}, Output: 2000}) {
				return
			}
		}
	}
	for sends, want := range map[float64]int{0.5: 1, 0: 2} {
		f.AdapterSync = sends
		used := make(map[int]bool)
		for _, r := range outcome(t, f, 3, requests, Headgate(pick.Proposal)).Results {
			used[r.Endpoint] = true
		}
		if len(used) != want {
			t.Errorf("told every %g s: one adapter is at %d endpoints, want %d", sends, len(used), want)
		}
	}
}

// Pickers that scrape see the requests of other pickers, so sequential requests alternate between
// endpoints.
func TestPickersScrape(t *testing.T) {
	f := four()
	f.Endpoints, f.Pickers, f.AdapterSync = 2, 2, 0
	requests := func(yield func(Request) bool) {
		for i := range 40 {
			if !yield(Request{At: float64(i), Prompt: []uint32{uint32(i)}, Output: 2000}) {
				return
			}
		}
	}
	apart := func(rule pick.Rule) (apart int) {
		var at [2]int
		for i, r := range outcome(t, f, 1, requests, Headgate(rule)).Results {
			if at[r.Endpoint]++; i < 20 {
				apart = max(apart, at[0]-at[1], at[1]-at[0])
			}
		}
		return apart
	}
	if far := apart(pick.LeastRequest); far > 1 {
		t.Errorf("one endpoint has %d requests more than the other, though pickers look each 0.2 s", far)
	}
	f.Pickers = 1
	if far := apart(pick.RoundRobin); far != 1 {
		t.Errorf("round robin: one endpoint has %d requests more than the other", far)
	}
}

// Prompts share exactly the prefixes that workloads promise.
func TestPrompts(t *testing.T) {
	shared := func(a, b []uint32) (n int) {
		for n < min(len(a), len(b)) && a[n] == b[n] {
			n++
		}
		return n
	}
	seen := make(map[int]int)
	var all []Request
	for r := range Prefixes(3, 100, Lengths{{Prompt: 50, Output: 7}}).Requests(1, 1, 60) {
		if len(r.Prompt) != 150 || r.Output != 7 {
			t.Fatalf("a request has %d and %d tokens", len(r.Prompt), r.Output)
		}
		for _, other := range all {
			seen[shared(r.Prompt, other.Prompt)]++
		}
		all = append(all, r)
	}
	if len(seen) != 2 || seen[0] == 0 || seen[100] == 0 {
		t.Errorf("prompts share so many tokens: %v", seen)
	}
	var sum float64
	for r := range Plain(Conversation()).Requests(1, 5, 4000) {
		sum = r.At
		if len(all) > 0 && shared(all[len(all)-1].Prompt, r.Prompt) > 0 {
			t.Fatal("prompts share a prefix")
		}
		all = append(all[:0], r)
	}
	if sum < 750 || sum > 850 {
		t.Errorf("4000 requests at 5 a second come within %g s", sum)
	}
}

// A request that no endpoint can serve is reported and delays no other.
func TestRequestThatFitsNowhere(t *testing.T) {
	f := four()
	requests := slices.Values([]Request{{At: 0, Prompt: make([]uint32, 1<<20), Output: 1}, {At: 1, Prompt: make([]uint32, 10), Output: 1}})
	o := outcome(t, f, 1, requests, Headgate(pick.LeastRequest))
	if !math.IsInf(o.Results[0].FirstToken, 1) || math.IsInf(o.Results[1].FirstToken, 1) || o.Results[1].FirstToken == 0 {
		t.Errorf("the results are %+v", o.Results)
	}
}

func TestFigures(t *testing.T) {
	p := llm.DefaultProfile()
	var o Outcome
	for i := range 110 {
		r := Result{At: 1, FirstToken: 1 + float64(i-9)/100, Prompt: 100, Output: 11, Cached: 25}
		if i < 10 {
			r.FirstToken = 1000 // a request of the warm-up: its first token does not matter
		}
		r.LastToken = r.FirstToken + 0.5
		o.Results = append(o.Results, r)
	}
	o.Results = append(o.Results, Result{At: 1, FirstToken: 10, LastToken: 12, Output: 11, Prompt: 100, Cached: 25})
	o.SlotLoads, o.Seconds = 30, 120
	got := FiguresOf(o, p, DefaultObjectives)
	want := Figures{TTFT50: 0.51, TTFT99: 1.0, PerToken99: 0.05, Kept: 0.99, Hits: 0.25, SlotLoads: 15}
	for _, pair := range [][2]float64{
		{got.TTFT50, want.TTFT50},
		{got.TTFT99, want.TTFT99},
		{got.PerToken99, want.PerToken99},
		{got.Kept, want.Kept},
		{got.Hits, want.Hits},
		{got.SlotLoads, want.SlotLoads},
	} {
		if math.Abs(pair[0]-pair[1]) > 1e-9 {
			t.Errorf("figures are %+v, want %+v", got, want)
			break
		}
	}
}

func TestKeeps(t *testing.T) {
	p := llm.DefaultProfile()
	limit := 1 + 2*p.PrefillTime(0, 1000)
	for _, test := range []struct {
		ttft, perToken float64
		output         int
		kept           bool
	}{{limit - 0.01, 0.1, 2, true}, {limit + 0.01, 0.05, 2, false}, {0.1, 0.11, 5, false}, {0.1, 0.09, 5, true}, {0.1, 5, 1, true}} {
		r := Result{At: 5, FirstToken: 5 + test.ttft, Prompt: 1000, Output: test.output}
		r.LastToken = r.FirstToken + test.perToken*float64(test.output-1)
		if test.output == 1 {
			r.LastToken += test.perToken // ignored, since there is no token after the first
		}
		if got := DefaultObjectives.keeps(p, r); got != test.kept {
			t.Errorf("%+v: kept is %v", test, got)
		}
	}
}

func TestGoodput(t *testing.T) {
	for _, edge := range []float64{0.3, 1, 7, 1000} {
		asked := 0
		got, err := Goodput(8, func(rate float64) (float64, error) {
			asked++
			if rate <= edge {
				return 0.995, nil
			}
			return 0.98, nil
		}, DefaultObjectives)
		if err != nil || got > edge || got < edge/1.011 || asked > 25 {
			t.Errorf("%g is found as %g, after %d runs, %v", edge, got, asked, err)
		}
	}
	if got, err := Goodput(8, func(float64) (float64, error) { return 0, nil }, DefaultObjectives); got != 0 || err != nil {
		t.Errorf("where nothing is kept there is %g, %v", got, err)
	}
	if _, err := Goodput(8, func(float64) (float64, error) { return 0, errors.New("no") }, DefaultObjectives); err == nil {
		t.Error("a run that fails is no error")
	}
}

// Pickers share pending work long before the next scrape, so each endpoint gets half of the
// requests.
func TestPickersSyncPendingWork(t *testing.T) {
	f := four()
	f.Endpoints, f.Pickers, f.ScrapeInterval, f.AdapterSync = 2, 3, 0, 0
	requests := func(yield func(Request) bool) {
		for i := range 40 {
			if !yield(Request{At: 0.1 * float64(i), Prompt: []uint32{uint32(i)}, Output: 500}) {
				return
			}
		}
	}
	for _, rule := range []pick.Rule{pick.LeastRequest, pick.Latency} {
		apart := func(backlogs float64) (apart int) {
			f.BacklogSync = backlogs
			var at [2]int
			for _, r := range outcome(t, f, 1, requests, Headgate(rule)).Results {
				at[r.Endpoint]++
				apart = max(apart, at[0]-at[1], at[1]-at[0])
			}
			return apart
		}
		if told, alone := apart(0.02), apart(0); told > 1 || alone <= 1 {
			t.Errorf("%v: one endpoint has %d requests more than the other, and %d where nobody tells", rule, told, alone)
		}
	}
}

// Pickers share their state at most once per interval. They always share the latest state.
func TestPickersSyncAtTheirInterval(t *testing.T) {
	r := &run{Fleet: Fleet{BacklogSync: 0.02}}
	var times []float64
	p := throttle{last: -1}
	for i := range 100 {
		r.loop.At(1+0.001*float64(i), func() { r.atMost(&p, 0.02, func() { times = append(times, r.loop.Now()) }) })
	}
	r.loop.Run(5)
	if len(times) != 6 || times[0] != 1 || times[5] > 1.101 {
		t.Errorf("it was done at %v", times)
	}
	for i := range times[1:] {
		if d := times[i+1] - times[i]; d < 0.0199 {
			t.Errorf("it was done again after %.3f s", d)
		}
	}
}
