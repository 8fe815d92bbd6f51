package stream_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/leak"
)

// window returns a fleet without control in which each endpoint gets at most this many requests at
// a time, its flow and a client. The routes of "gpt-4" have priority 1.
func window(t *testing.T, requests int, change func(*stream.Config)) (*fleet.Fleet, *flow.Flow, extprocv3.ExternalProcessorClient) {
	t.Helper()
	var held *flow.Flow
	f := newFleetWith(fleet.Config{Published: func(v *endpointstate.View) {
		if held != nil {
			held.Published(v)
		}
	}, Freed: func(address, model string) { held.Freed(address, model) }}, func(s *objects.Set) {
		for i := range s.Routes {
			if strings.HasPrefix(s.Routes[i].Name, "for-gpt-4") {
				s.Routes[i].Spec.Priority = 1
			}
		}
	})
	held = flow.New(flow.Config{View: f.View, MaxQueued: 10, MaxBytes: 1 << 20, Alone: true})
	server, _ := newServer(t, f, func(c *stream.Config) {
		c.Flow, c.Settings.RequestsPerEndpoint = held, requests
		if change != nil {
			change(c)
		}
	})
	return f, held, dialServer(t, server, stream.Own)
}

// Without control, requests for a base model and for an adapter wait while the engine has no room.
// When a request ends, the first one in order goes: a higher priority before a lower one. In the
// end nothing is left.
func TestRequestsWaitForRoom(t *testing.T) { synctest.Test(t, testRequestsWaitForRoom) }

func testRequestsWaitForRoom(t *testing.T) {
	f, held, client := window(t, 1, nil)
	before := leak.Maps([]any{held})
	type asked struct {
		stream extprocv3.ExternalProcessor_ProcessClient
		end    context.CancelFunc
	}
	begin := func(model string) (asked, *extprocv3.ProcessingResponse) {
		ctx, end := context.WithCancel(t.Context())
		s, m := askFor(ctx, t, client, model)
		return asked{s, end}, m
	}
	first, m := begin("llama")
	if !goes(t, m) {
		t.Fatal(m)
	}
	var waiting []asked
	for i, model := range []string{"text-to-sql", "llama", "gpt-4"} {
		a, m := begin(model)
		if m.GetOverrideMessageTimeout() == nil {
			t.Fatalf("%s does not wait: %v", model, m)
		}
		waiting = append(waiting, a)
		awaitQueued(t, held, int64(i+1))
	}
	if n := inFlight(f); n != 1 {
		t.Errorf("the engine has %d requests", n)
	}
	last := first
	for _, i := range []int{2, 0, 1} {
		synctest.Wait() // every request has found no room
		last.end()
		next(t, "the next in order", waiting[i].stream)
		if n := inFlight(f); n != 1 {
			t.Errorf("the engine has %d requests", n)
		}
		last = waiting[i]
	}
	awaitQueued(t, held, 0)
	last.end()
	awaitInFlight(t, f, 0)
	synctest.Wait() // the goroutines of the requests have returned
	if n := leak.Maps([]any{held})[".expected"]; n != len(waiting) {
		t.Errorf("the outcomes of %d requests correct their charges, want %d", n, len(waiting))
	}
	held.Queued()           // locks the flow, so that its timers write after what was read here
	time.Sleep(time.Minute) // no outcome is expected any more
	synctest.Wait()
	for path, n := range leak.Maps([]any{held}) {
		if n != before[path] {
			t.Errorf("%s has %d entries", path, n)
		}
	}
}

func awaitInFlight(t *testing.T, f *fleet.Fleet, want int64) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for limit := time.After(5 * time.Second); inFlight(f) != want; {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%d requests are in flight", inFlight(f))
		}
	}
}

// If the flow of a pool is off, nothing waits for room.
func TestRequestsDoNotWaitWithoutFlow(t *testing.T) {
	f, _, client := window(t, 1, func(c *stream.Config) { c.Settings.Flow = false })
	for range 3 {
		if _, m := askFor(t.Context(), t, client, "llama"); !goes(t, m) {
			t.Error(m)
		}
	}
	if n := inFlight(f); n != 3 {
		t.Errorf("the engine has %d requests", n)
	}
}

