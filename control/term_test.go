package main

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/headgate/headgate/control/meter"
)

// While a term reads what an earlier one remembers, the Lease may be lost, and another may have it: that ends the term, and not
// the process.
func TestATermHearsOfItsLeaseWhileItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var decides func() bool
		o := office{worlds: newLatest(), meter: meter.New(), log: slog.New(slog.DiscardHandler), began: func() {}}
		o.open = func(ctx context.Context, d func() bool) (memory, error) {
			decides = d
			<-ctx.Done()
			return nil, ctx.Err()
		}
		on := begin(t.Context(), 1, o.term)
		synctest.Wait()
		paused := make(chan struct{})
		go func() {
			on.pause(true)
			close(paused)
		}()
		synctest.Wait()
		select {
		case <-paused:
			if decides() {
				t.Error("it decides")
			}
		default:
			t.Error("it does not hear of its Lease")
		}
		if err := on.end(); err != nil {
			t.Errorf("its end is %v", err)
		}
	})
}
