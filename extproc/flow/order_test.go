package flow_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/leak"
)

// aFlow returns a flow whose first pool has one endpoint.
func aFlow(maxQueued int, maxBytes int64) *flow.Flow {
	p := &pick.Pool{Endpoints: []*pick.Endpoint{{Address: "10.0.0.1:8000"}}}
	view := &endpointstate.View{
		Snapshot: &pick.Snapshot{Pools: map[string]*pick.Pool{pools[0].String(): p, pools[1].String(): p}}, World: new(objects.World),
	}
	return flow.New(flow.Config{View: func() *endpointstate.View { return view }, MaxQueued: maxQueued, MaxBytes: maxBytes, Alone: true})
}

// of returns a request of a tenant, by the only route of its band.
func of(pool objects.Name, band int32, tenant uint64, bytes int64) flow.Request {
	route := objects.Name{Namespace: "ns", Name: fmt.Sprint("band", band)}
	return flow.Request{
		Key: objects.ModelKey{Pool: pool}, Path: queue.Path{Band: band, Route: route, Share: 1, Tenant: tenant}, Bytes: bytes,
	}
}

func enqueue(t *testing.T, f *flow.Flow, r flow.Request) *flow.Ticket {
	t.Helper()
	ticket, err := f.Enqueue(r, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ticket
}

// blocked enqueues a request that is called and finds no room, so that later ones wait.
func blocked(t *testing.T, f *flow.Flow, r flow.Request) *flow.Ticket {
	t.Helper()
	ticket := enqueue(t, f, r)
	if err := <-ticket.Turn(); err != nil {
		t.Fatal(err)
	}
	ticket.Back(flow.Room, time.Time{}, nil)
	return ticket
}

// When the queue is full, the newest request of the flow with the most requests, or bytes, in the
// lowest band gets ErrFull. That may be the newcomer.
func TestFullQueueDropsFromTheLongestFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := aFlow(3, 100)
		tickets := []*flow.Ticket{
			blocked(t, f, of(pools[0], 0, 1, 30)), enqueue(t, f, of(pools[0], 0, 1, 30)), enqueue(t, f, of(pools[0], 0, 1, 30)),
		}
		if _, err := f.Enqueue(of(pools[0], 0, 1, 30), time.Now()); !errors.Is(err, flow.ErrFull) {
			t.Errorf("a newcomer of the longest flow gets %v", err)
		}
		if _, err := f.Enqueue(of(pools[0], -1, 2, 30), time.Now()); !errors.Is(err, flow.ErrFull) {
			t.Errorf("a newcomer of a lower band gets %v", err)
		}
		tickets = append(tickets, enqueue(t, f, of(pools[0], 0, 2, 30)))
		if err := <-tickets[2].Turn(); !errors.Is(err, flow.ErrFull) {
			t.Errorf("the newest request of the longest flow gets %v", err)
		}
		tickets = append(tickets, enqueue(t, f, of(pools[1], 0, 3, 20))) // beyond the limit for bytes of all pools
		if n, bytes := f.Queued(); n != 3 || bytes != 80 {
			t.Errorf("%d wait with %d bytes", n, bytes)
		}
		for _, ticket := range tickets {
			ticket.Leave()
		}
		if n, bytes := f.Queued(); n != 0 || bytes != 0 {
			t.Errorf("%d wait with %d bytes", n, bytes)
		}
	})
}

