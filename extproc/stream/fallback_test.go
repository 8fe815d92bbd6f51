package stream_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// newFleetOfFallbacks returns the fleet of the scenarios with routes of the listener chat that have
// fallbacks:
//
//	spare         the base model of ns/empty; the fallback is ns/base
//	tuned         the adapter "nobody" of ns/base, without a copy; the fallback is the base model
//	tuned-spare   the adapter "sql-v2" of ns/empty; the fallback is ns/base
//	tuned-plain   the same, but the fallback is the base model of ns/base
//	tuned-nobody  the adapter "nobody" of ns/empty; the fallback is ns/base
//	absent        the base model of ns/empty; the fallback is a pool that does not exist
func newFleetOfFallbacks() *fleet.Fleet {
	return newFleetWith(fleet.Config{}, func(s *objects.Set) {
		add := func(name, pool, adapter string, f v1alpha1.Fallback) {
			r := at("chat", aRoute(name, pool, adapter))
			r.Spec.Fallback = &f
			s.Routes = append(s.Routes, r)
		}
		add("spare", "empty", "", v1alpha1.Fallback{Pool: "base"})
		add("tuned", "base", "nobody", v1alpha1.Fallback{BaseModel: true})
		add("tuned-spare", "empty", "sql-v2", v1alpha1.Fallback{Pool: "base"})
		add("tuned-plain", "empty", "sql-v2", v1alpha1.Fallback{Pool: "base", BaseModel: true})
		add("tuned-nobody", "empty", "nobody", v1alpha1.Fallback{Pool: "base"})
		add("absent", "empty", "", v1alpha1.Fallback{Pool: "no-pool"})
	})
}

// While all endpoints of a pool are silent, a route that fails open uses them, and one that fails
// closed gets 503, or its fallback.
func TestFailurePolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleetWith(fleet.Config{}, func(s *objects.Set) {
			add := func(name, policy string, to *v1alpha1.Fallback) {
				r := aRoute(name, "base", "")
				r.Spec.FailurePolicy, r.Spec.Fallback = policy, to
				s.Routes = append(s.Routes, r)
			}
			add("open", v1alpha1.FailOpen, nil)
			add("closed", v1alpha1.FailClose, nil)
			add("closed-spare", v1alpha1.FailClose, &v1alpha1.Fallback{Pool: "sticky"})
		})
		server, _ := newServer(t, f, nil)
		send := func(model string) string {
			x := server.Exchange(stream.Own, "", 0)
			defer x.End(time.Now())
			var last string
			for _, line := range []string{"headers :method=POST :path=/v1/completions", fmt.Sprintf(`body {"model":%q}`, model)} {
				out, err := x.Receive(message(t, line), time.Now())
				if err != nil || len(out) != 1 {
					t.Fatalf("%d answers, %v", len(out), err)
				}
				last = render(t, out[0])
			}
			return last
		}
		expect := func(when, model, want string) {
			if got := send(model); !strings.Contains(got, want) {
				t.Errorf("%s: a request for %q gets %s, want %s", when, model, got, want)
			}
		}
		const ours, theirs = "x-gateway-destination-endpoint=10.0.0.1:8000", "x-gateway-destination-endpoint=10.0.3."
		expect("all answer", "open", ours)
		expect("all answer", "closed", ours)
		time.Sleep(settings.Default().LostAfter)
		for _, ip := range []string{"10.0.3.1", "10.0.3.2", "10.0.3.3", "10.0.3.4"} {
			f.Scrape(ip + ":8000").Succeeded(engine.Load{})
		}
		f.SetWorld(f.View().World) // publishes a new view
		expect("the pool is silent", "open", ours)
		expect("the pool is silent", "closed", "reply: 503")
		expect("the pool is silent", "closed-spare", theirs)
		f.Scrape(address).Succeeded(engine.Load{})
		f.SetWorld(f.View().World)
		expect("it answers again", "closed", ours)
		expect("it answers again", "closed-spare", ours)
	})
}

// Requests that wait together fall back together when their time is over, although the others are
// still in the queue of the same pool.
func TestFallbackOfRequestsThatWaitTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var held *flow.Flow
		f := newFleetWith(fleet.Config{Published: func(v *endpointstate.View) {
			if held != nil {
				held.Published(v)
			}
		}, Freed: func(address, model string) { held.Freed(address, model) }}, func(s *objects.Set) {
			r := aRoute("tuned", "base", "nobody-2")
			r.Spec.Fallback = &v1alpha1.Fallback{BaseModel: true}
			s.Routes = append(s.Routes, r)
		})
		held = flow.New(flow.Config{View: f.View, MaxQueued: 100, MaxBytes: 1 << 20})
		f.ApplyPlacement(news(t, f, nil))
		server, _ := newServer(t, f, func(c *stream.Config) { c.Flow, c.Settings.QueueTimeout = held, time.Minute })
		client := dialServer(t, server, stream.Own)
		began := time.Now()
		var waiting []extprocv3.ExternalProcessor_ProcessClient
		for range 3 {
			s, _ := askFor(t.Context(), t, client, "tuned")
			waiting = append(waiting, s)
		}
		awaitQueued(t, held, 3)
		served := 0
		for _, s := range waiting {
			if strings.Contains(decided(t, s), `"fallback_name":"baseModel"`) {
				served++
			}
		}
		if took := time.Since(began); served != 3 || took < 59*time.Second || took > time.Minute {
			t.Errorf("%d of 3 requests fell back after %v", served, took)
		}
		awaitQueued(t, held, 0)
	})
}
