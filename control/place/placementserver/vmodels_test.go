package placementserver_test

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/control/place/decide"
)

// goes returns a change of a VModel's active model.
func goes(id, active string) decide.Change {
	return decide.Change{VModels: map[decide.Key]decide.Switch{model(id): {Active: active}}}
}

// expectVModels fails the test unless this extproc last received these active models of VModels.
func (x *extproc) expectVModels(when string, want map[string]string) {
	x.t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	if !maps.Equal(x.vmodels, want) {
		x.t.Errorf("%s it knows %v, want %v", when, x.vmodels, want)
	}
}

// expectBehind fails the test unless exactly these processes may still send requests for the VModel
// to its earlier model.
func (w *world) expectBehind(when, id string, want ...string) {
	w.t.Helper()
	if got := w.Behind(model(id)); !slices.Equal(got, want) {
		w.t.Errorf("%s: behind are %q, want %q", when, got, want)
	}
}

// inForce acknowledges all Updates up to a version.
func (x *extproc) inForce(version int) {
	x.t.Helper()
	x.send(&placement.Report{Applied: uint64(version)})
}

// An extproc that joins receives every VModel in the complete state. Every extproc receives each
// change once.
func TestVModelsAreSent(t *testing.T) {
	started(t, func(w *world) {
		w.Publish(decide.Change{VModels: map[decide.Key]decide.Switch{
			model("sql"): {Active: "sql-v1", Canary: "sql-v2", Percent: 10}, model("chat"): {Active: "chat-v1"}, model("never"): {},
		}})
		x := w.connect("x")
		x.expectVModels("in the beginning", map[string]string{"sql": "sql-v1, 10 % to sql-v2", "chat": "chat-v1"})
		if x.complete != len(x.heard()) {
			t.Errorf("Update %d of %d is complete", x.complete, len(x.heard()))
		}
		y := w.connect("y")
		before := len(x.heard())
		for _, c := range []decide.Change{
			goes("chat", "chat-v1"), // no change
			goes("never", ""),       // this VModel never existed
			goes("sql", "sql-v2"),
			goes("sql", "sql-v2"),
			goes("chat", ""),
			goes("chat", ""),
		} {
			w.Publish(c)
			synctest.Wait()
		}
		for _, x := range []*extproc{x, y} {
			x.expectVModels("then", map[string]string{"sql": "sql-v2"})
		}
		things := 0
		for _, u := range x.heard()[before:] {
			things += len(u.GetVmodels())
		}
		if things != 2 {
			t.Errorf("%d things were said of 2 that changed:\n%v", things, x.heard()[before:])
		}
		z := w.connect("z")
		z.expectVModels("who comes late", map[string]string{"sql": "sql-v2"})
		if n := len(z.heard()[0].GetVmodels()); n != 1 {
			t.Errorf("who comes late is told of %d", n)
		}
	})
}

// Many VModels are sent in Updates of limited size. The last Update is marked complete.
func TestManyVModelsNeedSeveralUpdates(t *testing.T) {
	started(t, func(w *world) {
		c := decide.Change{VModels: make(map[decide.Key]decide.Switch)}
		for _, id := range numbered(5000) {
			c.VModels[model(id)] = decide.Switch{Active: "m"}
		}
		w.Publish(c)
		x := w.connect("x")
		if len(x.vmodels) != 5000 || len(x.updates) != 3 || x.complete != 3 {
			t.Errorf("%d VModels in %d Updates, of which %d is complete", len(x.vmodels), len(x.updates), x.complete)
		}
		x.inForce(2)
		if n := len(x.updates[2].GetVmodels()); n == 0 || len(w.Behind(model(x.updates[2].GetVmodels()[0].GetKey().GetModel()))) != 1 {
			t.Error("nobody is behind of what came last")
		}
		w.expectBehind("of what came first", x.updates[0].GetVmodels()[0].GetKey().GetModel())
	})
}

