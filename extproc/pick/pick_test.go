package pick_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/test/golden"
)

// Scenarios are commands, one a line:
//
//	endpoint NAME [slots=N] [others=N] [suspect|stale|lost|out] [base=NAME,NAME] [lists=A,B] [ours=A:N,B:N]
//	     [theirs=A:N,B:N] [active=A,B] [queue=SECONDS] [beside=SECONDS] [held=N] [urgent=OBJECTIVE] [theirbeside=SECONDS] [elsewhere=N] [room=SLOTS,HOST] [used=A,B]
//	     [peers=N] [peerqueue=SECONDS] [peerbeside=SECONDS] [peerheld=N] [peerurgent=OBJECTIVE]
//	    an endpoint of the pool: the adapters it answers to, requests in flight there by model, ours and those of other
//	    processes, and the adapters that the engine reports as active; of what ours still ask of it: until when prompts are computed, by how
//	    much steps are longer, tokens in the KV cache, and a request at an objective for each token; the same of others; adapters that were used in that order;
//	    with peer before a name, what other processes tell of theirs
//	profile [prefill=BASE,PERTOKEN,SQUARED,FLOOR] [decode=BASE,PERSEQUENCE,PERKVTOKEN,ADAPTERS] [load=MEAN] [slot=MEAN] [sequences=N] [chunk=N] [kv=N]
//	    the profile of the endpoints that follow, all zero but for 256 sequences, chunks of 2,048 and KV for 100,000 tokens
//	pick MODEL [policy=RULE] [threshold=N] [turn=N] [base] [open] [only=ADDRESS,ADDRESS] [near=ADDRESS] [session=N]
//	     [prompt=N] [output=N] [first=SECONDS] [token=SECONDS] [cached=NAME:BLOCKS,...] [picks=N] [times=N] [keep]
//	    up to N decisions, one by default, each where the request goes if those before it did not answer; times=N decides
//	    N times with other random numbers and counts; keep sends the request to the first
func TestScenarios(t *testing.T) {
	golden.Run(t, "testdata/*.txt", func(t *testing.T) func(string) string {
		f := newFleet()
		return func(input string) string {
			var out strings.Builder
			for line := range strings.Lines(input) {
				out.WriteString(f.do(t, strings.Fields(line)))
			}
			return out.String()
		}
	})
}

const thePool = "ns/pool"

// fleet builds snapshots by hand.
type fleet struct {
	pool   pick.Pool
	counts map[string]*pick.Count // by endpoint and model
	random *rand.Rand
	time   *profile.Profile
	kv     int64
}

func newFleet() *fleet {
	return &fleet{
		pool:   pick.Pool{Index: pick.Index{Copies: map[string][]pick.Copy{}}},
		counts: map[string]*pick.Count{},
		random: rand.New(rand.NewPCG(1, 2)),
	}
}

func (f *fleet) snapshot() *pick.Snapshot {
	return &pick.Snapshot{Pools: map[string]*pick.Pool{thePool: &f.pool}}
}

func (f *fleet) count(endpoint, model string) *pick.Count {
	key := endpoint + " " + model
	if f.counts[key] == nil {
		f.counts[key] = new(pick.Count)
	}
	return f.counts[key]
}

func (f *fleet) do(t *testing.T, words []string) string {
	t.Helper()
	switch words[0] {
	case "endpoint":
		f.endpoint(t, words[1], words[2:])
		return ""
	case "profile":
		f.profile(t, words[1:])
		return ""
	case "pick":
		return f.pick(t, words[1], words[2:])
	}
	t.Fatalf("no command %q", words[0])
	return ""
}

