package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"path"
	"regexp"
	"slices"
	"strings"
)

// clocks are the functions of package time that read the clock or wait.
var clocks = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

// randomTypes are the types of math/rand, which do not use the global generator. Neither do
// functions whose names begin with New.
var randomTypes = []string{"Rand", "Source", "Source64", "PCG", "ChaCha8", "Zipf"}

// writers are functions of the standard library that write to their first argument.
var writers = map[string][]string{
	"maps":   {"Copy", "DeleteFunc", "Insert"},
	"slices": {"Compact", "CompactFunc", "Delete", "DeleteFunc", "Insert", "Replace", "Reverse", "Sort", "SortFunc", "SortStableFunc"},
	"sort":   {"Float64s", "Ints", "Slice", "SliceStable", "Sort", "Stable", "Strings"},
}

// impureCode returns the places in pure packages that use a clock, global randomness, other
// goroutines, or variables that change. It also checks the packages that pure packages import.
func impureCode(t tree) (breaches []string) {
	info := resolve(t)
	isPure := closure(t)
	for _, r := range t.rooms {
		for _, f := range r.code {
			s := sight{info, f.File, isPure, func(p token.Pos, format string, args ...any) {
				breaches = append(breaches, t.at(p)+": "+fmt.Sprintf(format, args...))
			}}
			ast.Inspect(f.File, func(node ast.Node) bool {
				s.writes(node)
				if isPure[r.path] {
					s.hidden(node)
					s.goroutines(node)
				}
				return true
			})
			if isPure[r.path] {
				s.counters()
			}
		}
	}
	return breaches
}

// sight has what the checks need to know about one file.
type sight struct {
	*types.Info
	file   *ast.File
	isPure map[string]bool // by path of a package
	report func(p token.Pos, format string, args ...any)
}

// hidden reports uses of the clock and of global randomness.
func (s sight) hidden(node ast.Node) {
	switch node := node.(type) {
	case *ast.ImportSpec:
		if node.Name != nil && node.Name.Name == "." {
			s.report(node.Pos(), "a pure package imports %s with a dot: names must show their package", node.Path.Value)
		}
	case *ast.SelectorExpr:
		name := node.Sel.Name
		switch from := s.imported(node.X); {
		case from == "time" && slices.Contains(clocks, name):
			s.report(node.Pos(), "time.%s in a pure package: pass the time as an argument", name)
		case within(from, "math/rand/") && !strings.HasPrefix(name, "New") && !slices.Contains(randomTypes, name):
			s.report(node.Pos(), "rand.%s in a pure package: pass the random source as an argument", name)
		}
	}
}

// goroutines reports code that starts goroutines or communicates with them.
func (s sight) goroutines(node ast.Node) {
	const why = "it runs in its caller's goroutine and does not wait"
	switch node := node.(type) {
	case *ast.GoStmt:
		s.report(node.Pos(), "a go statement in a pure package: "+why)
	case *ast.ChanType:
		s.report(node.Pos(), "a channel in a pure package: "+why)
	case *ast.SendStmt:
		s.report(node.Pos(), "a pure package sends to a channel: "+why)
	case *ast.SelectStmt:
		s.report(node.Pos(), "a pure package selects: "+why)
	case *ast.UnaryExpr:
		if node.Op == token.ARROW {
			s.report(node.Pos(), "a pure package receives from a channel: "+why)
		}
	case *ast.CallExpr:
		if s.builtin(node.Fun) == "close" {
			s.report(node.Pos(), "a pure package closes a channel: "+why)
		}
	}
}

// counters reports package variables whose types are from sync/atomic.
func (s sight) counters() {
	for _, d := range s.file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		ast.Inspect(g, func(node ast.Node) bool {
			if x, ok := node.(*ast.SelectorExpr); ok && within(s.imported(x.X), "sync/") {
				s.report(x.Pos(), "a package variable of type %s.%s in a pure package: a pure package has no state of its own",
					path.Base(s.imported(x.X)), x.Sel.Name)
			}
			return true
		})
	}
}

// writes reports code that may write to a variable of a pure package. It does not follow copies: it
// misses a function that writes to a table which it got as an argument.
func (s sight) writes(node ast.Node) {
	written := func(x ast.Expr, how string) {
		if v := s.variable(x); v != nil {
			if room := strings.TrimPrefix(v.Pkg().Path(), module); s.isPure[room] {
				s.report(x.Pos(), "%s %s, a variable of %s: a pure package has no state of its own", how, v.Name(), room)
			}
		}
	}
	called := func(call *ast.CallExpr, how string) { // for a call whose result is dropped
		if x, ok := call.Fun.(*ast.SelectorExpr); ok {
			written(x.X, "a call of "+x.Sel.Name+how)
		}
	}
	switch node := node.(type) {
	case *ast.AssignStmt:
		for _, x := range node.Lhs {
			written(x, "an assignment to")
		}
	case *ast.IncDecStmt:
		written(node.X, "an assignment to")
	case *ast.RangeStmt:
		written(node.Key, "an assignment to")
		written(node.Value, "an assignment to")
	case *ast.UnaryExpr:
		if node.Op == token.AND {
			written(node.X, "the address of")
		}
	case *ast.SelectorExpr:
		if s.writesReceiver(node) {
			written(node.X, node.Sel.Name+", a method of pointers, on")
		}
	case *ast.ExprStmt:
		if call, ok := node.X.(*ast.CallExpr); ok {
			called(call, ", for its effect, on")
		}
	case *ast.DeferStmt:
		called(node.Call, ", for its effect, on")
	case *ast.CallExpr:
		if len(node.Args) > 0 && s.isWriter(node.Fun) {
			written(node.Args[0], "what writes to its argument gets")
		}
	}
}

