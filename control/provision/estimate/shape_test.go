package estimate_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/internal/profile/table"
)

// S-LoRA (S-LoRA/S-LoRA, benchmarks/paper, synthetic_req_rate_a10g_S1_slora, Apache-2.0) measured
// Llama 7B with 200 adapters on one A10G, for five minutes at each rate. Prompts and outputs had 8
// to 512 tokens. The profile of this test is approximate and has no adapters. So the test compares
// only how latency grows with utilization.
func TestLatencyMatchesSLoRA(t *testing.T) {
	p, err := table.Of("1 x A10G", "7B", 0)
	if err != nil {
		t.Fatal(err)
	}
	// Llama 7B has 32 KV heads; the model of this profile has 8.
	p.Decode.PerKVToken, p.Limits.KVBlocks = 4*p.Decode.PerKVToken, p.Limits.KVBlocks/4
	run := func(rate float64) (latency, throughput float64) {
		queries := estimate.Arrivals(poisson(1, int(300*rate), rate))
		random := rand.New(rand.NewPCG(1, 3)) //nolint:gosec // a test's
		for i := range queries {
			queries[i].Prompt, queries[i].Output = 8+random.Int32N(505), 8+random.Int32N(505)
		}
		r, err := estimate.Run(chain(1), []estimate.Setting{{Engine: &p, Batch: p.Limits.MaxSequences, Replicas: 1}}, queries, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r.Stages[0].Latency.Mean(), float64(len(queries)) / r.Seconds
	}
	const most = 1.80 // measured throughput in queries per second, when 2.5 per second arrived
	measured := []struct{ rate, latency float64 }{{1, 11.49}, {1.5, 13.50}, {2, 20.89}, {2.5, 67.56}}
	_, ours := run(4)
	least, _ := run(measured[0].rate / most * ours)
	for _, m := range measured {
		is, _ := run(m.rate / most * ours)
		got, want := is/least, m.latency/measured[0].latency
		t.Logf("at %.0f %% of the maximum rate, which is %.2f/s, latency is %.2f times that at the lowest rate, and was measured as %.2f times",
			100*m.rate/most, ours, got, want)
		if math.Abs(math.Log(got/want)) > math.Log(1.6) {
			t.Errorf("at %v/s latency is %.2f times that at the lowest rate, and was measured as %.2f times", m.rate, got, want)
		}
	}
}
