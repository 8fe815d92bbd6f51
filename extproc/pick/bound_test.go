package pick_test

import (
	"math/rand/v2"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
)

// A caller that asks for a few decisions gets the first few of all decisions: Pick skips only
// candidates that would not be among them.
func TestFewPicksAreTheFirstOfAll(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 12))
	passed := 0
	for n := range 20_000 {
		f := randomFleet(random)
		demand := pick.Demand{
			Prompt: 1 + random.IntN(20_000), Output: 1 + random.IntN(400), Block: 64, Now: now, Cached: make([]int32, 8),
			FirstToken: 0.1 + random.Float64(), PerToken: 0.005 + 0.01*random.Float64(), Stated: random.IntN(2) == 0,
		}
		for i, e := range f.pool.Endpoints {
			demand.Cached[i] = random.Int32N(int32(2 + demand.Prompt/64)) //nolint:gosec // small
			e.Backlog.Beside.Store(random.Int64N(2e10))
			e.Backlog.Urgency.Store(random.Int64N(100_000))
			if random.IntN(3) == 0 {
				e.Backlog.Queue.Store(now - 1)
			}
		}
		r := pick.Request{Pool: thePool, Model: "a", Random: random.Uint64(), Demand: demand}
		policy := pick.Policy{Rule: pick.Latency, Threshold: 3}
		all, err := pick.Pick(policy, f.snapshot(), r, make([]pick.Decision, 16))
		if err != nil {
			continue
		}
		for few := 1; few < len(all); few++ {
			first, err := pick.Pick(policy, f.snapshot(), r, make([]pick.Decision, few))
			if err != nil {
				t.Fatal(err)
			}
			passed += len(all) - few
			for i := range first {
				if first[i].Endpoint != all[i].Endpoint || first[i].Estimate != all[i].Estimate {
					t.Fatalf("fleet %d: decision %d of %d is %s, %+v; among all it is %s, %+v", n, i, few, first[i].Endpoint.Address,
						first[i].Estimate,
						all[i].Endpoint.Address, all[i].Estimate)
				}
			}
		}
	}
	if passed < 50_000 {
		t.Errorf("only %d candidates were left out", passed)
	}
}

// If predictions are not trusted, policy Proposal decides, but requests are still predicted and
// added to backlogs.
func TestUntrustedRequestsArePredicted(t *testing.T) {
	random := rand.New(rand.NewPCG(13, 14))
	decided := 0
	for range 100 {
		f := randomFleet(random)
		demand := pick.Demand{Prompt: 1000, Output: 100, Block: 64, Now: now}
		r := pick.Request{Pool: thePool, Model: "a", Random: random.Uint64(), Demand: demand}
		f.pool.Predictable = false
		got, err := pick.Pick(pick.Policy{Rule: pick.Latency, Threshold: 3}, f.snapshot(), r, make([]pick.Decision, 3))
		want, _ := pick.Pick(pick.Policy{Rule: pick.Proposal, Threshold: 3}, f.snapshot(), r, make([]pick.Decision, 3))
		if err != nil {
			continue
		}
		for i := range got {
			d := &got[i]
			decided++
			if d.Endpoint != want[i].Endpoint || d.Reason != want[i].Reason || d.Estimate.Step <= 0 || d.Claim == (pick.Claim{}) {
				t.Fatalf("decision %d is %s, %s, %+v; by proposal it is %s, %s", i, d.Endpoint.Address, d.Reason, d.Estimate,
					want[i].Endpoint.Address, want[i].Reason)
			}
		}
	}
	if decided < 50 {
		t.Errorf("only %d decisions were made", decided)
	}
}
