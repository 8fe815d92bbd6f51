//go:build real

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/headgate/rig"
	profiles "github.com/headgate/headgate/internal/profile"
)

const (
	// together is the maximum batch size of a server. wait is MLServer's batching delay.
	together = 4
	wait     = 15 * time.Millisecond

	// rest is the pause between lone queries. After a longer pause the machine would be slower at
	// first.
	rest = 100 * time.Millisecond

	// forests is a script that makes an MLServer folder with two random forests: one without
	// adaptive batching, and one with it.
	forests = `
import json, pathlib, sys
import joblib
import numpy as np
from sklearn.ensemble import RandomForestClassifier

folder, size, wait = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
rng = np.random.default_rng(1)
x = rng.normal(size=(2000, 8))
fitted = RandomForestClassifier(600, max_depth=8, random_state=1, n_jobs=1).fit(x, x[:, 0] * x[:, 1] > 0)
for name, more in ("alone", {}), ("forest", {"max_batch_size": size, "max_batch_time": wait}):
    at = pathlib.Path(folder, name)
    at.mkdir(parents=True)
    joblib.dump(fitted, at / "model.joblib")
    (at / "model-settings.json").write_text(json.dumps(
        {"name": name, "implementation": "mlserver_sklearn.SKLearnModel", "parameters": {"uri": "./model.joblib"}} | more))
`

	// layers is a Python model for Triton: dense layers in numpy, computed for a whole batch. A
	// lone row is padded to two rows, because numpy uses another algorithm for a single row, which
	// is seven times as fast.
	layers = `
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        self.w = np.random.default_rng(1).normal(size=(1024, 1024)).astype(np.float32) / 32

    def execute(self, requests):
        rows = [pb.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        y = np.tile(np.concatenate(rows), (1, 128))
        count = len(y)
        if count == 1:
            y = np.repeat(y, 2, axis=0)
        for _ in range(60):
            y = np.tanh(y @ self.w)
        y = y[:count]
        ends = np.cumsum([len(x) for x in rows])[:-1]
        return [pb.InferenceResponse([pb.Tensor("y", np.ascontiguousarray(part[:, :1]))]) for part in np.split(y, ends)]
`
	eightOfFP64 = `{"inputs":[{"name":"x","datatype":"FP64","shape":[1,8],"data":[0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8]}]}`
	eightOfFP32 = `{"inputs":[{"name":"x","datatype":"FP32","shape":[1,8],"data":[0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8]}]}`
)

// serve runs an engine on one core until the test ends. A script starts the engine.
func serve(t *testing.T, core, script string, args ...string) {
	t.Helper()
	command := exec.Command("taskset", append([]string{"-c", core, "../real/" + script, "serve"},
		args...)...) //nolint:gosec // of this file
	command.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1")
	p := startEngine(t, t.TempDir(), script, command)
	t.Cleanup(p.KillGroup)
}

