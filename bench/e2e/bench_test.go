package e2e

import (
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// What the gateway adds to a request of a few tokens: Envoy, extproc and the way between them, beside the engine alone,
// on engines that take no time; with envoy.yaml, which can go on to the next pick, and with an ORIGINAL_DST cluster, which
// cannot. Run it with go test ./bench/e2e -run "^$" -bench Gateway.
func BenchmarkGateway(b *testing.B) {
	instant := engineFlags("--profile", "testdata/instant.yaml")
	gateway, single := start(b, instant), start(b, instant, originalDst)
	direct := *gateway
	direct.url = "http://" + gateway.Simulated()[0]
	for _, each := range []int{1, 16} { // clients for each processor
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

// cpu is the processor time that a process has taken; 0 where the system does not tell.
func cpu(t testing.TB, pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), ") ") // after the name, which may have spaces
	fields := strings.Fields(rest)
	total := time.Duration(0)
	for _, field := range fields[11:13] { // utime and stime of proc(5), in hundredths of a second
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		total += time.Duration(n) * 10 * time.Millisecond
	}
	return total
}
