package pick_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/profile"
)

// some is an arbitrary profile.
var some = &profile.Profile{
	Prefill: profile.Prefill{Base: 0.01, PerToken: 0.0001}, Decode: profile.Decode{Base: 0.01, PerSequence: 0.0001, PerKVToken: 1e-7},
	AdapterLoad: profile.Spread{Mean: 0.2}, AdapterActivation: profile.Spread{Mean: 0.02},
	Limits: profile.Limits{MaxSequences: 256, MaxBatchedTokens: 2048, KVBlocks: 6250, BlockSize: 16},
}

// randomFleet returns up to 8 endpoints in random states, which serve up to 5 adapters.
func randomFleet(random *rand.Rand) *fleet {
	f := newFleet()
	for i := range 1 + random.IntN(8) {
		name := fmt.Sprintf("e%d", i)
		takes := *some
		takes.FrontendOverhead = 0.1 * float64(random.IntN(4))
		e := &pick.Endpoint{
			Address: name, State: pick.State(random.IntN(int(pick.Out) + 1)), Others: random.Int64N(3), Slots: random.Int64N(4),
			InFlight: new(atomic.Int64), Adapters: new(atomic.Int64), Number: i, Profile: &takes, Backlog: new(pick.Backlog),
			Peers: new(pick.Peers),
		}
		e.Resident = pick.NewResident(int(e.Slots), 4)
		e.Backlog.Queue.Store(now + random.Int64N(1e9))
		f.pool.Predictable = true
		for _, model := range []string{"a", "b", "c", "d", "e"} {
			c := pick.Copy{Endpoint: i, Model: model, InFlight: f.count(name, model)}
			c.InFlight.Store(max(0, random.Int64N(8)-3))
			e.InFlight.Add(c.InFlight.Load())
			if c.InFlight.Load() > 0 {
				e.Adapters.Add(1)
			}
			if random.IntN(3) == 0 {
				e.Listed = append(e.Listed, c.InFlight)
			}
			if random.IntN(4) > 0 {
				f.pool.Copies[model] = append(f.pool.Copies[model], c)
			}
		}
		f.pool.Base = append(f.pool.Base, pick.Copy{
			Endpoint: i, Model: "llama", Base: true, Names: []string{"llama"},
			InFlight: f.count(name, "llama"),
		})
		f.pool.Endpoints = append(f.pool.Endpoints, e)
	}
	return f
}

// oracle applies the rule of the endpoint-picker proposal literally, as a sequence of filters. It
// ignores the endpoints in tried.
func oracle(f *fleet, model string, threshold int64, tried []string) []string {
	type candidate struct {
		pick.Copy
		e *pick.Endpoint
	}
	var all []candidate
	for _, c := range f.pool.Copies[model] {
		if e := f.pool.Endpoints[c.Endpoint]; !slices.Contains(tried, e.Address) {
			all = append(all, candidate{c, e})
		}
	}
	keep := func(from []candidate, when func(candidate) bool) []candidate {
		return slices.DeleteFunc(slices.Clone(from), func(c candidate) bool { return !when(c) })
	}
	least := func(from []candidate, of func(candidate) int64) []candidate {
		if len(from) == 0 {
			return nil
		}
		low := slices.MinFunc(from, func(a, b candidate) int { return int(of(a) - of(b)) })
		return keep(from, func(c candidate) bool { return of(c) == of(low) })
	}
	holds := func(c candidate) bool { return c.InFlight.Load() > 0 || slices.Contains(c.e.Listed, c.InFlight) }
	pending := func(c candidate) int64 { return c.e.Others + c.e.InFlight.Load() }
	adapters := func(c candidate) int64 { return c.e.ActiveAdapters() }

	var candidates []candidate
	for state := pick.Healthy; state < pick.Out && len(candidates) == 0; state++ {
		candidates = keep(all, func(c candidate) bool { return c.e.State == state })
	}
	best := keep(candidates, func(c candidate) bool { return holds(c) && c.InFlight.Load() < threshold })
	best = least(best, func(c candidate) int64 { return -c.InFlight.Load() })
	if len(best) == 0 {
		best = keep(candidates, func(c candidate) bool { return holds(c) || c.e.Slots == 0 || adapters(c) < c.e.Slots })
		if len(best) == 0 {
			best = candidates
		}
		best = least(best, adapters)
	}
	var names []string
	for _, c := range least(best, pending) {
		names = append(names, c.e.Address)
	}
	return names
}

