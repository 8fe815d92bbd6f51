package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// root is the path of the module's folder.
const root = "../.."

var rules = map[string]func(tree) []string{
	"imports":               wrongImports,
	"imports of tests":      wrongTestImports,
	"code of pure packages": impureCode,
	"unused permits":        unused,
	"floors and names":      misplaced,
	"what is shared":        unshared,
	"libraries of clouds":   linkedAgent,
	"names":                 sameNames,
	"names of commands":     misnamedCommands,
	"size of programs":      largePrograms,
	"methods of types":      crowdedTypes,
	"package comments":      uncommented,
}

func TestWalls(t *testing.T) {
	house, err := read(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	if len(house.rooms) < 10 {
		t.Fatalf("%d packages were read: that is not the module", len(house.rooms))
	}
	for name, breaches := range rules {
		t.Run(name, func(t *testing.T) {
			for _, b := range breaches(house) {
				t.Error(b)
			}
		})
	}
}

// go test uses its cached result until a file or folder that the test opened has changed. So
// TestWalls must open every folder, because a new file may appear in it, and every file, whatever
// its build constraints.
func TestGoCacheSeesWhatWallsRead(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, _ := exec.Command(self, "-test.run=^TestWalls$", "-test.testlogfile="+log).CombinedOutput() // an error means that rules are broken
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	opened := make(map[string]bool)
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "open "); ok {
			opened[filepath.Clean(path)] = true
		}
	}
	house, err := read(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{".", "bench/cluster/config"} // folders without Go files may become packages
	for _, r := range house.rooms {
		want = append(want, r.path)
		for _, f := range slices.Concat(r.code, r.tests) {
			want = append(want, house.set.Position(f.Pos()).Filename)
		}
	}
	for _, path := range want {
		if !opened[filepath.Join(root, path)] {
			t.Errorf("%s was not opened: what changes there would not be seen", path)
		}
	}
}

