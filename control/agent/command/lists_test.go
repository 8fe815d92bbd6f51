package command

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/headgate/headgate/control/place/loader"
	"github.com/headgate/headgate/headgate/simulated/repository"
	"github.com/headgate/headgate/internal/engine"
)

// listEngine is an OpenVINO Model Server, as its documentation describes it: a reload makes it read
// the list of models. It serves a model whose folder has a version with a file.
type listEngine struct {
	file string

	mu     sync.Mutex // guards states
	states map[string]string
}

func (e *listEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch r.Method + " " + r.URL.Path {
	case "GET /v1/config":
	case "POST /v1/config/reload":
		text, err := os.ReadFile(e.file)
		if err != nil {
			http.Error(w, err.Error(), http.StatusPreconditionFailed)
			return
		}
		list, err := engine.ReadOVMSModelList(text)
		if err != nil {
			http.Error(w, err.Error(), http.StatusPreconditionFailed)
			return
		}
		for name := range e.states {
			if list[name] == "" {
				e.states[name] = "END"
			}
		}
		for name, folder := range list {
			e.states[name] = "AVAILABLE"
			if files, err := filepath.Glob(filepath.Join(folder, "[1-9]*", "*.onnx")); err != nil || len(files) != 1 {
				e.states[name] = "END"
			}
		}
	default:
		http.NotFound(w, r)
		return
	}
	all := make(map[string]any)
	for name, state := range e.states {
		all[name] = map[string]any{"model_version_status": []any{map[string]any{"version": "1", "state": state}}}
	}
	_ = json.NewEncoder(w).Encode(all)
}

func (e *listEngine) models() (names []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, state := range e.states {
		if state == "AVAILABLE" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Engines without a list that survives them keep their models when the agent restarts, and get each
// model in its own layout. Neither engine is a real one.
func TestEnginesWithListsOfModels(t *testing.T) {
	for _, kind := range []engine.Kind{engine.OVMS, engine.TFServing} {
		t.Run(string(kind), func(t *testing.T) {
			models, claims := t.TempDir(), t.TempDir()
			for _, name := range []string{"a", "b"} {
				for _, file := range []string{"onnx/net.onnx", "saved/saved_model.pb"} {
					at := filepath.Join(claims, "c", name, file)
					if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(at, []byte("weights"), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			var at, source, laid string
			var has func() []string
			if kind == engine.OVMS {
				e := &listEngine{file: filepath.Join(models, "model_config_list.json"), states: make(map[string]string)}
				server := httptest.NewServer(e)
				t.Cleanup(server.Close)
				at, has, source, laid = server.Listener.Addr().String(), e.models, "onnx/net.onnx", "_ovms_models/a/1/model.onnx"
			} else {
				l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				e := repository.New(repository.Config{Kind: kind, Models: map[string]repository.Model{"a": {}, "b": {}}})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- repository.Serve(ctx, e, l) }()
				t.Cleanup(func() { cancel(); t.Log("the engine has ended:", <-done) })
				at, has, source, laid = l.Addr().String(), e.Models, "saved", "_tfserving_models/a/1/saved_model.pb"
			}
			address := freeAddress(t)
			agent := newAgent(t, fmt.Sprintf("--kind %s --engine %s --management %s --models-dir %s --pvc-dir %s --memory-request 1Gi",
				kind, at, address, models, claims))
			c := newControl(t, address)
			c.look()
			load := func(name string) {
				t.Helper()
				m := loader.Model{ID: name, Source: "pvc://c/" + name + "/" + source, Type: "mt:" + filepath.Base(filepath.Dir(source))}
				if _, err := c.loader.Load(t.Context(), m, testTimeout); err != nil {
					t.Fatal(err)
				}
			}
			want := func(names ...string) {
				t.Helper()
				if got := has(); !slices.Equal(got, names) {
					t.Errorf("the engine has %q, want %q", got, names)
				}
			}
			load("a")
			if text, err := os.ReadFile(filepath.Join(models, laid)); err != nil || string(text) != "weights" {
				t.Errorf("%s, %v", text, err)
			}
			want("a")
			agent.kill()
			agent.start(t)
			if c.look() {
				t.Error("the engine is taken to have lost its models")
			}
			load("b")
			want("a", "b")
			for _, name := range []string{"a", "b"} {
				if err := c.loader.Unload(t.Context(), name); err != nil {
					t.Error(err)
				}
			}
			want()
			if _, err := os.Lstat(filepath.Join(models, laid)); err == nil {
				t.Error("the layout is left")
			}
		})
	}
}