// Each decision is the best among the endpoints that earlier decisions did not choose.
func TestProposalAgreesWithItsOracle(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		f := randomFleet(random)
		request := pick.Request{Pool: thePool, Model: "a", Random: random.Uint64() | 1<<32} // a new tie-break each time
		room := make([]pick.Decision, 1+random.IntN(4))
		picks, err := pick.Pick(pick.Policy{Threshold: 3}, f.snapshot(), request, room)
		if err != nil && !errors.Is(err, pick.ErrNoneReady) && !errors.Is(err, pick.ErrNotAddressable) {
			t.Fatal(err)
		}
		var tried []string
		for _, d := range picks {
			if want := oracle(f, "a", 3, tried); !slices.Contains(want, d.Endpoint.Address) {
				t.Fatalf("after %v: %+v, want one of %v", tried, d, want)
			}
			tried = append(tried, d.Endpoint.Address)
		}
		if rest := oracle(f, "a", 3, tried); len(picks) < len(room) && len(rest) > 0 {
			t.Fatalf("%v of %d requested are picked, and %v are left", tried, len(room), rest)
		}
		again, _ := pick.Pick(pick.Policy{Threshold: 3}, f.snapshot(), request, make([]pick.Decision, len(room)))
		if !slices.Equal(again, picks) {
			t.Fatalf("the same request goes to %+v and then to %+v", picks, again)
		}
	}
}

// With every rule, decisions are distinct candidates. No endpoint among them is out, and endpoints
// in a better state come first. A caller that asks for fewer decisions gets the first ones of all
// candidates in sorted order.
func TestEveryRuleKeepsTheOrderOfStates(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 5000 {
		f := randomFleet(random)
		for rule := pick.Proposal; rule <= pick.Latency; rule++ {
			for _, request := range []pick.Request{
				{Model: "a"},
				{Model: "llama", Base: true},
				{Model: "a", Tokenless: true},
				{Model: "llama", Base: true, Tokenless: true, Demand: pick.Demand{ServiceTime: 1e6}},
			} {
				request.Pool, request.Random, request.Turn = thePool, random.Uint64()|1<<32, random.Uint64()
				keepsTheOrder(t, f, rule, request)
			}
		}
	}
}

func keepsTheOrder(t *testing.T, f *fleet, rule pick.Rule, request pick.Request) {
	t.Helper()
	copies := f.pool.Copies[request.Model]
	if request.Base {
		copies = f.pool.Base
	}
	ready := 0
	for _, c := range copies {
		if f.pool.Endpoints[c.Endpoint].State != pick.Out {
			ready++
		}
	}
	policy := pick.Policy{Rule: rule, Threshold: 3}
	all, err := pick.Pick(policy, f.snapshot(), request, make([]pick.Decision, len(f.pool.Endpoints)))
	if len(all) != ready || (err == nil) != (ready > 0) {
		t.Fatalf("%s picks %d of %d: %v", rule, len(all), ready, err)
	}
	seen := make(map[string]bool)
	for i, d := range all {
		if d.Endpoint.State == pick.Out || d.Copy.Model != request.Model || seen[d.Endpoint.Address] || i > 0 &&
			d.Endpoint.State < all[i-1].Endpoint.State {
			t.Fatalf("%s picks %+v", rule, all)
		}
		seen[d.Endpoint.Address] = true
	}
	for n := 1; n < ready; n++ {
		if few, _ := pick.Pick(policy, f.snapshot(), request, make([]pick.Decision, n)); !slices.Equal(few, all[:n]) {
			t.Fatalf("%s: the first %d are %+v, of all %+v", rule, n, few, all)
		}
	}
}

// Among n equal endpoints every order is equally likely, so each is first in 1/n of the decisions.
func TestTiesAreBrokenAtRandom(t *testing.T) {
	const n, times = 4, 240_000
	f := newFleet()
	for _, name := range []string{"p", "q", "r", "s"} {
		f.endpoint(t, name, []string{"lists=m"})
	}
	random := rand.New(rand.NewPCG(9, 10))
	room := make([]pick.Decision, n)
	first, orders := make(map[string]int), make(map[[n]string]int)
	for range times {
		picks, err := pick.Pick(pick.Policy{Threshold: 3}, f.snapshot(),
			pick.Request{Pool: thePool, Model: "m", Random: random.Uint64()}, room)
		if err != nil {
			t.Fatal(err)
		}
		var order [n]string
		for i, d := range picks {
			order[i] = d.Endpoint.Address
		}
		first[order[0]]++
		orders[order]++
	}
	// The tolerance is five standard deviations of a binomial distribution: 1,061 of 60,000, and
	// 490 of 10,000.
	for name, count := range first {
		if count < times/n-1061 || count > times/n+1061 {
			t.Errorf("%s comes first %d times of %d", name, count, times)
		}
	}
	if len(orders) != 24 {
		t.Errorf("there are %d orders of 4", len(orders))
	}
	for order, count := range orders {
		if count < times/24-490 || count > times/24+490 {
			t.Errorf("the order %s comes %d times of %d", order, count, times)
		}
	}
}

