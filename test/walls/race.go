package main

import (
	"slices"
	"strings"
)

// skipper is the package that tests import to skip simulations under the race detector.
const skipper = "test/race"

// longest is the package that runs API servers. Tests that use an API server take longest, so their
// packages start first.
const longest = "test/apiserver"

// endToEnd is a package whose tests themselves decide whether the programs that they run have the
// race detector.
const endToEnd = "bench/e2e"

// concurrent returns the packages whose tests run with the race detector: all in which goroutines
// may share data, except endToEnd.
func concurrent(t tree) []string {
	alone := singles(t)
	var first, rest []string
	for _, r := range t.rooms {
		switch {
		case !r.hasPlainTests() || alone[r.path] || r.path == endToEnd:
		case importsAny(r.tests, longest):
			first = append(first, r.path)
		default:
			rest = append(rest, r.path)
		}
	}
	return append(first, rest...)
}

func importsAny(files []file, ours string) bool {
	return slices.ContainsFunc(imports(files), func(i imported) bool { return i.ours == ours })
}

// sequential returns the packages whose tests run without the race detector: those in which
// goroutines share no data, and those whose tests skip simulations under the race detector.
func sequential(t tree) (paths []string) {
	alone := singles(t)
	for _, r := range t.rooms {
		if alone[r.path] || importsAny(r.tests, skipper) {
			paths = append(paths, r.path)
		}
	}
	return slices.DeleteFunc(paths, func(path string) bool { r, _ := t.room(path); return !r.hasPlainTests() })
}

// singles returns the packages in which the race detector cannot find anything: pure packages that
// share no counters.
func singles(t tree) map[string]bool {
	set := closure(t)
	for _, r := range t.rooms {
		if slices.ContainsFunc(imports(r.code), func(i imported) bool { return i.path == "sync/atomic" }) {
			delete(set, r.path)
		}
	}
	return set
}

// hasPlainTests reports whether the package has a test file without build constraints.
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
