package stream_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/flow/turns"
	"github.com/headgate/headgate/extproc/limits"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/leak"
)

// sharing adds routes with tenants and programs: "limited", "shed" to ns/base and "spare" to
// ns/empty, with the fallback ns/base, whose priority is 1.
func sharing(s *objects.Set) {
	add := func(name, pool string, change func(*v1alpha1.LLMRouteSpec)) {
		r := aRoute(name, pool, "")
		r.Spec.TenantHeader, r.Spec.ProgramHeader = "x-tenant-id", "x-program-id"
		change(&r.Spec)
		s.Routes = append(s.Routes, r)
	}
	add("limited", "base", func(s *v1alpha1.LLMRouteSpec) {
		s.Limits = &v1alpha1.RouteLimits{
			Route:  &v1alpha1.Limit{Concurrent: new(int32(4))},
			Tenant: &v1alpha1.Limit{RequestsPerMinute: new(int32(20)), TokensPerMinute: new(int32(10000))},
		}
	})
	add("shed", "base", func(s *v1alpha1.LLMRouteSpec) {
		s.Late = v1alpha1.LateShed
		limit := v1alpha1.Latency{Value: metav1.Duration{Duration: 2 * time.Second}}
		s.Objectives = []v1alpha1.Objective{{Type: v1alpha1.TimeToFirstToken, Latency: limit}}
	})
	add("spare", "empty", func(s *v1alpha1.LLMRouteSpec) {
		s.Priority, s.Fallback = 1, &v1alpha1.Fallback{Pool: "base"}
	})
}

// After random requests of tenants have ended, for room that other processes use too, no map of the
// server, the flow, the limits or the turns has more entries than before. Some requests exceed
// limits, are late, use a fallback, or leave. In between, the pool is empty, and routes are edited.
func TestSharedPoolsLeaveNothing(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testSharedPoolsLeaveNothing(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func testSharedPoolsLeaveNothing(t *testing.T, random *rand.Rand) {
	book := limits.New()
	p := processIn(t, stream.Own, 2, sharing, func(c *stream.Config) {
		c.Limits, c.Settings.QueueTimeout, c.Settings.EmptyTimeout = book, 20*time.Second, 3*time.Second
	})
	p.flow.Turns = flow.NewTurns()
	p.flow.Turns.Begin()
	p.server.Meter.SetWorld(p.fleet.View().World)
	began := time.Now()
	others := func(requests uint64) {
		p.flow.Turns.Wait(p.flow.Own())
		p.flow.Turns.Hear([]flow.Others{{
			Pool:   objects.Name{Namespace: "ns", Name: "base"},
			Others: turns.Others{Requests: requests, Share: float64(requests), After: float64(requests)},
		}}, time.Since(began))
	}
	all := []any{p.server, p.flow, p.fleet}
	p.edit(func(*objects.Set) {})
	emptied(p.fleet)()
	book.SetWorld(objects.Build(objects.Set{})) // as in the end
	before := leak.Maps(all)
	fallbacks := 0
	var running []pending
	for range 700 {
		time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
		switch n := random.IntN(100); {
		case n < 50 && len(running) < 30:
			model := []string{"limited", "limited", "shed", "shed", "shed", "spare", "llama", "text-to-sql"}[random.IntN(8)]
			running = append(running, p.send(
				fmt.Sprintf("headers :method=POST :path=/v1/completions x-tenant-id=t%d x-program-id=p%d", random.IntN(3), random.IntN(3)),
				fmt.Sprintf(`body {"model":%q,"prompt":"%d"}`, model, n),
			))
		case n < 96 && len(running) > 0: // one of the oldest, which run, or any other
			i := random.IntN(len(running))
			if n < 92 {
				i = min(i, 2)
			}
			if strings.Contains(running[i].decision(), "fallback_name") {
				fallbacks++
			}
			running[i].end()
			running = slices.Delete(running, i, i+1)
		case n == 96:
			emptied := emptied(p.fleet)
			time.Sleep(time.Duration(random.IntN(5000)) * time.Millisecond)
			emptied()
		case n == 97:
			others(random.Uint64N(2))
		case n > 97:
			p.edit(func(s *objects.Set) {
				r := &s.Routes[len(s.Routes)-1-random.IntN(3)]
				r.Spec.Priority = random.Int32N(2)
			})
			emptied(p.fleet)()
		}
	}
	for _, r := range running {
		r.end()
	}
	time.Sleep(2 * time.Minute) // all promises to clients and all expected outcomes are over
	others(0)
	if is := book.Sweep(); is != (limits.State{Routes: 1}) {
		t.Errorf("of the limits %+v are left", is)
	}
	book.SetWorld(objects.Build(objects.Set{}))
	if !p.flow.Turns.Empty() {
		t.Error("turns are left")
	}
	for path, n := range leak.Maps(all) {
		if n != before[path] && !strings.Contains(path, ".Meter.") && !strings.Contains(path, ".states.members") {
			t.Errorf("%s has %d entries, and had %d before all requests", path, n, before[path])
		}
	}
	refused := strings.Join(series(p.server.Meter, "headgate_band_refused_total"), "\n")
	for _, want := range []string{`"limit"`, `"late"`, `"expired"`} {
		if !strings.Contains(refused, want) {
			t.Errorf("no request was refused by reason %s:\n%s", want, refused)
		}
	}
	if fallbacks == 0 {
		t.Error("no request used a fallback")
	}
}
