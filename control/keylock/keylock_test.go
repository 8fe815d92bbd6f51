package keylock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/headgate/headgate/test/leak"
)

// Calls with one key run one after another, those with another key at once. A call whose context
// ends while it waits gets the cause, and nothing is left at the end.
func TestLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Locks
		unlock, err := l.Lock(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		other, err := l.Lock(t.Context(), "y")
		if err != nil {
			t.Fatal(err)
		}
		other()
		if l.Idle("x") || !l.Idle("y") {
			t.Errorf("x is idle: %t, y is idle: %t", l.Idle("x"), l.Idle("y"))
		}

		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		failed, second := make(chan error, 1), make(chan func(), 1)
		go func() { _, err := l.Lock(ctx, "x"); failed <- err }()
		go func() {
			unlock, err := l.Lock(t.Context(), "x")
			if err != nil {
				t.Error(err)
			}
			second <- unlock
		}()
		synctest.Wait()
		if len(second) > 0 {
			t.Error("two calls hold the lock")
		}
		cancel(gone)
		if err := <-failed; !errors.Is(err, gone) {
			t.Errorf("a call that gave up returns %v", err)
		}
		unlock()
		(<-second)()
		if _, err := l.Lock(ctx, "x"); !errors.Is(err, gone) {
			t.Errorf("a call whose context had ended returns %v", err)
		}
		for path, n := range leak.Maps(&l) {
			if n > 0 {
				t.Errorf("%s has %d elements at the end", path, n)
			}
		}
	})
}
