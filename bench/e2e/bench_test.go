package e2e

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
)

// What the gateway adds to a request of a few tokens: Envoy, extproc and the way between them, beside the engine alone,
// on engines that take no time. Run it with go test ./bench/e2e -run "^$" -bench Gateway.
func BenchmarkGateway(b *testing.B) {
	s := start(b, engineFlags("--profile", "testdata/instant.yaml"))
	gateway := s.url
	direct := "http://" + s.Simulated()[0]
	for _, each := range []int{1, 16} { // clients for each processor
		clients := each * runtime.GOMAXPROCS(0)
		for path, url := range map[string]string{"direct": direct, "gateway": gateway} {
			b.Run(fmt.Sprintf("clients=%d/path=%s", clients, path), func(b *testing.B) {
				s.url = url
				q := request{body: `{"model":"a01","max_tokens":2,"prompt":"` + strings.Repeat("the quick brown fox ", 50) + `"}`}
				b.SetParallelism(each)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if a, err := s.ask(b.Context(), q); err != nil || a.status != http.StatusOK {
							b.Errorf("%d, %v", a.status, err)
							return
						}
					}
				})
			})
		}
	}
}
