package pick_test

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
)

// Every endpoint of a pool is either ranked by Pick or excluded with a reason, whatever the policy.
func TestEndpointsAreRankedOrExcluded(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 4))
	reasons := map[string]int{}
	for range 5000 {
		var pool pick.Pool
		pool.Copies = map[string][]pick.Copy{}
		for i := range 1 + random.IntN(6) {
			state := pick.State(random.IntN(len(pick.States)))
			pool.Endpoints = append(pool.Endpoints, &pick.Endpoint{
				Address: "10.0.0." + strconv.Itoa(i) + ":80", State: state, InFlight: new(atomic.Int64), Adapters: new(atomic.Int64),
				Backlog: new(pick.Backlog), Peers: new(pick.Peers), Number: i, Profile: some, Unscraped: state == pick.Out && i%2 == 0,
			})
			pool.Any = append(pool.Any, pick.Copy{Endpoint: i, InFlight: new(pick.Count)})
			if count := new(pick.Count); random.IntN(3) > 0 {
				count.Store(int64(random.IntN(3)))
				count.Limit.Store(int64(random.IntN(3)))
				pool.Copies["m"] = append(pool.Copies["m"],
					pick.Copy{Endpoint: i, Model: "m", InFlight: count, Limited: count.Limit.Load() > 0})
			}
		}
		pool.Listed, pool.Predictable = random.IntN(8) > 0, random.IntN(2) > 0
		request := pick.Request{Pool: thePool, Model: "m", Random: random.Uint64(), Tokenless: random.IntN(2) == 0, Open: random.IntN(4) == 0}
		if random.IntN(4) == 0 {
			request.Only = pick.ParseSubset([]string{"10.0.0.0:80", "10.0.0.1:80"})
		}
		ranked, err := pick.Pick(pick.Policy{Rule: pick.Rule(random.IntN(5))}, &pick.Snapshot{Pools: map[string]*pick.Pool{thePool: &pool}},
			request, make([]pick.Decision, len(pool.Endpoints)))
		if errors.Is(err, pick.ErrFull) {
			continue // some of the candidates wait, though others have room
		}
		is := map[string]bool{}
		for _, d := range ranked {
			is[d.Endpoint.Address] = true
		}
		for i := range pool.Endpoints {
			why := pool.Excluded(i, request)
			if reasons[why]++; is[pool.Endpoints[i].Address] != (why == "") {
				t.Fatalf("endpoint %d is ranked: %v, and excluded because %q", i, is[pool.Endpoints[i].Address], why)
			}
		}
	}
	if len(reasons) != 7 {
		t.Errorf("the reasons are %v", reasons)
	}
}
