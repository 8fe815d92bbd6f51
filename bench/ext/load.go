package ext

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/bench/pace"
)

// tally is what became of the requests of a load.
type tally struct {
	took     []time.Duration // of requests that may pass: from when the request was due to the decision
	unnamed  int             // how many of those have no destination
	rejected map[int]int     // by the status of the picker's own reply
	failed   int
	failure  error // one of them
}

// add counts an answer that came at a time to a request that was due at another.
func (t *tally) add(a answer, due, at time.Time, err error) {
	switch {
	case err != nil:
		t.failed++
		t.failure = err
	case a.status != 0:
		if t.rejected == nil {
			t.rejected = make(map[int]int)
		}
		t.rejected[a.status]++
	default:
		t.took = append(t.took, at.Sub(due))
		if a.to == "" {
			t.unnamed++
		}
	}
}

// join adds another tally.
func (t *tally) join(other tally) {
	t.took = append(t.took, other.took...)
	t.unnamed += other.unnamed
	for status, n := range other.rejected {
		if t.rejected == nil {
			t.rejected = make(map[int]int)
		}
		t.rejected[status] += n
	}
	t.failed += other.failed
	if t.failure == nil {
		t.failure = other.failure
	}
}

// answered returns the number of requests that were decided.
func (t *tally) answered() int {
	n := len(t.took)
	for _, each := range t.rejected {
		n += each
	}
	return n
}

// send sends the requests of a load, at most so many at a time, and returns how long that took.
func send(ctx context.Context, l pace.Load, atOnce int, ask func(context.Context) (answer, time.Time, error)) (
	all tally, took time.Duration, err error,
) {
	began := time.Now()
	next, stop, err := l.Start(ctx)
	if err != nil {
		return all, 0, err
	}
	defer stop()
	var mu sync.Mutex // guards all
	var senders sync.WaitGroup
	for range atOnce {
		senders.Go(func() {
			var own tally
			for due, ok := next(); ok; due, ok = next() {
				a, at, err := ask(ctx)
				if err != nil && ctx.Err() != nil {
					break // the user has stopped the command
				}
				own.add(a, due, at, err)
			}
			mu.Lock()
			defer mu.Unlock()
			all.join(own)
		})
	}
	senders.Wait()
	took = time.Since(began)
	slices.Sort(all.took)
	return all, took, nil
}
