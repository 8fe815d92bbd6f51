package e2e

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/headgate/rig"
	"github.com/headgate/headgate/internal/process"
)

// BenchmarkGateway measures what the gateway (Envoy, extproc and the hops between them) adds to a
// request of a few tokens, compared with the engine alone. The engines respond instantly. The
// benchmark runs envoy.yaml, which can retry at the next endpoint, and an ORIGINAL_DST cluster,
// which cannot. Run it with go test ./bench/e2e -run "^$" -bench Gateway.
func BenchmarkGateway(b *testing.B) {
	instant := engineFlags("--profile", "testdata/instant.yaml")
	gateway, single := start(b, instant), start(b, instant, originalDst)
	direct := *gateway
	direct.url = "http://" + gateway.Simulated()[0]
	for _, each := range []int{1, 16} { // clients per processor
		clients := each * runtime.GOMAXPROCS(0)
		for _, path := range []struct {
			name string
			*stack
		}{{"direct", &direct}, {"original-dst", single}, {"gateway", gateway}} {
			b.Run(fmt.Sprintf("clients=%d/path=%s", clients, path.name), func(b *testing.B) {
				q := request{body: `{"model":"a01","max_tokens":2,"prompt":"` + strings.Repeat("the quick brown fox ", 50) + `"}`}
				b.SetParallelism(each)
				before := cpu(b, path.Envoy.PID())
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if a, err := path.ask(b.Context(), q); err != nil || a.status != http.StatusOK {
							b.Errorf("%d, %v", a.status, err)
							return
						}
					}
				})
				if path.name != "direct" {
					b.ReportMetric(float64((cpu(b, path.Envoy.PID())-before).Microseconds())/float64(b.N), "envoy-µs/op")
				}
			})
		}
	}
}

// BenchmarkDataPlanes compares a Gateway's Envoy with the Envoy of envoy.yaml: the CPU time of
// Envoy and extproc per request, and the median latency. Run it with go test ./bench/e2e -run "^$"
// -bench DataPlanes -benchtime 12x.
func BenchmarkDataPlanes(b *testing.B) {
	instant := engineFlags("--profile", "testdata/instant.yaml")
	stacks := [2]*stack{start(b, instant, standalone), start(b, instant, throughGateway)}
	compare(b, stacks, "a01", func(s *stack) []int { return []int{s.Envoy.PID(), s.Extproc.PID()} })
}

var against = flag.String("against", "", "compare extproc with the bin/extproc of this `FOLDER`, a checkout of another commit")

// BenchmarkExtprocAgainst compares extproc with the one of an earlier commit: the CPU time per
// request, the median latency, and the anonymous memory at the end. Run it with make bench-against
// BASE=COMMIT.
func BenchmarkExtprocAgainst(b *testing.B) {
	if *against == "" {
		b.Skip("there is nothing to compare with: set -against")
	}
	instant := engineFlags("--profile", "testdata/instant.yaml")
	earlier := func(c *rig.Config) {
		c.Programs.Extproc, c.EnvoyYAML = filepath.Join(*against, "bin", "extproc"), filepath.Join(*against, "envoy.yaml")
	}
	stacks := [2]*stack{start(b, instant, standalone, earlier), start(b, instant, standalone)}
	compare(b, stacks, "a01", func(s *stack) []int { return []int{s.Extproc.PID()} })
	was, is := anonymous(b, stacks[0].Extproc.PID()), anonymous(b, stacks[1].Extproc.PID())
	b.Logf("anonymous memory after the same requests: %.1f and %.1f MiB", was, is)
	b.ReportMetric(is/was, "memory-ratio")
}

// anonymous returns the anonymous memory of a process in MiB.
func anonymous(t testing.TB, pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "RssAnon:")
	kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib / 1024
}

// compare reports the cost of a request in the second of two stacks relative to the first: the CPU
// time of some processes, and the median latency. The stacks take turns; one op of the benchmark is
// one round on each stack.
func compare(b *testing.B, stacks [2]*stack, model string, processes func(*stack) []int) {
	const requests, clients = 2000, 8
	spent := func(s *stack) (all time.Duration) {
		for _, pid := range processes(s) {
			all += cpu(b, pid)
		}
		return all
	}
	round := func(s *stack) (cost, median float64) {
		before := spent(s)
		took := make([]time.Duration, requests)
		var next atomic.Int64
		var all sync.WaitGroup
		for range clients {
			all.Go(func() {
				for i := next.Add(1) - 1; i < requests; i = next.Add(1) - 1 {
					began := time.Now()
					if a, err := s.ask(b.Context(), completion(model, 2, false)); err != nil || a.status != http.StatusOK {
						b.Errorf("%v, %d %s", err, a.status, a.body)
						return
					}
					took[i] = time.Since(began)
				}
			})
		}
		all.Wait()
		slices.Sort(took)
		return (spent(s) - before).Seconds() * 1e6 / requests, took[requests/2].Seconds() * 1e6
	}
	for _, s := range stacks {
		round(s) // warm up
	}
	var costs, medians []float64 // of the second stack relative to the first, by round
	for i := range b.N {
		var cost, median [2]float64
		for j := range stacks {
			at := (i + j) % 2 // the stacks alternate in going first
			cost[at], median[at] = round(stacks[at])
		}
		costs, medians = append(costs, cost[1]/cost[0]), append(medians, median[1]/median[0])
		b.Logf("round %d: %.0f and %.0f µs of processor, median %.0f and %.0f µs", i, cost[0], cost[1], median[0], median[1])
	}
	for what, all := range map[string][]float64{"cpu": costs, "p50": medians} {
		slices.Sort(all)
		b.ReportMetric(all[len(all)/2], what+"-ratio")
		b.ReportMetric(all[len(all)/10], what+"-ratio-p10")
		b.ReportMetric(all[len(all)*9/10], what+"-ratio-p90")
	}
}

// cpu returns the CPU time that a process has used, 0 if the system does not report it.
func cpu(_ testing.TB, pid int) time.Duration {
	used, _ := process.CPUTime(pid)
	return used
}