// When the bodies are too large, the newest request of the flow with the most bytes gets ErrFull,
// in the pool with the most bytes, although another flow and another pool have more requests.
func TestTooManyBytesDropFromTheLargestFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := aFlow(10, 200)
		var tickets []*flow.Ticket
		for _, r := range []flow.Request{
			of(pools[0], 0, 1, 10), of(pools[0], 0, 1, 10), of(pools[0], 0, 1, 10), of(pools[0], 0, 2, 100), of(pools[0], 0, 1, 10),
			of(pools[1], 0, 4, 10), of(pools[1], 0, 4, 10), of(pools[1], 0, 4, 10), of(pools[1], 0, 4, 10), of(pools[1], 0, 4, 10),
			of(pools[1], 0, 4, 10),
		} {
			tickets = append(tickets, enqueue(t, f, r))
			synctest.Wait()
		}
		turn(t, tickets[0])
		turn(t, tickets[5])
		newcomer := enqueue(t, f, of(pools[1], 0, 3, 10))
		for i, ticket := range append(tickets, newcomer) {
			var err error
			if len(ticket.Turn()) > 0 {
				err = <-ticket.Turn()
			}
			if dropped := errors.Is(err, flow.ErrFull); dropped != (i == 3) {
				t.Errorf("request %d is dropped: %v", i, dropped)
			}
			ticket.Leave()
		}
	})
}

// A request that is first in order and finds no room for 5 s reserves some, until it leaves. Nobody
// else is told to reserve meanwhile.
func TestFirstInOrderReserves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := aFlow(10, 100)
		first := blocked(t, f, of(pools[0], 1, 1, 1))
		second := enqueue(t, f, of(pools[0], 0, 2, 1))
		began := time.Now()
		for {
			if err := <-first.Turn(); err != nil {
				t.Fatal(err)
			}
			if is := first.Standing(); is.Overdue {
				if len(is.Reserved) > 0 || is.Holder == 0 {
					t.Errorf("%v are reserved, and the holder is %d", is.Reserved, is.Holder)
				}
				break
			}
			first.Back(flow.Room, time.Time{}, nil)
		}
		if took := time.Since(began); took < 5*time.Second || took > 6*time.Second {
			t.Errorf("it reserves after %v", took)
		}
		first.Back(flow.Room, time.Time{}, &pick.Reservation{Endpoint: 7})
		if is := second.Standing(); len(is.Reserved) != 1 || is.Reserved[0].Holder == 0 || is.Holder != 0 || is.Overdue {
			t.Errorf("for the other request %v are reserved, its holder is %d, and it is overdue: %v", is.Reserved, is.Holder, is.Overdue)
		}
		first.Leave()
		if err := <-second.Turn(); err != nil {
			t.Fatal(err)
		}
		if is := second.Standing(); len(is.Reserved) != 0 {
			t.Errorf("after the end %v are reserved", is.Reserved)
		}
		second.Leave()
		for path, n := range leak.Maps(f) {
			if n != 0 {
				t.Errorf("%s has %d entries", path, n)
			}
		}
	})
}

// A request whose reserved endpoint is out reserves another one. A lost endpoint stays reserved.
func TestReservationEndsWithItsEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pick.Pool{Endpoints: []*pick.Endpoint{{Address: "10.0.0.1:8000", Number: 1}, {Address: "10.0.0.2:8000", Number: 2}}}
		view := &endpointstate.View{
			Snapshot: &pick.Snapshot{Pools: map[string]*pick.Pool{pools[0].String(): p}}, World: new(objects.World),
		}
		f := flow.New(flow.Config{View: func() *endpointstate.View { return view }, MaxQueued: 10, MaxBytes: 100, Alone: true})
		holder := blocked(t, f, of(pools[0], 0, 1, 1))
		turn(t, holder)
		holder.Back(flow.Room, time.Time{}, nil) // it is first in order without room
		time.Sleep(6 * time.Second)
		turn(t, holder)
		holder.Back(flow.Room, time.Time{}, &pick.Reservation{Endpoint: 2})
		for _, c := range []struct {
			state    pick.State
			reserved int
		}{{pick.Lost, 1}, {pick.Out, 0}} {
			p.Endpoints[1].State = c.state
			time.Sleep(100 * time.Millisecond)
			f.Published(view)
			turn(t, holder)
			if is := holder.Standing(); len(is.Reserved) != c.reserved || is.Overdue != (c.reserved == 0) {
				t.Errorf("%v: %v are reserved; overdue: %v", c.state, is.Reserved, is.Overdue)
			}
			holder.Back(flow.Room, time.Time{}, nil)
		}
		holder.Leave()
	})
}

