package pick_test

import (
	"math"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/profile"
)

// Before an endpoint is chosen, the service of a request is that at an idle endpoint without its
// prompt in the cache.
func TestService(t *testing.T) {
	p := profile.Profile{
		Prefill: profile.Prefill{PerToken: 1e-4, PerTokenSquared: 1e-8}, Decode: profile.Decode{PerSequence: 1e-3, PerKVToken: 1e-6},
		Limits: profile.Limits{MaxBatchedTokens: 2048},
	}
	pools := map[string]*pick.Pool{
		"trusted": {Predictable: true, Endpoints: []*pick.Endpoint{{Profile: &p}}}, "untrusted": {Endpoints: []*pick.Endpoint{{Profile: &p}}},
		"empty": {Predictable: true},
	}
	demand := pick.Demand{Prompt: 1000, Output: 100, Cached: []int32{10}, Block: 16}
	for _, c := range []struct {
		rule  pick.Rule
		pool  string
		known bool
	}{
		{pick.Latency, "trusted", true},
		{pick.LeastRequest, "trusted", false},
		{pick.Latency, "untrusted", false},
		{pick.Latency, "empty", false},
		{pick.Latency, "none", false},
	} {
		prompt, perToken, known := pick.Service(pick.Policy{Rule: c.rule}, &pick.Snapshot{Pools: pools}, c.pool, demand)
		var want [2]float64
		if c.known {
			want = [2]float64{0.1 + 0.01, 1e-3 + 1050e-6}
		}
		if known != c.known || math.Abs(prompt-want[0]) > 1e-9 || math.Abs(perToken-want[1]) > 1e-9 {
			t.Errorf("%s with %v: %v s, %v s and %v", c.pool, c.rule, prompt, perToken, known)
		}
	}
}
