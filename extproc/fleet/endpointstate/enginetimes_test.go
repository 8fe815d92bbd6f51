package endpointstate_test

import (
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/internal/profile/table"
)

var one = objects.Name{Namespace: "ns", Name: "one"}

// simple is a profile that takes 1 ms per prompt token, and for each step 10 ms, plus 1 ms per
// sequence, plus 0.01 ms per token.
var simple = profile.Profile{
	Prefill: profile.Prefill{PerToken: 0.001}, Decode: profile.Decode{Base: 0.01, PerSequence: 0.001, PerKVToken: 0.00001},
	Limits: profile.Limits{MaxSequences: 256, MaxBatchedTokens: 2048, KVBlocks: 100, BlockSize: 16, GPUAdapters: 2, HostAdapters: 3},
}

// profiled returns a World with one pool that has this profile; a nil profile configures none.
func profiled(p *profile.Profile) *objects.World {
	w := world("one")
	w.Pools[one].Profile = p
	return w
}

// predicted returns a State of the endpoints a and b with a configured profile.
func predicted() *endpointstate.State {
	s := endpointstate.New(endpointstate.Config{})
	s.SetWorld(profiled(&simple))
	s.ModelsListed(s.Scrape(a, start), engine.Models{Base: []string{"llama"}, Adapters: []string{"x", "y", "z"}})
	s.ScrapeSucceeded(s.Scrape(a, start), engine.Load{})
	return s
}

func endpointOf(s *endpointstate.State) *pick.Endpoint {
	return view(s, start).Snapshot.Pools["ns/one"].Endpoints[0]
}

// Latencies of a pool are predicted with its configured profile. Without one they are predicted
// only after something was learned.
func TestPoolIsPredictedByItsProfile(t *testing.T) {
	s := predicted()
	p := view(s, start).Snapshot.Pools["ns/one"]
	if !p.Predictable || *p.Endpoints[0].Profile != simple || *p.Endpoints[1].Profile != simple {
		t.Errorf("the pool is %+v", p)
	}
	if again := view(s, start.Add(time.Hour)).Snapshot.Pools["ns/one"]; again.Endpoints[0].Profile != p.Endpoints[0].Profile {
		t.Error("the profile is replaced although nothing was learned")
	}
	other := simple
	other.Decode.Base *= 2
	s.SetWorld(profiled(&other))
	if p := view(s, start).Snapshot.Pools["ns/one"]; !p.Predictable || *p.Endpoints[0].Profile != other {
		t.Errorf("with another profile the pool is %+v", p)
	}
	generic := table.Generic()
	s.SetWorld(profiled(nil))
	view(s, start)
	s.Times.TakeTrustChanges()
	s.SetWorld(profiled(&generic))
	if p := view(s, start).Snapshot.Pools["ns/one"]; !p.Predictable {
		t.Error("a configured profile that equals the generic one is not trusted")
	}
	s.SetWorld(profiled(nil))
	if p := view(s, start).Snapshot.Pools["ns/one"]; p.Predictable || p.Endpoints[0].Profile.Decode != generic.Decode {
		t.Errorf("without a profile the pool is %+v", p)
	}
	s.SetWorld(world())
	s.SetWorld(profiled(&simple))
	if p := view(s, start).Snapshot.Pools["ns/one"]; !p.Predictable || *p.Endpoints[0].Profile != simple {
		t.Errorf("with the profile again the pool is %+v", p)
	}
	if news := s.Times.TakeTrustChanges(); len(news) > 0 {
		t.Errorf("reported changes are %+v", news)
	}
}

// A known profile has the limits that its engines report, and the lowest of them if they differ.
// All else is as configured.
func TestKnownLimitsAreThoseThatEnginesReport(t *testing.T) {
	s := predicted()
	s.SetWorld(profiled(&simple))
	if is := s.Times.Known()[0].Profile; is != simple {
		t.Errorf("before any scrape the profile is\n%+v, want\n%+v", is, simple)
	}
	size := float64(simple.Limits.BlockSize)
	s.ScrapeSucceeded(s.Scrape(a, start), engine.Load{KVTokens: engine.Known(7168 * size), MaxAdapters: engine.Known(4)})
	s.ScrapeSucceeded(s.Scrape(b, start), engine.Load{KVTokens: engine.Known(7200 * size), MaxAdapters: engine.Known(8)})
	want := simple
	want.Limits.KVBlocks, want.Limits.GPUAdapters, want.Limits.HostAdapters = 7168, 4, max(4, simple.Limits.HostAdapters)
	if is := s.Times.Known()[0].Profile; is != want {
		t.Errorf("engines report at least 7168 blocks and 4 adapters, and the profile is\n%+v, want\n%+v", is, want)
	}
}