// When the process stops, requests that wait for room are sent to the engine, which queues them. So
// are later ones.
func TestRequestsWaitForNoRoomWhileStopping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, held, _ := window(t, 1, nil)
		server, _ := newServer(t, f, func(c *stream.Config) { c.Flow, c.Settings.RequestsPerEndpoint = held, 1 })
		client := dialServer(t, server, stream.Own)
		if _, m := askFor(t.Context(), t, client, "llama"); !goes(t, m) {
			t.Fatal(m)
		}
		var waiting []extprocv3.ExternalProcessor_ProcessClient
		for range 2 {
			s, m := askFor(t.Context(), t, client, "llama")
			if m.GetOverrideMessageTimeout() == nil {
				t.Fatal(m)
			}
			waiting = append(waiting, s)
		}
		awaitQueued(t, held, 2)
		server.Refuse()
		for _, s := range waiting {
			next(t, "when the process stops", s)
		}
		awaitQueued(t, held, 0)
		if _, m := askFor(t.Context(), t, client, "llama"); !goes(t, m) {
			t.Error(m)
		}
		if n := inFlight(f); n != 4 {
			t.Errorf("the engine has %d requests, want 4", n)
		}
	})
}

// A request that only counts tokens does not wait for room.
func TestTokenizeWaitsForNoRoom(t *testing.T) {
	for _, path := range []string{"/tokenize", "/detokenize?a=b", "/v1/messages/count_tokens"} {
		if !openai.OnlyTokenizes(path) {
			t.Errorf("%s waits", path)
		}
	}
	if openai.OnlyTokenizes("/v1/completions") {
		t.Error("a completion does not wait")
	}
}

// A request that waits for room ends when its route is deleted, and when its time is over.
func TestWaitForRoomEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(f *fleet.Fleet, s *stream.Server)
		want string
	}{
		"time": {func(*fleet.Fleet, *stream.Server) { time.Sleep(2 * time.Minute) }, "model_busy"},
		"route": {func(f *fleet.Fleet, _ *stream.Server) {
			f.SetWorld(objects.Build(objects.Set{Pools: f.View().World.Network.Pools, Routes: []v1alpha1.LLMRoute{
				aRoute("another", "base", ""),
			}}))
		}, "model_not_found"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, held, _ := window(t, 1, nil)
				server, _ := newServer(t, f, func(c *stream.Config) {
					c.Flow, c.Settings.RequestsPerEndpoint, c.Settings.QueueTimeout = held, 1, time.Minute
				})
				client := dialServer(t, server, stream.Own)
				if _, m := askFor(t.Context(), t, client, "llama"); !goes(t, m) {
					t.Fatal(m)
				}
				s, _ := askFor(t.Context(), t, client, "llama")
				c.end(f, server)
				if got := decided(t, s); !strings.Contains(got, c.want) {
					t.Errorf("it gets %s", got)
				}
				awaitQueued(t, held, 0)
			})
		})
	}
}

// While a pool has no endpoint, requests wait for as long as the pool's settings state, and then
// get 503.
func TestRequestsWaitForAnEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, held, client := window(t, 0, func(c *stream.Config) { c.Settings.EmptyTimeout = 10 * time.Second })
		with := f.View().World
		f.SetWorld(withoutEndpoint(with, *with.Pools[objects.Name{Namespace: "ns", Name: "base"}]))
		first, m := askFor(t.Context(), t, client, "llama")
		if m.GetOverrideMessageTimeout() == nil {
			t.Fatal(m)
		}
		if got := decided(t, first); !strings.Contains(got, "reply: 503") || !strings.Contains(got, "no_endpoint") {
			t.Errorf("after its time it gets %s", got)
		}
		second, _ := askFor(t.Context(), t, client, "llama")
		f.SetWorld(with)
		f.Scrape(address).Succeeded(engine.Load{})
		f.SetModels(address, engine.Models{Base: []string{"llama"}})
		f.SetWorld(with) // publishes a new view
		next(t, "with an endpoint", second)
		awaitQueued(t, held, 0)
	})
}
