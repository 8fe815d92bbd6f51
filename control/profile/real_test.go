//go:build real

package profile

import (
	"context"
	"flag"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/process"
)

var (
	mlserver = flag.String("mlserver", "../../.cache/mlserver", "where bench/real/mlserver installed")
	triton   = flag.String("triton", "../../.cache/triton", "where bench/real/triton installed")
)

func put(t *testing.T, text string, path ...string) {
	t.Helper()
	at := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(text), 0o644); err != nil { //nolint:gosec // the engine reads it
		t.Fatal(err)
	}
}

// serve runs the script of an engine, which serves the models of a directory. It loads one model
// and returns the engine's URL.
func serve(t *testing.T, script, installed, folder, host string, port int, model string) (url string) {
	t.Helper()
	command := exec.Command("../../bench/real/"+script, "serve", installed, folder, host, strconv.Itoa(port)) //nolint:gosec // of this file
	p, err := process.NewStarter().Start(script, t.TempDir(), command)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.KillGroup)
	url = "http://" + host + ":" + strconv.Itoa(port)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !load(ctx, url, model) {
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("%s has not loaded %s:\n%s", script, model, p.LastWords())
		}
	}
	return url
}

// load asks a server to load a model, and reports success.
func load(ctx context.Context, url, model string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v2/repository/models/"+model+"/load", http.NoBody)
	if err != nil {
		return false
	}
	client := http.Client{}
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// A scikit-learn classifier is measured with inputs that are made from its metadata, or read from a
// file.
func TestRealMLServersAreMeasured(t *testing.T) {
	folder := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "../../bench/real/mlserver", "model", *mlserver, folder, "plain", "told").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	put(t, `{"name": "told", "implementation": "mlserver_sklearn.SKLearnModel", "parameters": {"uri": "./model.joblib"},
		"inputs": [{"name": "x", "datatype": "FP64", "shape": [-1, 1]}]}`, folder, "told", "model-settings.json")
	url := serve(t, "mlserver", *mlserver, folder, "127.93.2.1", 8080, "told")
	file := filepath.Join(t.TempDir(), "told.yaml")
	if _, said, err := control(t.Context(), "--url", url, "--model", "told", "--max-batch", "64", "--max-samples", "400", "-o",
		file); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	if b := readBatches(t, file); b.MaxBatch() != 64 || !strings.Contains(b.Source, "v2") {
		t.Errorf("the profile is %+v", b)
	}
	text, _ := os.ReadFile(file)
	t.Logf("%s", text)

	row := filepath.Join(t.TempDir(), "row.json")
	put(t, `{"inputs": [{"name": "x", "datatype": "FP64", "shape": [1, 1], "data": [2.5]}]}`, row)
	if !load(t.Context(), url, "plain") {
		t.Fatal("a further model is not loaded")
	}
	if _, _, err := control(t.Context(), "--url", url, "--model", "plain"); err == nil || !strings.Contains(err.Error(), "--body") {
		t.Errorf("without metadata it says %v", err)
	}
	file = filepath.Join(t.TempDir(), "plain.yaml")
	if _, said, err := control(t.Context(), "--url", url, "--model", "plain", "--body", row, "--batches", "1,16", "--max-samples", "200",
		"-o", file); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	if b := readBatches(t, file); b.MaxBatch() != 16 {
		t.Errorf("the profile is %+v", b)
	}
	if _, _, err := control(t.Context(), "--url", url, "--model", "nobody"); err == nil ||
		!strings.Contains(err.Error(), `has not loaded the model "nobody"`) {
		t.Errorf("of a model that is not there it says %v", err)
	}
}

const pythonSleeper = `
import time

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        out = []
        for r in requests:
            x = pb.get_input_tensor_by_name(r, "x").as_numpy()
            time.sleep(0.010 + 0.002 * x.shape[0])
            out.append(pb.InferenceResponse([pb.Tensor("y", x.sum(axis=1, keepdims=True).astype(np.float32))]))
        return out
`

// The measured model is Python code that sleeps 10 ms plus 2 ms per item. Its largest batch is 8.
func TestRealTritonsAreMeasured(t *testing.T) {
	folder := t.TempDir()
	put(t, `name: "sleeper"
backend: "python"
max_batch_size: 8
instance_group [ { kind: KIND_CPU } ]
input [ { name: "x", data_type: TYPE_FP32, dims: [ 3 ] } ]
output [ { name: "y", data_type: TYPE_FP32, dims: [ 1 ] } ]
`, folder, "sleeper", "config.pbtxt")
	put(t, pythonSleeper, folder, "sleeper", "1", "model.py")
	url := serve(t, "triton", *triton, folder, "127.93.2.2", 8000, "sleeper")
	file := filepath.Join(t.TempDir(), "sleeper.yaml")
	if _, said, err := control(t.Context(), "--url", url, "--model", "sleeper", "--max-batch", "32", "--max-samples", "200", "-o",
		file); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	text, _ := os.ReadFile(file)
	t.Logf("%s", text)
	b := readBatches(t, file)
	if b.MaxBatch() != 8 || !strings.Contains(b.Source, "Left out are batches of 16 and more") {
		t.Errorf("the profile is %+v", b)
	}
	if _, _, err := control(t.Context(), "--url", url, "--model", "nobody"); err == nil ||
		!strings.Contains(err.Error(), `has not loaded the model "nobody"`) {
		t.Errorf("of a model that is not there it says %v", err)
	}
	if _, _, err := control(t.Context(), "--url", url, "--model", "nobody", "--api", "v2"); err == nil ||
		!strings.Contains(err.Error(), `has not loaded the model "nobody"`) {
		t.Errorf("of a model that is not there it says %v", err)
	}
	for _, is := range b.Batches {
		if slept := 0.010 + 0.002*float64(is.Size); b.Time(is.Size, 0.5) < slept || b.Time(is.Size, 0.5) > 1.25*slept+0.005 {
			t.Errorf("half of batches of %d take %v s at most, and the model sleeps %v", is.Size, b.Time(is.Size, 0.5), slept)
		}
	}
}