func (s sight) isWriter(fun ast.Expr) bool {
	if x, ok := fun.(*ast.SelectorExpr); ok {
		return slices.Contains(writers[s.imported(x.X)], x.Sel.Name)
	}
	return slices.Contains([]string{"clear", "copy", "delete"}, s.builtin(fun))
}

// object returns what a name in the file refers to. The type checker does not know the packages of
// other modules, so it skips some expressions. In these, object looks the name up in the scope of
// the file.
func (s sight) object(x ast.Expr) types.Object {
	id, ok := x.(*ast.Ident)
	if !ok {
		return nil
	}
	if o, ok := s.Uses[id]; ok {
		return o
	}
	if _, ok := s.Defs[id]; ok {
		return nil // x declares this name
	}
	_, o := s.Scopes[s.file].LookupParent(id.Name, token.NoPos)
	return o
}

// imported returns the path of the package that an expression names, or an empty string.
func (s sight) imported(x ast.Expr) string {
	if p, ok := s.object(x).(*types.PkgName); ok {
		return p.Imported().Path()
	}
	return ""
}

// builtin returns the name of the builtin function that an expression names, or an empty string.
func (s sight) builtin(x ast.Expr) string {
	if b, ok := s.object(x).(*types.Builtin); ok {
		return b.Name()
	}
	return ""
}

// variable returns the package variable of which an expression is all or a part; nil if there is
// none.
func (s sight) variable(x ast.Expr) *types.Var {
	for {
		switch y := x.(type) {
		case *ast.Ident:
			return ofPackage(s.object(y))
		case *ast.SelectorExpr:
			if p, ok := s.object(y.X).(*types.PkgName); ok {
				return ofPackage(p.Imported().Scope().Lookup(y.Sel.Name))
			}
			x = y.X
		case *ast.ParenExpr:
			x = y.X
		case *ast.IndexExpr:
			x = y.X
		case *ast.SliceExpr:
			x = y.X
		case *ast.StarExpr:
			x = y.X
		case *ast.TypeAssertExpr:
			x = y.X
		default:
			return nil
		}
	}
}

func ofPackage(o types.Object) *types.Var {
	if v, ok := o.(*types.Var); ok && v.Pkg() != nil && v.Parent() == v.Pkg().Scope() {
		return v
	}
	return nil
}

// writesReceiver reports whether the method that x names may write to its receiver.
func (s sight) writesReceiver(x *ast.SelectorExpr) bool {
	of := s.Selections[x]
	if of == nil || of.Kind() != types.MethodVal {
		return false
	}
	_, byPointer := of.Obj().Type().(*types.Signature).Recv().Type().(*types.Pointer)
	return byPointer
}

// resolve returns what the names in a tree refer to.
func resolve(t tree) *types.Info {
	info := &types.Info{
		Uses: make(map[*ast.Ident]types.Object), Defs: make(map[*ast.Ident]types.Object),
		Selections: make(map[*ast.SelectorExpr]*types.Selection), Scopes: make(map[ast.Node]*types.Scope),
	}
	i := importer{t, info, make(map[string]*types.Package)}
	for _, r := range t.rooms {
		_, _ = i.Import(module + r.path) // Import never fails
	}
	return info
}

// importer type-checks packages of this module when they are imported. It knows only the paths of
// other packages, so it ignores type errors.
type importer struct {
	tree
	info *types.Info
	done map[string]*types.Package
}

// version matches the last element of an import path if it is not the name of the package, such as
// v3.
var version = regexp.MustCompile(`^v\d+$`)

func (i importer) Import(at string) (*types.Package, error) {
	if at == "unsafe" {
		return types.Unsafe, nil
	}
	if p := i.done[at]; p != nil {
		return p, nil
	}
	name := path.Base(at)
	if version.MatchString(name) {
		name = path.Base(path.Dir(at))
	}
	i.done[at] = types.NewPackage(at, name)
	i.done[at].MarkComplete()
	if ours, ok := strings.CutPrefix(at, module); ok {
		if r, there := i.room(ours); there {
			var files []*ast.File
			for _, f := range r.code {
				files = append(files, f.File)
			}
			config := types.Config{Importer: i, Error: func(error) {}}
			i.done[at], _ = config.Check(at, i.set, files, i.info)
		}
	}
	return i.done[at], nil
}
