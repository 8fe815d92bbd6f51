//go:build race

package e2e

// raceFlags build the programs as the tests are built.
var raceFlags = []string{"-race"}
