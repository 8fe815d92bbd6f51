package stream_test

import (
	"testing"
	"testing/synctest"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/relay/relaytoken"
	"github.com/headgate/headgate/extproc/route"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
)

// A request that the relay sends again, and whose route does not lead to the pool any more, does
// not take requests without an LLMRoute with it into the band of its route.
func TestBandOfRequestsWithoutRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sealer := relayTokens(t, 'k')
		_, held, client := window(t, 1, func(c *stream.Config) { c.RelayTokens = sealer })
		token := sealer.Seal(relaytoken.Request{Kind: relaytoken.Sent, Last: true, Models: []relaytoken.Model{{
			Name: "gpt-4", Target: route.Target{
				Route: objects.Name{Namespace: "ns", Name: "for-gpt-4"}, Priority: 1,
				Pool: objects.Name{Namespace: "ns", Name: "open"}, Open: true,
			},
		}}})
		waiting := int64(0)
		for i, headers := range append(make([]string, 8), wire.RelayTokenHeader+"="+token) {
			s, err := client.Process(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var m *extprocv3.ProcessingResponse
			for _, line := range []string{"headers :method=POST :path=/v1/completions " + headers, `body {"model":"qwen"}`} {
				if err := s.Send(message(t, line)); err != nil {
					t.Fatal(err)
				}
				if m, err = s.Recv(); err != nil {
					t.Fatal(err)
				}
			}
			if m.GetOverrideMessageTimeout() != nil {
				waiting++
				awaitQueued(t, held, waiting)
			} else if i == 8 {
				t.Fatalf("the request of the relay does not wait: %v", m)
			}
		}
		for _, h := range held.Held() {
			if h.Band != 0 && h.Requests > 1 {
				t.Errorf("%d requests wait in band %d", h.Requests, h.Band)
			}
		}
		if waiting < 2 {
			t.Errorf("%d requests wait", waiting)
		}
	})
}
