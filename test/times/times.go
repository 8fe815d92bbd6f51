// Package times compares measured times with a limit.
package times

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// Times are the durations of repeated measurements.
type Times []time.Duration

// Percentile returns a percentile of the measured times by the nearest rank. There must be at least
// one measurement.
func (all Times) Percentile(of int) time.Duration {
	return slices.Sorted(slices.Values(all))[(len(all)*of+99)/100-1]
}

// String returns the median, the 99th percentile and the maximum as text, rounded to 100 µs.
func (all Times) String() string {
	rounded := func(of int) time.Duration { return all.Percentile(of).Round(100 * time.Microsecond) }
	return fmt.Sprintf("median %v, p99 %v, at most %v, of %d", rounded(50), rounded(99), rounded(100), len(all))
}

// Bound fails a test if the 99th percentile exceeds a limit. It does nothing if there are fewer
// than 100 measurements: a single delay on a busy machine would decide.
func (all Times) Bound(t testing.TB, what string, limit time.Duration) {
	t.Helper()
	if len(all) >= 100 && all.Percentile(99) > limit {
		t.Errorf("%s: %v, want p99 %v at most", what, all, limit)
	}
}
