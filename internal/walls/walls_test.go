package walls

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// listed is what go list says of a package.
type listed struct {
	Dir, ImportPath, Name string
	Imports, GoFiles      []string
	TestGoFiles           []string
	XTestGoFiles          []string
}

// list returns every package of the module.
func list(t *testing.T) []listed {
	t.Helper()
	command := exec.Command("go", "list", "-json=Dir,ImportPath,Name,Imports,GoFiles,TestGoFiles,XTestGoFiles", "./...")
	command.Dir = "../.."
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []listed
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 10 {
		t.Fatalf("go list knows %d packages", len(all))
	}
	return all
}

func (p listed) path() string { return strings.TrimPrefix(p.ImportPath, module) }

func TestNoImportGoesThroughAWall(t *testing.T) {
	var all []pkg
	for _, p := range list(t) {
		all = append(all, pkg{p.path(), p.Imports})
	}
	for _, b := range breaches(all) {
		t.Error(b)
	}
	for _, path := range pure {
		if !slices.ContainsFunc(all, func(p pkg) bool { return p.path == path }) {
			t.Errorf("the pure room %s does not exist", path)
		}
	}
}

func TestNothingHiddenComesIntoAPureRoom(t *testing.T) {
	for _, p := range list(t) {
		if !slices.Contains(pure, p.path()) {
			continue
		}
		for _, name := range p.GoFiles {
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, found := range hiddenInputs(set, file) {
				t.Error(found)
			}
		}
	}
}

func TestEveryPackageHasOnePackageComment(t *testing.T) {
	for _, p := range list(t) {
		files := p.GoFiles
		if len(files) == 0 { // only tests
			files = slices.Concat(p.TestGoFiles, p.XTestGoFiles)
		}
		var with []string
		for _, name := range files {
			comment, err := packageComment(token.NewFileSet(), filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if comment != "" {
				with = append(with, name)
			}
		}
		if len(with) != 1 {
			t.Errorf("%s has %d package comments, in %v: want exactly one", p.path(), len(with), with)
		}
	}
}

func TestRoomsAreNamedAndStandWhereTheyBelong(t *testing.T) {
	for _, p := range list(t) {
		path := p.path()
		steps := strings.Split(path, "/")
		for _, name := range []string{"util", "utils", "common", "base", "types", "helpers", "manager", "misc", "pkg", "cmd"} {
			if slices.Contains(steps, name) {
				t.Errorf("%s: a room called %s says nothing of what is in it", path, name)
			}
		}
		if program(path) != "" && len(steps) > 3 {
			t.Errorf("%s is more than two levels below its program", path)
		}
		if p.Name == "main" && len(steps) == 1 {
			text, err := os.ReadFile(filepath.Join(p.Dir, "main.go"))
			if err != nil {
				t.Error(err)
			}
			if n := bytes.Count(text, []byte("\n")); n > 150 {
				t.Errorf("%s/main.go has %d lines: wiring needs at most 150", path, n)
			}
		}
	}
}

// The walls must hold: each breach below must be seen, and its fair neighbour let through.
func TestBreachesAreSeen(t *testing.T) {
	for _, c := range []struct {
		path, imported string
		breach         bool
	}{
		{"extproc/pick", "net/http", true},
		{"extproc/pick", "sync", true},
		{"extproc/pick", "sync/atomic", false},
		{"extproc/pick", "os", true},
		{"extproc/pick", "log/slog", true},
		{"extproc/pick", "context", true},
		{"extproc/pick", "github.com/google/uuid", true},
		{"extproc/pick", module + "internal/profile", false},
		{"extproc/pick", module + "internal/objects", true},
		{"extproc/openai", "github.com/tidwall/gjson", false},
		{"extproc/openai", "google.golang.org/grpc/status", true},
		{"internal/objects", "net/netip", false},
		{"internal/objects", "k8s.io/apimachinery/pkg/apis/meta/v1", false},
		{"internal/objects", "k8s.io/client-go/kubernetes", true},
		{"internal/objects/dir", "k8s.io/api/core/v1", false},
		{"internal/objects/kube", "k8s.io/client-go/rest", false},
		{"internal/objects/source", "k8s.io/client-go/rest", true},
		{"internal/objects/source", "sigs.k8s.io/controller-runtime/pkg/client", true},
		{"extproc/fleet", "k8s.io/api/core/v1", true},
		{"extproc/fleet", "google.golang.org/grpc", true},
		{"extproc/fleet", "sync", false},
		{"extproc/stream", "google.golang.org/grpc/codes", false},
		{"extproc/scrape", "github.com/envoyproxy/go-control-plane/envoy/config/core/v3", true},
		{"bench/engine", module + "extproc/pick", false},
		{"bench/engine", module + "extproc/fleet", true},
		{"extproc/stream", module + "bench/engine", true},
		{"internal/sim", module + "bench/engine", true},
		{"api/pool", module + "internal/engine", true},
		{"extproc/fleet", module + "internal/engine", false},
	} {
		found := breaches([]pkg{{c.path, []string{c.imported}}})
		if (len(found) > 0) != c.breach {
			t.Errorf("%s importing %s: breaches %v, want %v", c.path, c.imported, found, c.breach)
		}
	}
	// A pure room is not purer than what it imports of ours.
	through := []pkg{{"extproc/openai", []string{module + "internal/engine"}}, {"internal/engine", []string{module + "internal/helper"}}, {"internal/helper", []string{"os"}}}
	if found := breaches(through); len(found) != 1 {
		t.Errorf("I/O behind a package of ours: breaches %v, want one", found)
	}
}

func TestHiddenInputsAreSeen(t *testing.T) {
	for body, want := range map[string]int{
		"time.Now()":                       1,
		"clock.Since(t)":                   1, // time by another name
		"time.Duration(3)":                 0,
		"rand.IntN(3)":                     1,
		"rand.New(rand.NewPCG(1, 2))":      0,
		"func(r *rand.Rand) {}(nil)":       0,
		"time.NewTimer(1)":                 1,
		"x.Now()":                          0,
		"func() { go func() {}() }()":      1,
		"time.AfterFunc(1, func() { })":    1,
		"rand.Shuffle(1, func(int,int){})": 1,
	} {
		text := "package p\nimport (\n\"time\"\nclock \"time\"\n\"math/rand/v2\"\n)\nvar _ = " + body + "\n"
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, "p.go", text, 0)
		if err != nil {
			t.Fatal(err)
		}
		if found := hiddenInputs(set, file); len(found) != want {
			t.Errorf("%s: %v, want %d", body, found, want)
		}
	}
}
