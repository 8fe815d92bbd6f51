package flow_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/extproc/flow"
)

// When requests end, the first lines in fair order try again at once, and the others some time
// later, so that an end costs the same however many models requests wait for.
func TestEndLetsFewLinesTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lines = 200
		f := aFlow(1000, 1<<20)
		all, tries := make([]*flow.Ticket, lines), make([]int, lines)
		try := func() (total int) {
			for again := true; again; {
				again = false
				for i, ticket := range all {
					if ticket != nil && len(ticket.Turn()) > 0 {
						turn(t, ticket)
						tries[i]++
						total++
						again = true
						ticket.Back(flow.Room, time.Time{}, nil)
					}
				}
			}
			return total
		}
		for i := range all {
			r := of(pools[0], 0, 0, 1)
			r.Key.ID = fmt.Sprint("m", i)
			all[i] = enqueue(t, f, r)
			try()
		}
		clear(tries)
		total := 0
		first := 0
		for range 10 {
			first += tries[0]
			clear(tries)
			time.Sleep(time.Millisecond)
			f.Freed("10.0.0.1:8000", "x")
			total += try()
		}
		if first += tries[0]; total > 10*4 || first != 10 {
			t.Errorf("after 10 ends in 10 ms there were %d tries, %d by the first request", total, first)
		}
		for range 100 {
			time.Sleep(time.Millisecond)
			synctest.Wait()
			try()
		}
		for i, n := range tries {
			if n == 0 {
				t.Fatalf("line %d did not try after the last end", i)
			}
		}
		f.Freed("10.0.0.1:8000", "x")
		for _, ticket := range all {
			if len(ticket.Turn()) > 0 {
				turn(t, ticket)
				ticket.Dispatch(flow.Service{Fixed: 1}, time.Now()).Ended(1, time.Now())
			}
			ticket.Leave()
		}
		if requests, _ := f.Queued(); requests != 0 {
			t.Errorf("%d requests are left", requests)
		}
	})
}

// After a request found room, the next one of its line tries at once, although other lines have
// used the tries of the last end.
func TestRoomLetsTheNextTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := aFlow(1000, 1<<20)
		var all []*flow.Ticket
		for i := range 5 {
			r := of(pools[0], 0, 0, 1)
			r.Key.ID = fmt.Sprint("m", i)
			all = append(all, blocked(t, f, r))
		}
		second := enqueue(t, f, *all[0].Request())
		f.Freed("10.0.0.1:8000", "x")
		turn(t, all[0])
		all[0].Dispatch(flow.Service{Fixed: 1}, time.Now()).Ended(1, time.Now())
		for _, ticket := range all[1:] {
			turn(t, ticket)
			ticket.Back(flow.Room, time.Time{}, nil)
		}
		if len(second.Turn()) == 0 {
			t.Fatal("the next request is not called")
		}
		turn(t, second)
		second.Leave()
		for _, ticket := range all {
			ticket.Leave()
		}
	})
}
