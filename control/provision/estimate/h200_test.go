package estimate_test

import (
	_ "embed"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/internal/profile"
)

// h200 was measured by "headgate profile" for an 8B model on vLLM 0.26 on an H200, without
// compilation. A single prompt of up to 2,048 tokens takes 53 ms, and a decode step 5 ms. Both read
// the same weights from memory, so the 53 ms of a prompt are mostly kernel launches. This version
// of vLLM schedules asynchronously.
const h200 = `
name: "8B on H200"
frontendOverhead: 0.005802
prefill: {floor: 0.05346, base: 0.004859, perToken: 5.602e-07}
decode: {base: 0.004859, perSequence: 1.041e-05, perKVToken: 3.189e-08}
launchOverhead: 0.05346
asyncScheduling: true
adapterLoad: {mean: 0}
adapterActivation: {mean: 0}
limits: {maxSequences: 256, maxBatchedTokens: 8192, kvBlocks: 7168, blockSize: 16, gpuAdapters: 4, hostAdapters: 4}
`

//go:embed testdata/h200.csv
var h200Arrivals string

// h200Queries returns the queries that the load test sent at the given rate, for 8.8 s.
func h200Queries(t *testing.T, rate string) (all []estimate.Query) {
	t.Helper()
	for line := range strings.Lines(h200Arrivals) {
		if at, ok := strings.CutPrefix(line, rate+","); ok {
			seconds, err := strconv.ParseFloat(strings.TrimSpace(at), 64)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, estimate.Query{At: seconds, Prompt: 512, Output: 64})
		}
	}
	return all
}

// Estimates agree with measurements of a real engine that schedules asynchronously and has a high
// launch overhead. The profile was not fitted to the load test. Without LaunchOverhead and
// AsyncScheduling, the mean errors would be 26, 40 and 32 %.
func TestEstimatesAreAsMeasuredOnAnH200(t *testing.T) {
	p, err := profile.Parse([]byte(h200))
	if err != nil {
		t.Fatal(err)
	}
	names := [3]string{"latency", "time to first token", "time per token"}
	var errors [3]float64
	loads := []struct {
		rate     string
		measured [3]float64 // means in seconds: latency, time to first token, time per token
	}{
		{"28", [3]float64{1.440, 0.128, 0.0208}},
		{"40", [3]float64{2.119, 0.167, 0.0310}},
	}
	for _, load := range loads {
		queries := h200Queries(t, load.rate)
		var means [3]float64
		if _, err := estimate.Run(chain(1), []estimate.Setting{{Engine: &p, Batch: 256, Replicas: 1}}, queries, 1,
			func(_ int, took estimate.QueryTimes) bool {
				for i, is := range [3]float64{took.Latency, took.FirstToken, took.PerToken} {
					means[i] += is / float64(len(queries))
				}
				return true
			}); err != nil {
			t.Fatal(err)
		}
		for i, is := range means {
			off := is/load.measured[i] - 1
			errors[i] += math.Abs(off) / float64(len(loads))
			t.Logf("at %s/s the %s is %.4f s, estimated %.4f s (%+.1f %%)", load.rate, names[i], load.measured[i], is, 100*off)
		}
	}
	for i, is := range errors {
		if is > 0.15 {
			t.Errorf("the mean error of the %s is %.1f %%", names[i], 100*is)
		}
	}
}