// made returns a tree of packages from files by path.
func made(t *testing.T, files map[string]string) tree {
	t.Helper()
	disk := make(fstest.MapFS)
	for path, text := range files {
		disk[path] = &fstest.MapFile{Data: []byte(text)}
	}
	out, err := read(disk)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// importing returns the text of a Go file that imports the given paths.
func importing(paths ...string) string {
	var text strings.Builder
	text.WriteString("package p\n")
	for _, path := range paths {
		fmt.Fprintf(&text, "import _ %q\n", path)
	}
	return text.String()
}

// Each import that breaks a rule is reported, and the permitted import next to it is not.
func TestWrongImportsAreSeen(t *testing.T) {
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
		{"extproc/pick", "crypto/rand", true},
		{"extproc/pick", "crypto/sha256", false},
		{"extproc/pick", "github.com/google/uuid", true},
		{"extproc/pick", module + "internal/profile", false},
		{"extproc/pick", module + "internal/objects", true},
		{"extproc/openai", "github.com/tidwall/gjson", false},
		{"extproc/openai", "google.golang.org/grpc/status", true},
		{"internal/objects", "net/netip", false},
		{"internal/objects", "k8s.io/apimachinery/pkg/apis/meta/v1", false},
		{"internal/objects", "k8s.io/client-go/kubernetes", true},
		{"internal/objects/kinds", "k8s.io/api/core/v1", false},
		{"internal/objects/dir", "k8s.io/api/core/v1", true},
		{"internal/objects/kube", "k8s.io/client-go/rest", false},
		{"internal/objects/source", "k8s.io/client-go/rest", true},
		{"internal/objects/source", "sigs.k8s.io/controller-runtime/pkg/client", true},
		{"extproc/fleet", "k8s.io/api/core/v1", true},
		{"extproc/fleet", "google.golang.org/grpc", true},
		{"extproc/fleet", "sync", false},
		{"extproc/stream", "google.golang.org/grpc/codes", false},
		{"extproc/scrape", "github.com/envoyproxy/go-control-plane/envoy/config/core/v3", true},
		{"headgate/simulated/llm", module + "extproc/pick", false},
		{"headgate/simulated/llm", module + "extproc/fleet", true},
		{"extproc/stream", module + "headgate/simulated/llm", true},
		{"internal/sim", module + "headgate/simulated/llm", true},
		{"api/pool", module + "internal/engine", true},
		{"extproc/fleet", module + "internal/engine", false},

		// Imports go to lower floors, never to higher floors or the same one.
		{"headgate", module + "extproc/command", false},
		{"headgate", module + "control/attach/routes", false},
		{"headgate/run", module + "extproc/command", true},
		{"bench", module + "headgate/simulated", false},
		{"extproc/stream", module + "headgate/simulated", true},
		{"extproc/stream", module + "extproc/pick", false},
		{"extproc/flow", module + "extproc/fleet", false},
		{"extproc/fleet", module + "extproc/flow", true},
		{"extproc/settings", module + "extproc/pick", false},
		{"extproc/outcome", module + "extproc/fleet", true},
		{"extproc/scrape", module + "extproc/eds", true},
		{"extproc/flow", module + "extproc/flow/queue", false},
		{"control/place", module + "control/place/decide", false},
		{"control/place", module + "control/place/modelmesh", true},
		{"control/place/placementserver", module + "control/place", true},
		{"control/metrics", module + "control/place", false},
		{"control/place", module + "control/metrics", true},
		{"control/place/loader", module + "control/place", true},
		{"control/place/decide", module + "control/place/loader", true},
		{"headgate/simulated/runtime", module + "headgate/simulated/llm", false},
		{"headgate/simulated/llm", module + "headgate/simulated/runtime", true},
		{"headgate/rig", module + "headgate/run", true},
		{"internal/objects/kube", module + "internal/objects/kinds", false},
		{"internal/objects/dir", module + "internal/objects/kube", true},
		{"internal/objects", module + "internal/objects/kinds", true},
		{"internal/engine", module + "internal/objects", true},
		{"test/leak", module + "test/golden", true},
		{"test/apiserver", module + "test/leak", false},

		// Only tests and bench may import packages below test.
		{"bench/image", module + "test/golden", false},
		{"extproc/fleet", module + "test/leak", true},
		{"control", module + "test/apiserver", true},
		{"internal/sim", module + "test/golden", true},
		{"manifests", module + "test/golden", true},
		{"api/pool", module + "api/wire", true},
	} {
		found := wrongImports(made(t, map[string]string{c.path + "/p.go": importing(c.imported)}))
		if (len(found) > 0) != c.breach {
			t.Errorf("%s importing %s: %q, want a breach: %v", c.path, c.imported, found, c.breach)
		}
	}
	// A pure package may not import an impure package of this module.
	through := made(t, map[string]string{
		"extproc/openai/p.go":  importing(module + "internal/engine"),
		"internal/engine/p.go": importing(module + "internal/helper"),
		"internal/helper/p.go": importing("os"),
	})
	if found := wrongImports(through); len(found) != 1 {
		t.Errorf("I/O behind a package of ours: %q, want one breach", found)
	}
}

