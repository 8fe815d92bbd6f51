// Package race lets tests find out whether they run with the race detector.
package race

import "testing"

// Skip leaves out a test under the race detector. It is for simulations on one goroutine, which take five times as long with it
// and in which it finds nothing. make test runs the tests of a package that uses Skip without the race detector too.
func Skip(t testing.TB) {
	t.Helper()
	if Enabled {
		t.Skip("a simulation on one goroutine: the race detector finds nothing in it")
	}
}
