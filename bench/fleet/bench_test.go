package fleet

import (
	"testing"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/headgate/simulated/llm"
)

// BenchmarkFleet measures simulated tokens per second with 16 endpoints near their capacity.
func BenchmarkFleet(b *testing.B) {
	for name, w := range map[string]Workload{"plain": Plain(Conversation()), "adapters": Adapters(200, Conversation())} {
		b.Run(name, func(b *testing.B) {
			f := Fleet{Profile: llm.DefaultProfile(), Endpoints: 16, Pickers: 1, ScrapeInterval: 0.2, Adapters: w.Adapters}
			tokens := 0
			for b.Loop() {
				o, err := f.Run(1, w.Requests(1, 12, 5000), Headgate(pick.Proposal))
				if err != nil {
					b.Fatal(err)
				}
				tokens += o.Tokens
			}
			b.ReportMetric(float64(tokens)/b.Elapsed().Seconds()/1e6, "Mtokens/s")
		})
	}
}
