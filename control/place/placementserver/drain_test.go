package placementserver_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/control/place/decide"
)

// started runs a test after the time in which extprocs of an earlier control process may reconnect,
// so that drains do not wait for them.
func started(t *testing.T, test func(w *world)) {
	t.Helper()
	inMemory(t, func(w *world) {
		w.Publish(copies(decide.Loaded, "a", "b"))
		w.Ready()
		w.after(3 * time.Second)
		test(w)
	})
}

// drained fails the test unless exactly these copies were reported as drained since the last call.
func (w *world) drained(when string, want ...string) {
	w.t.Helper()
	synctest.Wait()
	if got := w.placer.takeDrained(); !slices.Equal(got, want) {
		w.t.Errorf("%s: %v are drained, want %v", when, got, want)
	}
}

// A copy is drained when each extproc has acknowledged the Update that reported the drain, and has
// no request in flight at the copy.
func TestCopyIsDrainedWhenAllAcknowledge(t *testing.T) {
	started(t, func(w *world) {
		x, y := w.connect("x"), w.connect("y")
		x.acknowledge(map[string]uint32{"a": 2})
		y.acknowledge(nil)
		w.Publish(copies(decide.Draining, "a"))
		w.drained("nobody has answered")
		if x.copies["a"] != placement.Copy_UNLOADING {
			t.Fatalf("they were told %v", x.copies)
		}
		y.acknowledge(nil)
		w.drained("one has")
		x.acknowledge(map[string]uint32{"a": 2})
		w.drained("the other knows, and has two requests there")
		x.reportInFlight(map[string]uint32{"a": 1, "b": 3})
		w.drained("one is left")
		x.reportInFlight(map[string]uint32{"a": 0})
		w.drained("none is left", "a")
		x.reportInFlight(map[string]uint32{"a": 0})
		y.acknowledge(nil)
		w.drained("it is said once")
	})
}

// It is not enough that an extproc has no requests in flight at the copy: before it acknowledges
// the Update that reports the drain, it may send some.
func TestDrainNeedsAnAcknowledgement(t *testing.T) {
	started(t, func(w *world) {
		x := w.connect("x")
		x.acknowledge(map[string]uint32{"a": 1})
		w.Publish(copies(decide.Draining, "a"))
		synctest.Wait()
		x.send(&placement.Report{Applied: uint64(len(x.heard()) - 1), InFlight: flying(map[string]uint32{"a": 0})})
		w.drained("an earlier Update is in force")
		x.acknowledge(map[string]uint32{"a": 1}) // the request was being sent
		w.drained("a request has come")
		x.reportInFlight(map[string]uint32{"a": 0})
		w.drained("it has ended", "a")
	})
}

func TestDrainWaitsForNewExtprocs(t *testing.T) {
	started(t, func(w *world) {
		x := w.connect("x")
		w.Publish(copies(decide.Draining, "a"))
		synctest.Wait()
		y := w.connect("y")
		x.acknowledge(nil)
		w.drained("the second has not answered")
		if y.copies["a"] != placement.Copy_UNLOADING {
			t.Errorf("it was told %v", y.copies)
		}
		y.acknowledge(nil)
		w.drained("both have", "a")
	})
}

// An extproc whose stream breaks may still send requests by the last state that it received. The
// drain waits until the extproc has reconnected and acknowledged, or until a time limit.
func TestDrainWaitsForADisconnectedExtproc(t *testing.T) {
	started(t, func(w *world) {
		x, y := w.connect("x"), w.connect("y")
		w.Publish(copies(decide.Draining, "a"))
		synctest.Wait()
		y.acknowledge(nil)
		x.leave()
		w.after(2900 * time.Millisecond)
		w.drained("it may come back")
		x = w.connect("x")
		w.after(time.Minute)
		w.drained("it is back and has not answered")
		x.acknowledge(map[string]uint32{"a": 1})
		w.drained("it has a request there")
		x.leave()
		w.after(2900 * time.Millisecond)
		w.drained("it has left again")
		w.after(100 * time.Millisecond)
		w.drained("it was waited for long enough", "a")
	})
}

// A drain also waits for an extproc whose stream broke shortly before the drain began.
func TestDrainWaitsForAnExtprocThatJustDisconnected(t *testing.T) {
	started(t, func(w *world) {
		x := w.connect("x")
		x.leave()
		w.after(2 * time.Second)
		w.Publish(copies(decide.Draining, "a"))
		w.after(900 * time.Millisecond)
		w.drained("it left 2.9 s ago")
		w.after(100 * time.Millisecond)
		w.drained("it left 3 s ago", "a")
	})
}

func TestDrainWithoutExtprocsEndsAtOnce(t *testing.T) {
	started(t, func(w *world) {
		w.Publish(copies(decide.Draining, "a"))
		w.drained("at once", "a")
	})
}

// After control has started, drains wait until the extprocs of an earlier process have had time to
// reconnect.
func TestDrainWaitsForReconnectionsAfterAStart(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Publish(copies(decide.Draining, "a"))
		w.after(time.Second)
		x := w.connect("x")
		x.acknowledge(nil)
		w.drained("another may come")
		w.after(1900 * time.Millisecond)
		w.drained("after 2.9 s")
		w.after(100 * time.Millisecond)
		w.drained("after 3 s", "a")
	})
}

// A copy that this process has loaded drains without waiting for extprocs of an earlier process,
// since they cannot know the copy.
func TestOwnCopyDrainsAtOnceAfterAStart(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Publish(copies(decide.Loading, "a"))
		w.Publish(copies(decide.Loaded, "b")) // loaded by an earlier process
		w.Publish(copies(decide.Loaded, "a"))
		x := w.connect("x")
		x.acknowledge(nil)
		w.Publish(copies(decide.Draining, "a", "b"))
		w.drained("x has not answered")
		x.acknowledge(nil)
		w.drained("x has", "a")
		w.after(3 * time.Second)
		w.drained("nobody comes back", "b")
	})
}

// If an earlier process began to load a copy, it may have published the copy as loaded before it
// recorded that. So the drain of the copy waits for extprocs of the earlier process.
func TestRecordedLoadDrainsLaterAfterAStart(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Publish(decide.Change{Copies: map[decide.CopyKey]decide.CopyChange{copyOf("a", "e1"): {
			State:   decide.Queued,
			Earlier: true,
		}}})
		w.Publish(copies(decide.Loaded, "a")) // the engine lists the copy
		x := w.connect("x")
		x.acknowledge(nil)
		w.Publish(copies(decide.Draining, "a"))
		synctest.Wait()
		x.acknowledge(nil)
		w.drained("another may come")
		w.after(3 * time.Second)
		w.drained("nobody comes back", "a")
	})
}

// After a drain has ended by its time limit or because the engine is gone, late acknowledgements
// are ignored, and a copy that is loaded again can drain again.
func TestEndedDrainIsForgotten(t *testing.T) {
	started(t, func(w *world) {
		x := w.connect("x")
		x.acknowledge(map[string]uint32{"a": 1})
		w.Publish(copies(decide.Draining, "a"))
		synctest.Wait()
		w.Publish(copies(decide.Unloading, "a")) // the drain's time limit has passed
		synctest.Wait()
		x.acknowledge(map[string]uint32{"a": 0})
		w.drained("late")
		// The copy is loaded again, and drains again before any extproc learned that it was gone.
		w.Publish(copies(decide.Draining, "a"))
		synctest.Wait()
		x.acknowledge(nil)
		w.drained("again", "a")
	})
}