// engines simulates engines with different speeds. Times maps each address to the factor by which
// that engine is slower. Each engine always has ten sequences, and sometimes a prompt.
type engines struct {
	times map[string]float64
	count map[string]*[4]float64 // counters of tokens, seconds, prompt tokens and requests, by address
}

// scrape scrapes each engine once a second for a number of seconds.
func (g engines) scrape(s *endpointstate.State, from time.Time, seconds int) {
	for n := range seconds {
		for _, address := range []string{a, b} {
			times, known := g.times[address]
			if !known {
				continue
			}
			c := g.count[address]
			if c == nil {
				c = new([4]float64)
				g.count[address] = c
			}
			prompts := float64(n * 7 % 5)
			held := 5000 + 5000*float64(n*3%7)
			step := times * (0.04 + 10*0.0003 + held*5e-7 + 0.0003*prompts*10)
			steps := 1 / step
			c[0], c[1], c[2], c[3] = c[0]+10*steps, c[1]+10, c[2]+prompts*10*steps*11/10, c[3]+1
			at, number := from.Add(time.Duration(n)*time.Second), engine.Known
			s.ScrapeSucceeded(s.Scrape(address, at), engine.Load{
				Running: number(10), KVUsage: number(held / 100_000), KVTokens: number(100_000), Totals: engine.Totals{
					InterToken: engine.Timed{Count: number(c[0]), Seconds: number(c[1])}, PromptTokens: number(c[2]),
					CachedTokens: number(0),
					FirstToken:   engine.Timed{Count: number(c[3]), Seconds: number(c[3])},
				},
			})
			view(s, at)
		}
	}
}

// The latency of engines without a configured profile is learned. Then the latency of each engine
// is predicted with its own speed, and the change of trust is reported once.
func TestLearnedProfilePredicts(t *testing.T) {
	s := endpointstate.New(endpointstate.Config{})
	s.SetWorld(profiled(nil))
	g := engines{map[string]float64{a: 1, b: 2}, map[string]*[4]float64{}}
	g.scrape(s, start, 10)
	untrusted := view(s, start.Add(10*time.Second)).Snapshot.Pools["ns/one"]
	if untrusted.Predictable || len(s.Times.TakeTrustChanges()) > 0 {
		t.Errorf("after ten scrapes it is predicted: %+v", untrusted.Endpoints[0].Profile)
	}
	queue := &untrusted.Endpoints[0].Backlog.Queue
	queue.Store(math.MaxInt64 / 2)
	g.scrape(s, start.Add(10*time.Second), 200)
	now := start.Add(210 * time.Second)
	p := view(s, now).Snapshot.Pools["ns/one"]
	if !p.Predictable {
		t.Fatalf("it is not predicted")
	}
	if queue.Load() != 0 {
		t.Error("a queue predicted by an untrusted profile is still there")
	}
	queue.Store(math.MaxInt64 / 2)
	work := profile.Work{Sequences: 10, KVTokens: 20_000}
	if fast, slow := p.Endpoints[0].Profile.StepTime(work), p.Endpoints[1].Profile.StepTime(work); math.Abs(fast/0.053-1) > 0.1 ||
		math.Abs(slow/fast/2-1) > 0.1 {
		t.Errorf("a step is predicted to take %.3f and %.3f s, want 0.053 and twice that", fast, slow)
	}
	if news := s.Times.TakeTrustChanges(); len(news) != 1 || !news[0].Trusted || news[0].Pool != one || news[0].Rows < 40 ||
		news[0].Residual > 0.2 || news[0].Why == "" || len(s.Times.TakeTrustChanges()) > 0 {
		t.Errorf("reported changes are %+v", news)
	}
	// Views are made often, but profiles are computed at most once a second.
	first := p.Endpoints[0].Profile
	g.times[a] = 1.5
	g.scrape(s, now.Add(100*time.Millisecond), 1)
	if view(s, now.Add(900*time.Millisecond)).Snapshot.Pools["ns/one"].Endpoints[0].Profile != first {
		t.Error("the profile is replaced within a second")
	}
	g.scrape(s, now.Add(time.Second), 20)
	if view(s, now.Add(30*time.Second)).Snapshot.Pools["ns/one"].Endpoints[0].Profile == first {
		t.Error("the profile is not replaced")
	}
	given := profile.Profile{
		Decode: profile.Decode{Base: 0.05},
		Limits: profile.Limits{MaxSequences: 1, MaxBatchedTokens: 1, KVBlocks: 1, BlockSize: 1},
	}
	if s.SetWorld(profiled(&given)); queue.Load() != 0 {
		t.Error("a queue predicted by another profile is still there")
	}
	s.SetWorld(world())
	s.SetWorld(profiled(nil))
	if view(s, now).Snapshot.Pools["ns/one"].Predictable || len(s.Times.TakeTrustChanges()) > 0 {
		t.Error("something is known of a new pool")
	}
}

