package stream_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/profile"
)

// The terms of an estimate add up to its time to first token.
func TestTimesOfADecision(t *testing.T) {
	f := newFleet()
	w, name := f.View().World, objects.Name{Namespace: "ns", Name: "base"}
	w.Pools[name].Profile = &profile.Profile{
		FrontendOverhead: 0.04, Prefill: profile.Prefill{Base: 0.05}, Decode: profile.Decode{Base: 0.02},
		AdapterLoad: profile.Spread{Mean: 0.2},
		Limits: profile.Limits{
			MaxSequences: 10, MaxBatchedTokens: 1000, KVBlocks: 100, BlockSize: 16, GPUAdapters: 1,
			HostAdapters: 2,
		},
	}
	f.SetWorld(w)
	f.View().Snapshot.Pools["ns/base"].Endpoints[0].Backlog.Queue.Store(time.Now().Add(time.Hour).UnixNano())
	server, _ := newServer(t, f, func(c *stream.Config) { c.Settings.Policy.Rule, c.ExplainPicks = pick.Latency, true })
	x := server.Exchange(stream.Own, "base-picker:9002", 9002)
	explained := 0
	for _, line := range []string{"headers :method=POST :path=/v1/completions", `body {"model":"text-to-sql","prompt":"x"}`} {
		responses, err := x.Receive(message(t, line), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range responses {
			if is := r.GetDynamicMetadata().GetFields()["gateway.pick"].GetStructValue().GetFields()["expected"].GetStructValue().GetFields(); is != nil {
				explained++
				sum := 0.0
				for _, term := range []string{"frontend_overhead", "queue", "room", "load", "prefill"} {
					sum += is[term].GetNumberValue()
				}
				if first := is["first_token"].GetNumberValue(); math.Abs(sum-first) > 1e-5 || is["frontend_overhead"].GetNumberValue() != 0.04 ||
					first < 0.29 {
					t.Errorf("the time to first token is %g s, of %v", first, is)
				}
			}
		}
	}
	if explained != 1 {
		t.Errorf("explained %d times", explained)
	}
	x.ReleaseLease()
	x.End(time.Now())
}

// The decision and the outcome report where the adapter was, and the predicted load time and
// frontend overhead. A base model is reported without an adapter. For a request behind other
// requests, nothing is reported.
func TestAdapterResidencyIsReported(t *testing.T) {
	f := newFleet()
	w, name := f.View().World, objects.Name{Namespace: "ns", Name: "base"}
	w.Pools[name].Profile = &profile.Profile{
		FrontendOverhead: 0.04, Prefill: profile.Prefill{Base: 0.05}, Decode: profile.Decode{Base: 0.02},
		AdapterLoad: profile.Spread{Mean: 0.2}, AdapterActivation: profile.Spread{Mean: 0.03},
		Limits: profile.Limits{MaxSequences: 10, MaxBatchedTokens: 1000, KVBlocks: 100, BlockSize: 16, GPUAdapters: 1, HostAdapters: 2},
	}
	f.SetWorld(w)
	latency := func(c *stream.Config) { c.Settings.Policy.Rule = pick.Latency }
	exchange := func(front stream.Front, model string) (x stream.Exchange, adapter string, load float64, told []outcome.Outcome) {
		server, observed := newServer(t, f, latency)
		x = server.Exchange(front, "base-picker:9002", 9002)
		for _, line := range []string{
			"headers :method=POST :path=/v1/completions", "body " +
				fmt.Sprintf(`{"model":%q,"prompt":"x","stream":true}`, model), "response :status=200 content-type=text/event-stream",
			`answer "data: {}\n\n"`,
		} {
			responses, err := x.Receive(message(t, line), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range responses {
				if p := r.GetDynamicMetadata().GetFields()["gateway.pick"].GetStructValue().GetFields(); p["pool"] != nil {
					adapter, load = p["adapter"].GetStringValue(), p["load_us"].GetNumberValue()
				}
			}
		}
		return x, adapter, load, *observed
	}
	for _, c := range []struct {
		model, adapter string
		load           time.Duration
	}{
		{"text-to-sql", "storage", 270 * time.Millisecond},
		{"text-to-sql", "slot", 40 * time.Millisecond},
		{"llama", "none", 40 * time.Millisecond},
	} {
		if x, adapter, load, _ := exchange(stream.Own, c.model); adapter != c.adapter || load != float64(c.load.Microseconds()) {
			t.Errorf("%s was at %q, and its load takes %g µs; want %q, %v", c.model, adapter, load, c.adapter, c.load)
		} else {
			x.ReleaseLease()
			x.End(time.Now())
		}
	}
	x, _, _, told := exchange(stream.Gateway, "text-to-sql")
	if len(told) != 1 || told[0].Adapter != "slot" || told[0].Loading != 40*time.Millisecond || told[0].Expected != 90*time.Millisecond {
		t.Errorf("another gateway's response gives %+v", told)
	}
	x.End(time.Now())
	behind, _, _, _ := exchange(stream.Own, "llama")
	f.View().Snapshot.Pools["ns/base"].Endpoints[0].Backlog.Queue.Store(time.Now().Add(10 * time.Second).UnixNano())
	if x, adapter, _, _ := exchange(stream.Own, "text-to-sql"); adapter != "" {
		t.Errorf("behind ten seconds of prompts it reports %q", adapter)
	} else {
		x.End(time.Now())
	}
	behind.End(time.Now())
}

// With --emit-endpoint-scores, the metadata has the predicted seconds at the picks and at the next
// best endpoint, next to the destination. Without it, or without predictions, there are none.
func TestScoresAreReported(t *testing.T) {
	for _, c := range []struct {
		emit bool
		rule pick.Rule
		want int
	}{{true, pick.Latency, 2}, {true, pick.LeastRequest, 0}, {false, pick.Latency, 0}} {
		f := newFleet()
		w, name := f.View().World, objects.Name{Namespace: "ns", Name: "open"}
		w.Pools[name].Profile = &profile.Profile{
			FrontendOverhead: 0.04, Prefill: profile.Prefill{Base: 0.05}, Decode: profile.Decode{Base: 0.02},
			Limits: profile.Limits{MaxSequences: 10, MaxBatchedTokens: 1000, KVBlocks: 100, BlockSize: 16},
		}
		f.SetWorld(w)
		s, _ := newServer(t, f, func(of *stream.Config) { of.EmitScores, of.Settings.Policy.Rule = c.emit, c.rule })
		x := s.ExchangeAt("", objects.Name{}, nil)
		m := decide(t, x, chat("scored", "qwen")...)
		lb := m.GetDynamicMetadata().GetFields()[wire.DestinationNamespace].GetStructValue().GetFields()
		scores := lb[wire.ScoresKey].GetStructValue().GetFields()
		if len(scores) != c.want {
			t.Errorf("emit %v with %v: %d scores", c.emit, c.rule, len(scores))
		}
		d := recorded(t, s, "scored")[0]
		if to := lb[wire.DestinationHeader].GetStringValue(); to != d.Picks[0].Endpoint {
			t.Errorf("the destination is %s", to)
		}
		if c.want > 0 && (scores[d.Picks[0].Endpoint].GetNumberValue() != *d.Picks[0].Seconds || *d.Picks[0].Seconds < .09 ||
			scores[d.RunnerUp.Endpoint] == nil) {
			t.Errorf("the scores are %v of %+v", scores, d)
		}
		x.End(time.Now())
	}
}
