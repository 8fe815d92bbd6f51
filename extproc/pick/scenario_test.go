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

// TestScenarios runs scenario files. Each line is a command:
//
//	new
//	    start again with an empty pool
//	endpoint NAME [suspect|stale|migrating|lost|out] [SETTING=VALUE...]
//	    add an endpoint to the pool:
//	    base=NAME,NAME       names of its base model
//	    lists=A,B            adapters that it can serve
//	    ours=A:N             requests of this process in flight, by model
//	    theirs=A:N           requests of other processes in flight, by model
//	    limit=A:N            concurrency limits of copies
//	    active=A,B           adapters that the engine reports as active
//	    others=N             requests of unknown sources
//	    slots=N              adapter slots
//	    queue=SECONDS        time until its queued prompts are computed
//	    prompts=SECONDS      time that it spent on prompts until now
//	    beside=SECONDS       how much its requests lengthen a step
//	    tokens=N             tokens of its requests in the KV cache
//	    urgent=OBJECTIVE     it has one request with this objective for time per output token
//	    theirbeside=SECONDS  beside, for requests of unknown sources
//	    elsewhere=N          tokens, for requests of unknown sources
//	    paced=N:SECONDS      N requests without tokens, and the sum of their service times
//	    peers=N              requests that other processes report
//	    peerqueue=, peerbeside=, peertokens=, peerurgent=
//	                         queue, beside, tokens and urgent, for those requests
//	    beyond=N             tokens in the KV cache beyond those of known requests
//	    window=N             learned window of this process's requests in flight
//	    batch=N              learned limit of the requests that the engine runs
//	    stated=BAND:OBJECTIVE,...
//	                         requests with these bands and objectives for time per output token
//	    room=SLOTS,HOST      places for adapters in slots and in host memory
//	    used=A,B             adapters used so far, in this order
//	profile [prefill=BASE,PERTOKEN,SQUARED,FLOOR] [decode=BASE,PERSEQUENCE,PERKVTOKEN,ADAPTERS]
//	        [intake=BASE] [load=MEAN] [slot=MEAN] [sequences=N] [chunk=N] [kv=N]
//	    set the profile of later endpoints. The defaults are 256 sequences, chunks of
//	    2,048 tokens, KV for 100,000 tokens, and 0 for everything else
//	pick MODEL [SETTING...]
//	    print up to picks=N decisions (1 by default); all but the first one are for retries.
//	    Settings of the request: base, open, none, only=ADDRESS,ADDRESS, near=ADDRESS, session=N,
//	    pool=POOL, prompt=N, output=N, first=SECONDS and token=SECONDS (objectives),
//	    cached=NAME:BLOCKS,..., tokenless, pace=SECONDS, turn=N, failclose.
//	    Settings of the policy: policy=RULE, threshold=N.
//	    times=N decides N times with other random numbers, and prints counts.
//	    keep sends the request to the first endpoint.
//	    Settings of the gate, which is closed only if gate is given: gate, band=N, window=N,
//	    headroom=SHARE, reserved=ENDPOINT:BAND[:ADAPTER] (by another request),
//	    closed=ENDPOINT:BAND (for another process). If no endpoint has room, the output says when
//	    one has room by the passage of time alone
//	reserve MODEL [SETTING...]
//	    print which endpoint, or which adapter's slot, a waiting request reserves
//	why MODEL [SETTING...]
//	    print for each endpoint why it has no room for the request
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

// fleet builds snapshots from the commands.
type fleet struct {
	pool   pick.Pool
	counts map[string]*pick.Count // key: endpoint and model
	random *rand.Rand
	time   *profile.Profile
	kv     int64
	kept   int64 // number of requests that were sent

	reserve, why bool // the command is reserve, or why
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
	case "new":
		*f = *newFleet()
		return ""
	case "endpoint":
		f.endpoint(t, words[1], words[2:])
		return ""
	case "profile":
		f.profile(t, words[1:])
		return ""
	case "pick":
		return f.pick(t, words[1], words[2:])
	case "reserve":
		f.reserve = true
		defer func() { f.reserve = false }()
		return f.pick(t, words[1], words[2:])
	case "why":
		f.why = true
		defer func() { f.why = false }()
		return f.pick(t, words[1], words[2:])
	}
	t.Fatalf("no command %q", words[0])
	return ""
}