// A profile learned on one accelerator does not apply to another. Latencies of a pool are predicted
// only when all its accelerators are trusted.
func TestAccelerators(t *testing.T) {
	w := profiled(nil)
	w.Pools[one].Endpoints[0].Class = "other"
	s := endpointstate.New(endpointstate.Config{})
	s.SetWorld(w)
	g := engines{map[string]float64{a: 1}, map[string]*[4]float64{}}
	g.scrape(s, start, 200)
	if view(s, start.Add(200*time.Second)).Snapshot.Pools["ns/one"].Predictable {
		t.Error("it is predicted although one accelerator is unknown")
	}
	g.times[b] = 3
	g.scrape(s, start.Add(200*time.Second), 200)
	now := start.Add(400 * time.Second)
	p := view(s, now).Snapshot.Pools["ns/one"]
	if !p.Predictable || len(s.Times.TakeTrustChanges()) != 1 {
		t.Fatal("it is not predicted although both accelerators are known")
	}
	work := profile.Work{Sequences: 10, KVTokens: 20_000}
	if ratio := p.Endpoints[1].Profile.StepTime(work) / p.Endpoints[0].Profile.StepTime(work); math.Abs(ratio/3-1) > 0.1 {
		t.Errorf("the other accelerator takes %.2f times as long, want 3", ratio)
	}
	// An endpoint that changes its accelerator uses the profile of the new one.
	moved := profiled(nil)
	s.SetWorld(moved)
	if !view(s, now).Snapshot.Pools["ns/one"].Predictable || len(s.Times.TakeTrustChanges()) > 0 {
		t.Error("the remaining accelerator is not trusted")
	}
	// While a pool has no endpoints, the profiles learned for its accelerators are kept.
	empty := world("one")
	empty.Pools[one].Endpoints, empty.Engines = nil, nil
	s.SetWorld(empty)
	view(s, now)
	s.SetWorld(profiled(nil))
	if p := view(s, now).Snapshot.Pools["ns/one"]; !p.Predictable || len(s.Times.TakeTrustChanges()) > 0 {
		t.Error("the learned profile is lost")
	}
	moved = profiled(nil)
	moved.Pools[one].Endpoints[0].Class = "new"
	s.SetWorld(moved)
	if news := func() []endpointstate.TrustChange { view(s, now); return s.Times.TakeTrustChanges() }(); len(news) != 1 ||
		news[0].Trusted || news[0].Rows != 0 {
		t.Errorf("with a new accelerator the changes are %+v", news)
	}
	// If a pool's accelerators keep changing, the oldest profiles are dropped. Profiles of
	// accelerators in use are kept.
	for n := range 70 {
		moved = profiled(nil)
		moved.Pools[one].Endpoints[0].Class = strconv.Itoa(n)
		s.SetWorld(moved)
	}
	s.SetWorld(profiled(nil))
	if !view(s, now).Snapshot.Pools["ns/one"].Predictable {
		t.Error("the learned profile of an accelerator in use is lost")
	}
	s.SetWorld(w)
	if view(s, now).Snapshot.Pools["ns/one"].Predictable {
		t.Error("after 70 accelerators in turn the first is still known")
	}
}

