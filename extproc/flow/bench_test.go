package flow

import (
	"fmt"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// BenchmarkJoinAndDispatch adds one request to the queue, and dispatches and ends the next one.
// Meanwhile 10 requests wait, or 10,000 in 1,000 flows. These flows use 1,000 models, and 990 of
// the models have no room.
func BenchmarkJoinAndDispatch(b *testing.B) {
	for _, size := range []struct{ requests, flows int }{{10, 10}, {10_000, 1000}} {
		b.Run(fmt.Sprintf("waiting=%d", size.requests), func(b *testing.B) {
			const ready = 10
			name := objects.Name{Namespace: "ns", Name: "pool"}
			endpoints := &pick.Pool{Endpoints: []*pick.Endpoint{{Address: "10.0.0.1:8000"}}}
			view := &endpointstate.View{
				Snapshot: &pick.Snapshot{Pools: map[string]*pick.Pool{name.String(): endpoints}}, World: new(objects.World),
			}
			f := New(Config{View: func() *endpointstate.View { return view }, MaxQueued: 2 * size.requests, MaxBytes: 1 << 40})
			join := func(i int) {
				i %= size.flows
				// No copy of a placed model exists.
				r := Request{
					Key: objects.ModelKey{Pool: name, ID: fmt.Sprint("model-", i)}, Bytes: 1000,
					Placed: i >= ready,
					Path:   queue.Path{Route: objects.Name{Namespace: "ns", Name: "route"}, Share: 1, Tenant: uint64(i)}, //nolint:gosec // small
				}
				if _, err := f.Enqueue(r, time.Now()); err != nil {
					b.Fatal(err)
				}
			}
			for i := range size.requests {
				join(i)
			}
			service := Service{InTokens: true, Fixed: 1000, PerToken: Generated, Tokens: 100}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				join(i % ready)
				t := f.pools[name].called
				if err := <-t.turn; err != nil {
					b.Fatal(err)
				}
				now := time.Now()
				c := t.Dispatch(service, now)
				t.Leave()
				c.Ended(100, now)
			}
			b.StopTimer()
			if n, _ := f.Queued(); n != int64(size.requests) {
				b.Errorf("%d requests wait", n)
			}
		})
	}
}