// All files of the module are read, whatever their build constraints, and no other files.
func TestEveryFileIsRead(t *testing.T) {
	const code, test, nothing = "code", "test", "nothing"
	for path, want := range map[string]string{
		"extproc/pick/new.go":           code,
		"extproc/pick/new_windows.go":   code,
		"internal/objects/p_linux.go":   code,
		"control/place/decide/p_386.go": code,
		"extproc/pick/new_test.go":      test,
		"extproc/pick/_new.go":          nothing,
		"extproc/pick/.new.go":          nothing,
		"extproc/pick/new.txt":          nothing,
		"extproc/pick/testdata/new.go":  nothing,
		".cache/extproc/pick/new.go":    nothing,
		"_old/extproc/pick/new.go":      nothing,
		"tools/extproc/pick/new.go":     nothing, // tools has a go.mod, so it is another module
	} {
		for _, tag := range []string{"", "//go:build cluster\n\n", "//go:build real && !linux\n\n"} {
			house := made(t, map[string]string{path: tag + importing("os"), "tools/go.mod": "module x\n", "go.mod": "module y\n"})
			got := nothing
			for _, r := range house.rooms {
				if got = test; len(r.code) > 0 {
					got = code
				}
			}
			if got != want {
				t.Errorf("%s with %q is %s, want %s", path, tag, got, want)
			}
			found := wrongImports(house)
			if (len(found) > 0) != (want == code) {
				t.Errorf("%s with %q: %q", path, tag, found)
			}
			place := fmt.Sprintf("%s:%d: ", path, 2+strings.Count(tag, "\n"))
			for _, b := range found {
				if !strings.HasPrefix(b, place) || !strings.HasSuffix(b, "reads no files and no environment") {
					t.Errorf("%q does not begin with %q and end with the reason", b, place)
				}
			}
		}
	}
	if _, err := read(fstest.MapFS{"extproc/p.go": {Data: []byte("package")}}); err == nil {
		t.Error("a file that is no Go is read")
	}
	if _, err := read(os.DirFS("no-such-folder")); err == nil {
		t.Error("a folder that is not there is read")
	}
}

func TestImpureCodeIsSeen(t *testing.T) {
	const file = `package pick

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"
	clock "time"

	"github.com/headgate/headgate/internal/profile"
	"k8s.io/other"
)

type counter struct{ n int; all []int }

func (c *counter) add() int { c.n++; return c.n }
func (c counter) get() int { return c.n }

var (
	table  = map[string]int{"a": 1}
	list   = []int{1}
	one    counter
	many   [2]counter
	shared = &counter{}
	theirs other.Map

	anything any = shared
)

func f(local counter, in map[string]int) {
	%s
}

%s
`
	for body, want := range map[string]int{
		// Code that uses the clock or random numbers.
		"_ = time.Now()":                                              1,
		"_ = clock.Since(t)":                                          1, // package time, imported under another name
		"_ = time.Duration(3)":                                        0,
		"_ = rand.IntN(3)":                                            1,
		"_ = rand.New(rand.NewPCG(1, 2))":                             0,
		"func(r *rand.Rand) {}(nil)":                                  0,
		"_ = time.NewTimer(1)":                                        1,
		"_ = x.Now()":                                                 0,
		"func() { go func() {}() }()":                                 1,
		"time.AfterFunc(1, func() { })":                               1,
		"rand.Shuffle(1, func(int,int){})":                            1,
		"now := time.Now; _ = now":                                    1,
		"_ = map[string]any{other.Name: time.Now()}":                  1, // the type checker skips this expression
		"_ = other.Do(func() any { return time.Now() })":              1,
		"type clock struct{ Now func() }; var time clock; time.Now()": 0,

		// Code that uses goroutines or channels.
		"var c chan int; _ = c":                   1,
		"_ = make(chan int)":                      1,
		"var x other.T; x.C <- 1":                 1,
		"var x other.T; _ = <-x.C":                1,
		"var x other.T; close(x.C)":               1,
		"select {}":                               1,
		"func(<-chan int) {}(nil)":                1,
		"func(close func(int)) { close(1) }(nil)": 0,

		// Code that changes package variables.
		`table["b"] = 2`:                         1,
		`_ = table["b"]`:                         0,
		`delete(table, "a")`:                     1,
		"clear(table)":                           1,
		"clear(in)":                              0,
		"table = nil":                            1,
		"copy(list, list)":                       1,
		"copy(list[1:], local.all)":              1,
		"_ = copy(local.all, list)":              0,
		"list[0]++":                              1,
		"list = append(list, 1)":                 1,
		"_ = append(local.all, list...)":         0,
		"slices.Sort(list)":                      1,
		"slices.Sort(local.all)":                 0,
		"_ = slices.Sorted(maps.Keys(table))":    0,
		"maps.Copy(table, in)":                   1,
		"maps.Copy(in, table)":                   0,
		"one.n = 1":                              1,
		"local.n = 1":                            0,
		"many[0].all[1] = 1":                     1,
		"anything.(*counter).n = 1":              1,
		"(one).n += 1":                           1,
		"_ = one.get()":                          0,
		"_ = one.add()":                          1,
		"_ = shared.add()":                       1,
		"_ = shared.get()":                       0,
		"_ = local.add()":                        0,
		"shared.n = 1":                           1,
		"*shared = counter{}":                    1,
		"_ = &one":                               1,
		"_ = &local":                             0,
		"for one.n = range 3 {}":                 1,
		"for i, v := range list { _, _ = i, v }": 0,
		"theirs.Store(1, 2)":                     1, // an unknown method whose result is dropped
		"defer theirs.Lock()":                    1,
		"_ = theirs.Len()":                       0,
		"one := local; one.n = 1":                0, // writes only to a local copy
		"table := in; table[``] = 1":             0,
		"profile.Limit = 1":                      1, // profile.Limit is a variable of another pure package
		"profile.Limits[1] = 1":                  1,
		"_ = profile.Limit":                      0,
		"_ = map[string]any{other.Name: func() { one.n = 1 }}": 1,
	} {
		house := made(t, map[string]string{
			"extproc/pick/p.go":     fmt.Sprintf(file, body, ""),
			"internal/profile/p.go": "package profile\n\nvar Limit = 1\n\nvar Limits = []int{1}\n",
		})
		if found := impureCode(house); len(found) != want {
			t.Errorf("%s: %q, want %d", body, found, want)
		}
	}
	for declaration, want := range map[string]int{
		"var n atomic.Int64":                       1,
		"var n = new(atomic.Int64)":                1,
		"type taken struct{ n atomic.Int64 }":      0,
		"var events chan int":                      1,
		`var errNone = other.New("there is none")`: 0,
		"func init() { one.n = 1 }":                1,
		`import . "sort"`:                          1,
		"const n = 1":                              0,
	} {
		text := fmt.Sprintf(file, "", declaration)
		if strings.HasPrefix(declaration, "import") {
			text = fmt.Sprintf(strings.Replace(file, "\n\n", "\n\n"+declaration+"\n", 1), "", "")
		}
		if found := impureCode(made(t, map[string]string{"extproc/pick/p.go": text})); len(found) != want {
			t.Errorf("%s: %q, want %d", declaration, found, want)
		}
	}
}

