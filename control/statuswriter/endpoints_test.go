package statuswriter_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/statuswriter"
	"github.com/headgate/headgate/internal/objects"
)

func poolSettings(name string) string {
	return ours + "kind: PoolSettings\nmetadata: {name: " + name + "}\nspec: {poolRef: {name: p}}"
}

// The state of endpoints is in the status of a pool's PoolSettings and EndpointLists, and decides
// whether an LLMRoute is ready. Times of transition change only with a condition's status, and
// nothing is written again.
func TestStateOfEndpointsIsWritten(t *testing.T) {
	c := newCluster(t)
	c.Apply(inferencePool("") + "\n---\n" + poolSettings("a") + "\n---\n" + poolSettings("b") + "\n---\n" +
		route("r", "{backendRefs: [{name: p}]}") + "\n---\n" + ours +
		"kind: EndpointList\nmetadata: {name: l, labels: {app: llama}}\nspec: {addresses: ['10.0.0.1:8000', '10.0.0.2:8000']}")
	states := func(first, second conditions.State) conditions.Observed {
		o := standalone
		o.Reports = map[string]conditions.Endpoint{"10.0.0.1:8000": {State: first}, "10.0.0.2:8000": {State: second}}
		return o
	}
	r := c.open(c.typed(writer(c)), always)
	defer r.Close()
	r.SetWorld(c.world())
	expect := func(first, second conditions.State, lists, settings, routes string) {
		t.Helper()
		r.SetObserved(states(first, second))
		c.Await("the statuses", func() bool {
			return strings.Contains(c.columns("endpointlists"), lists) && strings.Contains(c.columns("poolsettings"), settings) &&
				strings.Contains(c.columns("llmroutes"), routes)
		})
	}
	expect(conditions.Serving, conditions.Out, "l | <nil> | 1/2 | True\n", "a | p | <nil> | True | 1/2 | True\n",
		"r | r | <nil> | p | True | True\n")
	times := func() (all []string) {
		for _, c := range get(c, "a", new(v1alpha1.PoolSettings)).Status.Conditions {
			all = append(all, c.Type+" "+c.LastTransitionTime.String())
		}
		return all
	}
	before := times()
	if b := get(c, "b", new(v1alpha1.PoolSettings)).Status; b.Endpoints != "" || b.ObservedGeneration != 1 ||
		meta.FindStatusCondition(b.Conditions, v1alpha1.ConditionAccepted).Reason != v1alpha1.ReasonConflicted ||
		!strings.Contains(b.Conditions[0].Message, "PoolSettings default/a") {
		t.Errorf("the status of the second PoolSettings is %+v", b)
	}
	c.Await("another second begins, the unit of times in a status", func() bool {
		return time.Since(get(c, "a", new(v1alpha1.PoolSettings)).Status.Conditions[0].LastTransitionTime.Time) > 1100*time.Millisecond
	})
	expect(conditions.Serving, conditions.Serving, "l | <nil> | 2/2 | True\n", "a | p | <nil> | True | 2/2 | True\n",
		"r | r | <nil> | p | True | True\n")
	if after := times(); !slices.Equal(after[:2], before[:2]) || after[2] == before[2] {
		t.Errorf("the times of transition are %v, and were %v: want a new one for Endpoints alone", after, before)
	}
	expect(conditions.Out, conditions.Out, "l | <nil> | 0/2 | False\n", "a | p | <nil> | True | 0/2 | False\n",
		"r | r | <nil> | p | True | False\n")
	if is := meta.FindStatusCondition(c.routeNamed("r").Status.Conditions, v1alpha1.ConditionReady); is.Reason != v1alpha1.ReasonNoEndpoints {
		t.Errorf("the route is %+v", is)
	}
	calls := c.Asked("writer")
	r.SetObserved(states(conditions.Out, conditions.Out))
	if err := r.Close(); err != nil || c.Asked("writer") != calls {
		t.Errorf("%v: %d requests for unchanged statuses", err, c.Asked("writer")-calls)
	}
	c.NothingDenied("writer")
}

// If 1,000 endpoints change state every second, control writes at most 10 times a second, each
// status in its turn, and other statuses do not wait for these.
func TestFlappingEndpointsAreWrittenSlowly(t *testing.T) {
	paced(t, func(context.Context) error { return nil },
		func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, _ func() string) {
			const pools, each = 100, 10
			w := &objects.World{Pools: make(map[objects.Name]*objects.Pool)}
			for i := range pools {
				name := objects.Name{Namespace: "default", Name: fmt.Sprint("p", i)}
				p := &objects.Pool{Name: name}
				for j := range each {
					p.Endpoints = append(p.Endpoints, objects.Endpoint{Address: fmt.Sprintf("10.0.%d.%d:8000", i, j), Ready: true})
				}
				w.Pools[name] = p
				w.Settings = append(w.Settings, objects.SettingsUse{Name: name, Pool: name, InForce: name})
			}
			observed := func(second int) conditions.Observed {
				o := conditions.Observed{Reports: make(map[string]conditions.Endpoint), Extprocs: standalone.Extprocs}
				for i := range pools {
					for j := range each {
						is := conditions.Endpoint{State: conditions.Serving}
						if (second+j)%2 == 0 || second%3 == 0 {
							is.State = conditions.Out
						}
						o.Reports[fmt.Sprintf("10.0.%d.%d:8000", i, j)] = is
					}
				}
				return o
			}
			r.SetWorld(w)
			r.SetObserved(observed(0))
			time.Sleep(time.Minute) // all have been written once
			before := len(s.noted())
			for second := range 60 {
				r.SetObserved(observed(second + 1))
				time.Sleep(time.Second)
			}
			synctest.Wait()
			calls := s.noted()[before:]
			writes := make(map[string]int)
			n := 0
			for _, call := range calls {
				if strings.HasPrefix(call, "update ") {
					writes[call]++
					n++
				}
			}
			if n > 600 || n < 400 || len(writes) != pools {
				t.Errorf("%d writes in a minute, of %d objects", n, len(writes))
			}
			// Another status does not wait for the 100 that are always queued.
			before = len(s.noted())
			with := *w
			with.Offer = worldWith("r", "sql").Offer
			r.SetWorld(&with)
			time.Sleep(time.Second)
			synctest.Wait()
			if calls := s.noted()[before:]; !slices.Contains(calls, "update sql") {
				t.Errorf("the calls in a second are %v", calls)
			}
		})
}
