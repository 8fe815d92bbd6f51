// Package walls holds Headgate's architecture as tests: which room may use what, and why. A failing test names the rule
// and its reason. docs/architecture.md tells the rules in words.
package walls

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
)

// module is the path before every package of ours.
const module = "github.com/headgate/headgate/"

// pkg is a package of ours: its path below the module, and the packages that it imports itself, tests apart.
type pkg struct {
	path    string
	imports []string
}

// pure are the rooms whose code is functions of its arguments: what they decide can be tested by giving and comparing,
// and simulated by any program. They, and those of our packages that they import, do no I/O, wait for nothing and lock
// nothing.
var pure = []string{
	"extproc/openai", "extproc/route", "extproc/pick", "extproc/settings", "extproc/flow/queue",
	"control/place/decide",
	"internal/engine", "internal/objects", "internal/profile", "internal/sim",
}

// impureStd are the packages of the standard library that a pure room may not import, with what is let through.
var impureStd = []struct {
	path   string
	except []string
	why    string
}{
	{"net", []string{"net/netip", "net/url"}, "a pure room reaches no network"}, // types and parsing
	{"os", nil, "a pure room reads no files and no environment"},
	{"log", nil, "a pure room returns what it has to say"},
	{"context", nil, "a pure room waits for nothing"},
	{"sync", []string{"sync/atomic"}, "a pure room shares nothing but counters"},
	{"syscall", nil, "a pure room asks the system for nothing"},
	{"io/fs", nil, "a pure room reads no files"},
}

// pureModules are the modules beyond the standard library that a pure room may import: types, and readers of bytes.
var pureModules = []string{
	"github.com/tidwall/gjson",                      // reads JSON
	"sigs.k8s.io/yaml",                              // reads YAML
	"k8s.io/apimachinery/pkg/apis/meta/v1",          // types
	"k8s.io/apimachinery/pkg/api/resource",          // types
	"k8s.io/apimachinery/pkg/runtime",               // what deepcopy and a client's scheme are written in
	"k8s.io/apimachinery/pkg/runtime/schema",        // types
	"k8s.io/apimachinery/pkg/util/validation",       // checks names
	"k8s.io/apimachinery/pkg/util/validation/field", // names faults
	"github.com/prometheus/client_model/go",         // types
	"github.com/prometheus/common/expfmt",           // reads metrics pages
	"github.com/prometheus/common/model",            // types
	"github.com/envoyproxy/go-control-plane/envoy/", // types
	"google.golang.org/protobuf/",                   // types
}

// confined are libraries that only some rooms may import.
var confined = []struct {
	library, why string
	rooms        []string // paths, or with a slash at the end everything below
}{
	{
		"google.golang.org/grpc", "the wire is spoken at the edge",
		[]string{"extproc", "extproc/stream", "extproc/outcome", "extproc/placement", "extproc/meter", "control", "control/attach/serve", "control/place/load", "control/place/stream", "control/place/mesh", "control/agent", "api/", "bench/"},
	},
	{
		"github.com/envoyproxy/go-control-plane", "Envoy's words stay where Envoy is spoken to",
		// extproc/eds writes a file that Envoy reads.
		[]string{"extproc", "extproc/stream", "extproc/outcome", "extproc/eds", "extproc/placement", "extproc/meter", "control", "control/attach/envoy", "control/attach/serve", "api/", "bench/"},
	},
	{
		"k8s.io/client-go", "an object's source is known to one room",
		[]string{"internal/objects/kube", "internal/apiserver", "control/pods", "extproc", "control", "bench", "bench/cluster"},
	},
	{
		"sigs.k8s.io/controller-runtime", "an object's source is known to one room",
		[]string{"internal/objects/kube", "internal/apiserver", "control/pods", "extproc", "control", "bench", "bench/cluster"},
	},
	{
		"k8s.io/api/", "other rooms know pods as objects.Pod; control has objects of its own",
		[]string{"internal/objects/dir", "internal/objects/kube", "internal/objects/pods", "internal/apiserver", "control", "control/pods"},
	},
}

// programs are the folders that end in a program each. What does I/O in one is of no use to another.
var programs = []string{"extproc", "control", "bench"}

func within(path, room string) bool {
	if below, ok := strings.CutSuffix(room, "/"); ok {
		return path == below || strings.HasPrefix(path, room)
	}
	return path == room
}

func inAny(path string, rooms []string) bool {
	return slices.ContainsFunc(rooms, func(room string) bool { return within(path, room) })
}

// program is the folder of the program that a package belongs to, or empty.
func program(path string) string {
	first, _, _ := strings.Cut(path, "/")
	if slices.Contains(programs, first) {
		return first
	}
	return ""
}