// The rules for pure packages also hold for the packages of this module that they import. No
// package may write to a variable of a pure package or of one that a pure package imports.
func TestImpureCodeIsSeenBehindPureRooms(t *testing.T) {
	const helper = "package helper\n\nimport \"time\"\n\nvar Last = time.Time{}\n\nfunc F() { Last = time.Now() }\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int
	}{
		"alone":              {map[string]string{"extproc/openai/p.go": "package openai\n"}, 0},
		"behind a pure room": {map[string]string{"extproc/openai/p.go": importing(module + "internal/helper")}, 2},
		"two rooms behind": {map[string]string{
			"extproc/openai/p.go":  importing(module + "internal/engine"),
			"internal/engine/p.go": importing(module + "internal/helper"),
		}, 2},
		"behind another room": {map[string]string{"extproc/fleet/p.go": importing(module + "internal/helper")}, 0},
		"written by another room": {map[string]string{
			"extproc/openai/p.go": "package openai\n\nvar Limit = 1\n",
			"extproc/main.go":     "package main\n\nimport \"" + module + "extproc/openai\"\n\nfunc main() { openai.Limit = 2 }\n",
		}, 1},
	} {
		c.files["internal/helper/p.go"] = helper
		if found := impureCode(made(t, c.files)); len(found) != c.want {
			t.Errorf("%s: %q, want %d", name, found, c.want)
		}
	}
	const place = "extproc/pick/p.go:5: "
	found := impureCode(made(t, map[string]string{"extproc/pick/p.go": "package pick\n\nvar n int\n\nfunc f() { n++ }\n"}))
	if len(found) != 1 || !strings.HasPrefix(found[0], place) || !strings.HasSuffix(found[0], "a pure package has no state of its own") {
		t.Errorf("%q, want one that begins with %q and ends with the reason", found, place)
	}
}

