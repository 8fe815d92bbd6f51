package loader

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/test/leak"
)

// script is a driver whose calls run functions that a test sets.
type script struct {
	Driver
	load, unload func(context.Context) error
}

func (s *script) Load(ctx context.Context, _ Model) (Loaded, error) { return Loaded{}, s.load(ctx) }
func (s *script) Unload(ctx context.Context, _ string) error        { return s.unload(ctx) }
func (s *script) Close() error                                      { return nil }

// If an engine never confirms that the model is gone, control repeats the unload for 15 minutes:
// first after a second, then with pauses of 1, 2, 4, 8 and then 10 s.
func TestUnloadRetriesEnd(t *testing.T) {
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
		if got := said(err, ""); got != "unclear: cut; control cannot unload it: not now" {
			t.Error(got)
		}
		for i, want := range []time.Duration{1, 2, 4, 8, 16, 26, 36} {
			if at[i] != want*time.Second {
				t.Errorf("try %d at %v, want %v s", i, at[i], int(want))
			}
		}
		if got := time.Since(start); got != unloadPatience || len(at) != 93 {
			t.Errorf("%d tries in %v", len(at), got)
		}
	})
}

// TestUnloadEndsWithConsecutiveUnreachedTries: an engine that is sometimes unreachable, but answers
// in between, is not treated as gone.
func TestUnloadEndsWithConsecutiveUnreachedTries(t *testing.T) {
	for _, c := range []struct {
		name     string
		outcomes []Outcome // outcomes of the attempts before the successful one
		tries    int
		gone     bool
	}{
		{"absent now and then", []Outcome{Unreached, Unclear, Unreached, Unclear, Unreached}, 6, false},
		{"absent twice in a row", []Outcome{Unreached, Unclear, Unreached, Unreached, Unclear}, 4, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				l := newLoader(&script{unload: func(context.Context) error {
					if tries++; tries > len(c.outcomes) {
						return nil
					}
					return fault(c.outcomes[tries-1], "no")
				}}, nil)
				if err := l.Unload(t.Context(), "x"); (err != nil) != c.gone || tries != c.tries {
					t.Errorf("%d tries end with %v, want %d tries", tries, err, c.tries)
				}
			})
		})
	}
}

// A paused Loader makes no calls, not even unloads after a failed load: another control may lead by
// now, and may have loaded the model there.
func TestPausedLoaderMakesNoCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var mu sync.Mutex // guards calls
		var calls []string
		note := func(call string, takes time.Duration, err error) func(context.Context) error {
			return func(context.Context) error {
				mu.Lock()
				calls = append(calls, call+" at "+time.Since(start).String())
				mu.Unlock()
				time.Sleep(takes)
				return err
			}
		}
		l := newLoader(&script{load: note("load", time.Minute, fault(Unclear, "cut")), unload: note("unload", 0, nil)}, nil)
		var loads sync.WaitGroup
		loads.Go(func() { _, _ = l.Load(t.Context(), Model{ID: "x"}, time.Minute) })
		synctest.Wait()
		l.Pause(true)
		loads.Go(func() { _, _ = l.Load(t.Context(), Model{ID: "y"}, time.Minute) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.Unload(ctx, "z"); err == nil {
			t.Error("z is unloaded")
		}
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if want := []string{"load at 0s"}; !slices.Equal(calls, want) {
			t.Errorf("paused, it calls %v, want %v", calls, want)
		}
		l.Pause(false)
		synctest.Wait()
		slices.Sort(calls[1:])
		if want := []string{"load at 0s", "load at 3m1s", "unload at 3m1s"}; !slices.Equal(calls, want) {
			t.Errorf("then it calls %v, want %v", calls, want)
		}
		_ = l.Close()
		loads.Wait()
	})
}

// Calls for one model never overlap, and do not delay calls for other models.
func TestCallsForOneModelAreSequential(t *testing.T) {
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
		// A caller whose context ends while it waits learns that the engine was not called.
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := l.Load(ctx, Model{ID: "x"}, time.Minute); said(err,
			"") != "unreached: control did not ask the engine: context deadline exceeded" {
			t.Error(said(err, "loaded"))
		}
		if err := l.Unload(t.Context(), "x"); err != nil || time.Since(start) != 7*time.Second {
			t.Errorf("seven calls took %v", time.Since(start))
		}
		locks := 0
		for _, n := range leak.Maps(&l.locks) {
			locks += n
		}
		if most.Load() != 2 || locks != 0 { // one call for x and one for y
			t.Errorf("%d calls were on at once, %d locks are left", most.Load(), locks)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if err := l.Unload(t.Context(), "x"); said(err,
			"") != "unreached: control did not ask the engine: control no longer uses the endpoint" {
			t.Error(said(err, "unloaded"))
		}
	})
}

// Calls to an engine that is about to end are abandoned at once, and nothing is unloaded after
// them: the engine may never answer, and further calls may keep it from ending. Calls after Quit
// work again.
func TestQuitAbandonsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told atomic.Int32
		hangs := func(ctx context.Context) error {
			told.Add(1)
			<-ctx.Done()
			return fault(Unclear, "it hangs")
		}
		s := &script{load: hangs, unload: hangs}
		l := newLoader(s, nil)
		var calls sync.WaitGroup
		call := func(want string, call func() error) {
			calls.Go(func() {
				if got := said(call(), ""); got != want {
					t.Errorf("%q, want %q", got, want)
				}
			})
			synctest.Wait()
		}
		load := func(id string) func() error {
			return func() error { _, err := l.Load(t.Context(), Model{ID: id}, time.Minute); return err }
		}
		call("unclear: it hangs; control cannot unload it: control did not ask the engine to unload", load("x"))
		call("unreached: control did not ask the engine: the endpoint is leaving", load("x")) // waits for the running call
		call("unclear: it hangs", func() error { return l.Unload(t.Context(), "y") })
		start := time.Now()
		l.Quit()
		calls.Wait()
		if took := time.Since(start); took > 0 || told.Load() != 2 {
			t.Errorf("it took %v, and the engine was told %d things, want 2", took, told.Load())
		}
		s.load = func(context.Context) error { return nil }
		call("", load("x"))
		calls.Wait()
		_ = l.Close()
	})
}
