package pick_test

import (
	"math"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/profile"
)

// busy is an endpoint that decodes this many sequences with this many tokens together, and then
// gets another prompt.
type busy struct {
	profile.Profile
	sequences, tokens, cached int
	adapters, listed          bool
}

// someBusy returns a random busy endpoint.
func someBusy(random *rand.Rand) busy {
	b := busy{Profile: profile.Profile{
		Prefill: profile.Prefill{
			Base: 0.02 * random.Float64(), PerToken: 0.0002 * random.Float64(),
			PerTokenSquared: 1e-8 * random.Float64(),
		},
		Decode: profile.Decode{
			Base: 0.02 * random.Float64(), PerSequence: 0.001 * random.Float64(), PerKVToken: 1e-7 * random.Float64(),
			AdapterSlowdown: float64(random.IntN(3)),
		},
		Limits: profile.Limits{MaxSequences: 1 << 20, MaxBatchedTokens: []int{100, 512, 1000, 2048, 5000, 8192}[random.IntN(6)]},
	}, cached: random.IntN(20)}
	if random.IntN(3) > 0 {
		b.sequences = 1 + random.IntN(100)
		b.tokens = random.IntN(100_000)
		b.adapters, b.listed = random.IntN(2) == 0, random.IntN(4) == 0
	} else if random.IntN(2) == 0 {
		b.Prefill.Floor = 0.1 * random.Float64()
	}
	return b
}

// endpoint returns b in the form that Pick reads.
func (b *busy) endpoint(number int) *pick.Endpoint {
	e := &pick.Endpoint{
		Number: number, Profile: &b.Profile, InFlight: new(atomic.Int64), Adapters: new(atomic.Int64), Backlog: new(pick.Backlog),
		Peers:   new(pick.Peers),
		Address: strconv.Itoa(number),
	}
	if b.adapters {
		e.Adapters.Add(1)
	}
	if b.listed {
		e.Listed = []*pick.Count{new(pick.Count)}
	}
	// beside is how much the sequences lengthen each step. Three sources report a third of it each.
	beside := b.StepTime(b.work(0, 0)) - b.StepTime(profile.Work{Sequences: min(1, b.sequences), Adapters: b.slow()}) +
		b.slower()*b.Decode.PerSequence*float64(min(1, b.sequences))
	e.Backlog.Beside.Store(int64(beside / 3 * 1e12))
	e.Peers.Beside.Store(int64(beside / 3 * 1e12))
	e.OthersBeside = beside / 3
	return e
}

func (b *busy) slow() bool { return b.adapters || b.listed }

func (b *busy) slower() float64 {
	if b.slow() {
		return max(1, b.Decode.AdapterSlowdown)
	}
	return 1
}

// work returns one step of b's sequences and of additional sequences, which have this many tokens.
func (b *busy) work(sequences, tokens int) profile.Work {
	return profile.Work{Sequences: b.sequences + sequences, KVTokens: b.tokens + tokens, Adapters: b.slow()}
}

// prefill returns the time to compute a prompt step by step. Each step computes as much of the
// prompt as fits.
func (b *busy) prefill(prompt int) (seconds float64) {
	for at := min(64*b.cached, prompt-1); at < prompt; {
		w := b.work(0, 0)
		n := min(prompt-at, b.Limits.MaxBatchedTokens)
		w.AddPrompt(at, n)
		seconds += b.StepTime(w)
		at += n
	}
	return seconds
}

// The predicted prefill time equals that of an engine that computes the prompt step by step while
// it decodes sequences. The predicted step time includes the request. Other endpoints with other
// profiles do not change the predictions.
func TestPrefillMatchesSteps(t *testing.T) {
	random := rand.New(rand.NewPCG(13, 14))
	for range 5000 {
		all := make([]busy, 1+random.IntN(4))
		pool := &pick.Pool{Predictable: true}
		demand := pick.Demand{
			Prompt: 1 + random.IntN(20_000), Output: 1 + random.IntN(500), Block: 64, Now: now,
			Cached: make([]int32, len(all)),
		}
		for i := range all {
			if all[i] = someBusy(random); all[i].Prefill.Floor > 0 { // Floor applies only to a prefill in one step
				all[i].Limits.MaxBatchedTokens = 20_000
			}
			pool.Endpoints = append(pool.Endpoints, all[i].endpoint(i))
			pool.Any = append(pool.Any, pick.Copy{Endpoint: i, Base: true, InFlight: new(pick.Count)})
			demand.Cached[i] = int32(all[i].cached)
		}
		picks, err := pick.Pick(pick.Policy{Rule: pick.Latency}, &pick.Snapshot{Pools: map[string]*pick.Pool{thePool: pool}},
			pick.Request{Pool: thePool, Demand: demand},
			make([]pick.Decision, len(all)))
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range picks {
			b := &all[d.Endpoint.Number]
			step := b.StepTime(b.work(1, demand.Prompt+demand.Output/2))
			want := pick.Estimate{Prefill: b.prefill(demand.Prompt), Step: step, Longer: step - b.StepTime(b.work(0, 0))}
			if b.sequences == 0 {
				want.Longer = step - b.Decode.Base // without sequences there is no step to lengthen
			} else {
				want.Queue = step / 2
			}
			for _, c := range []struct {
				what      string
				got, want float64
			}{
				{"queue", d.Estimate.Queue, want.Queue},
				{"prefill", d.Estimate.Prefill, want.Prefill},
				{"step", d.Estimate.Step, want.Step},
				{"longer", d.Estimate.Longer, want.Longer},
			} {
				if math.Abs(c.got-c.want) > 1e-8+1e-8*c.want {
					t.Fatalf("for %d tokens, beside %+v: %s is %g s, want %g", demand.Prompt, *b, c.what, c.got, c.want)
				}
			}
		}
	}
}

// A decision reports the numbers that it used, even if the counts have changed since.
func TestDecisionReportsItsInputs(t *testing.T) {
	s := &pick.Pool{Predictable: true}
	for i := range 2 {
		b := busy{Profile: *some}
		s.Endpoints = append(s.Endpoints, b.endpoint(i))
		s.Any = append(s.Any, pick.Copy{Endpoint: i, Base: true, InFlight: new(pick.Count)})
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for random := rand.New(rand.NewPCG(15, 16)); ; {
			select {
			case <-stop:
				return
			default:
				s.Endpoints[random.IntN(2)].Backlog.Queue.Store(now + random.Int64N(10e9))
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	snapshot, room := &pick.Snapshot{Pools: map[string]*pick.Pool{thePool: s}}, make([]pick.Decision, 2)
	for range 100_000 {
		picks, err := pick.Pick(pick.Policy{Rule: pick.Latency}, snapshot,
			pick.Request{Pool: thePool, Demand: pick.Demand{Prompt: 100, Output: 10, Now: now}}, room)
		if err != nil {
			t.Fatal(err)
		}
		if picks[0].Estimate.Cost() > picks[1].Estimate.Cost() {
			t.Fatalf("%+v is before %+v", picks[0].Estimate, picks[1].Estimate)
		}
	}
}