// Learning does not change the pinned profile of an accelerator. Other profiles are learned
// starting from the configured ones, and are printed with the reason why they are trusted.
func TestPinnedProfiles(t *testing.T) {
	w := profiled(nil)
	p := w.Pools[one]
	p.Endpoints[0].Class, p.Endpoints[1].Class = "fast", "slow"
	p.Classes = map[string]*objects.Said{"fast": {Profile: simple, Pinned: true}, "slow": {Profile: simple}}
	s := endpointstate.New(endpointstate.Config{})
	s.SetWorld(w)
	if !view(s, start).Snapshot.Pools["ns/one"].Predictable || len(s.Times.TakeTrustChanges()) > 0 {
		t.Error("configured profiles of all accelerators are not trusted")
	}
	engines{map[string]float64{a: 1, b: 2}, map[string]*[4]float64{}}.scrape(s, start, 300)
	for range 30 {
		s.Times.AdapterLoaded(one, a, pick.InHost, 3)
	}
	known := s.Times.Known()
	if len(known) != 2 || known[0].Accelerator != "fast" || known[1].Accelerator != "slow" {
		t.Fatalf("known is %+v", known)
	}
	reported := simple
	reported.Limits.KVBlocks = 100_000 / reported.Limits.BlockSize
	if k := known[0]; k.Profile != reported || !k.Trusted || k.Rows != 0 || k.Why != "the profile is pinned" || !k.Since.IsZero() ||
		len(k.Factors) > 0 {
		t.Errorf("the pinned profile is %+v", k)
	}
	if k := known[1]; math.Abs(k.Profile.StepTime(profile.Work{Sequences: 10, KVTokens: 20_000})/0.106-1) > 0.1 || k.Rows < 100 ||
		k.Profile.Name != "Engines of ns/one on slow" || k.Profile.Source == "" || len(k.Factors) > 0 {
		t.Errorf("the other profiles are %+v", k)
	}
	// A profile that is no longer pinned is learned; the other profiles are unchanged.
	p.Classes["fast"] = &objects.Said{Profile: simple}
	s.SetWorld(w)
	if is := s.Times.Known(); is[0].Why != "the pool has a configured profile" || is[1].Rows != known[1].Rows {
		t.Errorf("then known is %+v", is)
	}
	for range 30 {
		s.Times.AdapterLoaded(one, a, pick.InHost, 3)
	}
	if is := s.Times.Known()[0].Profile.AdapterActivation.Mean; is != 3 {
		t.Errorf("a load takes %g s", is)
	}
}

// Known reports the factors by which single engines are slower.
func TestKnown(t *testing.T) {
	s := endpointstate.New(endpointstate.Config{})
	s.SetWorld(profiled(nil))
	if k := s.Times.Known(); len(k) != 1 || k[0].Trusted || k[0].Rows != 0 || !k[0].Since.IsZero() ||
		k[0].Why != "one accelerator has no measurements yet" {
		t.Errorf("at first known is %+v", k)
	}
	g := engines{map[string]float64{a: 1, b: 2}, map[string]*[4]float64{}}
	g.scrape(s, start, 20)
	if k := s.Times.Known(); k[0].Why != "predictions are not accurate yet" || k[0].Rows == 0 {
		t.Errorf("later known is %+v", k)
	}
	g.scrape(s, start.Add(20*time.Second), 200)
	k := s.Times.Known()[0]
	if !k.Trusted || k.Why != "predictions were accurate" || k.Since.Before(start) || k.Residual > 0.2 || len(k.Factors) != 2 ||
		math.Abs(k.Factors[b]/k.Factors[a]-2) > 0.2 {
		t.Errorf("then known is %+v", k)
	}
}

