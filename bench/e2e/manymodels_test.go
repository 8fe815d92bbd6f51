package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/process"
)

// The size of TestManyModels. Each model has one copy, and the engines have room for no more
// copies.
const (
	manyModels, manyEngines = 20000, 1000
	manyMB                  = 300 // MB of memory that control may use; 262 were measured
)

// adapterServer is a server with vLLM's adapter API. It loads adapters instantly and cannot answer
// inference requests.
type adapterServer struct {
	mu     sync.Mutex
	loaded map[string]string // path of each loaded adapter, by name
	all    *atomic.Int64
	// metrics is the text of the server's metrics page.
	metrics []byte
}

func (a *adapterServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch r.URL.Path {
	case "/v1/models":
		type card struct {
			ID     string  `json:"id"`
			Object string  `json:"object"`
			Root   string  `json:"root"`
			Parent *string `json:"parent"`
		}
		base := "base"
		all := []card{{ID: base, Object: "model", Root: base}}
		for name, path := range a.loaded {
			all = append(all, card{name, "model", path, &base})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"object": "list", "data": all})
	case "/v1/load_lora_adapter", "/v1/unload_lora_adapter":
		var what struct {
			Name string `json:"lora_name"`
			Path string `json:"lora_path"`
		}
		if err := json.NewDecoder(r.Body).Decode(&what); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if a.loaded == nil {
			a.loaded = make(map[string]string)
		}
		a.all.Add(-int64(len(a.loaded)))
		if delete(a.loaded, what.Name); r.URL.Path == "/v1/load_lora_adapter" {
			a.loaded[what.Name] = what.Path
		}
		a.all.Add(int64(len(a.loaded)))
		fmt.Fprintf(w, "Success: %s", what.Name)
	case "/metrics":
		_, _ = w.Write(a.metrics)
	case "/tokenize":
		fmt.Fprint(w, `{"count": 0}`)
	default:
		http.NotFound(w, r)
	}
}

// TestManyModels prints how much memory control uses after it has loaded 20,000 models onto 1,000
// engines, which are then full, and how much a minute later.
func TestManyModels(t *testing.T) {
	runs(t, alone, raced)
	if !*scale {
		t.Skip("-scale starts it")
	}
	dir := t.TempDir()
	objects := filepath.Join(dir, "objects")
	if err := os.Mkdir(objects, 0o755); err != nil {
		t.Fatal(err)
	}
	metrics, err := os.ReadFile(root + "/internal/engine/testdata/vllm-0.32-idle.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all atomic.Int64
	var pods strings.Builder
	for i := range manyEngines {
		host := fmt.Sprintf("127.79.%d.%d", i/250, 1+i%250)
		listener, err := net.Listen("tcp", host+":8000")
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: &adapterServer{all: &all, metrics: metrics}, ReadHeaderTimeout: time.Minute}
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(func() { _ = server.Close() })
		fmt.Fprintf(&pods, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: engine-%d, labels: {app: llama}}\nstatus: {podIP: %s}\n",
			i, host)
	}
	for name, text := range map[string]string{
		"pods.yaml": pods.String(),
		"pool.yaml": "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: pool}\nspec: {selector: {matchLabels: {app: llama}}, targetPorts: [{number: 8000}]}\n" +
			fmt.Sprintf("---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: PoolSettings\nmetadata: {name: pool}\nspec: {poolRef: {name: pool}, placement: {maxAdapters: %d, source: 'sim:'}}\n",
				manyModels/manyEngines),
		"models.yaml": minimal(manyModels, "sim:"),
	} {
		if err := os.WriteFile(filepath.Join(objects, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	starter := process.NewStarter()
	t.Cleanup(func() { close(starter) })
	began := time.Now()
	command := exec.Command(programs(t).Headgate, "control", "--objects", objects, "--listen", "unix:"+filepath.Join(dir, "control.sock"),
		"--metrics-host", "127.79.9.1")
	command.Env = append(os.Environ(), "GOGC=25") // the value in the manifests
	control, err := starter.Start("control", dir, command)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { control.Stop(20 * time.Second) })
	most := 0
	for all.Load() < manyModels {
		if time.Since(began) > 3*time.Minute {
			t.Fatalf("%d of %d models are loaded after %v", all.Load(), manyModels, time.Since(began))
		}
		time.Sleep(100 * time.Millisecond)
		most = max(most, rss(t, control.PID())/1024)
	}
	took, used := time.Since(began), cpu(t, control.PID())
	t.Logf("%d models are loaded after %v, which took control %v of processor time; it had %d MB at most", manyModels,
		took.Round(time.Second), used.Round(time.Second), most)
	for range 600 {
		time.Sleep(100 * time.Millisecond)
		most = max(most, rss(t, control.PID())/1024)
	}
	is := rss(t, control.PID()) / 1024
	t.Logf("a minute later it has %d MB, had %d at most, and uses %.2f cores", is, most, (cpu(t, control.PID()) - used).Minutes())
	if is > manyMB {
		t.Errorf("control has %d MB, want %d at most", is, manyMB)
	}
}
