package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// tree has all packages of the module, sorted by path.
type tree struct {
	set   *token.FileSet
	rooms []room
}

// room is a package with all files of its folder, whatever their build constraints.
type room struct {
	path        string // path relative to the module
	name        string
	code, tests []file
}

type file struct {
	*ast.File
	lines int
}

// read reads the packages below the root of a module. It runs no other program: go test must see
// each file that is opened, since it caches the result until one of them changes.
func read(root fs.FS) (tree, error) {
	set := token.NewFileSet()
	rooms := make(map[string]*room)
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && isOutside(root, name):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".go" || isIgnored(d.Name()):
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		folder := path.Dir(name)
		r := rooms[folder]
		if r == nil {
			r = &room{path: folder}
			rooms[folder] = r
		}
		f := file{parsed, bytes.Count(text, []byte("\n"))}
		if !strings.HasSuffix(name, "_test.go") {
			r.code, r.name = append(r.code, f), parsed.Name.Name
			return nil
		}
		r.tests = append(r.tests, f)
		if r.name == "" { // until now the folder has only tests
			r.name = strings.TrimSuffix(parsed.Name.Name, "_test")
		}
		return nil
	})
	t := tree{set: set}
	for _, folder := range slices.Sorted(maps.Keys(rooms)) {
		t.rooms = append(t.rooms, *rooms[folder])
	}
	return t, err
}

// isOutside reports whether the go command treats a folder as no part of the module.
func isOutside(root fs.FS, folder string) bool {
	if folder == "." {
		return false
	}
	_, err := fs.Stat(root, path.Join(folder, "go.mod")) // the folder is another module
	return err == nil || path.Base(folder) == "testdata" || isIgnored(path.Base(folder))
}

func isIgnored(name string) bool { return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") }

// at returns a position as file and line.
func (t tree) at(p token.Pos) string {
	position := t.set.Position(p)
	return position.Filename + ":" + strconv.Itoa(position.Line)
}

// room returns the package at a path relative to the module, and whether there is one.
func (t tree) room(path string) (room, bool) {
	i, ok := slices.BinarySearchFunc(t.rooms, path, func(r room, path string) int { return strings.Compare(r.path, path) })
	if !ok {
		return room{}, false
	}
	return t.rooms[i], true
}

// imported is one import of a file.
type imported struct {
	path string
	ours string // path relative to this module; empty for a package of another module
	pos  token.Pos
}

// imports returns the imports of files. A path may occur more than once.
func imports(files []file) []imported {
	var all []imported
	for _, f := range files {
		for _, spec := range f.Imports {
			path, _ := strconv.Unquote(spec.Path.Value) // cannot fail: the parser has checked the path
			i := imported{path: path, pos: spec.Pos()}
			if ours, ok := strings.CutPrefix(path, module); ok {
				i.ours = ours
			}
			all = append(all, i)
		}
	}
	return all
}

// within reports whether path is the path of the package room. If room ends in a slash, it also
// reports true for all packages below it.
func within(path, room string) bool {
	if above, ok := strings.CutSuffix(room, "/"); ok {
		return path == above || strings.HasPrefix(path, room)
	}
	return path == room
}

func inAny(path string, rooms []string) bool {
	return slices.ContainsFunc(rooms, func(room string) bool { return within(path, room) })
}
