// Package times is how tests tell how long something took that they did many times.
package times

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// Times are how long something took, each time.
type Times []time.Duration

// Percentile is the shortest of them that so many in 100 do not exceed, by the nearest rank. There must be one at least.
func (all Times) Percentile(of int) time.Duration {
	return slices.Sorted(slices.Values(all))[(len(all)*of+99)/100-1]
}

// String says it in words, to 100 µs.
func (all Times) String() string {
	rounded := func(of int) time.Duration { return all.Percentile(of).Round(100 * time.Microsecond) }
	return fmt.Sprintf("median %v, p99 %v, at most %v, of %d", rounded(50), rounded(99), rounded(100), len(all))
}

// Bound fails a test where more than one in 100 of them exceed a limit. Of fewer than 100 it says nothing: one that a busy machine held up
// would be more than that.
func (all Times) Bound(t testing.TB, what string, limit time.Duration) {
	t.Helper()
	if len(all) >= 100 && all.Percentile(99) > limit {
		t.Errorf("%s: %v, want p99 %v at most", what, all, limit)
	}
}
