package stream_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
)

// oneByOne returns a server whose endpoints get one request at a time.
func oneByOne(tb testing.TB) *stream.Server {
	var held *flow.Flow
	f := newFleetWith(fleet.Config{Freed: func(address, model string) { held.Freed(address, model) }})
	held = flow.New(flow.Config{View: f.View, MaxQueued: 10, MaxBytes: 1 << 30, Alone: true})
	s, _ := newServer(tb, f, func(c *stream.Config) {
		c.Flow, c.Settings.RequestsPerEndpoint, c.Settings.Policy.Rule = held, 1, pick.Latency
	})
	return s
}

// receive sends a request for the base model to a new exchange.
func receive(tb testing.TB, s *stream.Server, body string) stream.Exchange {
	x := s.ExchangeAt("", objects.Name{}, nil)
	for _, line := range []string{"headers :method=POST :path=/v1/completions", "body " + body} {
		if _, err := x.Receive(message(tb, line), time.Now()); err != nil {
			tb.Fatal(err)
		}
	}
	return x
}

// prompted returns a body whose prompt has about this size.
func prompted(kib int) string {
	return `{"model":"llama","prompt":"` + strings.Repeat("some words ", kib<<10/11) + `"}`
}

// A waiting request keeps the hashes of its prompt, unless the prompt is very long. Its endpoint
// then has the prompt in its cache.
func TestWaitingRequestsKeepTheirPrompts(t *testing.T) {
	for kib, c := range map[int]struct{ kept, sent int }{4: {15, 15}, 129: {0, 515}} {
		s, body := oneByOne(t), prompted(kib)
		first := receive(t, s, `{"model":"llama"}`)
		x := receive(t, s, body)
		for range 2 {
			if n := x.KeptBlocks(); n != c.kept || x.Waits() == "" {
				t.Errorf("%d KiB: it keeps %d blocks, want %d", kib, n, c.kept)
			}
			x.Resume(time.Now())
		}
		first.End(time.Now())
		x.Resume(time.Now())
		if n := x.KeptBlocks(); n != 0 || x.Waits() != "" {
			t.Errorf("%d KiB: when it is sent, it keeps %d blocks", kib, n)
		}
		demand := x.Asked([]byte(body)).Demand
		if got := slices.Max(demand.Cached); int(got) != c.sent {
			t.Errorf("%d KiB: its endpoint has %d blocks, want %d", kib, got, c.sent)
		}
		x.End(time.Now())
	}
}

// BenchmarkTry is one attempt of a waiting request that finds no room again, by the size of its
// body.
func BenchmarkTry(b *testing.B) {
	for _, kib := range []int{4, 64, 512} {
		b.Run(fmt.Sprintf("KiB=%d", kib), func(b *testing.B) {
			s := oneByOne(b)
			first := receive(b, s, `{"model":"llama"}`)
			x := receive(b, s, prompted(kib))
			b.ReportAllocs()
			for b.Loop() {
				if x.Resume(time.Now()); x.Waits() == "" {
					b.Fatal("the request does not wait")
				}
			}
			first.End(time.Now())
			x.End(time.Now())
		})
	}
}
