package placementserver_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/headgate/headgate/api/placement"
)

// waits reports that an extproc has n requests waiting in band 1, with this share.
func (x *extproc) waits(n uint32, share, seconds float64, passes bool) {
	x.t.Helper()
	x.send(&placement.Report{Waiting: []*placement.Waiting{
		{Pool: "ns/pool", Band: 1, Requests: n, Share: share, Seconds: seconds, Passes: passes},
	}})
}

// expectWaiting fails the test unless this extproc last received these sums in band 1.
func (x *extproc) expectWaiting(when string, want *placement.OthersWaiting) {
	x.t.Helper()
	want.Pool, want.Band = "ns/pool", 1
	var got *placement.OthersWaiting
	for _, u := range x.heard() {
		for _, o := range u.GetWaiting() {
			got = o
		}
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		x.t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

// Each extproc gets the sums of what waits at all others. The shares of extprocs that pass are not
// in before and after. An extproc's part ends with its connection, but its service stays counted.
func TestWaitingOfOthersIsSent(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Ready()
		x, y, z := w.connect("x"), w.connect("y"), w.connect("z")
		x.waits(3, 1, 10, false)
		y.waits(5, 2, 20, false)
		z.waits(7, 4, 40, true)
		w.after(50 * time.Millisecond)
		x.expectWaiting("x", &placement.OthersWaiting{Requests: 12, Share: 6, After: 2, Seconds: 60})
		y.expectWaiting("y", &placement.OthersWaiting{Requests: 10, Share: 5, Before: 1, Seconds: 50})
		z.expectWaiting("z", &placement.OthersWaiting{Requests: 8, Share: 3, Before: 3, Seconds: 30})
		late := w.connect("late")
		w.after(50 * time.Millisecond)
		late.expectWaiting("a new one", &placement.OthersWaiting{Requests: 15, Share: 7, Before: 3, Seconds: 70})
		x.leave()
		w.after(50 * time.Millisecond)
		y.expectWaiting("x has left", &placement.OthersWaiting{Requests: 7, Share: 4, Seconds: 50})
		z.waits(0, 0, 0, false)
		w.after(50 * time.Millisecond)
		y.expectWaiting("z has nothing", &placement.OthersWaiting{})
		z.expectWaiting("only y has", &placement.OthersWaiting{Requests: 5, Share: 2, Before: 2, Seconds: 30})
		y.waits(0, 0, 0, false)
		w.after(50 * time.Millisecond)
		n := len(y.heard())
		again := w.connect("again")
		w.after(50 * time.Millisecond)
		for _, u := range again.heard() {
			if len(u.GetWaiting()) > 0 {
				t.Errorf("nothing waits, and it gets %v", u)
			}
		}
		if y.waits(1, 1, 0, false); len(y.heard()) > n+1 { // its share of limits
			t.Error("it gets its own")
		}
	})
}

// However often it changes, an extproc receives what waits at others at most every 20 ms, with a
// clock that goes on.
func TestWaitingIsSentEvery20Milliseconds(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Ready()
		x, y := w.connect("x"), w.connect("y")
		w.after(time.Second)
		before := len(y.heard())
		for n := range uint32(200) {
			x.waits(n, 1, 0, false)
			w.after(time.Millisecond)
		}
		w.after(time.Minute)
		all := y.heard()[before:]
		if y.expectWaiting("at last", &placement.OthersWaiting{Requests: 199, Share: 1, After: 0, Before: 1}); len(all) < 10 || len(all) > 12 {
			t.Errorf("it received %d Updates in 200 ms", len(all))
		}
		for i, u := range all[1:] {
			if d := u.GetClockUs() - all[i].GetClockUs(); d < 20_000 || d > 22_000 {
				t.Errorf("between two Updates the clock went on by %d µs", d)
			}
		}
	})
}
