package endpointstate

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/internal/profile/learn"
)

// naiveView is the oracle of State.View: it evaluates and copies all endpoints of a changed pool.
func naiveView(s *State, now time.Time) (*View, []FailOpenChange) {
	var told []FailOpenChange
	pools := maps.Clone(s.latest)
	if pools == nil {
		pools = make(map[string]*pick.Pool)
	}
	for name := range s.changed {
		p := s.world.Pools[name]
		if s.indexes[name] == nil {
			s.indexes[name] = s.indexOf(p)
			for _, declared := range p.Endpoints {
				s.unsealed = append(s.unsealed, s.endpoints[declared.Address])
			}
		}
		limits, predictable := s.Settings.For(p), s.Times.predictable(name)
		slots := 0
		for _, declared := range p.Endpoints {
			if n, _ := s.endpoints[declared.Address].slots(); n > 0 && (slots == 0 || n < slots) {
				slots = n
			}
		}
		endpoints := make([]*pick.Endpoint, len(p.Endpoints))
		answer, lost, out := 0, 0, 0
		var faulty []int
		for i, declared := range p.Endpoints {
			e := s.endpoints[declared.Address]
			endpoints[i], e.times[name].reason = s.snapshot(e, declared, now, limits)
			e.predict(endpoints[i], e.times[name].fresh(now, slots), predictable)
			switch endpoints[i].State {
			case pick.Healthy, pick.Suspect:
				answer++
				if e.health.faulty(now) {
					faulty = append(faulty, i)
				}
			case pick.Lost:
				lost++
			case pick.Out:
				out++
			case pick.Stale, pick.Migrating:
			}
		}
		most := len(faulty) > 1 && 2*len(faulty) > answer
		if most {
			for _, i := range faulty {
				endpoints[i].State = pick.Healthy
			}
		}
		open := most || lost > 0 && lost+out == len(endpoints)
		if open != s.failOpen[name] {
			told = append(told, FailOpenChange{name, open, len(faulty), lost})
		}
		s.failOpen[name] = open
		for _, is := range endpoints {
			e := s.endpoints[is.Address]
			t := e.times[name]
			if from, moved := t.stand(is.State, now); moved {
				s.Moves.all = append(s.Moves.all, Move{name, is.Address, from, t.standing, e.cause(t.standing.Reason, now)})
			}
		}
		pools[name.String()] = &pick.Pool{Endpoints: endpoints, Predictable: predictable, Index: *s.indexes[name]}
	}
	clear(s.changed)
	s.latest = pools
	return &View{World: s.world, Snapshot: &pick.Snapshot{Pools: pools}, Failures: s.control.failures, Methods: s.control.methods}, told
}

// fixed describes the parts of a view that must never change.
func fixed(v *View) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(v.Snapshot.Pools)) {
		p := v.Snapshot.Pools[name]
		fmt.Fprintf(&b, "%s predictable=%t listed=%t unread=%t\n", name, p.Predictable, p.Listed, p.Unread)
		for _, e := range p.Endpoints {
			c := *e
			c.Number = 0 // a new endpoint gets the next free number, in random order of the pools
			times := *c.Profile
			listed := len(c.Listed)
			c.Profile, c.Listed, c.Backlog, c.Peers, c.Adapters = nil, nil, nil, nil, nil
			c.InFlight, c.Window, c.Batch, c.Resident = nil, nil, nil, nil
			fmt.Fprintf(&b, "%+v %d %+v\n", c, listed, times)
		}
		copies := func(what string, all []pick.Copy) {
			for _, c := range all {
				c.InFlight = nil
				fmt.Fprintf(&b, "%s %+v\n", what, c)
			}
		}
		for _, model := range slices.Sorted(maps.Keys(p.Copies)) {
			copies(model, p.Copies[model])
		}
		copies("base", p.Base)
		copies("any", p.Any)
	}
	fmt.Fprintln(&b, v.Failures, v.Methods)
	return b.String()
}

