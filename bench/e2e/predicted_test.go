package e2e

import (
	"flag"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var foretold = flag.Duration("foretold", 0,
	"send requests for 100 adapters to ten engines with room for six each, for so long to begin with and once more, and print how many waited for a load, beside what bench place foretells")

// The predictions of "bench place" agree with a test of real Envoy, extproc and control with
// simulated engines. There are ten requests per second for 100 adapters, by Zipf's law with
// exponent 1. Each of the ten engines has room for six adapters and loads one at a time, in 2 s.
func TestMissesAreAsForetold(t *testing.T) {
	runs(t, alone)
	if *foretold == 0 {
		t.Skip("-foretold says for how long")
	}
	names := numbered(100)
	s := start(t, pods(t, 10), placed(t, 6, names...), loading(t, 2))
	draw, rng := zipf(names), rand.New(rand.NewPCG(1, 1))
	var clients sync.WaitGroup
	var sent, failed, slow atomic.Int64 // slow counts requests that took longer than a load
	pour := func() {
		pause := func() { time.Sleep(time.Duration(rng.ExpFloat64() * float64(100*time.Millisecond))) }
		for began := time.Now(); time.Since(began) < *foretold; pause() {
			name := draw(rng)
			clients.Go(func() {
				at := time.Now()
				if a, err := s.ask(t.Context(), completion(name, 5, false)); err != nil || a.status != http.StatusOK {
					failed.Add(1)
				}
				sent.Add(1)
				if time.Since(at) > 2500*time.Millisecond {
					slow.Add(1)
				}
			})
		}
		clients.Wait()
	}
	held := func() uint64 { return s.histogram(s.Metrics, "headgate_queue_time_seconds").GetSampleCount() }
	pour()
	sent.Store(0)
	slow.Store(0)
	before, loads := held(), s.histogram(s.ControlMetrics, "headgate_place_load_queue_seconds").GetSampleCount()
	pour()
	missed, loaded := held()-before, s.histogram(s.ControlMetrics, "headgate_place_load_queue_seconds").GetSampleCount()-loads
	t.Logf("%.2f %% of %d requests waited for a load, %.2f %% for more than one; %.1f loads a minute were asked for",
		100*float64(missed)/float64(sent.Load()), sent.Load(),
		100*float64(slow.Load())/float64(sent.Load()), float64(loaded)/foretold.Minutes())
	if failed.Load() > 0 {
		t.Errorf("%d requests failed", failed.Load())
	}
	out, err := exec.CommandContext(t.Context(), "go", "run", "../../bench", "place", "--models", "100", "--cache", "0.6", "--rate", "10", "--loads",
		"1", "--load", "2s", "--seeds", "5",
		"--policy", "headgate,lru,optimum", "--warmup", foretold.String(), "--measure", foretold.String()).Output()
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(out), "    policy")
	t.Logf("bench place foretells\n    policy%s", table)
}
