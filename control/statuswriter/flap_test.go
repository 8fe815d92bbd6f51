package statuswriter_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/statuswriter"
	"github.com/headgate/headgate/internal/objects"
)

// flapping returns objects of endpoints: each endpoint has an InferencePool, an EndpointList, a
// PoolSettings and an LLMRoute of its own.
func flapping(endpoints int) (all []client.Object) {
	for i := range endpoints {
		name := fmt.Sprintf("p%04d", i)
		labels := map[string]string{"pool": name}
		p := new(pool.InferencePool)
		p.Spec.Selector.MatchLabels = labels
		p.Spec.TargetPorts = []pool.Port{{Number: 8000}}
		l := new(v1alpha1.EndpointList)
		l.Labels, l.Spec.Addresses = labels, []string{flappingAddress(i)}
		s := new(v1alpha1.PoolSettings)
		s.Spec.PoolRef.Name = name
		r := new(v1alpha1.LLMRoute)
		r.Spec.ModelNames = []string{name}
		r.Spec.BackendRefs = []v1alpha1.BackendReference{{Name: name}}
		for _, o := range []client.Object{p, l, s, r} {
			o.SetNamespace("default")
			o.SetName(name)
			all = append(all, o)
		}
	}
	return all
}

func flappingAddress(i int) string {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 8000).String()
}

// flap returns states in which every second endpoint answers: the others in the next second.
func flap(endpoints, second int) conditions.Observed {
	all := make(map[string]conditions.Endpoint, endpoints)
	for i := range endpoints {
		is := conditions.Endpoint{State: conditions.Serving}
		if (i+second)%2 == 0 {
			is = conditions.Endpoint{State: conditions.Out, Reason: "connection_refused"}
		}
		all[flappingAddress(i)] = is
	}
	return conditions.Observed{Reports: all, Extprocs: standalone.Extprocs}
}

// writesPerSecond is the limit of writes to the API server, of statuses and Events together.
const writesPerSecond = 10

// A thousand endpoints change their state each second for a minute. Statuses and Events together
// are at most 10 writes in each second, and Events alone at most 80 in the minute. When the objects
// are deleted, nothing is left of them.
func TestFlappingEndpointsMakeFewWrites(t *testing.T) {
	paced(t, taken, func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, _ func() string) {
		r.ReportChanges("control-0")
		const endpoints, seconds = 1000, 60
		r.SetWorld(objects.Build(setOf(flapping(endpoints))))
		all, events, most := 0, 0, 0
		for second := range seconds {
			before := len(s.noted())
			r.SetObserved(flap(endpoints, second))
			time.Sleep(time.Second)
			synctest.Wait()
			n := 0
			for _, call := range s.noted()[before:] {
				if !strings.HasPrefix(call, "get ") {
					n++
				}
				if call == "create" {
					events++
				}
			}
			all, most = all+n, max(most, n)
		}
		t.Logf("%d writes in a minute, %d of them Events, at most %d in a second", all, events, most)
		if most > writesPerSecond || all < 5*seconds || events > 80 || events < 40 {
			t.Errorf("%d writes in a minute, %d of them Events, at most %d in a second", all, events, most)
		}
		r.SetWorld(objects.Build(objects.Set{}))
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := r.Remembered(); n != 0 {
			t.Errorf("%d states of deleted objects are left", n)
		}
	})
}

// setOf returns a Set of flapping objects.
func setOf(all []client.Object) (set objects.Set) {
	for _, o := range all {
		switch o := o.(type) {
		case *pool.InferencePool:
			set.Pools = append(set.Pools, *o)
		case *v1alpha1.EndpointList:
			set.Lists = append(set.Lists, objects.List{EndpointList: *o})
		case *v1alpha1.PoolSettings:
			set.Settings = append(set.Settings, *o)
		case *v1alpha1.LLMRoute:
			set.Routes = append(set.Routes, *o)
		}
	}
	return set
}

// The status of a new LLMRoute does not wait for those of hundreds of endpoints that flap.
func TestNewRouteDoesNotWaitForFlappingEndpoints(t *testing.T) {
	paced(t, taken, func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, _ func() string) {
		const endpoints, seconds = 300, 200 // after 100 s the first status of each object is written
		set := setOf(flapping(endpoints))
		r.SetWorld(objects.Build(set))
		for second := range seconds {
			r.SetObserved(flap(endpoints, second))
			time.Sleep(time.Second)
		}
		synctest.Wait()
		route := set.Routes[0]
		route.Name, route.Spec.ModelNames = "fresh", []string{"fresh"}
		set.Routes = append(set.Routes, route)
		before := len(s.noted())
		r.SetWorld(objects.Build(set))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if calls := s.noted()[before:]; !slices.Contains(calls, "update fresh") {
			t.Errorf("the calls in 2 s are %v", calls)
		}
	})
}

// BenchmarkFlappingEndpoints does the same at a real API server, in real time, and counts the
// writes in its audit log.
func BenchmarkFlappingEndpoints(b *testing.B) {
	c := newCluster(b)
	const endpoints, seconds = 1000, 60
	admin := c.typed(c.Admin())
	for _, o := range flapping(endpoints) {
		if err := admin.Create(b.Context(), o); err != nil {
			b.Fatal(err)
		}
	}
	w := c.world()
	for b.Loop() {
		r := c.open(c.typed(c.Allowed("writer", eventRules)), always)
		r.ReportChanges("control-0")
		r.SetWorld(w)
		begin := time.Now()
		tick := time.NewTicker(time.Second)
		for second := range seconds {
			r.SetObserved(flap(endpoints, second))
			<-tick.C
		}
		tick.Stop()
		bySecond := make(map[int]int)
		kinds := make(map[string]int)
		all, most := 0, 0
		for _, q := range c.Requests() {
			second := int(q.Received.Sub(begin) / time.Second)
			if q.User.Name != "writer" || q.Verb == "get" || q.Verb == "list" || q.Received.Before(begin) || second >= seconds {
				continue
			}
			bySecond[second]++
			kinds[q.Verb+" "+q.Object.Resource]++
			all, most = all+1, max(most, bySecond[second])
		}
		if err := r.Close(); err != nil {
			b.Fatal(err)
		}
		b.Log(kinds)
		b.ReportMetric(float64(all)/seconds, "writes/s")
		b.ReportMetric(float64(most), "most-writes/s")
		b.ReportMetric(float64(kinds["create events"]+kinds["patch events"]), "Events")
		if all > writesPerSecond*seconds {
			b.Errorf("%d writes in a minute", all)
		}
	}
}