// counters describes the counters to which a view of a State points.
func counters(t *testing.T, s *State, v *View) string {
	t.Helper()
	var b strings.Builder
	count := func(c *pick.Count) {
		fmt.Fprintf(&b, " %d/%d/%d %t %v;", c.Load(), c.Others.Load(), c.Limit.Load(), c.Closed.Load(), c.Place())
	}
	for _, name := range slices.Sorted(maps.Keys(v.Snapshot.Pools)) {
		p := v.Snapshot.Pools[name]
		for _, e := range p.Endpoints {
			own := s.endpoints[e.Address]
			if e.InFlight != &own.inFlight || e.Adapters != &own.adapters || e.Backlog != &own.backlog || e.Peers != &own.peers ||
				e.Window != &own.window.limit || e.Batch != &own.batch.limit || e.Resident != &own.resident {
				t.Fatalf("%s in %s points to the counters of another endpoint", e.Address, name)
			}
			fmt.Fprintf(&b, "%s %s %d %d %d %d %d", name, e.Address, e.InFlight.Load(), e.Adapters.Load(), e.Window.Load(), e.Batch.Load(),
				e.Backlog.Tokens.Load())
			for i, c := range e.Listed {
				if c != own.models[own.load.Active[i]] {
					t.Fatalf("%s in %s points to the count of another model", e.Address, name)
				}
				count(c)
			}
			b.WriteByte('\n')
		}
		for _, model := range slices.Sorted(maps.Keys(p.Copies)) {
			for _, c := range p.Copies[model] {
				count(c.InFlight)
			}
		}
	}
	return b.String()
}

// twins are two States with the same history. One of them makes its views by the oracle.
type twins struct {
	t      *testing.T
	random *rand.Rand
	both   [2]*State // State.View, and the oracle
	now    time.Time
	views  [2]*View
	counts [][2]Counts // requests in flight
	old    map[*View]string
}

// each applies a change to both States.
func (w *twins) each(change func(s *State)) {
	for _, s := range w.both {
		change(s)
		for _, names := range s.pools { // their order is random
			slices.SortFunc(names, objects.Name.Compare)
		}
	}
}

// firstDifference returns the first lines of two texts that differ; both are empty if none differ.
func firstDifference(a, b string) (string, string) {
	in, of := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range max(len(in), len(of)) {
		if i >= min(len(in), len(of)) || in[i] != of[i] {
			return strings.Join(in[min(i, len(in)):min(i+1, len(in))], ""), strings.Join(of[min(i, len(of)):min(i+1, len(of))], "")
		}
	}
	return "", ""
}

// publish makes both views and compares them.
func (w *twins) publish(what string) {
	w.t.Helper()
	var news, states [2]string
	for i, s := range w.both {
		var told []FailOpenChange
		if i == 0 {
			w.views[i], told = s.View(w.now)
		} else {
			w.views[i], told = naiveView(s, w.now)
		}
		s.Seal()
		var lines []string
		for _, c := range told {
			lines = append(lines, fmt.Sprintf("%+v", c))
		}
		for _, m := range s.Moves.Take() {
			lines = append(lines, fmt.Sprintf("%+v", m))
		}
		for _, k := range s.TakeMissing() { // the first pool to be indexed reports it, and their order is random
			lines = append(lines, k.ID+" at "+k.Endpoint)
		}
		for _, c := range s.Times.TakeTrustChanges() {
			lines = append(lines, fmt.Sprintf("%+v", c))
		}
		slices.Sort(lines)
		news[i] = strings.Join(lines, "\n")
		states[i] = fixed(w.views[i]) + counters(w.t, s, w.views[i]) + s.String() + fmt.Sprintln(slices.Sorted(slices.Values(s.FailOpen())))
		for _, e := range s.Endpoints(w.now) {
			states[i] += fmt.Sprintf("%+v\n", e)
		}
	}
	if is, want := firstDifference(states[0]+news[0], states[1]+news[1]); is != want {
		w.t.Fatalf("after %s, %v from the start: the view has\n%s\nthe oracle's has\n%s", what, w.now.Sub(time.Unix(1e9, 0)), is, want)
	}
	for v, was := range w.old {
		if is, was := firstDifference(fixed(v), was); is != was {
			w.t.Fatalf("after %s an older view has changed: it had\n%s\nand has\n%s", what, was, is)
		}
		if w.random.IntN(2) == 0 {
			delete(w.old, v)
		}
	}
	w.old[w.views[0]] = fixed(w.views[0])
}