func TestPickAllocatesNothing(t *testing.T) {
	f := randomFleet(rand.New(rand.NewPCG(7, 8)))
	s := f.snapshot()
	demand := pick.Demand{Prompt: 1000, Output: 100, Cached: make([]int32, 8), Block: 64, Now: now, ServiceTime: 1e6}
	for _, room := range [][]pick.Decision{make([]pick.Decision, 1), make([]pick.Decision, 3)} {
		for rule := pick.Proposal; rule <= pick.Latency; rule++ {
			for _, tokenless := range []bool{false, true} {
				if n := testing.AllocsPerRun(100, func() {
					_, _ = pick.Pick(pick.Policy{Rule: rule, Threshold: 3}, s,
						pick.Request{Pool: thePool, Model: "a", Demand: demand, Tokenless: tokenless}, room)
					_, _ = pick.Pick(pick.Policy{Rule: rule, Threshold: 3}, s,
						pick.Request{Pool: thePool, Model: "a", Demand: demand, Tokenless: tokenless, Gate: someGate}, room)
				}); n != 0 {
					t.Errorf("%s allocates %v times, tokenless: %v", rule, n, tokenless)
				}
			}
		}
	}
}

// BenchmarkPick measures decisions in a loaded fleet: each endpoint has requests for adapters,
// queued prompts, and part of the prompt in its cache. To run it:
//
//	go test ./extproc/pick -run "^$" -bench Pick
func BenchmarkPick(b *testing.B) {
	for _, endpoints := range []int{4, 100, 1000} {
		s, demand := loaded(endpoints)
		for rule := pick.Proposal; rule <= pick.Latency+1; rule++ {
			policy, name := pick.Policy{Rule: rule, Threshold: 32}, "tokenless"
			r := pick.Request{Pool: thePool, Model: "a", Demand: demand}
			if rule > pick.Latency {
				policy.Rule, r.Tokenless, r.Demand.ServiceTime = pick.Latency, true, 1e6
			} else {
				name = rule.String()
			}
			for _, picks := range []int{1, 3} {
				b.Run(fmt.Sprintf("endpoints=%d/picks=%d/rule=%s", endpoints, picks, name), func(b *testing.B) {
					room := make([]pick.Decision, picks)
					b.ReportAllocs()
					for b.Loop() {
						r.Random += 0x9e3779b97f4a7c15
						r.Turn = r.Random
						if _, err := pick.Pick(policy, s, r, room); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}

// loaded returns a loaded fleet, and the demand of a request.
func loaded(endpoints int) (*pick.Snapshot, pick.Demand) {
	f := newFleet()
	demand := pick.Demand{
		Prompt: 1000, Output: 100, FirstToken: 1, PerToken: 0.1, Stated: true, Cached: make([]int32, endpoints),
		Block: 64, Now: now,
	}
	for i := range endpoints {
		name := strconv.Itoa(i)
		requests := 5 + f.random.Int64N(20)
		demand.Cached[i] = max(0, f.random.Int32N(40)-30)
		f.pool.Endpoints = append(f.pool.Endpoints, &pick.Endpoint{
			Address: name, Slots: 4, Others: int64(i % 7), InFlight: new(atomic.Int64), Adapters: new(atomic.Int64),
			Number: i, Profile: some, Backlog: new(pick.Backlog), Peers: new(pick.Peers), Resident: pick.NewResident(4, 16),
			OthersBeside: float64(i%7) * 0.0001,
			Listed:       []*pick.Count{f.count(name, "a"), f.count(name, "b")},
		})
		f.pool.Copies["a"] = append(f.pool.Copies["a"], pick.Copy{Endpoint: i, Model: "a", InFlight: f.count(name, "a")})
		e := f.pool.Endpoints[i]
		e.InFlight.Store(requests)
		e.Adapters.Store(1 + requests%3)
		e.Backlog.Queue.Store(now + f.random.Int64N(3e8) - 2e8)
		e.Backlog.Beside.Store(requests * 2e8)
		e.Backlog.Urgency.Store(requests * 10_000)
		if f.random.IntN(8) == 0 {
			f.count(name, "a").Store(1 + f.random.Int64N(4))
			e.Resident.Use(f.count(name, "a"))
		}
	}
	f.pool.Predictable = true
	return f.snapshot(), demand
}
