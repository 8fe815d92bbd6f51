package load

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// script is a driver whose calls do what a test says.
type script struct {
	Driver
	load, unload func(context.Context) error
}

func (s *script) Load(ctx context.Context, _ Model) (Loaded, error) { return Loaded{}, s.load(ctx) }
func (s *script) Unload(ctx context.Context, _ string) error        { return s.unload(ctx) }
func (s *script) Close() error                                      { return nil }

// An engine that never says that the model is gone is told for a quarter of an hour, at pauses of 1, 2, 4, 8 and then 10
// s, the first after a second.
func TestToClearUpEndsAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var at []time.Duration
		l := newLoader(&script{
			load: func(context.Context) error { return fault(Unclear, "cut") },
			unload: func(context.Context) error {
				at = append(at, time.Since(start))
				return fault(Unclear, "not now")
			},
		}, nil)
		_, err := l.Load(t.Context(), Model{ID: "x"}, time.Minute)
		if got := said(err, ""); got != "unclear: cut; it could not be unloaded: not now" {
			t.Error(got)
		}
		for i, want := range []time.Duration{1, 2, 4, 8, 16, 26, 36} {
			if at[i] != want*time.Second {
				t.Errorf("try %d at %v, want %v s", i, at[i], int(want))
			}
		}
		if got := time.Since(start); got != patience || len(at) != 93 {
			t.Errorf("%d tries in %v", len(at), got)
		}
	})
}

// Calls for one model never overlap, and those for others do not wait for them.
func TestCallsForOneModelFollowEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var on, most atomic.Int64
		call := func(context.Context) error {
			if n := on.Add(1); n > most.Load() {
				most.Store(n)
			}
			time.Sleep(time.Second)
			on.Add(-1)
			return nil
		}
		l := newLoader(&script{load: call, unload: call}, nil)
		start := time.Now()
		for range 3 {
			go func() { _, _ = l.Load(t.Context(), Model{ID: "x"}, time.Minute) }()
			go func() { _ = l.Unload(t.Context(), "x") }()
		}
		synctest.Wait()
		if err := l.Unload(t.Context(), "y"); err != nil || time.Since(start) != time.Second {
			t.Errorf("another model waited for %v", time.Since(start))
		}
		// Who no longer waits is told that nothing was asked.
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := l.Load(ctx, Model{ID: "x"}, time.Minute); said(err, "") != "unreached: the engine was not asked: context deadline exceeded" {
			t.Error(said(err, "loaded"))
		}
		if err := l.Unload(t.Context(), "x"); err != nil || time.Since(start) != 7*time.Second {
			t.Errorf("seven calls took %v", time.Since(start))
		}
		if most.Load() != 2 || len(l.turns) != 0 { // of x and of y
			t.Errorf("%d calls were on at once, %d turns are left", most.Load(), len(l.turns))
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if err := l.Unload(t.Context(), "x"); said(err, "") != "unreached: the engine was not asked: the endpoint is no longer driven" {
			t.Error(said(err, "unloaded"))
		}
	})
}
