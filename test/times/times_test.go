package times_test

import (
	"testing"
	"time"

	"github.com/headgate/headgate/test/times"
)

// faults counts the errors that a test reports.
type faults struct {
	testing.TB
	n int
}

func (*faults) Helper()                 {}
func (f *faults) Errorf(string, ...any) { f.n++ }

func TestTimes(t *testing.T) {
	var all times.Times
	for i := range 200 { // 7 and 200 are coprime, so each number from 1 to 200 occurs once
		all = append(all, time.Duration(i*7%200+1)*time.Millisecond)
	}
	for _, c := range []struct {
		of   times.Times
		want string
		slow int // number of times above the limit of 198 ms
	}{
		{all, "median 100ms, p99 198ms, at most 200ms, of 200", 0},
		{append(all[:199:199], time.Second), "median 100ms, p99 199ms, at most 1s, of 200", 1},
		{times.Times{time.Second}, "median 1s, p99 1s, at most 1s, of 1", 0},
		{times.Times{3 * time.Second, 1234567, time.Second}, "median 1s, p99 3s, at most 3s, of 3", 0},
	} {
		if got := c.of.String(); got != c.want {
			t.Errorf("it says %q, want %q", got, c.want)
		}
		f := &faults{TB: t}
		if c.of.Bound(f, "it", 198*time.Millisecond); f.n != c.slow {
			t.Errorf("of %v it says %d times that they took too long", c.of, f.n)
		}
	}
}
