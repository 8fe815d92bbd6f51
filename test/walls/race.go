package main

import (
	"slices"
	"strings"
)

// skipper is the package that tests import to skip simulations under the race detector.
const skipper = "test/race"

// endToEnd is the package whose tests decide for themselves whether their programs have the race
// detector.
const endToEnd = "bench/e2e"

// concurrent returns the packages whose tests run with the race detector: all in which goroutines
// can meet, except endToEnd.
func concurrent(t tree) (paths []string) {
	alone := singles(t)
	for _, r := range t.rooms {
		if r.hasPlainTests() && !alone[r.path] && r.path != endToEnd {
			paths = append(paths, r.path)
		}
	}
	return paths
}

// sequential returns the packages whose tests run without the race detector: those in which no
// goroutines can meet, and those whose tests skip simulations under it.
func sequential(t tree) (paths []string) {
	alone := singles(t)
	for _, r := range t.rooms {
		if alone[r.path] || slices.ContainsFunc(imports(r.tests), func(i imported) bool { return i.ours == skipper }) {
			paths = append(paths, r.path)
		}
	}
	return slices.DeleteFunc(paths, func(path string) bool { r, _ := t.room(path); return !r.hasPlainTests() })
}

// singles returns the packages in which the race detector finds nothing: pure packages that share
// no counters.
func singles(t tree) map[string]bool {
	set := closure(t)
	for _, r := range t.rooms {
		if slices.ContainsFunc(imports(r.code), func(i imported) bool { return i.path == "sync/atomic" }) {
			delete(set, r.path)
		}
	}
	return set
}

// hasPlainTests reports whether a package has a test file without build constraints.
func (r room) hasPlainTests() bool {
	return slices.ContainsFunc(r.tests, func(f file) bool {
		for _, group := range f.Comments {
			for _, c := range group.List {
				if strings.HasPrefix(c.Text, "//go:build ") && c.Pos() < f.Package {
					return false
				}
			}
		}
		return true
	})
}
