package dir_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/dir"
	"github.com/headgate/headgate/internal/objects/kinds"
)

const pool = `apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: base}
spec: {selector: {matchLabels: {app: llama}}, targetPorts: [{number: 8000}]}
`

func route(name string) string {
	return "apiVersion: inference.x-k8s.io/v1alpha1\nkind: LLMRoute\nmetadata: {name: " + name + "}\nspec: {backendRefs: [{name: base}]}\n"
}

// follower runs a Source on a folder and records what it publishes.
type follower struct {
	t       *testing.T
	folder  string
	worlds  chan *objects.World
	refused chan int
	done    chan error
	log     lockedBuffer
}

// lockedBuffer is a log that can be read while it is written.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func follow(t *testing.T, folder string) *follower { return followKinds(t, folder, kinds.All()) }

// followKinds is follow with the kinds of a table.
func followKinds(t *testing.T, folder string, table []kinds.Kind) *follower {
	f := &follower{t: t, folder: folder, worlds: make(chan *objects.World, 100), refused: make(chan int, 100), done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	source := dir.New(folder, table, slog.New(slog.NewTextHandler(&f.log, nil)), func(faults []string) {
		f.refused <- len(faults)
	})
	go func() { f.done <- source.Run(ctx, func(s objects.Set) { f.worlds <- objects.Build(s) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-f.done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return f
}

// await returns the first World that has exactly these models.
func (f *follower) await(models string) *objects.World {
	f.t.Helper()
	return f.awaitThat("the models "+models, func(w *objects.World) bool { return names(w) == models })
}

// awaitThat returns the first World that satisfies a condition.
func (f *follower) awaitThat(what string, is func(*objects.World) bool) *objects.World {
	f.t.Helper()
	limit := time.After(10 * time.Second)
	for {
		select {
		case w := <-f.worlds:
			if is(w) {
				return w
			}
		case <-limit:
			f.t.Fatalf("no World with %s came; the log says:\n%s", what, f.log.String())
		}
	}
}

func (f *follower) awaitRefused(want int) {
	f.t.Helper()
	limit := time.After(10 * time.Second)
	for {
		select {
		case n := <-f.refused:
			if n == want {
				return
			}
		case <-limit:
			f.t.Fatalf("%d files were never refused; the log says:\n%s", want, f.log.String())
		}
	}
}

func names(w *objects.World) string {
	var names []string
	for _, m := range w.Models() {
		names = append(names, m.Name)
	}
	return strings.Join(names, " ")
}

func (f *follower) write(file, text string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.folder, file), []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func TestEditsAreFollowed(t *testing.T) {
	f := follow(t, t.TempDir())
	f.await("")
	f.write("pool.yaml", pool)
	f.write("routes.yaml", route("a"))
	f.await("a")
	f.write("routes.yaml", route("a")+"---\n"+route("b"))
	f.await("a b")

	// Some editors write another file and rename it.
	f.write(".routes.yaml.swp", route("c"))
	if err := os.Rename(filepath.Join(f.folder, ".routes.yaml.swp"), filepath.Join(f.folder, "routes.yaml")); err != nil {
		t.Fatal(err)
	}
	f.await("c")

	f.write("more.json",
		`{"apiVersion":"inference.x-k8s.io/v1alpha1","kind":"LLMRoute","metadata":{"name":"d"},"spec":{"backendRefs":[{"name":"base"}]}}`)
	f.await("c d")
	if err := os.Remove(filepath.Join(f.folder, "routes.yaml")); err != nil {
		t.Fatal(err)
	}
	f.await("d")
}

func TestInvalidEditIsRefusedAndTheLastGoodObjectsStay(t *testing.T) {
	folder := t.TempDir()
	f := follow(t, folder)
	f.write("pool.yaml", pool)
	f.write("routes.yaml", route("a"))
	f.await("a")

	f.write("routes.yaml", route("a")+"---\n"+strings.Replace(route("b"), "{backendRefs", "{priority: high, backendRefs", 1))
	f.awaitRefused(1)
	if !strings.Contains(f.log.String(), filepath.Join(folder, "routes.yaml")+":9: spec.priority: want a whole number, not string") {
		t.Errorf("the log does not name file and line:\n%s", f.log.String())
	}
	// Other files are still followed, together with the refused file's last valid objects.
	f.write("more.yaml", route("c"))
	f.await("a c")
	f.write("routes.yaml", route("b"))
	f.await("b c")
	f.awaitRefused(0)
}

// An edit of a Model's immutable fields is refused, as API servers refuse it.
func TestEditOfImmutableFieldsIsRejected(t *testing.T) {
	model := func(id string) string {
		return "{apiVersion: inference.x-k8s.io/v1alpha1, kind: Model, metadata: {name: m}, spec: {id: " + id +
			", poolRef: {name: base}, type: lora, source: s}}\n"
	}
	f := follow(t, t.TempDir())
	f.write("pool.yaml", pool)
	f.write("model.yaml", model("one"))
	f.write("routes.yaml", route("a"))
	f.await("a one")
	f.write("model.yaml", model("two"))
	f.awaitRefused(1)
	f.write("routes.yaml", route("b"))
	f.await("b one")
}

// An object can move to another file. It is rejected only while both files define it, in any order
// of the two edits.
func TestObjectMovesBetweenFiles(t *testing.T) {
	f := follow(t, t.TempDir())
	f.write("one.yaml", pool+"---\n"+route("a"))
	f.write("two.yaml", route("b"))
	f.await("a b")
	f.write("two.yaml", route("b")+"---\n"+route("a")+"---\n"+route("c"))
	f.awaitRefused(1)
	f.write("one.yaml", pool)
	f.await("a b c")
	f.awaitRefused(0)
}

func TestReadResolvesNoNames(t *testing.T) {
	folder := t.TempDir()
	list := "---\n" + `apiVersion: inference.x-k8s.io/v1alpha1
kind: EndpointList
metadata: {name: rack, labels: {app: llama}}
spec: {addresses: ["10.0.0.7:9000", "engine.invalid:9000"]}
`
	if err := os.WriteFile(filepath.Join(folder, "x.yaml"), []byte(pool+list), 0o644); err != nil {
		t.Fatal(err)
	}
	set, err := dir.Read(folder, kinds.All())
	w := objects.Build(set)
	if err != nil || strings.Join(w.Addresses(), " ") != "10.0.0.7:9000" {
		t.Errorf("the World is %+v, %v", w, err)
	}
}

// Kubernetes mounts a ConfigMap as links through a folder, which it replaces atomically.
func TestMountedConfigMapIsFollowed(t *testing.T) {
	folder := t.TempDir()
	version := func(name, text string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(folder, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name, "routes.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(name, filepath.Join(folder, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(folder, "..data_tmp"), filepath.Join(folder, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	version("..1", route("a"))
	if err := os.Symlink("..data/routes.yaml", filepath.Join(folder, "routes.yaml")); err != nil {
		t.Fatal(err)
	}
	f := follow(t, folder)
	f.await("a")
	version("..2", route("b"))
	f.await("b")
}

func TestInvalidFileAtTheStartIsAnError(t *testing.T) {
	folder := t.TempDir()
	for file, text := range map[string]string{"a.yaml": "kind: Nothing\n", "b.yaml": pool, "c.yaml": "x: [\n"} {
		if err := os.WriteFile(filepath.Join(folder, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	err := dir.New(folder, kinds.All(), slog.New(slog.DiscardHandler), nil).Run(t.Context(), func(objects.Set) {
		t.Error("objects were published")
	})
	if err == nil || !strings.Contains(err.Error(), "a.yaml:1: ") || !strings.Contains(err.Error(), "c.yaml:1: ") {
		t.Errorf("the error is %v, want both faults", err)
	}
	err = dir.New(filepath.Join(folder, "none"), kinds.All(), slog.New(slog.DiscardHandler), nil).Run(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("the error is %v, want it to name the folder", err)
	}
}

// A profile may be in a file beside the objects; an edit of it changes the pool's profile.
func TestProfileInItsOwnFile(t *testing.T) {
	folder := t.TempDir()
	f := &follower{t: t, folder: folder}
	f.write("a.yaml", pool+
		"---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: PoolSettings\nmetadata: {name: s}\nspec: {poolRef: {name: base}, profile: {file: p.yaml}}\n")
	f = follow(t, folder)
	const missing = "PoolSettings default/s: spec.profile: file: there is no p.yaml with a profile in the folder of objects: the pool has no profile"
	base := objects.Name{Namespace: "default", Name: "base"}
	if w := f.await(""); w.Pools[base].Profile != nil || !slices.Contains(w.Problems, missing) {
		t.Errorf("without the file: %+v, %q", w.Pools[base].Profile, w.Problems)
	}
	profile := func(name string) string {
		return "name: " + name +
			"\nprefill: {base: 0.5}\ndecode: {base: 0.25}\nlimits: {maxSequences: 1, maxBatchedTokens: 1, kvBlocks: 2, blockSize: 1}\n"
	}
	for _, name := range []string{"first", "second"} {
		f.write("p.yaml", profile(name))
		w := f.awaitThat("the profile "+name, func(w *objects.World) bool {
			is := w.Pools[base].Profile
			return is != nil && is.Name == name
		})
		if p := w.Pools[base].Profile; p.Prefill.Base != 0.5 || p.Limits.KVBlocks != 2 || len(w.Problems) != 0 {
			t.Errorf("%s: %+v, %q", name, p, w.Problems)
		}
	}
}

// Objects of well-known other kinds are skipped. An unknown kind, which may be one of ours
// misspelled, is not.
func TestForeignObjects(t *testing.T) {
	for object, passed := range map[string]bool{
		"inference.networking.x-k8s.io/v1alpha2 InferenceObjective": true,
		"inference.networking.k8s.io/v1 InferenceObjective":         true,
		"apps/v1 Deployment":                                   true,
		"v1 ConfigMap":                                         true,
		"v1 PersistentVolumeClaim":                             true,
		"autoscaling/v2 HorizontalPodAutoscaler":               true,
		"monitoring.coreos.com/v1 PodMonitor":                  true,
		"networking.istio.io/v1 DestinationRule":               true,
		"inference.networking.k8s.io/v1 Inferencepool":         false,
		"inference.networking.x-k8s.io/v1alpha2 InferencePool": false,
		"inference.x-k8s.io/v1alpha1 LLMroute":                 false,
		"example.com/v1 Deployment":                            false,
		"v1 Pods":                                              false,
		" Deployment":                                          false,
	} {
		version, kind, _ := strings.Cut(object, " ")
		text := pool + "---\napiVersion: " + version + "\nkind: " + kind + "\nmetadata: {name: x}\nspec: {replicas: 1}\n"
		folder := t.TempDir()
		if err := os.WriteFile(filepath.Join(folder, "all.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		set, err := dir.Read(folder, kinds.All())
		if (err == nil) != passed {
			t.Errorf("%s: %v", object, err)
		}
		if passed && err == nil && len(objects.Build(set).Pools) != 1 {
			t.Errorf("%s: the pool beside it is not there", object)
		}
	}
}
