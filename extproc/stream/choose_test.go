package stream_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/profile"
)

// chooser returns a function that chooses among this many busy endpoints, whose times are
// predicted. Nobody waits.
func chooser(tb testing.TB, endpoints int, flows bool) func() {
	tb.Helper()
	f := newFleetWith(fleet.Config{}, func(s *objects.Set) {
		for i := range endpoints - 1 {
			s.Pods = append(s.Pods, aPod("base", fmt.Sprintf("10.0.0.%d", 2+i)))
		}
	})
	w, name := f.View().World, objects.Name{Namespace: "ns", Name: "base"}
	w.Pools[name].Profile = &profile.Profile{
		Prefill: profile.Prefill{PerToken: 0.0001}, Decode: profile.Decode{Base: 0.02, PerSequence: 0.001},
		Limits: profile.Limits{MaxSequences: 100, MaxBatchedTokens: 8192, KVBlocks: 100_000, BlockSize: 16},
	}
	for i := range endpoints {
		f.SetModels(fmt.Sprintf("10.0.0.%d:8000", 1+i), engine.Models{Base: []string{"llama"}})
	}
	f.SetWorld(w)
	s, _ := newServer(tb, f, func(c *stream.Config) {
		c.Settings.Policy.Rule, c.Settings.RequestsPerEndpoint, c.Settings.Flow = pick.Latency, 64, flows
		c.Flow = flow.New(flow.Config{View: f.View, MaxQueued: 10, MaxBytes: 1 << 20, Alone: true, Turns: flow.NewTurns()})
	})
	const body = `{"model":"llama","prompt":"hello"}`
	for range 2 * endpoints {
		x := s.ExchangeAt("", objects.Name{}, nil)
		tb.Cleanup(func() { x.End(time.Now()) })
		for _, line := range []string{"headers :method=POST :path=/v1/completions", "body " + body} {
			if _, err := x.Receive(message(tb, line), time.Now()); err != nil {
				tb.Fatal(err)
			}
		}
	}
	x := s.ExchangeAt("", objects.Name{}, nil)
	if _, err := x.Receive(message(tb, "headers :method=POST :path=/v1/completions"), time.Now()); err != nil {
		tb.Fatal(err)
	}
	choose := x.Chooser([]byte(body))
	return func() {
		if err := choose(); err != nil {
			tb.Fatal(err)
		}
	}
}

// While nobody waits, the flow of a pool makes a decision allocate nothing more.
func TestFlowAllocatesNothing(t *testing.T) {
	without, with := testing.AllocsPerRun(100, chooser(t, 8, false)), testing.AllocsPerRun(100, chooser(t, 8, true))
	if with > without {
		t.Errorf("a decision allocates %g times with flow, and %g times without", with, without)
	}
}

// BenchmarkChoose measures a decision with flow and without, from the admitted request to its
// endpoints. Nobody waits.
func BenchmarkChoose(b *testing.B) {
	for _, endpoints := range []int{8, 64} {
		for _, flow := range []string{"off", "on"} {
			b.Run(fmt.Sprintf("endpoints=%d/flow=%s", endpoints, flow), func(b *testing.B) {
				choose := chooser(b, endpoints, flow == "on")
				b.ReportAllocs()
				for b.Loop() {
					choose()
				}
			})
		}
	}
}
