package placementserver_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/headgate/headgate/api/placement"
)

// asks returns the backlog of n requests whose prompts together take ms milliseconds.
func asks(endpoint string, n, ms uint64) *placement.Backlog {
	return &placement.Backlog{Endpoint: endpoint, Requests: uint32(n), PrefillUs: 1000 * ms, BesidePs: 2 * n, Urgency: 3 * n, Tokens: 4 * n}
}

// has sends control the backlogs of this extproc.
func (x *extproc) has(all ...*placement.Backlog) {
	x.t.Helper()
	x.send(&placement.Report{Backlogs: all})
}

// expectBacklogs fails the test unless this extproc last received these backlogs of the others.
func (x *extproc) expectBacklogs(when string, want ...*placement.Backlog) {
	x.t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	all := make(map[string]*placement.Backlog)
	for _, b := range want {
		all[b.GetEndpoint()] = b
	}
	if diff := cmp.Diff(all, x.backlogs, protocmp.Transform()); diff != "" {
		x.t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

// Each extproc gets the sum of the backlogs of all other extprocs, without its own. The times of
// prompts add up, since prompts wait for each other. An extproc's backlog ends with its connection.
func TestBacklogsOfOthersAreSent(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Ready()
		x, y, z := w.connect("x"), w.connect("y"), w.connect("z")
		x.has(asks("e1", 3, 300), asks("e2", 1, 0))
		y.has(asks("e1", 2, 200))
		w.after(50 * time.Millisecond)
		x.expectBacklogs("x", asks("e1", 2, 200))
		y.expectBacklogs("y", asks("e1", 3, 300), asks("e2", 1, 0))
		z.expectBacklogs("z", asks("e1", 5, 480), asks("e2", 1, 0)) // 20 ms after both reports; the times of prompts add up
		late := w.connect("late")
		w.after(50 * time.Millisecond)
		late.expectBacklogs("who comes late", asks("e1", 5, 400), asks("e2", 1, 0)) // each reports only the time of its own prompts
		x.leave()
		w.after(50 * time.Millisecond)
		z.expectBacklogs("x has left", asks("e1", 2, 200), asks("e2", 0, 0))
		y.has(asks("e1", 0, 0))
		w.after(50 * time.Millisecond)
		z.expectBacklogs("nobody has anything", asks("e1", 0, 0), asks("e2", 0, 0))
		again := w.connect("again")
		w.after(50 * time.Millisecond)
		again.expectBacklogs("who comes then")
	})
}

// However often backlogs change, an extproc receives them at most every 20 ms. It always receives
// the latest ones, and nothing if nothing has changed.
func TestBacklogsAreSentEvery20Milliseconds(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Ready()
		x, y := w.connect("x"), w.connect("y")
		w.after(time.Second)
		began := time.Now()
		for n := range uint64(200) {
			x.has(asks("e1", n%7, 0), asks("e2", n, 0))
			w.after(time.Millisecond)
		}
		w.after(time.Minute)
		y.expectBacklogs("at last", asks("e1", 199%7, 0), asks("e2", 199, 0))
		if n := len(y.sentAll); n < 10 || n > 12 || y.sentAll[0].Sub(began) > 20*time.Millisecond ||
			y.sentAll[n-1].Sub(began) > 230*time.Millisecond {
			t.Errorf("it was told %d times in 200 ms: %v", n, y.sentAll)
		}
		for i := range y.sentAll[1:] {
			if d := y.sentAll[i+1].Sub(y.sentAll[i]); d < 20*time.Millisecond {
				t.Errorf("it was told again after %v", d)
			}
		}
		if len(x.sentAll) > 0 {
			t.Error("one is told of its own")
		}
	})
}

// Nothing is sent when the engine computes prompts as time passes, or when a change was undone
// before it was sent.
func TestPassingTimeIsNotSent(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Ready()
		x, y := w.connect("x"), w.connect("y")
		for i, c := range []struct {
			after   time.Duration
			says    *placement.Backlog
			sentAll int
		}{
			{0, asks("e1", 1, 1000), 1},
			{500 * time.Millisecond, asks("e1", 1, 500), 1},
			{100 * time.Millisecond, asks("e1", 1, 404), 1}, // within 5 ms of 400
			{100 * time.Millisecond, asks("e1", 1, 310), 2},
			{time.Second, asks("e1", 1, 0), 2},
			{time.Second, asks("e1", 2, 0), 3},
		} {
			w.after(c.after)
			x.has(c.says)
			w.after(0)
			if len(y.sentAll) != c.sentAll {
				t.Errorf("after the report %d it was told %d times, want %d", i+1, len(y.sentAll), c.sentAll)
			}
		}
		x.has(asks("e1", 3, 0))
		w.after(time.Millisecond)
		x.has(asks("e1", 4, 0))
		x.has(asks("e1", 3, 0))
		w.after(time.Second)
		if len(y.sentAll) != 4 {
			t.Errorf("with what changed back it was told %d times, want 4", len(y.sentAll))
		}
	})
}