// An event between the call of a request and its failure calls the request again: no room is lost.
// Without an event it is called again after a second.
func TestNoEventIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := aFlow(10, 100)
		ticket := enqueue(t, f, of(pools[0], 0, 1, 1))
		if err := <-ticket.Turn(); err != nil {
			t.Fatal(err)
		}
		f.Freed("10.0.0.1:8000", "llama")
		ticket.Back(flow.Room, time.Time{}, nil)
		if len(ticket.Turn()) == 0 {
			t.Fatal("the event is lost")
		}
		turn(t, ticket)
		ticket.Back(flow.Room, time.Time{}, nil)
		if len(ticket.Turn()) > 0 {
			t.Fatal("it is called without an event")
		}
		f.Freed("10.0.0.2:8000", "llama")
		if len(ticket.Turn()) > 0 {
			t.Error("it is called because of an endpoint of another pool")
		}
		began := time.Now()
		turn(t, ticket)
		if took := time.Since(began); took > 1100*time.Millisecond {
			t.Errorf("it is called after %v", took)
		}
		ticket.Back(flow.Room, time.Now().Add(100*time.Millisecond), nil)
		began = time.Now()
		turn(t, ticket)
		if took := time.Since(began); took != 100*time.Millisecond {
			t.Errorf("when time alone makes room it is called after %v", took)
		}
		ticket.Leave()
	})
}

// A newcomer of a higher band is called at once although a request of a lower band found no room.
func TestHigherBandTriesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := aFlow(10, 100)
		low := blocked(t, f, of(pools[0], 0, 1, 1))
		same := enqueue(t, f, of(pools[0], 0, 2, 1))
		if len(same.Turn()) > 0 {
			t.Error("a request of the same band is called")
		}
		high := enqueue(t, f, of(pools[0], 1, 3, 1))
		if len(high.Turn()) == 0 {
			t.Error("a request of a higher band is not called")
		}
		for _, ticket := range []*flow.Ticket{high, same, low} {
			ticket.Leave()
		}
	})
}

// A request leaves the more headroom the more others of its tenant wait, and all of it after it has
// waited for long. A request without others of its tenant is called although one that leaves
// headroom found no room.
func TestHeadroom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := aFlow(10, 100)
		flood := blocked(t, f, of(pools[0], 0, 1, 1))
		if flood.Standing().Headroom > 0 {
			t.Error("the only request of a tenant leaves headroom")
		}
		more := enqueue(t, f, of(pools[0], 0, 1, 1))
		if is := flood.Standing().Headroom; !(is > 0 && is < 1) || more.Standing().Headroom != is {
			t.Error("two requests of a tenant do not leave a part of the headroom")
		}
		time.Sleep(time.Second)
		if err := <-flood.Turn(); err != nil {
			t.Fatal(err)
		}
		flood.Back(flow.Room, time.Time{}, nil)
		other := enqueue(t, f, of(pools[0], 0, 2, 1))
		synctest.Wait()
		called := flood
		if len(other.Turn()) > 0 {
			called = other
		}
		if len(called.Turn()) == 0 {
			t.Fatal("nobody is called after a request without headroom has joined")
		}
		turn(t, called)
		called.Back(flow.Room, time.Time{}, nil)
		if other.Standing().Headroom > 0 {
			t.Error("the only request of another tenant leaves headroom")
		}
		time.Sleep(5 * time.Second)
		if other.Standing().Headroom != 1 {
			t.Error("a request that has waited for 5 s does not leave all of the headroom")
		}
		for _, ticket := range []*flow.Ticket{flood, more, other} {
			ticket.Leave()
		}
	})
}

// turn waits until a request is called, and expects no error.
func turn(t *testing.T, of *flow.Ticket) {
	t.Helper()
	if err := <-of.Turn(); err != nil {
		t.Error(err)
	}
}
