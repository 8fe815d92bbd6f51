package placementserver_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/control/place/decide"
)

// part returns the portion that an extproc last received.
func (x *extproc) part() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	last := "none"
	for _, u := range x.updates {
		if s := u.GetShare(); s != nil {
			last = fmt.Sprintf("%d of %d", s.GetIndex(), s.GetProcesses())
		}
	}
	return last
}

func (x *extproc) expectPart(when, want string) {
	x.t.Helper()
	if got := x.part(); got != want {
		x.t.Errorf("%s: %s, want %s", when, got, want)
	}
}

// limits returns the concurrency limit of each copy that an extproc received, and the number of
// Updates with copies.
func (x *extproc) limits() (of map[string]uint32, updates int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	of = make(map[string]uint32)
	for _, u := range x.updates {
		for _, c := range u.GetCopies() {
			of[c.GetCopy().GetKey().GetModel()] = c.GetLimit()
		}
		if len(u.GetCopies()) > 0 {
			updates++
		}
	}
	return of, updates
}

func limited(id string, limit int) decide.Change {
	return decide.Change{Copies: map[decide.CopyKey]decide.CopyChange{copyOf(id, "e1"): {State: decide.Loaded, Limit: limit}}}
}

// Limits are sent with copies, and again only if they change.
func TestLimitsAreSentWithCopies(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Publish(limited("a", 3))
		w.Ready()
		x := w.connect("x")
		if of, n := x.limits(); of["a"] != 3 || n != 1 {
			t.Errorf("the limits are %v, told in %d Updates", of, n)
		}
		w.Publish(limited("a", 3))
		w.after(time.Second)
		if _, n := x.limits(); n != 1 {
			t.Errorf("what is as before is told in %d Updates", n)
		}
		w.Publish(limited("a", 0))
		w.after(time.Second)
		if of, n := x.limits(); of["a"] != 0 || n != 2 {
			t.Errorf("without one the limits are %v, told in %d Updates", of, n)
		}
	})
}

// Each extproc has its own portion. If an extproc disconnects and does not reconnect, its portion
// goes to the others. Control does not send the copies again for that.
func TestExtprocsShareLimits(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Publish(limited("a", 3))
		w.Ready()
		w.after(time.Minute) // no extproc reconnects
		b := w.connect("b")
		b.expectPart("alone", "0 of 1")
		if u := b.updates[0]; u.GetShare() == nil || len(u.GetCopies()) != 1 {
			t.Errorf("the first Update has not both its part and the copies that it is of: %v", u)
		}
		a := w.connect("a")
		a.expectPart("the first by name", "0 of 2")
		b.expectPart("the second by name", "1 of 2")
		again := w.connect("a")
		again.expectPart("another stream of the first", "0 of 2")
		b.expectPart("where one has two streams", "1 of 2")
		again.leave()
		a.leave()
		b.expectPart("when the other has just left", "1 of 2")
		w.after(2900 * time.Millisecond)
		b.expectPart("2.9 s later", "1 of 2")
		w.after(100 * time.Millisecond)
		b.expectPart("3 s later", "0 of 1")
		if _, n := b.limits(); n != 1 {
			t.Errorf("copies were told in %d Updates", n)
		}
	})
}

// When control has started, it divides limits by the number of extprocs that reconnected extprocs
// report from before the start, until the others have had time to reconnect.
func TestLimitsAreSharedAsBeforeAfterAStart(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Ready()
		a := w.connect("a")
		a.expectPart("who shared with nobody", "0 of 1")
		b := w.shares("b", 3)
		a.expectPart("when one says that there were three", "0 of 3")
		b.expectPart("who says that there were three", "1 of 3")
		w.after(2900 * time.Millisecond)
		a.expectPart("after 2.9 s", "0 of 3")
		w.after(100 * time.Millisecond)
		a.expectPart("after 3 s", "0 of 2")
		b.expectPart("after 3 s", "1 of 2")
		c := w.shares("c", 9)
		c.expectPart("what is said later", "2 of 3")
	})
}

// Control limits the number of sharing processes that an extproc may report.
func TestReportedSharingIsLimited(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Ready()
		w.shares("a", 1<<32-1).expectPart("four billion", "0 of 65536")
	})
}

// shares connects an extproc that reports n as the number of processes that share limits.
func (w *world) shares(process string, n uint32) *extproc {
	w.t.Helper()
	return w.connectWith(&placement.Report{Process: process, Sharing: n})
}
