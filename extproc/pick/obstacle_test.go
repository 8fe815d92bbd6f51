package pick_test

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/profile"
)

// The gate of an endpoint is closed exactly where there is an obstacle.
func TestObstaclesCloseTheGate(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 1))
	seen := map[string]int{}
	for range 3000 {
		pool := pick.Pool{Index: pick.Index{Copies: map[string][]pick.Copy{}}, Predictable: random.IntN(3) > 0}
		times := &profile.Profile{
			Prefill: profile.Prefill{PerToken: 1e-4}, Decode: profile.Decode{Base: 0.02},
			Limits: profile.Limits{MaxSequences: 8, MaxBatchedTokens: 2048},
		}
		r := pick.Request{Pool: thePool, Model: "m", Gate: someGate}
		r.Gate.Window, r.Gate.Band = random.Int64N(8), int32(random.IntN(2))
		r.Demand = pick.Demand{Prompt: random.IntN(1000), Output: 10, PerToken: 0.03, Stated: random.IntN(2) == 0, Now: now}
		for i := range 3 {
			e := &pick.Endpoint{
				Address: "10.0.0." + strconv.Itoa(i) + ":80", State: pick.State(random.IntN(int(pick.Out))), Number: i, Profile: times,
				InFlight: new(atomic.Int64), Adapters: new(atomic.Int64), Backlog: new(pick.Backlog), Peers: new(pick.Peers),
				KVTokens: 1000, Slots: random.Int64N(2),
			}
			e.InFlight.Store(random.Int64N(10))
			e.Adapters.Store(random.Int64N(2))
			e.Backlog.Queue.Store(now + random.Int64N(4e8))
			e.Backlog.Computing.Store(now - random.Int64N(2e10))
			e.Backlog.Tokens.Store(random.Int64N(1000))
			pool.Endpoints = append(pool.Endpoints, e)
			pool.Any = append(pool.Any, pick.Copy{Endpoint: i, InFlight: new(pick.Count)})
			pool.Copies["m"] = append(pool.Copies["m"], pick.Copy{Endpoint: i, Model: "m", InFlight: new(pick.Count)})
			if random.IntN(20) == 0 {
				r.Gate.Reserved = append(r.Gate.Reserved, pick.Reservation{Endpoint: i, Band: int32(random.IntN(2)), Holder: 9})
			}
		}
		if random.IntN(9) == 0 {
			r.Gate.Closed = pick.ClosedFor{pick.NoBand, 0, 1}
		}
		policy, s := pick.Policy{Rule: pick.Latency}, &pick.Snapshot{Pools: map[string]*pick.Pool{thePool: &pool}}
		for i := range pool.Endpoints {
			alone := r
			alone.Only = pick.ParseSubset([]string{pool.Endpoints[i].Address})
			_, err := pick.Pick(policy, s, alone, make([]pick.Decision, 1))
			why := pick.Obstacle(policy, s, r, i)
			if shut := errors.Is(err, pick.ErrNoRoom); shut != (why != "") {
				t.Fatalf("the gate is closed: %v, because %q", shut, why)
			}
			seen[strings.Map(func(c rune) rune {
				if c >= '0' && c <= '9' || c == '.' {
					return -1
				}
				return c
			}, why)]++
		}
	}
	if len(seen) != 9 {
		t.Errorf("the obstacles are %v", seen)
	}
}
