package queue_test

import (
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/internal/objects"
)

var start = time.Unix(1e9, 0)

func route(name string) objects.Name { return objects.Name{Namespace: "ns", Name: name} }

// of returns a request of a tenant with a service of 1.
func of(name string, tenant uint64) queue.Request {
	return queue.Request{
		Path: queue.Path{Route: route(name), Share: 1, Tenant: tenant}, Model: "m", Service: 1, Bytes: 10, Since: start,
	}
}

// serve dispatches requests until none can go, and settles each with its estimate.
func serve(q *queue.Queue[string]) (names []string) {
	for p := q.Next(); p != nil; p = q.Next() {
		names = append(names, p.Waiter)
		q.Dispatch(p).Settle(p.Service())
	}
	return names
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func empty(t *testing.T, q *queue.Queue[string]) {
	t.Helper()
	if d := q.Debug(); d != (queue.Debug{}) {
		t.Errorf("left at the end: %+v", d)
	}
	if q.Len() != 0 || q.Bytes() != 0 || !q.Empty() {
		t.Errorf("%d requests and %d bytes are left", q.Len(), q.Bytes())
	}
}

func TestTenantsTakeTurns(t *testing.T) {
	q := queue.New[string]()
	for _, name := range []string{"a1", "a2", "a3"} {
		q.Join(name, of("r", 1))
	}
	q.Join("b1", of("r", 2))
	q.Join("b2", of("r", 2))
	expect(t, "order", serve(q), "a1", "b1", "a2", "b2", "a3")
	empty(t, q)
}

func TestSharesWeighRoutes(t *testing.T) {
	q := queue.New[string]()
	heavy := of("heavy", 0)
	heavy.Share = 3
	for range 6 {
		q.Join("heavy", heavy)
		q.Join("light", of("light", 0))
	}
	got := serve(q)
	n := 0
	for _, name := range got[:8] {
		if name == "heavy" {
			n++
		}
	}
	if n != 6 {
		t.Errorf("the share of 3 got %d of the first 8: %v", n, got)
	}
	empty(t, q)
}

func TestBandsAreStrictAmongRequestsThatCanGo(t *testing.T) {
	q := queue.New[string]()
	low, high := of("low", 0), of("high", 0)
	high.Band, high.Model = 10, "n"
	q.Join("low", low)
	q.Join("high", high)
	q.SetReady("n", false)
	if p := q.Next(); p.Waiter != "low" {
		t.Errorf("next is %s, although its model is not ready", p.Waiter)
	}
	if p := q.First(); p.Waiter != "high" {
		t.Errorf("first is %s", p.Waiter)
	}
	q.SetReady("n", true)
	expect(t, "order", serve(q), "high", "low")
	empty(t, q)
}
