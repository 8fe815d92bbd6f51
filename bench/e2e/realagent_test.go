//go:build real

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/test/fakehub"
	"github.com/headgate/headgate/test/stores"
)

// A real vLLM behind the agent loads adapters from a Hub and from S3, and generates with each. Its
// faults reach the caller in its own words, and after an unload no files are left.
func TestRealVLLMLoadsAdaptersFromStorage(t *testing.T) {
	dir := t.TempDir()
	e := &realEngine{t: t, host: "127.94.7.1", dir: dir}
	e.start()
	t.Cleanup(func() { e.KillGroup() })
	store, hub := stores.RunS3(t), &fakehub.Hub{Repos: map[string]fakehub.Repo{}}
	for _, name := range []string{"a1", "a2", "big"} {
		files, err := os.ReadDir(filepath.Join(*vllmDir, "lora", name))
		if err != nil {
			t.Fatal(err)
		}
		repo := map[string][]byte{"README.md": []byte("an adapter")}
		for _, f := range files {
			if repo[f.Name()], err = os.ReadFile(filepath.Join(*vllmDir, "lora", name, f.Name())); err != nil {
				t.Fatal(err)
			}
		}
		hub.Repos["org/"+name] = fakehub.Repo{Token: "hf_secret", Revisions: map[string]map[string][]byte{"main": repo}}
		writeAll(t, filepath.Join(store.Dir, "loras", name), repo)
	}
	hub.Repos["org/none"] = fakehub.Repo{Token: "hf_secret", Revisions: map[string]map[string][]byte{"main": {"README.md": []byte("no adapter")}}}
	site := httptest.NewServer(hub)
	defer site.Close()
	entry, err := json.Marshal(map[string]string{
		"type": "s3", "endpoint_url": store.URL, "access_key_id": store.Access, "secret_access_key": store.Secret, "region": "us-east-1",
	})
	if err != nil {
		t.Fatal(err)
	}
	config, models, program := filepath.Join(dir, "storage-config"), filepath.Join(dir, "models"), filepath.Join(dir, "agent")
	writeAll(t, config, map[string][]byte{"default_s3": entry})
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./control/agent")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const management = "127.94.7.2:8086"
	run := exec.Command(program, "--kind", "vllm", "--engine", e.address(), "--management", management, "--models-dir", models, //nolint:gosec // as built
		"--storage-config", config)
	run.Env = append(os.Environ(), "HF_ENDPOINT="+site.URL, "HF_TOKEN=hf_secret")
	agent := startEngine(t, dir, "agent", run)
	t.Cleanup(agent.Kill)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := e.AwaitOK(ctx, "http://"+management+"/v1/models"); err != nil {
		t.Fatal(err)
	}
	call := func(address, path, body string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		answer, err := http.DefaultClient.Do(r) //nolint:forbidigo // a test
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		return answer.StatusCode, string(text)
	}
	load := func(name, source string) (int, string) {
		t.Helper()
		return call(management, "/v1/load_lora_adapter", fmt.Sprintf(`{"lora_name":%q,"lora_path":%q}`, name, source))
	}
	for name, source := range map[string]string{"of-the-hub": "hf://org/a1", "of-s3": "s3://loras/a2"} {
		if status, words := load(name, source); status != http.StatusOK {
			t.Errorf("a load of %s: %d %s", source, status, words)
			continue
		}
		if status, words := call(e.address(), "/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"an adapter","max_tokens":4}`, name)); status != http.StatusOK {
			t.Errorf("a completion of %s: %d %s", name, status, words)
		}
		if _, err := os.Stat(filepath.Join(models, name, "adapter_config.json")); err != nil {
			t.Error(err)
		}
		if status, words := call(management, "/v1/unload_lora_adapter", fmt.Sprintf(`{"lora_name":%q}`, name)); status != http.StatusOK {
			t.Errorf("an unload of %s: %d %s", name, status, words)
		}
		if _, err := os.Stat(filepath.Join(models, name)); !os.IsNotExist(err) {
			t.Errorf("files of %s are left: %v", name, err)
		}
	}
	for source, want := range map[string]string{
		"hf://org/big":        "is greater than max_lora_rank",
		"hf://org/none":       "No adapter found for 'x': there is no file adapter_config.json",
		"hf://org/nowhere":    "No adapter found for 'x': ",
		"s3://loras/nowhere":  "No adapter found for 'x': ",
		"s3://nowhere/a1":     "No adapter found for 'x': ",
		"/no/such/dir":        "No adapter found for",
		"magnet://loras/here": "magnet",
	} {
		status, words := load("x", source)
		if status == http.StatusOK || !strings.Contains(words, want) {
			t.Errorf("a load of %s: %d %s", source, status, words)
		}
		t.Logf("%s: %d %s", source, status, words)
	}
	if left, err := os.ReadDir(filepath.Join(models, "x")); err == nil {
		t.Errorf("files of an adapter that was not loaded: %v", left)
	}
}

// writeAll writes files into a folder.
func writeAll(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil { //nolint:gosec // of a test
			t.Fatal(err)
		}
	}
}
