package pace

import (
	"context"
	"testing"
	"time"
)

func TestDue(t *testing.T) {
	for _, c := range []struct {
		load Load
		i    int
		want time.Duration
		ok   bool
	}{
		{Load{Rate: 100}, 0, 0, true},
		{Load{Rate: 100}, 150, 1500 * time.Millisecond, true},
		{Load{Rate: 100, Requests: 10}, 9, 90 * time.Millisecond, true},
		{Load{Rate: 100, Requests: 10}, 10, 100 * time.Millisecond, false},
		{Load{Rate: 100, Duration: time.Second}, 99, 990 * time.Millisecond, true},
		{Load{Rate: 100, Duration: time.Second}, 100, time.Second, false},
	} {
		if got, ok := c.load.due(c.i); got != c.want || ok != c.ok {
			t.Errorf("request %d of %+v: %v, %v", c.i, c.load, got, ok)
		}
	}
}

// A load has exactly as many requests as it should, and ends with its context.
func TestStart(t *testing.T) {
	for name, l := range map[string]Load{"closed": {Requests: 3}, "rate": {Requests: 3, Rate: 1000}} {
		next, stop, err := l.Start(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for i := range 4 {
			if at, ok := next(); ok != (i < 3) || ok && at.Sub(began) > time.Minute {
				t.Errorf("%s: request %d: %v, %v", name, i, at, ok)
			}
		}
		stop()
	}
	for name, l := range map[string]Load{"closed": {}, "rate": {Rate: 0.001}} {
		ctx, end := context.WithCancel(t.Context())
		next, stop, err := l.Start(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := next(); !ok {
			t.Errorf("%s: there is no first request", name)
		}
		end()
		if _, ok := next(); ok {
			t.Errorf("%s: a request is due after the end of the context", name)
		}
		stop()
	}
}

func TestQuantile(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	for _, c := range []struct {
		all   []time.Duration
		share float64
		want  time.Duration
	}{
		{nil, 0.5, 0},
		{hundred[:1], 0.99, 1},
		{hundred[:3], 0.5, 2},
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
	} {
		if got := Quantile(c.all, c.share); got != c.want {
			t.Errorf("%v of %d: %d, want %d", c.share, len(c.all), got, c.want)
		}
	}
}

// An alarm never ends too early, and ends with its context.
func TestAlarm(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	clock, err := newAlarm(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer clock.close()
	for i := range 20 {
		until := time.Now().Add(time.Duration(i) * 300 * time.Microsecond)
		if err := clock.wait(until); err != nil || time.Now().Before(until) {
			t.Errorf("it ends %v too early, %v", time.Until(until), err)
		}
	}
	time.AfterFunc(time.Millisecond, stop)
	if clock.wait(time.Now().Add(time.Hour)) == nil {
		t.Error("the end of its context is no error")
	}
}