// objects returns some pods in one or two pools. Two pools may share pods only if their profiles
// state the number of adapter slots: otherwise the slots depend on the order in which the pools are
// built.
func (w *twins) objects(profiled bool) *objects.World {
	var s objects.Set
	for _, name := range []string{"one", "two"} {
		p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		p.Spec.TargetPorts = []pool.Port{{Number: 8000}}
		p.Spec.Selector.MatchLabels = map[string]string{name: "yes"}
		if name == "one" || w.random.IntN(2) == 0 {
			s.Pools = append(s.Pools, p)
		}
	}
	for i := range 6 {
		labels := map[string]string{[...]string{"one", "two"}[w.random.IntN(2)]: "yes"}
		if profiled && w.random.IntN(3) == 0 {
			labels = map[string]string{"one": "yes", "two": "yes"}
		}
		if w.random.IntN(5) > 0 {
			s.Pods = append(s.Pods, objects.Pod{
				Name: objects.Name{Namespace: "ns", Name: fmt.Sprint("pod", i)}, IP: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}),
				Labels: labels, Ready: true,
			})
		}
	}
	world := objects.Build(s)
	for _, p := range world.Pools {
		if profiled {
			p.Profile = &profile.Profile{
				Prefill: profile.Prefill{PerToken: 0.001}, Decode: profile.Decode{Base: 0.01, PerSequence: 0.001, PerKVToken: 0.00001},
				Limits: profile.Limits{
					MaxSequences: 256, MaxBatchedTokens: 2048, KVBlocks: 100, BlockSize: 16, GPUAdapters: 2, HostAdapters: 3,
				},
			}
		}
		for i := range p.Endpoints {
			e := &p.Endpoints[i]
			switch w.random.IntN(12) {
			case 0:
				e.Ready = false
			case 1:
				e.NodeSilent = true
			case 2:
				e.Terminating, e.Migrates = true, w.now.Add(time.Duration(w.random.IntN(5))*time.Second)
			case 3:
				e.Class = "other"
			}
		}
	}
	return world
}

var viewModels = []string{"llama", "sql", "chat", "code"}

// load returns a random load.
func (w *twins) load(profiled bool) engine.Load {
	some := func(n int) engine.Value {
		if w.random.IntN(2) == 0 {
			return engine.Value{}
		}
		return engine.Known(float64(w.random.IntN(n)))
	}
	l := engine.Load{
		Running: some(6), Waiting: some(4),
		KVUsage: engine.Known(w.random.Float64()), KVTokens: engine.Known(float64(1000 + w.random.IntN(2))),
		Started: engine.Known(float64(w.random.IntN(20) / 19)), Asleep: w.random.IntN(20) == 0, Forgets: w.random.IntN(9) == 0,
	}
	if l.MaxAdapters = some(5); profiled {
		l.MaxAdapters = engine.Known(4)
	}
	for _, model := range slices.Sorted(slices.Values(viewModels[1:])) {
		if w.random.IntN(2) == 0 {
			l.Active = append(l.Active, model)
		}
	}
	if w.random.IntN(3) == 0 {
		l.Kind = engine.VLLM
	}
	return l
}

// copyKey returns a random copy at an endpoint.
func (w *twins) copyKey(address string) CopyKey {
	pool := objects.Name{Namespace: "ns", Name: [...]string{"one", "two"}[w.random.IntN(2)]}
	return CopyKey{ModelKey: objects.ModelKey{Pool: pool, ID: viewModels[1+w.random.IntN(3)]}, Endpoint: address}
}