// loadAt makes an engine load a model from its model repository.
func loadAt(t *testing.T, host, model string) {
	t.Helper()
	r, err := http.Post("http://"+host+":8000/v2/repository/models/"+model+"/load", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close()
	if r.StatusCode != http.StatusOK {
		t.Fatalf("%s is not loaded: %s", model, r.Status)
	}
}

// startForest runs an MLServer with the forests.
func startForest(t *testing.T, host string) {
	t.Helper()
	folder := t.TempDir()
	python := *mlserverDir + "/venv/bin/python"
	args := []string{"-c", forests, folder, strconv.Itoa(together), fmt.Sprint(wait.Seconds())}
	fit := exec.CommandContext(t.Context(), python, args...) //nolint:gosec // of this test
	out, err := fit.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	serve(t, "0", "mlserver", *mlserverDir, folder, host, "8000")
}

// startLayers runs a Triton with the model layers.
func startLayers(t *testing.T, host string) {
	t.Helper()
	folder := t.TempDir()
	config := fmt.Sprintf("name: \"layers\"\nbackend: \"python\"\nmax_batch_size: %d\ndynamic_batching { }\n"+
		"instance_group [ { kind: KIND_CPU, count: 1 } ]\n"+
		"input [ { name: \"x\", data_type: TYPE_FP32, dims: [ 8 ] } ]\noutput [ { name: \"y\", data_type: TYPE_FP32, dims: [ 1 ] } ]\n",
		together)
	if err := os.MkdirAll(filepath.Join(folder, "layers", "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"config.pbtxt": config, "1/model.py": layers} {
		err := os.WriteFile(filepath.Join(folder, "layers", file), []byte(text), 0o644) //nolint:gosec // the engine reads it
		if err != nil {
			t.Fatal(err)
		}
	}
	serve(t, "1", "triton", *tritonDir, folder, host, "8000")
}

// The estimates also agree with real engines: a scikit-learn forest on MLServer with adaptive
// batching, then a Python model on Triton with dynamic batching. MLServer delays even a lone query
// to fill its batch, so the forest's profile is measured at a second model without batching, and
// the estimate gets the delay as a parameter.
func TestRealEstimatesAreAsMeasured(t *testing.T) {
	runs(t, alone)
	if *estimates == 0 {
		t.Skip("-estimates says of how many queries")
	}
	var hosts []string
	s := start(t, standalone, func(c *rig.Config) {
		net := strings.TrimSuffix(c.Listen, "1:8080")
		hosts = []string{net + "11", net + "12"}
		startForest(t, hosts[0])
		startLayers(t, hosts[1])
		listening(t, hosts)
		loadAt(t, hosts[0], "forest")
		loadAt(t, hosts[0], "alone")
		loadAt(t, hosts[1], "layers")
		pools(t, c, map[string][]string{"forest": hosts[:1], "layers": hosts[1:]})
	})
	servers := []string{"http://" + hosts[0] + ":8000", "http://" + hosts[1] + ":8000"}
	c := &chained{
		client: manyConnections(t), servers: servers, urls: []string{s.url, s.url}, models: []string{"forest", "layers"},
		ask: []string{eightOfFP64, eightOfFP32},
	}
	c.setting = []estimate.Setting{
		{Times: measured(t, hosts[0], "alone", eightOfFP64, "1,2,4"), Batch: together, Replicas: 1, Wait: wait.Seconds(), Ahead: true},
		{Times: measured(t, hosts[1], "layers", eightOfFP32, "1,2,4"), Batch: together, Replicas: 1},
	}
	c.findHops(t)
	alone := *c // chain with the model without batching
	alone.setting = []estimate.Setting{{Times: c.setting[0].Times, Batch: 1, Replicas: 1}, c.setting[1]}
	c.most = alone.throughput()
	t.Logf("a load of 1 is %.1f queries a second", c.most)
	c.lone = func() (slower []float64) {
		const n = 40
		for i, model := range []string{"alone", "layers"} {
			sum := 0.0
			for range n {
				time.Sleep(rest)
				sum += took(t, func() error {
					_, err := infer(c.client, c.servers[i], model, c.ask[i])
					return err
				})
			}
			slower = append(slower, sum/n/c.setting[i].Times.(*profiles.Batches).MeanTime(1))
		}
		return slower
	}
	direct := *c
	direct.urls, direct.hops = c.servers, 0
	ways := []struct {
		name                         string
		chain                        *chained
		table, otherwise, asProfiled comparison
	}{{name: "through the gateway", chain: c}, {name: "at the servers themselves", chain: &direct}}
	for _, load := range []float64{0.3, 0.5, 0.7} {
		for _, cv := range []float64{1, 4} {
			for i := range ways {
				w := &ways[i]
				is := w.chain.measure(t, *estimates, load, cv)
				w.table = append(w.table, is)
				whenFree := *w.chain // chain with a forest that batches whatever waits when it becomes idle
				whenFree.setting = slices.Clone(c.setting)
				whenFree.setting[0].Ahead = false
				w.otherwise = append(w.otherwise, whenFree.compared(t, is.rounds, load, cv))
				rounds := slices.Clone(is.rounds)
				for i := range rounds {
					t.Logf("the servers are %.2f times as slow as they were", rounds[i].slower)
					rounds[i].slower = nil
				}
				w.asProfiled = append(w.asProfiled, w.chain.compared(t, rounds, load, cv))
			}
		}
	}
	for _, w := range ways {
		t.Logf("\n%s\n\n%v\nas a server would be that gathers queries only while it is free:\n\n%v\nas the servers were when they were measured:\n\n%v",
			w.name, w.table, w.otherwise, w.asProfiled)
	}
}
