package flow_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// worldOf returns objects with these routes to the first pool, by priority.
func worldOf(routes map[string]int32) *objects.World {
	var all []v1alpha1.LLMRoute
	for name, priority := range routes {
		r := v1alpha1.LLMRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		r.Spec.ModelNames, r.Spec.Priority = []string{name}, priority
		r.Spec.BackendRefs = []v1alpha1.BackendReference{{Name: pools[0].Name}}
		all = append(all, r)
	}
	return objects.Build(objects.Set{Routes: all})
}

// Edits apply to requests that wait: a new priority changes their order, and a request whose route
// is deleted is decided again, even if it is not its turn. A request at its fallback, where its
// route does not lead, stays in its place.
func TestEditsApplyToWaitingRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view := &endpointstate.View{
			Snapshot: &pick.Snapshot{Pools: map[string]*pick.Pool{
				pools[0].String(): {Endpoints: []*pick.Endpoint{{Address: "10.0.0.1:8000"}}},
			}},
			World: worldOf(map[string]int32{"a": 0, "b": 0, "c": 0}),
		}
		f := flow.New(flow.Config{View: func() *endpointstate.View { return view }, MaxQueued: 10, MaxBytes: 100, Alone: true})
		by := func(route string) flow.Request {
			name := objects.Name{Namespace: "ns", Name: route}
			return flow.Request{Key: objects.ModelKey{Pool: pools[0]}, Path: queue.Path{Route: name, Share: 1}}
		}
		a, b, c := blocked(t, f, by("a")), enqueue(t, f, by("b")), enqueue(t, f, by("c"))
		fallback := by("a")
		fallback.Adapter, fallback.Fallback = "elsewhere", true
		d := enqueue(t, f, fallback)
		view = &endpointstate.View{Snapshot: view.Snapshot, World: worldOf(map[string]int32{"a": 0, "c": 1})}
		f.Published(view)
		if err := <-b.Turn(); !errors.Is(err, flow.ErrChanged) {
			t.Errorf("the request of the deleted route gets %v", err)
		}
		if len(d.Turn()) > 0 {
			t.Errorf("the request at its fallback gets %v", <-d.Turn())
		}
		f.Freed("10.0.0.1:8000", "")
		if err := <-c.Turn(); err != nil || len(a.Turn()) > 0 {
			t.Errorf("the request whose priority was raised gets %v, and the other one was called: %v", err, len(a.Turn()) > 0)
		}
		c.Back(flow.Room, time.Time{}, nil)
		for _, ticket := range []*flow.Ticket{a, b, c, d} {
			ticket.Leave()
		}
	})
}

// A request that leaves late does not forget a pool that others have joined since.
func TestLateLeaveKeepsNewPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pick.Pool{Endpoints: []*pick.Endpoint{{Address: "10.0.0.1:8000"}}}
		view := &endpointstate.View{Snapshot: &pick.Snapshot{Pools: map[string]*pick.Pool{pools[0].String(): p}}, World: new(objects.World)}
		f := flow.New(flow.Config{View: func() *endpointstate.View { return view }, MaxQueued: 10, MaxBytes: 100})
		r := flow.Request{Key: objects.ModelKey{Pool: pools[0], ID: "cold"}, Placed: true, Path: queue.Path{Route: pools[1], Share: 1}}
		a, b := enqueue(t, f, r), enqueue(t, f, r)
		view = &endpointstate.View{Snapshot: view.Snapshot, World: new(objects.World)}
		f.Published(view) // an edit
		for _, ticket := range []*flow.Ticket{a, b} {
			if err := <-ticket.Turn(); !errors.Is(err, flow.ErrChanged) {
				t.Fatal(err)
			}
		}
		a.Leave()
		again := enqueue(t, f, r) // a, decided again
		b.Leave()                 // b, a bit later
		loaded := *p
		loaded.Copies = map[string][]pick.Copy{"cold": {{Model: "cold", InFlight: new(pick.Count)}}}
		view = &endpointstate.View{Snapshot: &pick.Snapshot{Pools: map[string]*pick.Pool{pools[0].String(): &loaded}}, World: view.World}
		f.Published(view)
		time.Sleep(time.Minute)
		if len(again.Turn()) != 1 {
			t.Error("the model has been loaded for a minute, and the request still waits")
		}
		again.Leave()
	})
}