// change applies a random change, and returns its name.
func (w *twins) change(profiled bool) string {
	random := w.random
	address := fmt.Sprintf("10.0.0.%d:8000", random.IntN(6))
	now, before := w.now, w.now.Add(-time.Duration(random.IntN(3))*time.Second)
	looks := [2]Scrape{w.both[0].Scrape(address, before), w.both[1].Scrape(address, before)}
	look := func(s *State) Scrape { return looks[slices.Index(w.both[:], s)] }
	switch random.IntN(31) {
	default:
		loads := make([]engine.Load, 6)
		for i := range loads {
			loads[i] = w.load(profiled)
		}
		w.each(func(s *State) {
			for i, load := range loads {
				s.ScrapeSucceeded(s.Scrape(fmt.Sprintf("10.0.0.%d:8000", i), now), load)
			}
		})
		return "scrapes of all"
	case 23, 24, 25:
		load := w.load(profiled)
		w.each(func(s *State) { s.ScrapeSucceeded(look(s), load) })
		return "a scrape of " + address
	case 29, 30:
		soon, rarely := now.Add(200*time.Millisecond), now.Add(time.Duration(1+random.IntN(5))*time.Second)
		w.each(func(s *State) { s.Schedule.Plan(address, soon, rarely) })
		return "the plan of a scrape of " + address
	case 0:
		w.each(func(s *State) { s.ScrapeFailed(look(s)) })
		return "a failed scrape of " + address
	case 1:
		w.each(func(s *State) { s.Refused(address, now) })
		return "a refused scrape of " + address
	case 2:
		w.each(func(s *State) { s.RequestRefused(address, now) })
		return "a refused request at " + address
	case 3:
		w.each(func(s *State) { s.ConnectionBroken(address, now) })
		return "a broken connection to " + address
	case 4:
		w.each(func(s *State) { s.Stopping(address, before) })
		return "stopping " + address
	case 5:
		w.each(func(s *State) { s.Full(address, now) })
		return "a full " + address
	case 6, 7, 8:
		w.each(func(s *State) { s.RequestFailed(address, now) })
		return "a failed request at " + address
	case 9:
		w.each(func(s *State) { s.RequestServed(address, before) })
		return "a served request at " + address
	case 10:
		m := engine.Models{Base: viewModels[:1], Adapters: viewModels[1 : 1+random.IntN(4)], Unlisted: random.IntN(6) == 0}
		w.each(func(s *State) { s.ModelsListed(look(s), m) })
		return "a list of " + address
	case 11, 12:
		k := w.copyKey(address)
		update := PlacementUpdate{All: random.IntN(4) == 0}
		switch random.IntN(4) {
		case 0:
			update.Copies, update.Limits = map[CopyKey]CopyState{k: CopyState(random.IntN(4))}, map[CopyKey]int{k: random.IntN(3)}
		case 1:
			update.Others = map[CopyKey]int64{k: random.Int64N(3)}
		case 2:
			leaving := Leaving{Terminating: random.IntN(2) == 0, Migrates: now.Add(time.Duration(random.IntN(4)) * time.Second)}
			if random.IntN(3) == 0 {
				leaving.Stopping = before
			}
			update.Leaving = map[string]Leaving{address: leaving}
		case 3:
			update.Share, update.Endpoints = Share{random.IntN(2), 1 + random.IntN(2)}, map[string]bool{address: true, "10.0.0.1:8000": true}
		}
		w.each(func(s *State) { s.ApplyPlacement(update, now) })
		return "a placement"
	case 13:
		world := w.objects(profiled)
		w.each(func(s *State) { s.SetWorld(world) })
		return "new objects"
	case 14:
		all := []Backlog{{Endpoint: address, Requests: random.Int64N(3), Tokens: random.Int64N(100), Beside: random.Int64N(1e9)}}
		w.each(func(s *State) { s.SetPeers(all, now) })
		return "peers' work"
	case 15:
		w.each(func(s *State) { s.LoadReported(address, engine.Load{KVUsage: engine.Known(0.3)}, before, now) })
		return "a load report"
	case 16:
		k := w.copyKey(address)
		w.each(func(s *State) { s.ModelMissing(k, before, now) })
		return "a missing model"
	case 17:
		w.each((*State).Age)
		return "a second"
	case 18:
		w.each(func(s *State) { s.ProcessEnded(address, now) })
		return "an ended process"
	case 19:
		lesson := learn.Lesson{
			Rows: 20 + random.IntN(400), Trusted: random.IntN(2) == 0, Unchanged: 40, Off: 0.1, Usual: [2]float64{0.1, 0.1},
			Scale: 0.5 + random.Float64(),
		}
		w.each(func(s *State) {
			var told []LearnedProfile
			for _, key := range s.Times.acceleratorKeys() {
				is, _ := s.Times.times[key.Pool].accelerators[key.Accelerator].Teach()
				lesson.Prior = is.Prior
				told = append(told, LearnedProfile{AcceleratorKey: key, Lesson: lesson, Factors: map[string]float64{address: 0.5}})
			}
			s.Times.LearnFromPeers(told, now)
		})
		return "peers' profiles"
	case 20, 21, 22:
		if k := len(w.counts); k > 0 && random.IntN(2) == 0 {
			i := random.IntN(k)
			w.counts[i][0].End(now)
			w.counts[i][1].End(now)
			w.counts = slices.Delete(w.counts, i, i+1)
			return "the end of a request"
		}
		r := pick.Request{
			Pool: "ns/one", Model: viewModels[random.IntN(4)], Random: random.Uint64(),
			Demand: pick.Demand{Prompt: 100, Output: 10, Now: now.UnixNano()},
		}
		var both [2]Counts
		for i, v := range w.views {
			ds, err := pick.Pick(pick.Policy{Rule: pick.Latency, Threshold: 3}, v.Snapshot, r, make([]pick.Decision, 1))
			if err != nil {
				return "a request without an endpoint"
			}
			if both[i] = CountsOf(ds[0]); i == 1 && both[0].claim != both[1].claim {
				w.t.Fatal("the same request has different claims")
			}
		}
		if a, _ := both[0].Begin(now); a {
			both[1].Begin(now)
			w.counts = append(w.counts, both)
		} else {
			both[1].Begin(now)
		}
		return "a request"
	}
}

