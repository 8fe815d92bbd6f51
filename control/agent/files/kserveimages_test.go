//go:build stores

package files_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/headgate/headgate/control/agent/fetch"
	"github.com/headgate/headgate/control/agent/files"
	"github.com/headgate/headgate/control/agent/storage"
	"github.com/headgate/headgate/test/fakehub"
	"github.com/headgate/headgate/test/venv"
)

// TestKServeFetchesTheSameImages compares images, claims and private repositories with KServe's
// downloader. Where that fails, the Store does.
func TestKServeFetchesTheSameImages(t *testing.T) {
	python := venv.Python(t, kserve)
	t.Setenv("HOME", t.TempDir())
	model := map[string]string{"config.json": "{}", "1/model.bin": strings.Repeat("0123456789", 1<<17), "1/x y+z": "odd", "\u00e9": "\u00e9"}
	claims := t.TempDir()
	texts, below := make(map[string][]byte), map[string]string{"etc/passwd": "x"}
	for file, text := range model {
		texts[file], below["models/"+file] = []byte(text), text
		path := filepath.Join(claims, "claim-a", "lora", file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	hub := httptest.NewServer(&fakehub.Hub{Repos: map[string]fakehub.Repo{
		"org/lora": {Token: "hf_token", Revisions: map[string]map[string][]byte{"main": texts, "v1": {"one": []byte("1")}}},
	}})
	defer hub.Close()

	// Without credentials: KServe's library, oras, does not speak to registries with basic ones.
	images := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer images.Close()
	host := images.Listener.Addr().String()
	bare := mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1)
	image, err := mutate.AppendLayers(bare, static.NewLayer([]byte(modelTar(t, below, true)), types.OCILayer),
		static.NewLayer([]byte(modelTar(t, map[string]string{"models/config.json": "newer"}, false)), types.OCIUncompressedLayer))
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(host + "/models/lora:v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, image); err != nil {
		t.Fatal(err)
	}

	cases := []struct {
		uri    string
		kserve string // what KServe is given, if it differs
		files  int    // 0: both fail
	}{
		{uri: "hf://org/lora", files: 4},
		{uri: "hf://org/lora:v1", files: 1},
		{uri: "hf://org/lora:v2"},
		{uri: "hf://org/none"},
		{uri: "oci://" + host + "/models/lora:v1", files: 4},
		{uri: "oci://" + host + "/models/lora:v2"},
		{uri: "pvc://claim-a/lora", kserve: "file://" + filepath.Join(claims, "claim-a", "lora"), files: 4},
		{uri: "pvc://claim-a/none", kserve: "file://" + filepath.Join(claims, "claim-a", "none")},
		{uri: hub.URL + "/none.bin"},
	}
	var arguments [][2]string
	for _, c := range cases {
		uri := c.uri
		if c.kserve != "" {
			uri = c.kserve
		}
		arguments = append(arguments, [2]string{uri, t.TempDir()})
	}
	refused := runKServe(t, python, arguments, "HF_ENDPOINT="+hub.URL, "HF_TOKEN=hf_token", "HF_HOME="+t.TempDir(),
		"KSERVE_OCI_INSECURE_REGISTRY=true")
	entries := storage.Entries{"default_hf": {"type": "hf", "endpoint": hub.URL, "token": "hf_token"}}

	store, err := files.Open(files.Config{
		Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler),
		Open: func(ctx context.Context, s storage.Source) (fetch.Remote, error) {
			return fetch.Open(ctx, s, fetch.Options{ClaimsDir: claims})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for i, c := range cases {
		t.Run(c.uri, func(t *testing.T) {
			if (refused[i] == "") != (c.files > 0) {
				t.Errorf("KServe: %q", refused[i])
			}
			source, ok, err := storage.Resolve(storage.Request{ID: "m", Path: c.uri}, entries)
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			local, err := store.Fetch(t.Context(), fmt.Sprintf("m%d", i), source)
			if c.files == 0 {
				if err == nil {
					t.Errorf("the Store has %s", local.Path)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got, want := followed(t, local.Path), followed(t, arguments[i][1])
			if !maps.Equal(got, want) || len(got) != c.files {
				t.Errorf("%q, but KServe has %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
			}
		})
	}
}

// runKServe downloads URIs into folders, and returns the type of each error.
func runKServe(t *testing.T, python string, arguments [][2]string, environment ...string) []string {
	t.Helper()
	text, err := json.Marshal(arguments)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), python, "testdata/kserve.py", string(text))
	command.Env = append(os.Environ(), append(environment, "HF_HUB_DISABLE_PROGRESS_BARS=1", "HF_HUB_DISABLE_TELEMETRY=1",
		"NO_PROXY=127.0.0.1")...)
	var faults bytes.Buffer
	command.Stderr = &faults
	out, err := command.Output()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(faults.String())
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	var refused []string
	out = bytes.TrimSpace(out)
	if err := json.Unmarshal(out[bytes.LastIndexByte(out, '\n')+1:], &refused); err != nil || len(refused) != len(arguments) {
		t.Fatalf("%v: %s", err, out)
	}
	return refused
}

// followed reads the files below a path, through symlinks, or the only file there. It leaves out
// the folder .cache, which huggingface_hub makes.
func followed(t *testing.T, path string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	var read func(at, name string)
	read = func(at, name string) {
		info, err := os.Stat(at)
		if err != nil {
			t.Fatal(err)
		}
		if !info.IsDir() {
			text, err := os.ReadFile(at)
			if err != nil {
				t.Fatal(err)
			}
			if name == "" {
				name = filepath.Base(at)
			}
			all[name] = string(text)
			return
		}
		children, err := os.ReadDir(at)
		if err != nil {
			t.Fatal(err)
		}
		for _, child := range children {
			if child.Name() != ".cache" {
				read(filepath.Join(at, child.Name()), strings.TrimPrefix(name+"/"+child.Name(), "/"))
			}
		}
	}
	read(path, "")
	return all
}
