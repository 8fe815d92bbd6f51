package placementclient_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/limits"
	"github.com/headgate/headgate/internal/objects"
)

// limitedWorld has the routes one, with a limit of one concurrent request, and two, with a limit of
// one concurrent request for each tenant and 3,000 requests per minute.
func limitedWorld() *objects.World {
	var s objects.Set
	for name, l := range map[string]v1alpha1.RouteLimits{
		"one": {Route: &v1alpha1.Limit{Concurrent: ptr.To[int32](1)}},
		"two": {Route: &v1alpha1.Limit{RequestsPerMinute: ptr.To[int32](3000)}, Tenant: &v1alpha1.Limit{Concurrent: ptr.To[int32](1)}},
	} {
		r := v1alpha1.LLMRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		r.Spec.BackendRefs = []v1alpha1.BackendReference{{Name: "pool"}}
		r.Spec.Limits, r.Spec.TenantHeader = &l, "x-tenant-id"
		s.Routes = append(s.Routes, r)
	}
	return objects.Build(s)
}

// Three extprocs share small limits through the real control. A limit that others do not use is
// usable through each of them within about a second, and never by two at once. When nobody uses the
// limits any more, nothing is remembered of them.
func TestExtprocsShareSmallLimits(t *testing.T) {
	address, _ := aBoard(t)
	w := limitedWorld()
	var all []*rig
	var leave func()
	for range 3 {
		r := &rig{T: t}
		r.book = limits.New()
		r.book.Shared()
		r.book.SetWorld(w)
		leave = r.join(address)
		all = append(all, r)
	}
	admit := func(r *rig, route string) *limits.Ticket {
		name := objects.Name{Namespace: "ns", Name: route}
		ticket, _ := r.book.Admit(name, w.SharingOf(name), 7, 0)
		return ticket
	}
	longest := time.Duration(0)
	use := func(r *rig, route string, first bool) {
		var ticket *limits.Ticket
		began := time.Now()
		r.await("the limit of "+route+" is usable", func() bool {
			ticket = admit(r, route)
			return ticket != nil
		})
		if !first { // control waits for extprocs of an earlier one
			longest = max(longest, time.Since(began))
		}
		for _, o := range all {
			if admit(o, route) != nil {
				t.Errorf("two extprocs use the limit of %s at once", route)
			}
		}
		ticket.End()
	}
	for i, r := range all {
		use(r, "one", i == 0)
		use(r, "two", i == 0)
	}
	t.Logf("the limits were usable after at most %v, while others asked for them", longest)
	if longest > 5*time.Second {
		t.Error("that is too late")
	}
	leave()
	all = all[:2]
	use(all[0], "one", false)
	all[0].await("nothing is left", func() bool {
		a, b := all[0].book.Sweep(), all[1].book.Sweep()
		return a.Loans+b.Loans+a.InFlight+b.InFlight+a.Tenants+b.Tenants == 0
	})
}
