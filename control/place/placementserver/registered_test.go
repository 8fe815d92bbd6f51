package placementserver_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/control/place/decide"
)

// A registration waits until every connected extproc has acknowledged it, but at most for a second.
func TestRegistrationWaitsForExtprocs(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Ready()
		x, y := w.connect("x"), w.connect("y")
		register := func(id string) (took func() time.Duration) {
			began, done := time.Now(), make(chan time.Duration, 1)
			w.Publish(decide.Change{Registered: map[decide.Key]bool{model(id): true}})
			go func() {
				w.AwaitRegistered(model(id))
				done <- time.Since(began)
			}()
			synctest.Wait()
			return func() time.Duration {
				select {
				case d := <-done:
					return d
				default:
					return -1
				}
			}
		}
		first := register("a")
		x.acknowledge(nil)
		if d := first(); d >= 0 {
			t.Errorf("it is answered after %v, and y does not know of it", d)
		}
		w.after(300 * time.Millisecond)
		y.acknowledge(nil)
		if d := first(); d != 300*time.Millisecond {
			t.Errorf("it is answered after %v", d)
		}
		second := register("b")
		x.acknowledge(nil)
		y.leave()
		synctest.Wait()
		if d := second(); d != 0 {
			t.Errorf("after y has left it is answered after %v", d)
		}
		third := register("c")
		w.after(2 * time.Second)
		if d := third(); d != time.Second {
			t.Errorf("where nobody answers it takes %v", d)
		}
		z := w.connect("z")
		z.acknowledge(nil)
		fourth := register("d")
		z.acknowledge(nil)
		if d := fourth(); d != 0 {
			t.Errorf("an extproc that has not answered for a second holds up the next one for %v", d)
		}
		x.acknowledge(nil)
		fifth := register("e")
		z.acknowledge(nil)
		if d := fifth(); d >= 0 {
			t.Errorf("an extproc that answers again is waited for no more: it is answered after %v", d)
		}
		x.acknowledge(nil)
		if d := fifth(); d != 0 {
			t.Errorf("it is answered after %v", d)
		}
	})
}
