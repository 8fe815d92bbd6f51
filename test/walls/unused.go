package main

import (
	"fmt"
	"slices"
	"strings"
)

// unused returns the entries of the tables that no package needs. An exception that no package uses
// only weakens a rule.
func unused(t tree) (breaches []string) {
	report := func(table, format string, args ...any) {
		breaches = append(breaches, fmt.Sprintf("test/walls/tables.go: %s: %s", table, fmt.Sprintf(format, args...)))
	}
	inside := closure(t)
	isPure := func(r room) bool { return inside[r.path] }
	for _, path := range pure {
		if _, there := t.room(path); !there {
			report("pure", "there is no package %s", path)
		}
	}
	for _, rule := range impureStd {
		for _, path := range rule.except {
			if !t.uses(isPure, path) {
				report("impureStd", "no pure room imports %s", path)
			}
		}
	}
	for _, path := range pureModules {
		if !t.uses(isPure, path) {
			report("pureModules", "no pure room imports %s", path)
		}
	}
	for _, c := range confined {
		for _, path := range c.rooms {
			if !t.uses(func(r room) bool { return within(r.path, path) }, c.library) {
				report("confined", "%s imports nothing of %s", path, c.library)
			}
		}
	}
	users := users(t)
	for _, r := range reserved {
		if _, there := t.room(r.room); !there {
			report("reserved", "there is no package %s", r.room)
		} else if len(users[r.room]) > 1 {
			report("reserved", "%s is reached by %s", r.room, strings.Join(users[r.room], " and "))
		}
	}
	for _, floors := range houses {
		for _, f := range floors {
			for _, path := range f.rooms {
				if _, there := t.room(path); !there {
					report("houses", "there is no package %s", path)
				}
			}
		}
	}
	for _, g := range guests {
		r, _ := t.room(g.tests)
		for _, path := range g.rooms {
			if !slices.ContainsFunc(imports(r.tests), func(i imported) bool { return i.ours == path }) {
				report("guests", "no test of %s imports %s", g.tests, path)
			}
		}
	}
	for _, n := range namesakes {
		for _, path := range n.rooms {
			if r, there := t.room(path); !there || r.name != n.name {
				report("namesakes", "%s is no package %s", path, n.name)
			}
		}
	}
	return breaches
}

// uses returns true if the code of a package imports a library. The function which selects the
// packages.
func (t tree) uses(which func(room) bool, library string) bool {
	return slices.ContainsFunc(t.rooms, func(r room) bool {
		return which(r) && slices.ContainsFunc(imports(r.code), func(i imported) bool { return within(i.path, library) })
	})
}