func TestWrongTestImportsAreSeen(t *testing.T) {
	for _, c := range []struct {
		path, imported string
		breach         bool
	}{
		{"bench/e2e", "extproc/eds", true},
		{"bench/e2e", "headgate/rig", false},
		{"bench/e2e", "api/placement", false},
		{"bench/e2e", "test/apiserver", false},
		{"bench/envoy", "extproc/settings", false}, // extproc/settings is pure
		{"extproc/stream", "headgate/simulated/llm", true},
		{"extproc", "control/place", true},
		{"control/place", "headgate/simulated/llm", false},
		{"control/place", "headgate/rig", true},
		{"control/place/decide", "headgate/simulated/llm", true},
		{"internal/objects", "extproc/fleet", true},
		{"internal/objects", "extproc/pick", true},
		{"internal/objects/kube", "internal/objects/source", false}, // tests may import packages on any floor
		{"manifests", "control/place", true},
		{"manifests", "internal/objects", false},
	} {
		for _, name := range []string{"p_test.go", "cluster_test.go"} {
			text := importing(module + c.imported)
			if name == "cluster_test.go" {
				text = "//go:build cluster\n\n" + strings.Replace(text, "package p", "package p_test", 1)
			}
			found := wrongTestImports(made(t, map[string]string{c.path + "/" + name: text}))
			if (len(found) > 0) != c.breach {
				t.Errorf("%s of %s importing %s: %q, want a breach: %v", name, c.path, c.imported, found, c.breach)
			}
		}
	}
	if found := wrongTestImports(made(t, map[string]string{"bench/e2e/p.go": importing(module + "extproc/eds")})); len(found) > 0 {
		t.Errorf("code is taken for a test: %q", found)
	}
}

// An exception is reported as unused until a package uses it.
func TestUnusedPermitsAreSeen(t *testing.T) {
	nothing := made(t, nil)
	for _, c := range []struct {
		entry string
		files map[string]string // files of a package that uses the exception
	}{
		{"pure: there is no package extproc/pick", map[string]string{"extproc/pick/p.go": "package pick\n"}},
		{"impureStd: no pure room imports net/netip", map[string]string{"extproc/pick/p.go": importing("net/netip")}},
		{
			"pureModules: no pure room imports github.com/tidwall/gjson",
			map[string]string{"extproc/openai/p.go": importing("github.com/tidwall/gjson")},
		},
		{
			"confined: extproc/stream imports nothing of google.golang.org/grpc/",
			map[string]string{"extproc/stream/p.go": importing("google.golang.org/grpc/codes")},
		},
		{
			"confined: bench/ imports nothing of google.golang.org/grpc/",
			map[string]string{"bench/image/p.go": importing("google.golang.org/grpc")},
		},
		{"houses: there is no package extproc/pick", map[string]string{"extproc/pick/p.go": "package pick\n"}},
		{
			"guests: no test of control/place imports headgate/simulated/llm",
			map[string]string{"control/place/p_test.go": importing(module + "headgate/simulated/llm")},
		},
		{"reserved: there is no package internal/profile/fit", map[string]string{"internal/profile/fit/p.go": "package fit\n"}},
		{"namesakes: control/serve is no package serve", map[string]string{"control/serve/p.go": "package serve\n"}},
	} {
		reports := func(t tree) bool { return slices.Contains(unused(t), "test/walls/tables.go: "+c.entry) }
		if !reports(nothing) {
			t.Errorf("%s: it is not said where there is no package", c.entry)
		}
		if reports(made(t, c.files)) {
			t.Errorf("%s: it is said with %v", c.entry, c.files)
		}
		for path := range c.files { // use by another package must not count
			other := made(t, map[string]string{strings.Replace(path, "/", "/other/", 1): c.files[path]})
			if !strings.HasPrefix(c.entry, "confined: bench/ ") && !reports(other) {
				t.Errorf("%s: it is not said where another package uses it", c.entry)
			}
		}
	}
	renamed := made(t, map[string]string{"control/serve/p.go": "package door\n"})
	if !slices.Contains(unused(renamed), "test/walls/tables.go: namesakes: control/serve is no package serve") {
		t.Error("a package that was renamed is taken for a namesake still")
	}
}

