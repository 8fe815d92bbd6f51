//go:build real

package command

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/control/agent/layout"
	"github.com/headgate/headgate/control/place/loader"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/process"
	"github.com/headgate/headgate/test/stores"
)

var installed = map[engine.Kind]*string{
	engine.MLServer:   flag.String("mlserver", "../../../.cache/mlserver", "where bench/real/mlserver installed"),
	engine.Triton:     flag.String("triton", "../../../.cache/triton", "where bench/real/triton installed"),
	engine.TorchServe: flag.String("torchserve", "../../../.cache/torchserve", "where bench/real/torchserve installed"),
}

// realCase is a real engine with the agent beside it.
type realCase struct {
	kind engine.Kind
	host string
	// managed is the port at which the agent manages the engine, and flags are its flags.
	managed, flags string
	// put makes the model's files in a folder of the bucket.
	put func(t *testing.T, folder string)
	// source and key are those of the model's load call.
	source, key string
	// path and body are a request for the model, and want is in the answer.
	path, body, want string
}

const realTimeout = 90 * time.Second

const pythonModel = `
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("y", pb.get_input_tensor_by_name(r, "x").as_numpy() * 2)]) for r in requests]
`

const pythonSchema = `{"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}], "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}]}`

var realCases = []realCase{
	{
		kind: engine.MLServer, host: "127.94.0.1", managed: "8081",
		put: func(t *testing.T, folder string) {
			run(t, "../../../bench/real/mlserver", "model", *installed[engine.MLServer], filepath.Dir(folder), filepath.Base(folder))
			if err := os.Remove(filepath.Join(folder, "model-settings.json")); err != nil { // the agent makes it
				t.Fatal(err)
			}
		},
		source: "s3://models/m/model.joblib", key: `{"storage_key":"store","model_type":{"name":"sklearn","version":"0"}}`,
		path: "/v2/models/m/infer", body: `{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP64","data":[3.0]}]}`, want: `"data":[1]`,
	},
	{
		kind: engine.Triton, host: "127.94.0.2", managed: "8081",
		put: func(t *testing.T, folder string) {
			write(t, filepath.Join(folder, "double.py"), pythonModel)
			write(t, filepath.Join(filepath.Dir(folder), "schema.json"), pythonSchema)
		},
		source: "m/double.py", key: `{"storage_key":"store","bucket":"models","schema_path":"schema.json","model_type":"python"}`,
		path: "/v2/models/m/infer", body: `{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[21]}]}`, want: `"data":[42.0]`,
	},
	{
		kind: engine.TorchServe, host: "127.94.0.3", managed: "8081",
		put: func(t *testing.T, folder string) {
			handler := filepath.Join(t.TempDir(), "handler.py")
			write(t, handler, "def handle(data, context):\n    return [\"forty-two\"] * len(data or [])\n")
			if err := os.MkdirAll(folder, 0o755); err != nil {
				t.Fatal(err)
			}
			run(t, "../../../bench/real/torchserve", "archive", filepath.Join(folder, "any.mar"), "any", handler)
		},
		source: "s3://models/m", key: `{"storage_key":"store","model_type":{"name":"pytorch-mar"}}`,
		path: "/predictions/m", body: "x", want: "forty-two",
	},
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
}

func write(t *testing.T, at, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// TestRealEnginesBehindTheAgent loads a bare model from S3 onto a real MLServer and a real Triton
// over gRPC, and onto a real TorchServe, each through an agent. Each engine answers for the model,
// also after it was unloaded and loaded again, and keeps it when the agent restarts.
func TestRealEnginesBehindTheAgent(t *testing.T) {
	for _, c := range realCases {
		t.Run(string(c.kind), func(t *testing.T) { c.run(t) })
	}
}

func (c realCase) run(t *testing.T) {
	store := stores.RunS3(t)
	c.put(t, filepath.Join(store.Dir, "models", "m"))
	config := t.TempDir()
	entry, err := json.Marshal(map[string]string{
		"type": "s3", "access_key_id": store.Access, "secret_access_key": store.Secret, "endpoint_url": store.URL, "region": "us-east-1",
	})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(config, "store"), string(entry))
	models := t.TempDir()
	adapter, _ := layout.AdapterOf(c.kind)
	folder := filepath.Join(models, adapter.Folder)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	c.serve(t, folder)
	address := freeAddress(t)
	agent := newAgent(t, fmt.Sprintf("--kind %s --engine %s:%s --management %s --models-dir %s --storage-config %s --memory-request 1Gi %s",
		c.kind, c.host, c.managed, address, models, config, c.flags))
	control := newControl(t, address)
	control.look()
	for range 2 {
		m := loader.Model{ID: "m", Source: c.source, Info: c.key}
		loaded, err := control.loader.Load(t.Context(), m, realTimeout)
		if err != nil || loaded.Bytes == 0 {
			t.Fatalf("the load: %+v, %v", loaded, err)
		}
		if code, text := c.ask(t); code != http.StatusOK || !strings.Contains(strings.ReplaceAll(text, " ", ""), c.want) {
			t.Errorf("the answer: %d: %s", code, text)
		}
		agent.kill()
		agent.start(t)
		control.look()
		if code, text := c.ask(t); code != http.StatusOK {
			t.Errorf("after a restart of the agent: %d: %s", code, text)
		}
		if err := control.loader.Unload(t.Context(), "m"); err != nil {
			t.Fatal(err)
		}
		if code, _ := c.ask(t); code/100 != 4 {
			t.Errorf("after the unload: %d", code)
		}
		if got := folders(t, models); len(got) > 0 {
			t.Errorf("%v are left", got)
		}
	}
}

// serve starts the engine and waits until it takes connections.
func (c realCase) serve(t *testing.T, folder string) {
	t.Helper()
	command := exec.Command("../../../bench/real/"+string(c.kind), "serve", *installed[c.kind], folder, c.host, "8080")
	p, err := process.NewStarter().Start(string(c.kind), t.TempDir(), command)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.KillGroup)
	ctx, cancel := context.WithTimeout(t.Context(), realTimeout)
	defer cancel()
	for tick := time.NewTicker(100 * time.Millisecond); ; <-tick.C {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.host+":"+c.managed)
		if err == nil {
			_ = conn.Close()
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%s does not serve: %s", c.kind, p.LastWords())
		}
	}
}

// ask sends a request for the model to the engine.
func (c realCase) ask(t *testing.T) (int, string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+c.host+":8080"+c.path, strings.NewReader(c.body))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}
