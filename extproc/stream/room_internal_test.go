package stream

import (
	"testing"
	"time"
)

// The time at which an endpoint has room is on the steady clock. It is converted to the wall clock,
// which may have been set.
func TestDueAt(t *testing.T) {
	now := time.Now()
	for _, set := range []time.Duration{0, time.Hour, -time.Hour} {
		steady := now.Add(-set).UnixNano()
		if got := dueAt(steady+int64(30*time.Millisecond), steady, now); got.Sub(now) != 30*time.Millisecond {
			t.Errorf("after the wall clock was set by %v: room in %v", set, got.Sub(now))
		}
	}
}
