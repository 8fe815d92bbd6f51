package layout

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/internal/engine"
)

var kinds = []engine.Kind{engine.Triton, engine.MLServer, engine.OVMS, engine.TFServing, engine.TorchServe}

// put writes a file below a folder.
func put(t *testing.T, at, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o700), os.WriteFile(at, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// tree returns all paths below a folder, sorted, each link with its target.
func tree(t *testing.T, folder string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		name, _ := filepath.Rel(folder, path)
		if err != nil || name == "." {
			return err
		}
		if e.Type() == fs.ModeSymlink {
			target, err := os.Readlink(path)
			all = append(all, name+" -> "+target)
			return err
		}
		all = append(all, name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// ready returns a prepared layout and the folder of all models. The folder has a model m, which
// all kinds of engines can load.
func ready(t *testing.T, kind engine.Kind) (*Layout, Model) {
	t.Helper()
	models := t.TempDir()
	l, is := For(kind, models)
	if !is {
		t.Fatalf("%s has no layout", kind)
	}
	if err := l.Prepare(); err != nil {
		t.Fatal(err)
	}
	if kind == engine.TorchServe {
		put(t, filepath.Join(models, "m", "w.mar"), "PK\x03\x04")
		return l, Model{ID: "m", Path: filepath.Join(models, "m", "w.mar")}
	}
	put(t, filepath.Join(models, "m", "saved_model.pb"), "graph")
	return l, Model{ID: "m", Path: filepath.Join(models, "m"), Type: Type{Name: "tensorflow"}}
}

// made are the layouts of the model of ready.
var made = map[engine.Kind][]string{
	engine.Triton:    {"m", "m/1", "m/1/model.savedmodel -> ../../../m"},
	engine.MLServer:  {"m", "m/model -> ../../m", "m/model-settings.json"},
	engine.OVMS:      {"m", "m/1 -> ../../m"},
	engine.TFServing: {"m", "m/1 -> ../../m"},
	engine.TorchServe: {
		"m.mar -> ../m/w.mar", "mmconfig.properties",
	},
}

// without is what an engine's folder has without models.
func without(kind engine.Kind) []string {
	if kind == engine.TorchServe {
		return []string{"mmconfig.properties"}
	}
	return nil
}

func TestLayoutIsMadeAndRemoved(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			l, m := ready(t, kind)
			before := tree(t, l.models)
			for range 2 { // a layout replaces an earlier one
				source, err := l.Apply(m)
				if err != nil {
					t.Fatal(err)
				}
				want := filepath.Join(l.root, "m")
				if kind == engine.TorchServe {
					want = "m.mar"
				}
				if source != want {
					t.Errorf("the source is %s, want %s", source, want)
				}
				if diff := cmp.Diff(made[kind], tree(t, l.root)); diff != "" {
					t.Error(diff)
				}
				models, err := l.Models()
				if diff := cmp.Diff(map[string]string{"m": source}, models); diff != "" || err != nil {
					t.Error(err, diff)
				}
			}
			for _, id := range []string{"m", "m", "unknown", "../m", ""} {
				if err := l.Remove(id); err != nil {
					t.Error(err)
				}
			}
			if err := os.Remove(l.stage); err != nil {
				t.Error(err) // it is empty
			}
			if diff := cmp.Diff(before, tree(t, l.models)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Every step of Apply is interrupted once, by an obstacle: the next Apply and the next Prepare make
// up for it.
func TestInterruptedLayoutIsRepaired(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			l, m := ready(t, kind)
			if _, err := l.Apply(m); err != nil {
				t.Fatal(err)
			}
			for name, interrupt := range map[string]func() error{
				"in the stage": func() error {
					put(t, filepath.Join(l.stage, "m", "half"), "")
					put(t, filepath.Join(l.stage, "m.mar"), "half")
					return nil
				},
				"before the new one is in place": func() error { return os.RemoveAll(filepath.Join(l.root, l.top("m"))) },
				"with links to what is gone": func() error {
					return errors.Join(os.RemoveAll(filepath.Join(l.root, l.top("m"))), os.Symlink("nowhere", filepath.Join(l.root, l.top("m"))))
				},
			} {
				if err := interrupt(); err != nil {
					t.Fatal(err)
				}
				if _, err := l.Apply(m); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if err := l.Prepare(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if diff := cmp.Diff(made[kind], tree(t, l.root)); diff != "" {
					t.Errorf("%s: %s", name, diff)
				}
				if _, err := os.Stat(l.stage); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s: the stage is left: %v", name, err)
				}
			}
		})
	}
}

func TestLayoutsAreCleared(t *testing.T) {
	for _, kind := range kinds {
		l, m := ready(t, kind)
		for _, id := range []string{"a", "b"} {
			m.ID = id
			if _, err := l.Apply(m); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Clear(); err != nil {
			t.Error(err)
		}
		if got := tree(t, l.root); !slices.Equal(got, without(kind)) {
			t.Errorf("%s: %v are left", kind, got)
		}
	}
}

// Only what Apply made counts, in the engine's folder and in the stage.
func TestOtherFilesAreNoModels(t *testing.T) {
	for _, kind := range kinds {
		l, m := ready(t, kind)
		if _, err := l.Apply(m); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(l.root, "settings.json"), "{}")
		put(t, filepath.Join(l.root, "theirs.mar"), "")
		put(t, filepath.Join(l.stage, l.top("m"), "half"), "")
		if err := os.Symlink("settings.json", filepath.Join(l.root, "link")); err != nil {
			t.Fatal(err)
		}
		if models, err := l.Models(); err != nil || len(models) != 1 {
			t.Errorf("%s: %v, %v", kind, models, err)
		}
		if err := errors.Join(l.Remove("m"), os.Remove(l.stage)); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// A claim is mounted outside the folder of all models, and the engine has it at the same path.
func TestModelOutsideTheModelsFolderIsLinkedByItsPath(t *testing.T) {
	l, m := ready(t, engine.OVMS)
	claim := t.TempDir()
	put(t, filepath.Join(claim, "mnist.xml"), "")
	m.Path = claim
	if _, err := l.Apply(m); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"m", "m/1 -> " + claim}, tree(t, l.root)); diff != "" {
		t.Error(diff)
	}
}

func TestNamesThatLeaveTheFolderAreRefused(t *testing.T) {
	for _, kind := range kinds {
		l, m := ready(t, kind)
		for _, id := range []string{"../m", "a/b", "..", "", "/m"} {
			m.ID = id
			refused := (*Error)(nil)
			if _, err := l.Apply(m); !errors.As(err, &refused) {
				t.Errorf("%s: %q: %v", kind, id, err)
			}
		}
	}
}

func TestFilesThatAreNotThereAreNoRefusal(t *testing.T) {
	l, m := ready(t, engine.Triton)
	m.Path += "-gone"
	refused := (*Error)(nil)
	if _, err := l.Apply(m); !errors.Is(err, fs.ErrNotExist) || errors.As(err, &refused) {
		t.Error(err)
	}
	_, m = ready(t, engine.Triton)
	m.Schema = m.Path + "/schema.json"
	if _, err := l.Apply(m); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// The schema file is beside a single file, and in the folder of a model that is a folder.
func TestSchemaFileIsNoPartOfTheModel(t *testing.T) {
	l, _ := ready(t, engine.Triton)
	put(t, filepath.Join(l.models, "o", "net.onnx"), "")
	put(t, filepath.Join(l.models, "o", "s.json"), schemaText)
	m := Model{ID: "o", Type: Type{Name: "onnx"}, Path: filepath.Join(l.models, "o"), Schema: filepath.Join(l.models, "o", "s.json")}
	if _, err := l.Apply(m); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"o", "o/1", "o/1/model.onnx -> ../../../o/net.onnx", "o/config.pbtxt"}, tree(t, l.root)); diff != "" {
		t.Error(diff)
	}
}

func TestFilesThatEnginesNeedAtTheirStart(t *testing.T) {
	l, _ := ready(t, engine.OVMS)
	text, err := os.ReadFile(l.ConfigFile())
	if err != nil || string(text) != "{\"model_config_list\": []}\n" {
		t.Errorf("%s, %v", text, err)
	}
	put(t, l.ConfigFile(), "the list of an earlier agent")
	if err := l.Prepare(); err != nil {
		t.Fatal(err)
	}
	if text, err = os.ReadFile(l.ConfigFile()); err != nil || string(text) != "the list of an earlier agent" {
		t.Errorf("%s, %v", text, err)
	}
	l, _ = ready(t, engine.TorchServe)
	text, err = os.ReadFile(filepath.Join(l.models, "_torchserve_models", "mmconfig.properties"))
	if diff := cmp.Diff(`enable_envvars_config=true
model_store=`+l.models+`/_torchserve_models
metric_time_interval=10
inference_address=http://127.0.0.1:8083
management_address=http://127.0.0.1:8081
number_of_netty_threads=8
job_queue_size=512
enable_model_api=true
disable_token_authorization=true
`, string(text)); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

func TestEveryLayoutHasAnAdapter(t *testing.T) {
	for _, kind := range kinds {
		a, is := AdapterOf(kind)
		if !is || a.Folder == "" || a.Management == "" || a.Loads < 1 || a.LoadTimeout <= 0 || a.Buffer <= 0 || a.SizeFactor < 1 ||
			a.DefaultBytes <= 0 {
			t.Errorf("%s: %+v", kind, a)
		}
		if _, err := engine.MethodsOf(a.Methods, false); err != nil || len(a.Methods) == 0 {
			t.Errorf("%s: %v, %v", kind, a.Methods, err)
		}
	}
	for _, kind := range []engine.Kind{engine.VLLM, engine.ModelRuntime, ""} {
		if _, is := AdapterOf(kind); is {
			t.Errorf("%q has an adapter", kind)
		}
		if _, is := For(kind, "/models"); is {
			t.Errorf("%q has a layout", kind)
		}
	}
}
