// Package race tells tests whether they run with the race detector.
package race

import "testing"

// Skip skips a test under the race detector. It is for single-threaded simulations, which run five
// times as long with it and have no races. make test also runs the tests of packages that use Skip
// without the race detector.
func Skip(t testing.TB) {
	t.Helper()
	if Enabled {
		t.Skip("a simulation on one goroutine: the race detector finds nothing in it")
	}
}
