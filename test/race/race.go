// Package race tells tests whether they run with the race detector.
package race

import "testing"

// Skip skips a test under the race detector. It is for single-threaded simulations, which have no
// races and take five times as long under it. For packages that use Skip, make test also runs the
// tests without the race detector.
func Skip(t testing.TB) {
	t.Helper()
	if Enabled {
		t.Skip("a simulation on one goroutine: the race detector finds nothing in it")
	}
}
