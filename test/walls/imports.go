package main

import (
	"fmt"
	"go/ast"
	"maps"
	"slices"
	"strings"
)

// wrongImports returns the imports that break a rule of tables.go, except those in tests.
func wrongImports(t tree) (breaches []string) {
	isPure := closure(t)
	for _, r := range t.rooms {
		for _, i := range imports(r.code) {
			var why []string
			if i.ours != "" {
				why = []string{wrongNeighbour(r.path, i.ours), wrongFloor(r.path, i.ours)}
			} else if isPure[r.path] {
				why = []string{impure(i.path)}
			}
			why = append(why, notConfined(r.path, i.path))
			for _, w := range why {
				if w != "" {
					breaches = append(breaches, fmt.Sprintf("%s: %s imports %s: %s", t.at(i.pos), r.path, i.path, w))
				}
			}
		}
	}
	return breaches
}

// closure returns the pure packages and all packages of this module that they import. It omits
// generated protobuf messages, which are only types.
func closure(t tree) map[string]bool {
	set := t.reached(pure)
	maps.DeleteFunc(set, func(path string, _ bool) bool {
		r, _ := t.room(path)
		generated := func(f file) bool { return ast.IsGenerated(f.File) }
		written := func(f file) bool { return !generated(f) && len(f.Decls) > 0 }
		return slices.ContainsFunc(r.code, generated) && !slices.ContainsFunc(r.code, written)
	})
	return set
}

// reached returns some packages and all packages of this module that they import, directly or
// indirectly. Imports in tests are ignored.
func (t tree) reached(from []string) map[string]bool {
	set := make(map[string]bool)
	var visit func(path string)
	visit = func(path string) {
		r, there := t.room(path)
		if set[path] || !there {
			return
		}
		set[path] = true
		for _, i := range imports(r.code) {
			visit(i.ours)
		}
	}
	for _, path := range from {
		visit(path)
	}
	return set
}

// program returns the folder of the program to which a package belongs; empty if it belongs to
// none.
func program(path string) string {
	first, _, _ := strings.Cut(path, "/")
	for _, p := range programs {
		if p.folder == first {
			return first
		}
	}
	return ""
}

// uses reports whether one program may import packages of another one.
func uses(from, to string) bool {
	return from == trying && (to == wiring || to == packaging) || from == packaging && to == wiring
}

// wrongNeighbour returns why the package at path may not import another package of this module;
// empty if it may.
func wrongNeighbour(path, imported string) string {
	switch from, to := program(path), program(imported); {
	case path == "extproc/pick" && imported != "internal/profile" && imported != "internal/hash":
		return "pick owns its input types; fleet builds them"
	case within(path, "api/") && !within(imported, "api/"):
		return "api has types only"
	case within(imported, "test/") && !within(path, "test/") && from != trying:
		return "packages below test are for tests; only " + trying + " may use them in code"
	case to == "" || path == wiring || uses(from, to):
		return ""
	case from == "":
		return "a shared package may not depend on a program"
	case from != to && !slices.Contains(pure, imported):
		return "programs share only api, internal and pure packages"
	}
	return ""
}

// standing returns the house that contains a package (see houses), and the number of the package's
// floor, counted from the top.
func standing(path string) (house, level int, ok bool) {
	for house, floors := range houses {
		for level, f := range floors {
			if slices.Contains(f.rooms, path) {
				return house, level, true
			}
		}
	}
	return 0, 0, false
}

// wrongFloor returns why a package may not import another package of its house; empty if it may.
func wrongFloor(path, imported string) string {
	house, from, ok := standing(path)
	other, to, known := standing(imported)
	switch {
	case !ok || !known || house != other || from < to:
		return "" // if a package has no floor, misplaced reports it
	case from == to:
		return fmt.Sprintf("both are on the same floor, whose packages are independent of each other (%s)", houses[house][from].why)
	}
	return fmt.Sprintf("it is on a higher floor (%s)", houses[house][to].why)
}

// impure returns why pure packages may not import a package of another module; empty if they may.
func impure(imported string) string {
	first, _, _ := strings.Cut(imported, "/")
	if strings.Contains(first, ".") {
		if !inAny(imported, pureModules) {
			return "a pure package may import only the modules in pureModules, which do no I/O"
		}
		return ""
	}
	for _, rule := range impureStd {
		if within(imported, rule.path+"/") && !slices.Contains(rule.except, imported) {
			return rule.why
		}
	}
	return ""
}

// notConfined returns why a package may not import a library that is confined to other packages;
// empty if it may.
func notConfined(path, imported string) string {
	for _, c := range confined {
		if within(imported, c.library) && !inAny(path, c.rooms) {
			return c.why
		}
	}
	return ""
}

// wrongTestImports returns the forbidden imports in which a test of one program uses a package of
// another program.
func wrongTestImports(t tree) (breaches []string) {
	for _, r := range t.rooms {
		for _, i := range imports(r.tests) {
			if why := wrongTestNeighbour(r.path, i.ours); why != "" {
				breaches = append(breaches, fmt.Sprintf("%s: a test of %s imports %s: %s", t.at(i.pos), r.path, i.path, why))
			}
		}
	}
	return breaches
}

// wrongTestNeighbour returns why tests of the package at path may not import another package; empty
// if they may.
func wrongTestNeighbour(path, imported string) string {
	switch from, to := program(path), program(imported); {
	case to == "" || from == to || uses(from, to):
		return ""
	case from == "":
		return "tests of shared packages may not use a program's packages"
	case slices.Contains(pure, imported):
		return ""
	}
	for _, g := range guests {
		if g.tests == path && slices.Contains(g.rooms, imported) {
			return ""
		}
	}
	return "tests may not import another program's packages; they may run it as a process"
}