func TestMisplacedRoomsAreSeen(t *testing.T) {
	for path, want := range map[string]string{
		"extproc/pick":          "",
		"extproc/new":           "is on no floor",
		"new":                   "is on no floor",
		"internal/util":         "does not say what a package contains",
		"control/place/a/b":     "more than two levels",
		"bench/cluster/e2e":     "",
		"internal/objects/kube": "",
	} {
		found := strings.Join(misplaced(made(t, map[string]string{path + "/p.go": "package p\n"})), "\n")
		if !strings.Contains(found, want) || (found == "") != (want == "") {
			t.Errorf("%s: %q, want %q", path, found, want)
		}
	}
}

func TestRoomsOfInternalThatOneProgramReachesAreSeen(t *testing.T) {
	shared := func(path string) string { return importing(module + path) }
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"two programs": {map[string]string{"extproc/p.go": shared("internal/new"), "control/place/p.go": shared("internal/new")}, ""},
		"through others": {map[string]string{
			"extproc/p.go": shared("extproc/eds"), "extproc/eds/p.go": shared("internal/new"),
			"bench/p.go": shared("internal/engineclient"), "control/p.go": shared("internal/engineclient"),
			"internal/engineclient/p.go": shared("internal/new"),
		}, ""},
		"no program": {nil, "no program reaches it"},
		"one":        {map[string]string{"bench/p.go": shared("internal/new")}, "only bench reaches it"},
		"one, from two rooms": {
			map[string]string{"bench/image/p.go": shared("internal/new"), "bench/p.go": shared("internal/new")},
			"only bench reaches it",
		},
		"one, and another room": {
			map[string]string{"bench/p.go": shared("internal/new"), "manifests/p.go": shared("internal/new")},
			"only bench reaches it",
		},
		"one, and another's tests": {
			map[string]string{"bench/p.go": shared("internal/new"), "control/p_test.go": shared("internal/new")}, "only bench reaches it",
		},
	} {
		files := map[string]string{"internal/new/p.go": "package p\n"}
		maps.Copy(files, c.files)
		found := strings.Join(unshared(made(t, files)), "\n")
		if !strings.Contains(found, c.want) || (found == "") != (c.want == "") {
			t.Errorf("%s: %q, want %q", name, found, c.want)
		}
	}
	for path, breach := range map[string]bool{"internal/profile/fit": false, "internal/new": true, "test/new": false, "api/new": false} {
		if found := unshared(made(t, map[string]string{path + "/p.go": "package p\n"})); (len(found) > 0) != breach {
			t.Errorf("%s: %q, want a breach: %v", path, found, breach)
		}
	}
	// A package that two programs import needs no exception.
	both := made(t, map[string]string{
		"internal/profile/fit/p.go": "package p\n", "extproc/pick/p.go": shared("internal/profile/fit"),
		"bench/p.go": shared("internal/profile/fit"),
	})
	if !slices.Contains(unused(both), "test/walls/tables.go: reserved: internal/profile/fit is reached by extproc and bench") {
		t.Errorf("an exception that nobody needs is not seen: %q", unused(both))
	}
}

func TestLinksToTheAgentAreSeen(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  bool
	}{
		"through control":        {map[string]string{"headgate/p.go": importing(module + "control/command")}, true},
		"only control's program": {map[string]string{"headgate/p.go": importing(module + "extproc/command")}, false},
		"a test": {map[string]string{
			"headgate/p.go": importing(module + "extproc/command"), "headgate/p_test.go": importing(module + "control/command"),
		}, false},
	} {
		files := map[string]string{
			"control/command/p.go": importing(module + "control/agent/storage"), "control/agent/storage/p.go": "package p\n",
		}
		maps.Copy(files, c.files)
		if found := linkedAgent(made(t, files)); (len(found) > 0) != c.want {
			t.Errorf("%s: %q, want a breach: %v", name, found, c.want)
		}
	}
}