func (f *fleet) endpoint(t *testing.T, name string, args []string) {
	t.Helper()
	index := len(f.pool.Endpoints)
	e := pick.Endpoint{
		Address: name, Hash: uint64(index + 1), InFlight: new(atomic.Int64), Adapters: new(atomic.Int64), Number: index, Profile: f.time, Backlog: new(pick.Backlog), Peers: new(pick.Peers), KVTokens: f.kv,
	}
	f.pool.Predictable = f.time != nil
	var base string
	var lists, active []string
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		switch key {
		case "slots":
			e.Slots = number(t, value)
		case "others":
			e.Others = number(t, value)
		case "suspect", "stale", "lost", "out":
			e.State = pick.State(slices.Index(pick.States[:], key))
		case "base":
			base = value
		case "lists":
			lists = strings.Split(value, ",")
		case "active":
			active = strings.Split(value, ",")
		case "theirs":
			for pair := range strings.SplitSeq(value, ",") {
				model, n, _ := strings.Cut(pair, ":")
				f.count(name, model).Others.Store(number(t, n))
			}
		case "ours":
			for pair := range strings.SplitSeq(value, ",") {
				model, n, _ := strings.Cut(pair, ":")
				f.count(name, model).Store(number(t, n))
				e.InFlight.Add(number(t, n))
				if model != base {
					e.Adapters.Add(1)
				}
			}
		case "queue", "peerqueue":
			backlog(&e, key).Through.Store(now + int64(1e9*decimal(t, value)))
		case "beside", "peerbeside":
			backlog(&e, key).Beside.Store(int64(1e12 * decimal(t, value)))
		case "theirbeside":
			e.OthersBeside = decimal(t, value)
		case "held", "peerheld":
			backlog(&e, key).Held.Store(number(t, value))
		case "urgent", "peerurgent":
			backlog(&e, key).Urgency.Store(int64(1000 / decimal(t, value)))
		case "peers":
			e.Peers.Requests.Store(number(t, value))
		case "elsewhere":
			e.OthersTokens = number(t, value)
		case "room":
			slots, host, _ := strings.Cut(value, ",")
			e.Resident = pick.NewResident(int(number(t, slots)), int(number(t, host)))
		case "used":
			for i, model := range strings.Split(value, ",") {
				f.count(name, model).Last.Store(int64(i + 1))
				e.Resident.Use(f.count(name, model))
			}
		default:
			t.Fatalf("no setting %q", key)
		}
	}
	for _, model := range active {
		e.Listed = append(e.Listed, f.count(name, model))
	}
	for _, model := range lists {
		f.pool.Copies[model] = append(f.pool.Copies[model], pick.Copy{
			Endpoint: index, Model: model, InFlight: f.count(name, model),
		})
	}
	if base != "" {
		bases := strings.Split(base, ",")
		base = bases[0]
		c := pick.Copy{Endpoint: index, Model: base, Base: true, Names: bases, InFlight: f.count(name, base)}
		for _, name := range bases {
			f.pool.Copies[name] = append(f.pool.Copies[name], c)
		}
		f.pool.Base = append(f.pool.Base, c)
	}
	f.pool.Any = append(f.pool.Any, pick.Copy{Endpoint: index, Base: true, InFlight: f.count(name, "")})
	f.pool.Listed = f.pool.Listed || len(lists) > 0 || base != ""
	f.pool.Endpoints = append(f.pool.Endpoints, e)
}

// backlog is the one of an endpoint that a setting is of.
func backlog(e *pick.Endpoint, key string) *pick.Backlog {
	if strings.HasPrefix(key, "peer") {
		return &e.Peers.Backlog
	}
	return e.Backlog
}

