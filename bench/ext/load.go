package ext

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// load is how many requests are sent, and when.
type load struct {
	concurrency int           // most requests at a time
	rate        float64       // requests per second; 0 for a closed loop: each request follows the end of another
	requests    int           // number of requests; 0 for no limit
	duration    time.Duration // when to stop sending; 0 for no limit
}

// due returns when request i is due, counted from the beginning, and false if there is no such
// request. It is for a fixed rate.
func (l load) due(i int) (time.Duration, bool) {
	at := time.Duration(float64(i) / l.rate * float64(time.Second))
	return at, (l.requests == 0 || i < l.requests) && (l.duration == 0 || at < l.duration)
}

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

// quantile returns the lowest duration that at least this share of all durations does not exceed
// (nearest rank); 0 if there are none. They must be sorted.
func quantile(sorted []time.Duration, share float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(int(math.Ceil(share*float64(len(sorted)))), 1)-1]
}

// send sends requests, and returns how long that took. At a fixed rate a request that has to wait
// for others is late, and its time counts from when it was due: no slow answer hides another.
func (l load) send(ctx context.Context, ask func(context.Context) (answer, time.Time, error)) (all tally, took time.Duration, err error) {
	began := time.Now()
	next := l.closed(began)
	if l.rate > 0 {
		clock, err := newAlarm(ctx)
		if err != nil {
			return all, 0, err
		}
		defer clock.close()
		next = l.paced(ctx, began, clock)
	}
	var mu sync.Mutex // guards all
	var senders sync.WaitGroup
	for range l.concurrency {
		senders.Go(func() {
			var own tally
			for due, ok := next(); ok && ctx.Err() == nil; due, ok = next() {
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

// closed returns a function that returns when the next request of a closed loop is due, which is
// now, and false after the last request.
func (l load) closed(began time.Time) func() (time.Time, bool) {
	var sent atomic.Int64
	return func() (time.Time, bool) {
		now := time.Now()
		n := sent.Add(1)
		return now, (l.requests == 0 || n <= int64(l.requests)) && (l.duration == 0 || now.Sub(began) < l.duration)
	}
}

// paced is closed for a fixed rate. The function waits until the next request is due, or returns at
// once if it is late.
func (l load) paced(ctx context.Context, began time.Time, clock *alarm) func() (time.Time, bool) {
	due := make(chan time.Time)
	go func() {
		defer close(due)
		for i := 0; ; i++ {
			at, ok := l.due(i)
			if !ok {
				return
			}
			when := began.Add(at)
			if clock.wait(when) != nil {
				return
			}
			select {
			case due <- when:
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() (time.Time, bool) {
		at, ok := <-due
		return at, ok
	}
}