func TestPackagesOfOneNameAreSeen(t *testing.T) {
	for _, c := range []struct {
		name, path, other string
		breach            bool
	}{
		{"queue", "extproc/flow/queue", "control/queue", true},
		{"queue", "extproc/flow/queue", "extproc/flow", true}, // compared with the name of the package, not of its folder
		{"main", "extproc", "control", false},
		{"engine", "bench/engine", "internal/engine", true},
		{"serve", "control/serve", "extproc/serve", false},
		{"serve", "control/serve", "bench/serve", true},
		{"serve", "extproc/serve", "internal/serve", true},
	} {
		text := "package " + c.name + "\n"
		tests := "package " + c.name + "_test\n"
		house := made(t, map[string]string{c.path + "/p.go": text, c.other + "/p.go": text, c.path + "/p_test.go": tests})
		if found := sameNames(house); (len(found) > 0) != c.breach {
			t.Errorf("%s and %s, both package %s: %q, want a breach: %v", c.path, c.other, c.name, found, c.breach)
		}
	}
	onlyTests := made(t, map[string]string{"extproc/p_test.go": "package queue_test\n", "extproc/flow/queue/p.go": "package queue\n"})
	if found := sameNames(onlyTests); len(found) != 1 {
		t.Errorf("a package of tests: %q, want one breach", found)
	}
}

func TestMisnamedCommandsAreSeen(t *testing.T) {
	const table = "package main\nvar all = []cli.Command{{Name: \"routes\", Run: routes.Command}, {Name: \"explain\", Run: %s.Command}}\n"
	for from, want := range map[string]int{"explain": 0, "show": 1} {
		if found := misnamedCommands(made(t, map[string]string{"headgate/p.go": fmt.Sprintf(table, from)})); len(found) != want {
			t.Errorf("%s: %q, want %d", from, found, want)
		}
	}
}

func TestLargeProgramsAreSeen(t *testing.T) {
	lines := func(n int) string { return "package main\n" + strings.Repeat("\n", n-1) }
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"as large as may be": {map[string]string{"bench/main.go": lines(150), "bench/flags.go": lines(200)}, ""},
		"main.go":            {map[string]string{"bench/main.go": lines(151)}, "bench/main.go has 151 lines"},
		"all together": {
			map[string]string{"bench/main.go": lines(150), "bench/flags.go": lines(201)},
			"has 351 lines, and may have 350",
		},
		"tests do not count":  {map[string]string{"bench/main.go": lines(150), "bench/flags_test.go": lines(501)}, ""},
		"rooms do not count":  {map[string]string{"bench/main.go": lines(150), "headgate/simulated/llm/main.go": lines(501)}, ""},
		"for another system":  {map[string]string{"bench/main.go": lines(150), "bench/flags_windows.go": lines(201)}, "has 351 lines"},
		"each has its bounds": {map[string]string{"extproc/flags.go": lines(1)}, "package main of extproc"},
	} {
		found := strings.Join(largePrograms(made(t, c.files)), "\n")
		if !strings.Contains(found, c.want) || (found == "") != (c.want == "") {
			t.Errorf("%s: %q, want %q", name, found, c.want)
		}
	}
}