// A view equals one for which all endpoints were evaluated and copied, whatever has happened. Older
// views never change.
func TestViewEqualsTheNaiveOne(t *testing.T) {
	steps := []time.Duration{0, 0, 0, 0, time.Millisecond, 300 * time.Millisecond, 300 * time.Millisecond, 3 * time.Second}
	patient := settings.Default()
	patient.StaleAfter, patient.LostAfter = 4*time.Second, 12*time.Second
	for seed := range uint64(8) {
		profiled := seed%2 == 0
		w := &twins{
			t: t, random: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1e9, 0), old: make(map[*View]string),
		}
		for i := range w.both {
			w.both[i] = New(Config{Placed: seed%3 == 0, Settings: patient})
		}
		first := w.objects(profiled)
		w.each(func(s *State) { s.SetWorld(first) })
		w.publish("the start")
		for range 200 {
			what := w.change(profiled)
			w.now = w.now.Add(steps[w.random.IntN(len(steps))])
			if w.random.IntN(5) > 0 {
				w.publish(fmt.Sprintf("seed %d: %s", seed, what))
			}
		}
	}
}

// A view copies only the endpoint that was scraped, however many there are.
func TestViewCopiesOnlyWhatChanged(t *testing.T) {
	const n = 1000
	var addresses []string
	for i := range n {
		addresses = append(addresses, fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250))
	}
	s, now := New(Config{}), time.Unix(1e9, 0)
	s.SetWorld(objects.Build(objects.Endpoints(addresses)))
	for _, a := range addresses {
		s.ScrapeSucceeded(s.Scrape(a, now), engine.Load{})
	}
	pool := func() *pick.Pool {
		v, _ := s.View(now)
		s.Seal()
		return v.Snapshot.Pools[objects.EndpointsPool.String()]
	}
	before := pool()
	s.ScrapeSucceeded(s.Scrape(addresses[7], now), engine.Load{Running: engine.Known(3)})
	after := pool()
	var copied []string
	for i, e := range after.Endpoints {
		if is := before.Endpoints[i]; e != is {
			copied = append(copied, fmt.Sprint(e.Address, ": ", is.Others, e.Others))
		}
	}
	if want := []string{addresses[7] + ": 0 3"}; !slices.Equal(copied, want) {
		t.Errorf("it copied %d endpoints: %q, want %q", len(copied), copied[:min(9, len(copied))], want)
	}
	running := 3.0
	allocations := testing.AllocsPerRun(100, func() {
		running++ // an equal load would not change the view
		s.ScrapeSucceeded(s.Scrape(addresses[7], now), engine.Load{Running: engine.Known(running)})
		pool()
	})
	if allocations > 12 {
		t.Errorf("a view after one scrape costs %v allocations", allocations)
	}
}

// BenchmarkView measures a view after as many scrapes as usually end in the pause between two
// views, beside the oracle.
func BenchmarkView(b *testing.B) {
	for _, n := range []int{8, 64, 1000} {
		for _, kind := range []string{"changed", "naive"} {
			b.Run(fmt.Sprintf("endpoints=%d/kind=%s", n, kind), func(b *testing.B) {
				var addresses []string
				for i := range n {
					addresses = append(addresses, fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250))
				}
				s, now := New(Config{}), time.Unix(1e9, 0)
				s.SetWorld(objects.Build(objects.Endpoints(addresses)))
				for _, a := range addresses {
					s.ScrapeSucceeded(s.Scrape(a, now), engine.Load{})
				}
				s.View(now)
				b.ReportAllocs()
				at, running := 0, 0.0
				for b.Loop() {
					running++ // an equal load would not change the view
					now = now.Add(5 * time.Millisecond)
					for range max(1, n/40) { // 5 ms of 200 ms
						at = (at + 1) % n
						s.ScrapeSucceeded(s.Scrape(addresses[at], now), engine.Load{Running: engine.Known(running)})
					}
					if kind == "naive" {
						naiveView(s, now)
					} else {
						s.View(now)
					}
					s.Seal()
				}
			})
		}
	}
}