func (f *fleet) endpoint(t *testing.T, name string, args []string) {
	t.Helper()
	index := len(f.pool.Endpoints)
	e := &pick.Endpoint{
		Address: name, Hash: uint64(index + 1), InFlight: new(atomic.Int64), Adapters: new(atomic.Int64), Number: index, Profile: f.time,
		Backlog: new(pick.Backlog), Peers: new(pick.Peers), KVTokens: f.kv,
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
		case "suspect", "stale", "migrating", "lost", "out":
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
		case "limit":
			for pair := range strings.SplitSeq(value, ",") {
				model, n, _ := strings.Cut(pair, ":")
				f.count(name, model).Limit.Store(number(t, n))
			}
		case "queue", "peerqueue":
			e.Backlog.Others(int64(1e9*decimal(t, value)), 0, now)
		case "prompts":
			spent := int64(1e9 * decimal(t, value))
			e.Backlog.Others(spent, 0, now-spent)
		case "beside", "peerbeside":
			backlog(e, key).Beside.Store(int64(1e12 * decimal(t, value)))
		case "theirbeside":
			e.OthersBeside = decimal(t, value)
		case "tokens", "peertokens":
			backlog(e, key).Tokens.Store(number(t, value))
		case "urgent", "peerurgent":
			backlog(e, key).Urgency.Store(int64(1000 / decimal(t, value)))
		case "paced":
			n, seconds, _ := strings.Cut(value, ":")
			e.Backlog.Timed.Store(number(t, n))
			e.Backlog.ServiceTimes.Store(int64(1e9 * decimal(t, seconds)))
		case "peers":
			e.Peers.Requests.Store(number(t, value))
		case "elsewhere":
			e.OthersTokens = number(t, value)
		case "window":
			e.Window = new(atomic.Int64)
			e.Window.Store(number(t, value))
		case "batch":
			e.Batch = new(atomic.Int64)
			e.Batch.Store(number(t, value))
		case "stated":
			f.stated(t, e, value)
		case "beyond":
			e.KVBeyond = number(t, value)
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
			Endpoint: index, Model: model, InFlight: f.count(name, model), Limited: f.count(name, model).Limit.Load() > 0,
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

// backlog returns the backlog that a setting refers to.
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
		case "tokenless":
			request.Tokenless = true
		case "failclose":
			request.FailClose = true
		case "pace":
			request.Demand.ServiceTime = int64(1e9 * decimal(t, value))
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
				i := slices.IndexFunc(f.pool.Endpoints, func(e *pick.Endpoint) bool { return e.Address == name })
				request.Demand.Cached[f.pool.Endpoints[i].Number] = int32(number(t, n))
			}
		case "gate":
			request.Gate.On, request.Gate.Queue, request.Gate.PerToken = true, pick.DefaultGateQueue, pick.DefaultGatePerToken
		case "band":
			request.Gate.Band = int32(number(t, value))
		case "headroom":
			request.Gate.Headroom = decimal(t, value)
		case "window":
			request.Gate.Window = number(t, value)
		case "reserved":
			request.Gate.Reserved = append(request.Gate.Reserved, f.reserved(t, value))
		case "closed":
			request.Gate.Closed = f.closed(t, value)
		default:
			t.Fatalf("no setting %q", key)
		}
	}
	request.Demand.Now = now
	switch {
	case f.reserve:
		return f.reservation(policy, request)
	case f.why:
		return f.obstacles(policy, request)
	}
	got := map[string]int{}
	for range times {
		request.Random = f.random.Uint64()
		picks, err := pick.Pick(policy, f.snapshot(), request, room)
		if errors.Is(err, pick.ErrNoRoom) {
			return f.noRoom(policy, request)
		}
		if err != nil {
			return err.Error() + "\n"
		}
		var order []string
		for _, d := range picks {
			line := fmt.Sprintf("%s as %s: %s", d.Endpoint.Address, d.Model, d.Reason)
			if is := d.Estimate; is != (pick.Estimate{}) {
				if is.FrontendOverhead != 0 {
					line += fmt.Sprintf(" (intake %.3g)", is.FrontendOverhead)
				}
				line += fmt.Sprintf(" (queue %.3g + room %.3g + load %.3g + prefill %.3g; step %.3g, longer by %.3g; cost %.3g + %.3g)",
					is.Queue, is.Room, is.Load, is.Prefill, is.Step, is.Longer, is.Own, is.Others)
			}
			if d.Among != 0 {
				line += fmt.Sprintf(" (among %d)", d.Among)
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
			f.kept++
			d.Copy.InFlight.Last.Store(1000 + f.kept)
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

// now is the time of every decision.
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
			f.time.Decode = profile.Decode{Base: n[0], PerSequence: n[1], PerKVToken: n[2], AdapterSlowdown: n[3]}
		case "intake":
			f.time.FrontendOverhead = n[0]
		case "load":
			f.time.AdapterLoad.Mean = n[0]
		case "slot":
			f.time.AdapterActivation.Mean = n[0]
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
