package flow_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/pick"
)

// When a request with a reservation leaves, requests for other models try at once.
func TestEndOfReservationOpensOtherModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := aFlow(10, 100)
		holder := blocked(t, f, of(pools[0], 0, 1, 1))
		turn(t, holder)
		holder.Back(flow.Room, time.Time{}, &pick.Reservation{Endpoint: 7})
		r := of(pools[0], 0, 2, 1)
		r.Key.ID = "another"
		other := blocked(t, f, r)
		holder.Leave()
		if len(other.Turn()) == 0 {
			t.Error("it is not called")
		}
		other.Leave()
	})
}

// A model tries at the earliest of its times.
func TestEarliestTimeCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := aFlow(10, 100)
		ticket := blocked(t, f, of(pools[0], 0, 1, 1))
		turn(t, ticket)
		began := time.Now()
		ticket.Back(flow.Room, began.Add(500*time.Millisecond), nil)
		time.Sleep(time.Millisecond)
		f.Published(f.View()) // so soon after an attempt, it only sets a time
		turn(t, ticket)
		if took := time.Since(began); took != 20*time.Millisecond {
			t.Errorf("it is called after %v", took)
		}
		ticket.Leave()
	})
}

// Requests whose clients give up do not count as served, so that no wait is predicted from them.
func TestCanceledRequestsAreNoRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, request, _ := twoModels(nil)
		first := blocked(t, f, request("warm", 0))
		for range 5 {
			ticket := enqueue(t, f, request("warm", 0))
			time.Sleep(500 * time.Millisecond)
			ticket.Leave()
		}
		last, err := f.Enqueue(request("warm", time.Millisecond), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		last.Leave()
		first.Leave()
	})
}

// A request whose number of tokens stays unknown costs what was expected.
func TestUnknownLengthCostsWhatWasExpected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := aFlow(10, 100)
		first := enqueue(t, f, of(pools[0], 0, 1, 1))
		var rest []*flow.Ticket
		for _, tenant := range []uint64{1, 2, 2, 2} {
			rest = append(rest, enqueue(t, f, of(pools[0], 0, tenant, 1)))
		}
		small := flow.Service{Fixed: 50, PerToken: 2, InTokens: true}
		turn(t, first)
		large := first.Dispatch(flow.Service{Fixed: 1, PerToken: 2, Tokens: 100, InTokens: true}, time.Now())
		turn(t, rest[1])
		rest[1].Dispatch(small, time.Now()).Ended(0, time.Now())
		turn(t, rest[2])
		large.Ended(-1, time.Now())
		rest[2].Dispatch(small, time.Now()).Ended(0, time.Now())
		if len(rest[3].Turn()) == 0 {
			t.Error("the tenant with the large request goes first")
		}
		for _, ticket := range append(rest, first) {
			ticket.Leave()
		}
	})
}
