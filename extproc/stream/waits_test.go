package stream_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/test/leak"
)

const (
	here   = "destination-endpoint=" + address
	silent = "10.0.2.1:8000" // the endpoint of ns/silent
)

// closing adds a route "closed" to ns/silent that fails closed, and then uses ns/base.
func closing(s *objects.Set) {
	r := aRoute("closed", "silent", "")
	r.Spec.FailurePolicy, r.Spec.Fallback = v1alpha1.FailClose, &v1alpha1.Fallback{Pool: "base"}
	s.Routes = append(s.Routes, r)
}

// lose makes the endpoint of ns/silent lost, but not that of ns/base.
func (p *process) lose() {
	time.Sleep(settings.Default().LostAfter)
	p.fleet.Scrape(address).Succeeded(engine.Load{})
	p.fleet.SetWorld(p.fleet.View().World) // publishes a new view
	time.Sleep(2 * time.Second)            // each line tries again
}

// A request that waits in one pool and is then served by another one is charged in neither queue:
// nothing waits in the second, and the first does not serve it.
func TestFallbackIsNotChargedInTheFirstPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := processIn(t, stream.Own, 1, closing, nil)
		before := leak.Maps(p.flow)
		first := p.ask("closed")
		first.expect("the first", "destination-endpoint="+silent)
		second := p.ask("closed")
		p.waiting(1)
		p.lose()
		second.expect("the second", here)
		for path, n := range leak.Maps(p.flow) {
			if n != before[path] {
				t.Errorf("while the fallback serves the request, %s has %d entries", path, n)
			}
		}
	})
}

// A request that was called in its pool's queue, and then uses its fallback, waits in the queue of
// the fallback's pool behind the requests there.
func TestFallbackWaitsBehindOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := processIn(t, stream.Own, 1, closing, nil)
		p.ask("closed")
		second := p.ask("closed")
		ahead, err := p.flow.Enqueue(flow.Request{Key: objects.ModelKey{Pool: objects.Name{Namespace: "ns", Name: "base"}}}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		p.lose()
		second.expect("the request while another one chooses its endpoint", "")
		p.waiting(2)
		ahead.Leave()
		second.expect("the request in its turn", here)
		p.waiting(0)
	})
}

// A request at its fallback has no other fallback, even if its route gets one meanwhile.
func TestFallbackHasNoFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := processIn(t, stream.Own, 1, closing, func(c *stream.Config) { c.Settings.QueueTimeout = time.Minute })
		p.ask("closed")
		p.ask("llama").expect("the first of the fallback's pool", here)
		second := p.ask("closed")
		p.lose()
		p.waiting(1) // at its fallback
		p.edit(func(s *objects.Set) { s.Routes[len(s.Routes)-1].Spec.Fallback = &v1alpha1.Fallback{Pool: "sticky"} })
		second.expect("after the edit, the request", "")
		time.Sleep(time.Minute)
		second.expect("after its time, the request", "reply: 503")
		p.waiting(0)
	})
}

// If a route is replaced by another one for the same model, requests that wait are decided again,
// and wait by the new route.
func TestReplacedRouteKeepsItsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := processIn(t, stream.Own, 1, nil, nil)
		first := p.ask("llama")
		first.expect("the first", here)
		second := p.ask("llama")
		p.waiting(1)
		p.edit(func(s *objects.Set) {
			for i := range s.Routes {
				if s.Routes[i].Name == "for-llama" {
					s.Routes[i].Name = "another-for-llama"
				}
			}
		})
		second.expect("after the edit, the second", "")
		p.waiting(1)
		first.end()
		second.expect("with room, the second", here)
		p.waiting(0)
	})
}

// A request that waits for room, and then for an endpoint, is refused before the timeout that the
// data plane was asked for, even if the other wait may be longer.
func TestWaitEndsBeforeThePromisedTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := processIn(t, stream.Own, 1, nil, func(c *stream.Config) {
			c.Settings.QueueTimeout, c.Settings.EmptyTimeout = 10*time.Second, time.Minute
		})
		p.ask("llama").expect("the first", here)
		second := p.ask("llama")
		if got := (<-second.answers).GetRequestHeaders(); got == nil {
			t.Fatal("the headers have no answer")
		}
		if got := (<-second.answers).GetOverrideMessageTimeout().AsDuration(); got != 10*time.Second {
			t.Fatalf("the data plane is asked for %v", got)
		}
		time.Sleep(5 * time.Second)
		emptied(p.fleet)
		time.Sleep(3 * time.Second)
		second.expect("after 8 s", "")
		time.Sleep(2*time.Second - time.Millisecond)
		second.expect("before 10 s have passed", "reply: 503")
	})
}