// The load of other sources is what the engine reports in excess of this process's requests, both
// in requests and in cached tokens.
func TestLoadOfOthers(t *testing.T) {
	s := predicted()
	room := make([]pick.Decision, 1)
	if _, err := pick.Pick(pick.Policy{Rule: pick.Latency}, view(s, start).Snapshot, pick.Request{
		Pool: "ns/one", Base: true, Demand: pick.Demand{Prompt: 200, Output: 100, Now: start.UnixNano()},
	}, room); err != nil {
		t.Fatal(err)
	}
	ours := endpointstate.CountsOf(room[0])
	ours.Begin(start)
	look := func(running, usage float64, tokens engine.Value) *pick.Endpoint {
		s.ScrapeSucceeded(s.Scrape(a, start), engine.Load{Running: engine.Known(running), KVUsage: engine.Known(usage), KVTokens: tokens})
		return endpointOf(s)
	}
	// The cache has 1,000 tokens. Half of them are in use, 250 of these by this process.
	if e := look(3, 0.5, engine.Known(1000)); e.Others != 2 || e.OthersTokens != 250 || e.KVTokens != 1000 ||
		math.Abs(e.OthersBeside-0.0045) > 1e-9 {
		t.Errorf("other sources have %d requests, %d tokens of %d, %g s", e.Others, e.OthersTokens, e.KVTokens, e.OthersBeside)
	}
	if e := look(1, 0.5, engine.Known(1000)); e.Others != 0 || e.OthersTokens != 0 || e.OthersBeside != 0 {
		t.Errorf("without other sources: %d requests, %d tokens, %g s", e.Others, e.OthersTokens, e.OthersBeside)
	}
	if e := look(2, 0.1, engine.Known(1000)); e.OthersTokens != 0 {
		t.Errorf("if this process has more than the engine reports, other sources have %d", e.OthersTokens)
	}
	if e := look(2, 0.5, engine.Value{}); e.KVTokens != 1600 || e.Slots != 2 {
		t.Errorf("without reports the cache has %d tokens, and the engine %d slots", e.KVTokens, e.Slots)
	}
}

// If a request is served by a different endpoint from the one it was sent to, its claim moves to
// that endpoint.
func TestClaimMoves(t *testing.T) {
	s := predicted()
	room := make([]pick.Decision, 1)
	endpoints := view(s, start).Snapshot.Pools["ns/one"].Endpoints
	if _, err := pick.Pick(pick.Policy{Rule: pick.Latency}, view(s, start).Snapshot, pick.Request{
		Pool: "ns/one", Base: true, Demand: pick.Demand{Prompt: 200, Output: 100, Now: start.UnixNano()},
	}, room); err != nil {
		t.Fatal(err)
	}
	from := endpointstate.CountsOf(room[0])
	from.Begin(start)
	to, _ := s.Moved(from, b, "llama", true)
	to.Add(start.Add(time.Second))
	from.End(start.Add(time.Second))
	if was, is := endpoints[0].Backlog, endpoints[1].Backlog; was.Tokens.Load() != 0 || was.Through.Load() != 0 ||
		is.Tokens.Load() != 250 ||
		is.Through.Load() != start.Add(1200*time.Millisecond).UnixNano() {
		t.Errorf("the claims hold %d and %d tokens", was.Tokens.Load(), is.Tokens.Load())
	}
}

// An adapter is where its last request left it, or in a slot if the engine reports it as active.
// After a restart of the engine no adapter is loaded.
func TestAdapterPlaces(t *testing.T) {
	s := predicted()
	look := func(slots, began float64, active ...string) {
		s.ScrapeSucceeded(s.Scrape(a, start), engine.Load{MaxAdapters: engine.Known(slots), Started: engine.Known(began), Active: active})
	}
	where := func() (all [3]pick.Place) {
		p := view(s, start).Snapshot.Pools["ns/one"]
		for i, name := range []string{"x", "y", "z"} {
			all[i] = p.Copies[name][0].InFlight.Place()
		}
		return all
	}
	send := func(name string, at time.Duration) {
		p := view(s, start).Snapshot.Pools["ns/one"]
		c := endpointstate.CountsOf(pick.Decision{Endpoint: p.Endpoints[0], Copy: &p.Copies[name][0]})
		c.Begin(start.Add(at))
		c.End(start.Add(at))
	}
	look(1, 100)
	send("x", time.Second)
	send("y", 2*time.Second)
	if got := where(); got != [3]pick.Place{pick.InHost, pick.InSlot, pick.InStorage} {
		t.Errorf("the adapters are at %v", got)
	}
	if look(1, 100, "z"); where() != [3]pick.Place{pick.InHost, pick.InHost, pick.InSlot} {
		t.Errorf("when the engine reports z, they are at %v", where())
	}
	if look(1, 200); where() != [3]pick.Place{} {
		t.Errorf("after a restart they are at %v", where())
	}
	if send("x", 3*time.Second); where() != [3]pick.Place{pick.InSlot} {
		t.Errorf("then x is at %v", where())
	}
	if look(2, 200); where() != [3]pick.Place{pick.InSlot} {
		t.Errorf("with two slots they are at %v", where())
	}
}

