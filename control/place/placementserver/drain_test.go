package placementserver_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/control/place/decide"
)

// started runs a test in a world whose start is over: drains no longer wait for extprocs of an
// earlier process.
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
// no request in flight there.
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

// An extproc without requests in flight there is not enough: before it acknowledges the Update, it
// may have sent some.
func TestDrainNeedsAnAcknowledgement(t *testing.T) {
	started(t, func(w *world) {
		x := w.connect("x")
		x.acknowledge(map[string]uint32{"a": 1})
		w.Publish(copies(decide.Draining, "a"))
		synctest.Wait()
		x.send(&placement.Report{Applied: uint64(len(x.heard()) - 1), InFlight: flying(map[string]uint32{"a": 0})})
		w.drained("an earlier Update is in force")
		x.acknowledge(map[string]uint32{"a": 1}) // it was being sent
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

// An extproc whose stream breaks may still send requests by its last state: the drain waits until
// it has reconnected and acknowledged, or until a time limit.
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

// The same holds if the stream broke before the drain began.
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

// After a start, drains wait until the extprocs of an earlier process have had time to reconnect.
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

// A copy that this process has loaded drains without waiting for extprocs of an earlier process:
// they cannot know it.
func TestOwnCopyDrainsAtOnceAfterAStart(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Publish(copies(decide.Loading, "a"))
		w.Publish(copies(decide.Loaded, "b")) // another process has loaded it
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

// An earlier process began to load a copy, and may have published it as loaded before it recorded
// that.
func TestRecordedLoadDrainsLaterAfterAStart(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Publish(decide.Change{Copies: map[decide.CopyKey]decide.CopyChange{copyOf("a", "e1"): {
			State:   decide.Queued,
			Earlier: true,
		}}})
		w.Publish(copies(decide.Loaded, "a")) // the engine lists it
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

// If a drain ends by its limit or with the engine, late acknowledgements are ignored, and a copy
// that is loaded again can drain again.
func TestEndedDrainIsForgotten(t *testing.T) {
	started(t, func(w *world) {
		x := w.connect("x")
		x.acknowledge(map[string]uint32{"a": 1})
		w.Publish(copies(decide.Draining, "a"))
		synctest.Wait()
		w.Publish(copies(decide.Unloading, "a")) // the limit has passed
		synctest.Wait()
		x.acknowledge(map[string]uint32{"a": 0})
		w.drained("late")
		// It is loaded again, and drains before any extproc learned that it was gone.
		w.Publish(copies(decide.Draining, "a"))
		synctest.Wait()
		x.acknowledge(nil)
		w.drained("again", "a")
	})
}