// A request that waits while an engine computes the prompts of others goes as soon as they have
// become few, although nothing happens then.
func TestRequestsGoWhenPromptsAreComputed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := processIn(t, stream.Own, 0, nil, func(c *stream.Config) { c.Settings.Policy.Rule = pick.Latency })
		w, name := p.fleet.View().World, objects.Name{Namespace: "ns", Name: "base"}
		w.Pools[name].Profile = &profile.Profile{
			Decode: profile.Decode{Base: 0.02},
			Limits: profile.Limits{MaxSequences: 10, MaxBatchedTokens: 1000, KVBlocks: 100, BlockSize: 16},
		}
		p.fleet.SetWorld(w)
		p.ask("llama").expect("the first", here)
		const prompts = 700 * time.Millisecond
		p.fleet.View().Snapshot.Pools["ns/base"].Endpoints[0].Backlog.Queue.Store(fleet.Steady(time.Now().Add(prompts)).UnixNano())
		second := p.ask("llama")
		second.expect("behind prompts, the second", "")
		const step = 20 * time.Millisecond // is left anyway
		short := step + time.Duration(pick.DefaultGateQueue*float64(time.Second))
		time.Sleep(prompts - short - time.Millisecond)
		second.expect("a moment before, the second", "")
		time.Sleep(2 * time.Millisecond)
		second.expect("then the second", here)
	})
}

// A flow in which several requests wait leaves headroom for others. A request that is first in
// order and finds no room for 5 s reserves room, and then uses all of it.
func TestHeadroomAndReservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const window = 300 // of which two requests of a tenant leave one place
		p := processIn(t, stream.Own, window, nil, nil)
		var running []pending
		for range window {
			r := p.ask("llama")
			r.expect("with room, a request", here)
			running = append(running, r)
		}
		first, second := p.ask("llama"), p.ask("llama")
		p.waiting(2)
		running[0].end()
		time.Sleep(4 * time.Second)
		first.expect("before it has waited 5 s, the first", "")
		if n := inFlight(p.fleet); n != window-1 {
			t.Errorf("the engine has %d requests, want %d", n, window-1)
		}
		time.Sleep(3 * time.Second)
		first.expect("after 5 s without room, the first", here)
		second.expect("without room, the second", "")
		running[1].end()
		time.Sleep(6 * time.Second)
		second.expect("then the second", here)
		p.waiting(0)
	})
}

// A request that may use only some endpoints does not delay one that may use others.
func TestSubsetsWaitApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := processIn(t, stream.Gateway, 1, nil, nil)
		among := func(address string) pending {
			p.Helper()
			return p.send("headers @subset="+address+" :method=POST :path=/v1/completions mode=FULL_DUPLEX_STREAMED",
				`body @subset=`+address+` {"model":"sticky"}`)
		}
		among("10.0.3.1:8000").expect("the first", "10.0.3.1:8000")
		waits := among("10.0.3.1:8000")
		waits.expect("without room, the second", "")
		p.waiting(1)
		among("10.0.3.2:8000").expect("the one for another endpoint", "10.0.3.2:8000")
		p.waiting(1)
		waits.expect("still without room, the second", "")
	})
}

// A request counts once against the limits of its route, however often it is decided.
func TestWaitingRequestCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := processIn(t, stream.Own, 1, func(s *objects.Set) {
			for i := range s.Routes {
				if s.Routes[i].Name == "for-llama" {
					s.Routes[i].Spec.Limits = &v1alpha1.RouteLimits{Route: &v1alpha1.Limit{RequestsPerMinute: new(int32(3))}}
				}
			}
		}, nil)
		first := p.ask("llama")
		first.expect("the first", here)
		second := p.ask("llama")
		time.Sleep(2 * time.Second) // it is decided again each second
		second.expect("without room, the second", "")
		first.end()
		second.expect("the second", `"x-ratelimit-remaining-requests":"1"`)
	})
}

// A request that has waited is not rejected as late when it must wait again behind others.
func TestRequestsThatHaveWaitedAreNotLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := processIn(t, stream.Own, 1, func(s *objects.Set) {
			s.Routes = append(s.Routes, aRoute("others", "base", ""), aRoute("mine", "base", ""))
		}, nil)
		mine := func() pending {
			return p.send("headers :method=POST :path=/v1/completions x-envoy-upstream-rq-timeout-ms=3500", `body {"model":"mine"}`)
		}
		running := p.ask("others")
		var others []pending
		for range 2 {
			others = append(others, p.ask("others"))
		}
		for range 10 { // one request per second
			time.Sleep(time.Second)
			running.end()
			others[0].expect("the next", here)
			running, others = others[0], append(others[1:], p.ask("others"))
		}
		for range 2 {
			p.ask("others")
		}
		p.waiting(4)
		waits := mine()
		waits.expect("in a flow of its own, the request", "")
		p.waiting(5)
		time.Sleep(10 * time.Millisecond)
		p.edit(func(s *objects.Set) {
			both := aRoute("others", "base", "")
			both.Spec.ModelNames = []string{"others", "mine"}
			s.Routes = append(s.Routes[:len(s.Routes)-2], both)
		})
		waits.expect("behind others, the request", "")
		p.waiting(5)
		mine().expect("a new request", "too_late")
	})
}