// Frontend overheads and load times are learned from the first tokens of the pool's requests.
// Predictions use them after a number of samples.
func TestLoadsAreLearned(t *testing.T) {
	s := predicted()
	view(s, start)
	for range 30 {
		s.Times.AdapterLoaded(one, a, pick.InSlot, 0.07)
	}
	s.Age()
	if is := view(s, start.Add(time.Second)).Snapshot.Pools["ns/one"].Endpoints[1].Profile.FrontendOverhead; is != 0.07 {
		t.Errorf("the frontend overhead is %g s, want 0.07", is)
	}
	start := start.Add(time.Minute)
	for range 63 {
		s.Times.AdapterLoaded(one, a, pick.InSlot, 0.1)
	}
	for range 30 {
		s.Times.AdapterLoaded(one, a, pick.InSlot, 0.1)
		s.Times.AdapterLoaded(one, a, pick.InHost, 0.15)
		s.Times.AdapterLoaded(one, b, pick.InStorage, 0.4)
		s.Times.AdapterLoaded(objects.Name{Name: "other"}, a, pick.InHost, 3)
		s.Times.AdapterLoaded(one, "10.0.0.9:8000", pick.InHost, 3)
	}
	s.Age()
	for _, e := range view(s, start.Add(time.Second)).Snapshot.Pools["ns/one"].Endpoints {
		if math.Abs(e.Profile.AdapterActivation.Mean-0.05) > 1e-9 || math.Abs(e.Profile.AdapterLoad.Mean-0.25) > 1e-9 {
			t.Errorf("at %s a load takes %g and %g s, want 0.05 and 0.25", e.Address, e.Profile.AdapterActivation.Mean,
				e.Profile.AdapterLoad.Mean)
		}
	}
}

// An engine that does not report its number of adapter slots gets the number in its profile, or
// else the lowest number in its pool.
func TestSlotsFromTheProfile(t *testing.T) {
	unsaid := simple
	unsaid.Limits.GPUAdapters, unsaid.Limits.HostAdapters = 0, 0
	for _, c := range []struct {
		said profile.Profile
		of   map[string]float64 // reported numbers of slots, by address
		want [3]int64
	}{
		{unsaid, nil, [3]int64{0, 0, 0}},
		{unsaid, map[string]float64{a: 3}, [3]int64{3, 3, 3}},
		{unsaid, map[string]float64{a: 5, b: 4}, [3]int64{5, 4, 4}},
		{simple, map[string]float64{a: 3}, [3]int64{3, 2, 2}},
	} {
		s := endpointstate.New(endpointstate.Config{})
		w := objects.Build(objects.Endpoints([]string{a, b, "10.0.0.3:8000"}))
		w.Pools[objects.EndpointsPool].Profile = &c.said
		s.SetWorld(w)
		view(s, start)
		for address, slots := range c.of {
			s.ScrapeSucceeded(s.Scrape(address, start), engine.Load{MaxAdapters: engine.Known(slots)})
		}
		all := view(s, start.Add(time.Second)).Snapshot.Pools[objects.EndpointsPool.String()].Endpoints
		if got := [3]int64{all[0].Slots, all[1].Slots, all[2].Slots}; got != c.want {
			t.Errorf("configured %d, reported %v: slots are %v, want %v", c.said.Limits.GPUAdapters, c.of, got, c.want)
		}
	}
}