func TestCrowdedTypesAreSeen(t *testing.T) {
	methods := func(of, prefix string, n int) string {
		var out strings.Builder
		for i := range n {
			fmt.Fprintf(&out, "func (x *%s) %s%d() {}\n", of, prefix, i)
		}
		return out.String()
	}
	for name, c := range map[string]struct {
		text string
		want int
	}{
		"as many as may be":    {"package p\ntype T struct{}\n" + methods("T", "m", 60), 0},
		"one more":             {"package p\ntype T struct{}\n" + methods("T", "m", 61), 1},
		"an embedded one's":    {"package p\ntype U struct{}\ntype T struct{ U }\n" + methods("T", "m", 30) + methods("U", "n", 31), 1},
		"that of another room": {"package p\nimport \"github.com/headgate/headgate/q\"\ntype T struct{ q.U }\n" + methods("T", "m", 40), 1},
		"those of a field":     {"package p\ntype U struct{}\ntype T struct{ u U }\n" + methods("T", "m", 40) + methods("U", "n", 40), 0},
	} {
		other := "package q\ntype U struct{}\n" + methods("U", "N", 30)
		if found := crowdedTypes(made(t, map[string]string{"p/a.go": c.text, "q/a.go": other})); len(found) != c.want {
			t.Errorf("%s: %q, want %d", name, found, c.want)
		}
	}
}

func TestPackagesWithoutACommentAreSeen(t *testing.T) {
	const with, without = "// Package p is one.\npackage p\n", "package p\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int
	}{
		"one":                {map[string]string{"p/a.go": with, "p/b.go": without}, 0},
		"none":               {map[string]string{"p/a.go": without, "p/b_test.go": with}, 1},
		"two":                {map[string]string{"p/a.go": with, "p/b_windows.go": with}, 1},
		"only tests":         {map[string]string{"p/a_test.go": with}, 0},
		"a line for the tag": {map[string]string{"p/a.go": "//go:build linux\n\n" + without}, 1},
	} {
		if found := uncommented(made(t, c.files)); len(found) != c.want {
			t.Errorf("%s: %q, want %d", name, found, c.want)
		}
	}
}

// Only tests in which the race detector cannot find anything run without it. A package is in
// neither list if it is endToEnd or all its tests have build tags.
func TestWhichPackagesNeedTheRaceDetector(t *testing.T) {
	const plain, tagged = "package p\n\nimport \"testing\"\n", "//go:build cluster\n\npackage p\n"
	for name, c := range map[string]struct {
		files      map[string]string
		with, bare bool
	}{
		"a pure package": {
			map[string]string{"extproc/openai/p.go": "package p\n", "extproc/openai/p_test.go": plain},
			false, true,
		},
		"a pure package with counters": {map[string]string{
			"extproc/openai/p.go":      importing("sync/atomic"),
			"extproc/openai/p_test.go": plain,
		}, true, false},
		"another package": {
			map[string]string{"extproc/openai2/p.go": "package p\n", "extproc/openai2/p_test.go": plain},
			true, false,
		},
		"one with simulations": {map[string]string{
			"bench/fleet/p.go":      "package p\n",
			"bench/fleet/p_test.go": importing(module + "test/race"),
		}, true, true},
		"one with tests of a tag alone": {map[string]string{"bench/fleet/p_test.go": tagged}, false, false},
		"one without tests":             {map[string]string{"bench/fleet/p.go": "package p\n"}, false, false},
		"end-to-end tests":              {map[string]string{endToEnd + "/p_test.go": plain}, false, false},
		"what a pure package imports": {
			map[string]string{
				"extproc/openai/p.go": importing(module + "internal/new"), "internal/new/p.go": "package p\n",
				"internal/new/p_test.go": plain,
			}, false, true,
		},
	} {
		house := made(t, c.files)
		if with, bare := len(concurrent(house)) == 1, len(sequential(house)) == 1; with != c.with || bare != c.bare {
			t.Errorf("%s: tested with the race detector: %t, want %t; without: %t, want %t", name, with, c.with, bare, c.bare)
		}
	}
	slow := made(t, map[string]string{"api/a/p_test.go": plain, "api/b/p_test.go": importing(module + longest), "api/c/p_test.go": plain})
	if order := concurrent(slow); !slices.Equal(order, []string{"api/b", "api/a", "api/c"}) {
		t.Errorf("the order is %q: want packages with an API server first", order)
	}
	house, err := read(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	all := slices.Concat(concurrent(house), sequential(house), []string{endToEnd})
	for _, r := range house.rooms {
		if r.hasPlainTests() && !slices.Contains(all, r.path) {
			t.Errorf("no list has the tests of %s", r.path)
		}
	}
}
