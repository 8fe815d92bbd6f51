package main

import (
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strconv"
	"strings"
)

// misplaced returns the packages that are on no floor (see houses), are nested too deeply, or have
// a meaningless name.
func misplaced(t tree) (breaches []string) {
	for _, r := range t.rooms {
		steps := strings.Split(r.path, "/")
		for _, name := range emptyNames {
			if slices.Contains(steps, name) {
				breaches = append(breaches, fmt.Sprintf("%s: the name %s does not say what a package contains", r.path, name))
			}
		}
		if program(r.path) != "" && len(steps) > 3 {
			breaches = append(breaches, r.path+" is more than two levels below its program: that is hard to find")
		}
		if _, _, ok := standing(r.path); !ok {
			breaches = append(breaches, r.path+" is on no floor: add it to houses in tables.go, which says what each package may import")
		}
	}
	return breaches
}

// unshared returns the packages below internal that fewer than two programs import. Imports in
// tests do not count.
func unshared(t tree) (breaches []string) {
	users := users(t)
	for _, r := range t.rooms {
		if !within(r.path, "internal/") || len(users[r.path]) > 1 || isReserved(r.path) {
			continue
		}
		who := "no program reaches it"
		if len(users[r.path]) == 1 {
			who = "of the programs only " + users[r.path][0] + " reaches it"
		}
		breaches = append(breaches, fmt.Sprintf("%s is in internal, and %s outside tests: "+
			"move it into that program, or below test if only tests need it", r.path, who))
	}
	return breaches
}

// linkedAgent returns the packages of the agent that the program of headgate, extproc and control
// reaches. Imports in tests do not count.
func linkedAgent(t tree) (breaches []string) {
	for path := range t.reached([]string{wiring}) {
		if path == apart || within(path, apart+"/") {
			breaches = append(breaches, fmt.Sprintf("%s reaches %s: only the program agent may link the clouds' client libraries", wiring, path))
		}
	}
	return breaches
}

// users returns for each package the programs that import it, directly or indirectly. Imports in
// tests do not count.
func users(t tree) map[string][]string {
	users := make(map[string][]string)
	for _, p := range programs {
		var own []string
		for _, r := range t.rooms {
			if program(r.path) == p.folder && r.path != wiring {
				own = append(own, r.path)
			}
		}
		for path := range t.reached(own) {
			users[path] = append(users[path], p.folder)
		}
	}
	return users
}

func isReserved(path string) bool {
	for _, r := range reserved {
		if r.room == path {
			return true
		}
	}
	return false
}

// sameNames returns the packages that have the same name as another package.
func sameNames(t tree) (breaches []string) {
	byName := make(map[string]string)
	for _, r := range t.rooms {
		first, taken := byName[r.name]
		switch {
		case r.name == "main":
		case !taken:
			byName[r.name] = r.path
		case !areNamesakes(r.name, first, r.path):
			breaches = append(breaches, fmt.Sprintf("%s and %s are both package %s: in code, the name must say which one is meant",
				first, r.path, r.name))
		}
	}
	return breaches
}

func areNamesakes(name string, rooms ...string) bool {
	for _, n := range namesakes {
		if n.name == name && !slices.ContainsFunc(rooms, func(r string) bool { return !slices.Contains(n.rooms, r) }) {
			return true
		}
	}
	return false
}

// misnamedCommands returns the commands of headgate that do not have the name of the package with
// their function Command.
func misnamedCommands(t tree) (breaches []string) {
	r, _ := t.room(wiring)
	for _, f := range r.code {
		ast.Inspect(f.File, func(node ast.Node) bool {
			if row, ok := node.(*ast.CompositeLit); ok {
				command, from := namesOf(row)
				if command != "" && from != "" && from != command && otherNames[command] != from {
					breaches = append(breaches, fmt.Sprintf("%s: the command %s is in package %s: give the package its name",
						t.at(row.Pos()), command, from))
				}
			}
			return true
		})
	}
	return breaches
}

// namesOf returns the name of a command in a row of a table, and of the package whose function
// Command it runs. Both are empty if it is no such row.
func namesOf(row *ast.CompositeLit) (command, from string) {
	for _, e := range row.Elts {
		pair, _ := e.(*ast.KeyValueExpr)
		if pair == nil {
			return "", ""
		}
		key, _ := pair.Key.(*ast.Ident)
		if key == nil {
			return "", ""
		}
		switch value := pair.Value.(type) {
		case *ast.BasicLit:
			if key.Name == "Name" {
				command, _ = strconv.Unquote(value.Value) // cannot fail: it is a literal
			}
		case *ast.SelectorExpr:
			if of, ok := value.X.(*ast.Ident); ok && key.Name == "Run" && value.Sel.Name == "Command" {
				from = of.Name
			}
		}
	}
	return command, from
}

// largePrograms returns the programs whose package main has too many lines. It should only connect
// other packages.
func largePrograms(t tree) (breaches []string) {
	for _, p := range programs {
		r, _ := t.room(p.folder)
		sum := 0
		for _, f := range r.code {
			sum += f.lines
			if name := t.set.Position(f.Pos()).Filename; path.Base(name) == "main.go" && f.lines > mainLines {
				breaches = append(breaches, fmt.Sprintf("%s has %d lines: wiring needs at most %d", name, f.lines, mainLines))
			}
		}
		if sum > p.lines {
			breaches = append(breaches,
				fmt.Sprintf("package main of %s has %d lines, and may have %d: move all but wiring and flags into packages",
					p.folder, sum, p.lines))
		}
	}
	return breaches
}

// uncommented returns the packages without a package comment, or with more than one.
func uncommented(t tree) (breaches []string) {
	for _, r := range t.rooms {
		files := r.code
		if len(files) == 0 { // the folder has only tests
			files = r.tests
		}
		var with []string
		for _, f := range files {
			if strings.TrimSpace(f.Doc.Text()) != "" {
				with = append(with, path.Base(t.set.Position(f.Pos()).Filename))
			}
		}
		if len(with) != 1 {
			breaches = append(breaches, fmt.Sprintf("%s has %d package comments, in %v: want exactly one",
				r.path, len(with), with))
		}
	}
	return breaches
}
