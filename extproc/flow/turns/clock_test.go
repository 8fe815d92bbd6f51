package turns_test

import (
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/flow/turns"
)

// The clock follows the message that took least, also when the clocks drift, and a new control.
func TestClockFollowsTheFastestMessage(t *testing.T) {
	const ms = time.Millisecond
	var c turns.Clock
	expect := func(when string, now, want time.Duration) {
		t.Helper()
		if got := c.At(now); (got - want).Abs() > ms {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	expect("at first", 5*ms, 5*ms)
	c.Hear(1000*ms, 140*ms)
	c.Hear(1100*ms, 210*ms)
	c.Hear(1200*ms, 340*ms)
	expect("the fastest message took 10 ms", 1000*ms, 1890*ms)
	c.Hear(101_000*ms, 100_200*ms)
	expect("this clock is 0.1 % fast", 100_200*ms, 101_000*ms)
	c.Forget()
	expect("without control", 100_300*ms, 101_100*ms)
	c.Hear(5*ms, 100_400*ms)
	expect("another control", 100_400*ms, 5*ms)
}
