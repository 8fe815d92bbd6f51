//go:build real

package e2e

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headgate/headgate/headgate/rig"
	"github.com/headgate/headgate/internal/engine"
)

var tritonDir = flag.String("triton", root+"/.cache/triton", "where bench/real/triton installed")

// identity is a Python model for Triton that returns its input.
const identity = `
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("y", pb.get_input_tensor_by_name(r, "x").as_numpy())]) for r in requests]
`

// newTriton runs a real Triton at a host until the test ends. Its ports are 8000 for HTTP, 8001 for
// gRPC and 8002 for metrics.
func newTriton(t *testing.T, host string, models []string) {
	t.Helper()
	folder := t.TempDir()
	for _, m := range models {
		if err := os.MkdirAll(filepath.Join(folder, m, "1"), 0o755); err != nil {
			t.Fatal(err)
		}
		config := fmt.Sprintf("name: %q\nbackend: \"python\"\nmax_batch_size: 0\ninput [ { name: \"x\", data_type: TYPE_FP32, dims: [ -1 ] } ]\n"+
			"output [ { name: \"y\", data_type: TYPE_FP32, dims: [ -1 ] } ]\ninstance_group [ { kind: KIND_CPU } ]\n", m)
		for file, text := range map[string]string{"config.pbtxt": config, "1/model.py": identity} {
			if err := os.WriteFile(filepath.Join(folder, m, file), []byte(text), 0o644); err != nil { //nolint:gosec // the engine reads it
				t.Fatal(err)
			}
		}
	}
	p := startEngine(t, t.TempDir(), "triton", exec.Command("../real/triton", "serve", *tritonDir, folder, host,
		"8000")) //nolint:gosec // paths of this test
	t.Cleanup(p.KillGroup)
}

// Two real Tritons have room for half of the models. Triton's own clients get a response for every
// model through Envoy.
func TestRealTritonThroughEnvoy(t *testing.T) {
	runs(t, alone)
	models := []string{"m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7"}
	s := start(t, standalone, placed(t, 1), func(c *rig.Config) {
		hosts := repositories(t, c, engine.Triton, 2, models)
		for _, host := range hosts {
			newTriton(t, host, models)
		}
		listening(t, hosts)
	})
	host, port, err := net.SplitHostPort(s.Listen)
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"testdata/triton_clients.py", host, port, port}, append(models, models...)...)
	out, err := exec.CommandContext(t.Context(), *tritonDir+"/venv/bin/python", args...).CombinedOutput() //nolint:gosec // of this test
	if err != nil || !strings.Contains(string(out), "16 models are served") {
		t.Errorf("%v: %s", err, out)
	}
	// A request for an unknown version does not make extproc forget the model's copies.
	missing := s.sum(s.Metrics, "headgate_endpoint_failures_total", "kind", "missing")
	if a := s.must(request{
		method: "POST", path: "/v2/models/m0/versions/9/infer",
		body: `{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[0]}]}`,
	}); a.status != http.StatusNotFound ||
		!strings.Contains(a.body, "'m0' version 9 is not found") {
		t.Errorf("a version that there is not gets %d %s", a.status, a.body)
	}
	if is := s.sum(s.Metrics, "headgate_endpoint_failures_total", "kind", "missing"); is != missing {
		t.Errorf("%v times a model was missing, and %v before", is, missing)
	}
	s.await("no call is in flight", func() bool { return s.inFlight() == 0 })
}