// A huge number of adapter slots in a report or a profile does not stop the endpoint from being
// created.
func TestSlotsBeyondReason(t *testing.T) {
	endless := simple
	endless.Limits.GPUAdapters, endless.Limits.HostAdapters = 1<<62, 1<<62
	for _, c := range []struct {
		said     profile.Profile
		reported engine.Value
	}{
		{simple, engine.Known(1e12)},
		{simple, engine.Known(1e300)},
		{endless, engine.Value{}},
	} {
		s := endpointstate.New(endpointstate.Config{})
		s.SetWorld(profiled(&c.said))
		s.ScrapeSucceeded(s.Scrape(a, start), engine.Load{MaxAdapters: c.reported})
		if e := endpointOf(s); e.Slots < 1 {
			t.Errorf("reported %v and configured %d: %d slots", c.reported, c.said.Limits.GPUAdapters, e.Slots)
		}
	}
}

// If two pools configure different room for adapters at one endpoint, the larger numbers apply. Its
// adapters stay in place, whichever pool a request comes through.
func TestAdaptersOfAnEndpointInTwoPools(t *testing.T) {
	s, w := endpointstate.New(endpointstate.Config{}), world("one", "two")
	larger := simple
	larger.Limits.GPUAdapters, larger.Limits.HostAdapters = 1, 8
	w.Pools[one].Profile, w.Pools[objects.Name{Namespace: "ns", Name: "two"}].Profile = &simple, &larger
	s.SetWorld(w)
	s.ModelsListed(s.Scrape(a, start), engine.Models{Base: []string{"llama"}, Adapters: []string{"x", "y", "z"}})
	s.ScrapeSucceeded(s.Scrape(a, start), engine.Load{})
	p := view(s, start).Snapshot.Pools["ns/one"]
	for i, name := range []string{"x", "y", "z"} {
		c := endpointstate.CountsOf(pick.Decision{Endpoint: p.Endpoints[0], Copy: &p.Copies[name][0]})
		c.Begin(start.Add(time.Duration(i) * time.Second))
		c.End(start.Add(time.Duration(i) * time.Second))
	}
	for range 5 { // each view rebuilds both pools
		s.Age()
		view(s, start)
	}
	for i, name := range []string{"x", "y", "z"} {
		if got, want := p.Copies[name][0].InFlight.Place(), [...]pick.Place{pick.InHost, pick.InSlot, pick.InSlot}[i]; got != want {
			t.Errorf("%s is at %d, want %d", name, got, want)
		}
	}
}

// Unloading an adapter does not displace adapters that are still loaded.
func TestUnloadedAdapterTakesNoSlot(t *testing.T) {
	s := predicted() // each endpoint has two slots, and host memory for three adapters
	send := func(name string, at time.Duration) {
		p := view(s, start).Snapshot.Pools["ns/one"]
		c := endpointstate.CountsOf(pick.Decision{Endpoint: p.Endpoints[0], Copy: &p.Copies[name][0]})
		c.Begin(start.Add(at))
		c.End(start.Add(at))
	}
	send("x", time.Second)
	send("y", 2*time.Second)
	y := view(s, start).Snapshot.Pools["ns/one"].Copies["y"][0].InFlight
	s.ScrapeSucceeded(s.Scrape(a, start), engine.Load{Active: []string{"y"}})
	s.ModelsListed(s.Scrape(a, start), engine.Models{Base: []string{"llama"}, Adapters: []string{"x", "z"}})
	view(s, start)
	s.ScrapeSucceeded(s.Scrape(a, start), engine.Load{Active: []string{"y"}})
	if place := y.Place(); place != pick.InSlot {
		t.Errorf("while the engine has requests for it, y is at %d", place)
	}
	s.ScrapeSucceeded(s.Scrape(a, start), engine.Load{})
	s.ModelsListed(s.Scrape(a, start), engine.Models{Base: []string{"llama"}, Adapters: []string{"x", "z", "w"}})
	view(s, start)
	send("z", 3*time.Second)
	copies := view(s, start).Snapshot.Pools["ns/one"].Copies
	if x, z := copies["x"][0].InFlight.Place(), copies["z"][0].InFlight.Place(); x != pick.InSlot || z != pick.InSlot {
		t.Errorf("y has left one of two slots, x is at %d and z at %d", x, z)
	}
}