// Behind returns the processes that received a change and have not acknowledged it, the processes
// that have yet to receive the change, and for a while those that disconnected before; no others.
func TestBehindAChange(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Ready()
		w.expectBehind("in the beginning, though those may come back whom an earlier process served", "sql")
		x, y := w.connect("x"), w.connect("y")
		again := w.connect("x") // a second stream of the process
		w.Publish(goes("chat", "chat-v1"))
		synctest.Wait()
		w.expectBehind("another VModel was switched", "sql")
		w.Publish(goes("sql", "sql-v1"))
		w.expectBehind("nobody was told", "sql", "x", "y")
		synctest.Wait()
		w.expectBehind("all were told", "sql", "x", "y")
		y.inForce(len(y.heard()) - 1)
		w.expectBehind("what came before is in force at y", "sql", "x", "y")
		w.expectBehind("what came before is in force at y", "chat", "x")
		y.inForce(len(y.heard()))
		w.expectBehind("it is in force at y", "sql", "x")
		x.inForce(len(x.heard()))
		w.expectBehind("it is in force at one stream of x", "sql", "x")
		again.inForce(len(again.heard()))
		w.expectBehind("it is in force everywhere", "sql")

		y.leave()
		w.after(2900 * time.Millisecond)
		w.expectBehind("y was cut off", "sql", "y")
		w.expectBehind("y was cut off", "chat", "y")
		w.after(100 * time.Millisecond)
		w.expectBehind("y was waited for long enough", "sql")
		x.leave()
		x = w.connect("x")
		w.expectBehind("x is back and has not answered", "sql", "x")
		x.inForce(len(x.heard()))
		w.expectBehind("x is back and has answered", "sql")
	})
}

// A process that has acknowledged a change, but not a later one, is still behind.
func TestBehindTheLatestChange(t *testing.T) {
	started(t, func(w *world) {
		w.Publish(goes("sql", "sql-v1"))
		x := w.connect("x")
		x.inForce(1)
		w.Publish(goes("sql", "sql-v2"))
		synctest.Wait()
		w.Publish(goes("sql", "sql-v3"))
		w.expectBehind("the latest is to be told", "sql", "x")
		synctest.Wait()
		if n := len(x.heard()); n != 3 {
			t.Fatalf("it was told %d times", n)
		}
		x.inForce(2)
		w.expectBehind("the one before is in force", "sql", "x")
		x.inForce(3)
		w.expectBehind("the latest is in force", "sql")
		w.Publish(goes("sql", ""))
		synctest.Wait()
		w.expectBehind("it is no VModel any more", "sql", "x")
		x.inForce(4)
		w.expectBehind("which is in force", "sql")
	})
}

// A slow reader receives only the latest active model of a VModel, without those in between. Until
// then, Behind returns the reader.
func TestSlowReaderIsBehind(t *testing.T) {
	started(t, func(w *world) {
		slow := w.connectWithoutReading("slow")
		for range 20 { // some megabytes, more than all buffers hold
			w.Publish(copies(decide.Loading, numbered(5000)...))
			synctest.Wait()
			w.Publish(gone(numbered(5000)...))
			synctest.Wait()
		}
		w.Publish(goes("sql", "sql-v1"))
		synctest.Wait()
		w.Publish(goes("sql", "sql-v2"))
		synctest.Wait()
		w.expectBehind("it reads nothing", "sql", "slow")
		told := 0
		for i := 0; told == 0; i++ {
			u, err := slow.stream.Recv()
			if err != nil || i > 60 {
				t.Fatalf("after %d Updates: %v", i, err)
			}
			slow.apply(u)
			told += len(u.GetVmodels())
			synctest.Wait()
		}
		slow.expectVModels("when it has read so far", map[string]string{"sql": "sql-v2"})
		slow.inForce(len(slow.heard()) - 1)
		w.expectBehind("it was told", "sql", "slow")
		slow.inForce(len(slow.heard()))
		w.expectBehind("it has answered", "sql")
	})
}
