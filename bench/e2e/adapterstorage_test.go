package e2e

import (
	"archive/tar"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/headgate/rig"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/process"
)

// adapterTar is an archive of a LoRA adapter.
func adapterTar(t *testing.T) []byte {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for name, text := range map[string]string{"adapter_config.json": `{"r": 8}`, "adapter_model.safetensors": strings.Repeat("x", 1<<20)} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

// agentProgram returns the path of the agent, which the first call builds.
var agentProgram = sync.OnceValues(func() (string, error) {
	p, err := built.plain()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(p.Headgate), "agent")
	if out, err := exec.Command("go", "build", "-o", path, "../../control/agent").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the agent: %w\n%s", err, out)
	}
	return path, nil
})

// An agent beside each simulated vLLM fetches an adapter from a server that requires a key, which
// the Model's storage names, and the first request for the adapter is answered. An adapter without
// files gets its reason. A killed agent costs no adapter.
func TestAdaptersComeFromStorage(t *testing.T) {
	runs(t)
	agent, err := agentProgram()
	if err != nil {
		t.Fatal(err)
	}
	archive := adapterTar(t)
	var fetched atomic.Int64
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("X-Key") != "hunter2":
			w.WriteHeader(http.StatusForbidden)
		case r.URL.Path != "/sql.tar":
			http.NotFound(w, r)
		default:
			fetched.Add(1)
			http.ServeContent(w, r, "sql.tar", time.Unix(1, 0), bytes.NewReader(archive))
		}
	}))
	defer store.Close()
	s := start(t, placed(t, 4), func(c *rig.Config) {
		text := strings.ReplaceAll(engines(strings.TrimSuffix(c.Listen, "1:8080"), 2), "{app: llama,",
			"{app: llama, "+engine.KindLabel+": vllm,")
		if err := os.WriteFile(filepath.Join(c.Objects, "engines.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	})

	secrets := t.TempDir()
	entry := `{"type": "http", "url": "` + store.URL + `", "headers": {"X-Key": "hunter2"}}`
	if err := os.WriteFile(filepath.Join(secrets, "team"), []byte(entry), 0o600); err != nil {
		t.Fatal(err)
	}
	starter := process.NewStarter()
	t.Cleanup(func() { close(starter) })
	run := func(address string) *process.Process {
		host, _, _ := net.SplitHostPort(address)
		p, err := starter.Start("agent-"+host, s.Dir, exec.Command(agent, "--kind=vllm", "--engine="+address, "--management="+host+":8086",
			"--models-dir="+filepath.Join(s.Dir, "models-"+host), "--storage-config="+secrets, "--health-address="+host+":8087"))
		if err == nil {
			err = p.AwaitOK(t.Context(), "http://"+host+":8087/ready")
		}
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	agents := make(map[string]*process.Process)
	for address := range s.Engines {
		if err := os.Mkdir(filepath.Join(s.Dir, "models-"+strings.TrimSuffix(address, ":8000")), 0o755); err != nil {
			t.Fatal(err)
		}
		agents[address] = run(address)
		defer func() { agents[address].Kill() }()
	}
	s.write("settings.yaml", "apiVersion: inference.x-k8s.io/v1alpha1\nkind: PoolSettings\nmetadata: {name: pool}\nspec: {poolRef: {name: pool}, placement: {maxAdapters: 4, management: 'port:8086'}}\n")
	model := func(name string) string {
		return modelObject(name, fmt.Sprintf("source: '%s/%s.tar', storage: {key: team}", store.URL, name))
	}
	s.write("models.yaml", model("sql")+model("absent"))

	s.await("the adapter answers", func() bool {
		a, err := s.ask(t.Context(), completion("sql", 1, false))
		return err == nil && a.status == http.StatusOK
	})
	if fetched.Load() == 0 {
		t.Error("nobody fetched the adapter")
	}
	if a := s.must(completion("absent", 1, false)); a.status != http.StatusServiceUnavailable ||
		!strings.Contains(a.body, "the servers cannot find its files") {
		t.Errorf("a request for an adapter without files: %d %s", a.status, a.body)
	}
	before, downloads := len(s.events()), fetched.Load()
	for address, p := range agents {
		p.Kill()
		agents[address] = run(address)
	}
	if got := s.answers("sql"); got != "sql" {
		t.Errorf("after the agents have restarted %q answers", got)
	}
	if is := s.events(); len(is) != before || fetched.Load() != downloads {
		t.Errorf("the restart of agents moved adapters: %v, %d fetches", is[before:], fetched.Load()-downloads)
	}
}