// breaches returns every import that goes through a wall.
func breaches(all []pkg) []string {
	var found []string
	report := func(p pkg, imported, why string) {
		found = append(found, fmt.Sprintf("%s imports %s: %s", p.path, imported, why))
	}
	isPure := closure(all)
	for _, p := range all {
		for _, imported := range p.imports {
			ours, isOurs := strings.CutPrefix(imported, module)
			switch {
			case isOurs:
				if why := wrongNeighbour(p.path, ours); why != "" {
					report(p, ours, why)
				}
			case isPure[p.path]:
				if why := impure(imported); why != "" {
					report(p, imported, why)
				}
			}
			for _, c := range confined {
				if (imported == c.library || strings.HasPrefix(imported, strings.TrimSuffix(c.library, "/")+"/")) && !inAny(p.path, c.rooms) {
					report(p, imported, c.why)
				}
			}
		}
	}
	return found
}

// closure is the pure rooms with those of our packages that they import.
func closure(all []pkg) map[string]bool {
	byPath := make(map[string]pkg)
	for _, p := range all {
		byPath[p.path] = p
	}
	set := make(map[string]bool)
	var visit func(path string)
	visit = func(path string) {
		if set[path] {
			return
		}
		set[path] = true
		for _, imported := range byPath[path].imports {
			if ours, ok := strings.CutPrefix(imported, module); ok {
				visit(ours)
			}
		}
	}
	for _, path := range pure {
		visit(path)
	}
	return set
}

// wrongNeighbour says why one package of ours may not import another; empty if it may.
func wrongNeighbour(path, imported string) string {
	switch from, to := program(path), program(imported); {
	case path == "extproc/pick" && imported != "internal/profile":
		return "the core owns the types that it decides over; others build them"
	case within(path, "api/") && !within(imported, "api/"):
		return "api has no logic"
	case to == "":
		return ""
	case from == "":
		return "what all programs share knows none of them"
	case from != to && !slices.Contains(pure, imported):
		return "programs meet in api and internal, and in pure rooms"
	}
	return ""
}

// impure says why a pure room may not import a package that is not ours; empty if it may.
func impure(imported string) string {
	first, _, _ := strings.Cut(imported, "/")
	if strings.Contains(first, ".") {
		if !slices.ContainsFunc(pureModules, func(m string) bool {
			return imported == m || strings.HasSuffix(m, "/") && strings.HasPrefix(imported, m)
		}) {
			return "a pure room imports only the modules that are known to do no I/O"
		}
		return ""
	}
	for _, rule := range impureStd {
		if !slices.Contains(rule.except, imported) && (imported == rule.path || strings.HasPrefix(imported, rule.path+"/")) {
			return rule.why
		}
	}
	return ""
}

// clocks are the functions of package time that read or wait for the clock.
var clocks = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

// makers are the functions of math/rand/v2 that use no global generator.
var makers = []string{"New", "NewPCG", "NewChaCha8", "NewZipf"}

// hiddenInputs returns the places in a file of a pure room where something comes in that is no argument: the clock,
// global randomness, another goroutine.
func hiddenInputs(set *token.FileSet, file *ast.File) []string {
	names := make(map[string]string) // of imports, by the name they go by in the file
	for _, spec := range file.Imports {
		path, _ := strconv.Unquote(spec.Path.Value) // it was parsed
		name := path[strings.LastIndex(path, "/")+1:]
		if strings.HasPrefix(path, "math/rand") {
			name = "rand"
		}
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = path
	}
	var found []string
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = append(found, fmt.Sprintf("%s: a go statement in a pure room", set.Position(n.Pos())))
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			if !ok {
				break
			}
			switch path := names[x.Name]; {
			case path == "time" && slices.Contains(clocks, n.Sel.Name):
				found = append(found, fmt.Sprintf("%s: time.%s in a pure room: time is an argument", set.Position(n.Pos()), n.Sel.Name))
			case strings.HasPrefix(path, "math/rand") && ast.IsExported(n.Sel.Name) && isFunction(n.Sel.Name) && !slices.Contains(makers, n.Sel.Name):
				found = append(found, fmt.Sprintf("%s: rand.%s in a pure room: randomness is an argument", set.Position(n.Pos()), n.Sel.Name))
			}
		}
		return true
	})
	return found
}

// isFunction says whether a name of math/rand is a function and no type.
func isFunction(name string) bool {
	return !slices.Contains([]string{"Rand", "Source", "PCG", "ChaCha8", "Zipf"}, name)
}

// packageComment returns the package comment of a file, or empty.
func packageComment(set *token.FileSet, path string) (string, error) {
	file, err := parser.ParseFile(set, path, nil, parser.PackageClauseOnly|parser.ParseComments)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(file.Doc.Text()), nil
}