func (f *fleet) pick(t *testing.T, model string, args []string) string {
	t.Helper()
	policy := pick.Policy{Threshold: 4}
	request := pick.Request{Pool: thePool, Model: model}
	room, times, keep := make([]pick.Decision, 1), int64(1), false
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		switch key {
		case "policy":
			rule, err := pick.ParseRule(value)
			if err != nil {
				return err.Error() + "\n"
			}
			policy.Rule = rule
		case "threshold":
			policy.Threshold = number(t, value)
		case "turn":
			request.Turn = uint64(number(t, value))
		case "base":
			request.Base = true
		case "open":
			request.Open = true
		case "none":
			request.Model = ""
		case "only":
			request.Only = pick.ParseSubset([]string{value})
		case "near":
			request.Near = value
		case "session":
			request.Session = uint64(number(t, value))
		case "picks":
			room = make([]pick.Decision, number(t, value))
		case "times":
			times = number(t, value)
		case "keep":
			keep = true
		case "pool":
			request.Pool = value
		case "prompt":
			request.Demand.Prompt = int(number(t, value))
		case "output":
			request.Demand.Output = int(number(t, value))
		case "first":
			request.Demand.FirstToken = decimal(t, value)
		case "token":
			request.Demand.PerToken, request.Demand.Stated = decimal(t, value), true
		case "cached":
			request.Demand.Cached, request.Demand.Block = make([]int32, len(f.pool.Endpoints)), 64
			for pair := range strings.SplitSeq(value, ",") {
				name, n, _ := strings.Cut(pair, ":")
				i := slices.IndexFunc(f.pool.Endpoints, func(e pick.Endpoint) bool { return e.Address == name })
				request.Demand.Cached[f.pool.Endpoints[i].Number] = int32(number(t, n))
			}
		default:
			t.Fatalf("no setting %q", key)
		}
	}
	request.Demand.Now = now
	got := map[string]int{}
	for range times {
		request.Random = f.random.Uint64()
		picks, err := pick.Pick(policy, f.snapshot(), request, room)
		if err != nil {
			return err.Error() + "\n"
		}
		var order []string
		for _, d := range picks {
			line := fmt.Sprintf("%s as %s: %s", d.Endpoint.Address, d.Model, d.Reason)
			if is := d.Estimate; is != (pick.Estimate{}) {
				line += fmt.Sprintf(" (queue %.3g + room %.3g + load %.3g + prefill %.3g; step %.3g, longer by %.3g; cost %.3g + %.3g)",
					is.Queue, is.Room, is.Load, is.Prefill, is.Step, is.Longer, is.Own, is.Others)
			}
			order = append(order, line)
		}
		got[strings.Join(order, "; then ")]++
		request.Turn++
		if d := picks[0]; keep {
			d.Endpoint.InFlight.Add(1)
			if d.Copy.InFlight.Add(1) == 1 && !d.Copy.Base {
				d.Endpoint.Adapters.Add(1)
			}
			d.Endpoint.Backlog.Begin(d.Claim, now)
		}
	}
	var lines []string
	for decision, n := range got {
		if times > 1 {
			decision = fmt.Sprintf("%s, %d times", decision, n)
		}
		lines = append(lines, decision+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// now is when everything is picked.
const now = 1e18

func (f *fleet) profile(t *testing.T, args []string) {
	t.Helper()
	if f.time = nil; len(args) == 0 {
		return
	}
	f.time, f.kv = &profile.Profile{Limits: profile.Limits{MaxSequences: 256, MaxBatchedTokens: 2048}}, 100_000
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		var n [4]float64
		for i, s := range strings.Split(value, ",") {
			n[i] = decimal(t, s)
		}
		switch key {
		case "prefill":
			f.time.Prefill = profile.Prefill{Base: n[0], PerToken: n[1], PerTokenSquared: n[2], Floor: n[3]}
		case "decode":
			f.time.Decode = profile.Decode{Base: n[0], PerSequence: n[1], PerKVToken: n[2], Adapters: n[3]}
		case "load":
			f.time.Load.Mean = n[0]
		case "slot":
			f.time.Slot.Mean = n[0]
		case "sequences":
			f.time.Limits.MaxSequences = int(n[0])
		case "chunk":
			f.time.Limits.MaxBatchedTokens = int(n[0])
		case "kv":
			f.kv = int64(n[0])
		default:
			t.Fatalf("no setting %q", key)
		}
	}
}

func decimal(t *testing.T, s string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func number(t *testing.T, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// some is a profile.
var some = &profile.Profile{
	Prefill: profile.Prefill{Base: 0.01, PerToken: 0.0001}, Decode: profile.Decode{Base: 0.01, PerSequence: 0.0001, PerKVToken: 1e-7},
	Load: profile.Spread{Mean: 0.2}, Slot: profile.Spread{Mean: 0.02}, Limits: profile.Limits{MaxSequences: 256, MaxBatchedTokens: 2048, KVBlocks: 6250, BlockSize: 16},
}

// randomFleet has up to 8 endpoints in any state with up to 5 adapters.
func randomFleet(random *rand.Rand) *fleet {
	f := newFleet()
	for i := range 1 + random.IntN(8) {
		name := fmt.Sprintf("e%d", i)
		e := pick.Endpoint{
			Address: name, State: pick.State(random.IntN(int(pick.Out) + 1)), Others: random.Int64N(3), Slots: random.Int64N(4),
			InFlight: new(atomic.Int64), Adapters: new(atomic.Int64), Number: i, Profile: some, Backlog: new(pick.Backlog), Peers: new(pick.Peers),
		}
		e.Resident = pick.NewResident(int(e.Slots), 4)
		e.Backlog.Through.Store(now + random.Int64N(1e9))
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
		f.pool.Endpoints = append(f.pool.Endpoints, e)
	}
	return f
}

// The oracle is the proposal's rule in the order in which it is told: sets of endpoints that become smaller. Those that
// were tried are left out.
func oracle(f *fleet, model string, threshold int64, tried []string) []string {
	type candidate struct {
		pick.Copy
		e *pick.Endpoint
	}
	var all []candidate
	for _, c := range f.pool.Copies[model] {
		if e := &f.pool.Endpoints[c.Endpoint]; !slices.Contains(tried, e.Address) {
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

// Each decision is the best of the endpoints that the ones before it leave.
func TestProposalAgreesWithItsOracle(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		f := randomFleet(random)
		request := pick.Request{Pool: thePool, Model: "a", Random: random.Uint64() | 1<<32} // nothing is tried again
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
			t.Fatalf("%v are picked of %d asked for, and %v are left", tried, len(room), rest)
		}
		again, _ := pick.Pick(pick.Policy{Threshold: 3}, f.snapshot(), request, make([]pick.Decision, len(room)))
		if !slices.Equal(again, picks) {
			t.Fatalf("the same request goes to %+v and then to %+v", picks, again)
		}
	}
}

// Whatever the rule: decisions are candidates, each once, none that is out, those in a better state first; and who asks
// for fewer gets the first of those that sorting all of them gives.
func TestEveryRuleKeepsTheOrderOfStates(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 5000 {
		f := randomFleet(random)
		ready := 0
		for _, c := range f.pool.Copies["a"] {
			if f.pool.Endpoints[c.Endpoint].State != pick.Out {
				ready++
			}
		}
		for rule := pick.Proposal; rule <= pick.Latency; rule++ {
			policy := pick.Policy{Rule: rule, Threshold: 3}
			request := pick.Request{Pool: thePool, Model: "a", Random: random.Uint64() | 1<<32, Turn: random.Uint64()}
			all, err := pick.Pick(policy, f.snapshot(), request, make([]pick.Decision, len(f.pool.Endpoints)))
			if len(all) != ready || (err == nil) != (ready > 0) {
				t.Fatalf("%s picks %d of %d: %v", rule, len(all), ready, err)
			}
			seen := make(map[string]bool)
			for i, d := range all {
				if d.Endpoint.State == pick.Out || d.Copy.Model != "a" || seen[d.Endpoint.Address] || i > 0 && d.Endpoint.State < all[i-1].Endpoint.State {
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
	}
}

// Among n equals each order is as likely as any other, so each endpoint comes first in 1/n of the decisions.
func TestEqualsAreOrderedByLot(t *testing.T) {
	const n, times = 4, 240_000
	f := newFleet()
	for _, name := range []string{"p", "q", "r", "s"} {
		f.endpoint(t, name, []string{"lists=m"})
	}
	random := rand.New(rand.NewPCG(9, 10))
	room := make([]pick.Decision, n)
	first, orders := make(map[string]int), make(map[[n]string]int)
	for range times {
		picks, err := pick.Pick(pick.Policy{Threshold: 3}, f.snapshot(), pick.Request{Pool: thePool, Model: "m", Random: random.Uint64()}, room)
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
	// Five standard deviations of a binomial distribution: 1,061 of 60,000, and 490 of 10,000.
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

func TestADecisionAllocatesNothing(t *testing.T) {
	f := randomFleet(rand.New(rand.NewPCG(7, 8)))
	s := f.snapshot()
	demand := pick.Demand{Prompt: 1000, Output: 100, Cached: make([]int32, 8), Block: 64, Now: now}
	for _, room := range [][]pick.Decision{make([]pick.Decision, 1), make([]pick.Decision, 3)} {
		for rule := pick.Proposal; rule <= pick.Latency; rule++ {
			if n := testing.AllocsPerRun(100, func() {
				_, _ = pick.Pick(pick.Policy{Rule: rule, Threshold: 3}, s, pick.Request{Pool: thePool, Model: "a", Demand: demand}, room)
			}); n != 0 {
				t.Errorf("%s allocates %v times", rule, n)
			}
		}
	}
}

// Run it with go test ./extproc/pick -run "^$" -bench Pick. The fleet is one that serves: each endpoint has requests of adapters, prompts before
// it, and some of the prompt in its cache.
func BenchmarkPick(b *testing.B) {
	for _, endpoints := range []int{4, 100, 1000} {
		f := newFleet()
		demand := pick.Demand{Prompt: 1000, Output: 100, FirstToken: 1, PerToken: 0.1, Stated: true, Cached: make([]int32, endpoints), Block: 64, Now: now}
		for i := range endpoints {
			name := strconv.Itoa(i)
			requests := 5 + f.random.Int64N(20)
			demand.Cached[i] = max(0, f.random.Int32N(40)-30)
			f.pool.Endpoints = append(f.pool.Endpoints, pick.Endpoint{
				Address: name, Slots: 4, Others: int64(i % 7), InFlight: new(atomic.Int64), Adapters: new(atomic.Int64),
				Number: i, Profile: some, Backlog: new(pick.Backlog), Peers: new(pick.Peers), Resident: pick.NewResident(4, 16),
				OthersBeside: float64(i%7) * 0.0001,
				Listed:       []*pick.Count{f.count(name, "a"), f.count(name, "b")},
			})
			f.pool.Copies["a"] = append(f.pool.Copies["a"], pick.Copy{Endpoint: i, Model: "a", InFlight: f.count(name, "a")})
			e := &f.pool.Endpoints[i]
			e.InFlight.Store(requests)
			e.Adapters.Store(1 + requests%3)
			e.Backlog.Through.Store(now + f.random.Int64N(3e8) - 2e8)
			e.Backlog.Beside.Store(requests * 2e8)
			e.Backlog.Urgency.Store(requests * 10_000)
			if f.random.IntN(8) == 0 {
				f.count(name, "a").Store(1 + f.random.Int64N(4))
				e.Resident.Use(f.count(name, "a"))
			}
		}
		f.pool.Predictable = true
		s := f.snapshot()
		for rule := pick.Proposal; rule <= pick.Latency; rule++ {
			for _, picks := range []int{1, 3} {
				b.Run(fmt.Sprintf("endpoints=%d/picks=%d/rule=%s", endpoints, picks, rule), func(b *testing.B) {
					random := uint64(1)
					room := make([]pick.Decision, picks)
					b.ReportAllocs()
					for b.Loop() {
						random += 0x9e3779b97f4a7c15
						if _, err := pick.Pick(pick.Policy{Rule: rule, Threshold: 32}, s, pick.Request{Pool: thePool, Model: "a", Random: random, Turn: random, Demand: demand}, room); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}
