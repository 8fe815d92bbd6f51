package flow_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/extproc/flow"
)

// Waiting requests are counted by pool, band and reason, with the arrival of the first.
func TestHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := aFlow(10, 1000)
		if held := f.Held(); held != nil {
			t.Errorf("nobody waits: %+v", held)
		}
		began := time.Now()
		first := blocked(t, f, of(pools[0], 0, 1, 1))
		time.Sleep(time.Millisecond)
		tickets := []*flow.Ticket{
			first, enqueue(t, f, of(pools[0], 0, 2, 1)), blocked(t, f, of(pools[0], 7, 1, 1)), enqueue(t, f, of(pools[1], -1, 1, 1)),
		}
		later := began.Add(time.Millisecond)
		want := []flow.Held{
			{Pool: pools[0], Band: 0, Reason: flow.Room, Requests: 2, Since: began},
			{Pool: pools[0], Band: 7, Reason: flow.Room, Requests: 1, Since: later},
			{Pool: pools[1], Band: -1, Reason: flow.Turn, Requests: 1, Since: later},
		}
		if held := f.Held(); !slices.Equal(held, want) {
			t.Errorf("%+v, want %+v", held, want)
		}
		for _, ticket := range tickets {
			ticket.Leave()
		}
		if held := f.Held(); held != nil {
			t.Errorf("in the end %+v wait", held)
		}
	})
}
