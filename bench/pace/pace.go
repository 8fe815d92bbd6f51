// Package pace decides when a benchmark sends its requests: in a closed loop, or at a fixed rate.
// It also has the quantiles of how long they took.
package pace

import (
	"context"
	"math"
	"sync/atomic"
	"time"
)

// Load is how many requests are sent, and when.
type Load struct {
	Rate     float64       // requests per second; 0 for a closed loop: each request follows the end of another
	Requests int           // number of requests; 0 for no limit
	Duration time.Duration // when to stop sending; 0 for no limit
}

// due returns when request i is due, counted from the beginning, and false if there is no such
// request. It is for a fixed rate.
func (l Load) due(i int) (time.Duration, bool) {
	at := time.Duration(float64(i) / l.Rate * float64(time.Second))
	return at, (l.Requests == 0 || i < l.Requests) && (l.Duration == 0 || at < l.Duration)
}

// Start begins a load. Next waits until the next request is due, or returns at once if that is
// late. It returns when the request was due, and false after the last request or when ctx has
// ended. At a fixed rate a request that has to wait for others is late; if its time counts from
// when it was due, no slow answer hides another. Next is safe for concurrent use. The caller must
// call stop when next is not called any more.
func (l Load) Start(ctx context.Context) (next func() (time.Time, bool), stop func(), err error) {
	began := time.Now()
	if l.Rate <= 0 {
		return l.closed(ctx, began), func() {}, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	clock, err := newAlarm(ctx)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	due := make(chan time.Time)
	go l.pace(ctx, began, clock, due)
	next = func() (time.Time, bool) {
		at, ok := <-due
		return at, ok && ctx.Err() == nil
	}
	return next, func() {
		cancel()
		for range due { // ends with pace, which uses the clock
		}
		clock.close()
	}, nil
}

// closed is Start for a closed loop, in which requests are due at once.
func (l Load) closed(ctx context.Context, began time.Time) func() (time.Time, bool) {
	var sent atomic.Int64
	return func() (time.Time, bool) {
		now := time.Now()
		n := sent.Add(1)
		return now, ctx.Err() == nil && (l.Requests == 0 || n <= int64(l.Requests)) && (l.Duration == 0 || now.Sub(began) < l.Duration)
	}
}

// pace sends the times at which requests are due, each when it has come, and closes the channel
// after the last one or when ctx has ended.
func (l Load) pace(ctx context.Context, began time.Time, clock *alarm, due chan<- time.Time) {
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
}

// Quantile returns the lowest duration that at least this share of all durations does not exceed
// (nearest rank); 0 if there are none. They must be sorted.
func Quantile(sorted []time.Duration, share float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(int(math.Ceil(share*float64(len(sorted)))), 1)-1]
}
