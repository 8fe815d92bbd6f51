package main

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/headgate/headgate/control/meter"
	"github.com/headgate/headgate/control/place/memory"
	"github.com/headgate/headgate/internal/objects"
)

// While a term reads what an earlier one remembers, the Lease may be lost, and another may have it: that ends the term, and not
// the process.
func TestATermHearsOfItsLeaseWhileItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var leads func() bool
		o := &office{worlds: newLatest(), meter: meter.New(), log: slog.New(slog.DiscardHandler), ready: func() {}}
		o.remember = func(ctx context.Context, l func() bool) (memory.Memory, func(*objects.World), error) {
			leads = l
			<-ctx.Done()
			return nil, nil, ctx.Err()
		}
		ctx, lost := context.WithCancel(t.Context())
		pauses, ended := make(chan bool), make(chan error, 1)
		go func() { ended <- o.term(ctx, pauses) }()
		synctest.Wait()
		select {
		case pauses <- true:
		default:
			t.Fatal("it does not hear of its Lease")
		}
		synctest.Wait()
		if leads() {
			t.Error("it leads")
		}
		lost()
		if err := <-ended; err != nil {
			t.Errorf("its end is %v", err)
		}
	})
}
