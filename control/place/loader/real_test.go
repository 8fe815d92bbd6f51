//go:build real

package loader

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/headgate/simulated/repository"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/process"
)

var installed = map[engine.Kind]*string{
	engine.MLServer: flag.String("mlserver", "../../../.cache/mlserver", "where bench/real/mlserver installed"),
	engine.Triton:   flag.String("triton", "../../../.cache/triton", "where bench/real/triton installed"),

	engine.TorchServe: flag.String("torchserve", "../../../.cache/torchserve", "where bench/real/torchserve installed"),
}

// realPorts and realHosts are the addresses of real engines. Each engine also uses the ports after
// its own.
var (
	realPorts = map[engine.Kind]string{engine.MLServer: "8080", engine.Triton: "8000", engine.TorchServe: "8080"}
	realHosts = map[engine.Kind]string{engine.MLServer: "127.93.0.1", engine.Triton: "127.93.0.2", engine.TorchServe: "127.93.0.3"}
	alive     = map[engine.Kind]string{engine.MLServer: engine.LivePath, engine.Triton: engine.LivePath, engine.TorchServe: "/ping"}
)

// TestRealRepositories runs the scenarios of the simulated engines with real ones: MLServer with
// models of scikit-learn, and Triton with models in Python.
func TestRealRepositories(t *testing.T) { playReal(t, v2Kinds...) }

// TestRealRepositoriesOverGRPC runs the same scenarios over the engines' gRPC ports.
func TestRealRepositoriesOverGRPC(t *testing.T) {
	overGRPC = true
	defer func() { overGRPC = false }()
	playReal(t, v2Kinds...)
}

// overGRPC: the model repositories of real engines are called over gRPC.
var overGRPC bool

// TestRealTorchServe runs the scenarios of the simulated engines with a real TorchServe and Python
// handlers.
func TestRealTorchServe(t *testing.T) { playReal(t, engine.TorchServe) }

func playReal(t *testing.T, kinds ...engine.Kind) {
	shelves := make(map[engine.Kind]*realEngine)
	for _, kind := range kinds {
		shelves[kind] = newRealEngine(t, kind)
	}
	perform(t, func(t *testing.T, kind engine.Kind) repositoryEngine {
		shelves[kind].T = t
		return shelves[kind]
	}, kinds, func(t *testing.T, run func(t *testing.T)) { run(t) })
}

// A Triton without explicit model control reports that it cannot load models. It has all models of
// its repository.
func TestRealTritonWithoutExplicitControl(t *testing.T) {
	s := newRealEngine(t, engine.Triton, "--model-control-mode=none")
	s.kill()
	s.put("m", repository.Model{})
	s.start()
	l, err := Open(s.endpoint(), s.access(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	seen, err := l.Scrape(t.Context(), Record{})
	if err != nil || seen.Takes || !seen.Lists || len(seen.Models) != 1 || seen.Models[0] != (Listed{ID: "m"}) {
		t.Errorf("a look: %+v, %v", seen, err)
	}
	_, err = l.Load(t.Context(), Model{ID: "m2"}, time.Minute)
	if failed := faultOf(err); failed == nil || failed.Outcome != Refused ||
		!strings.Contains(failed.Message, "--model-control-mode=explicit") {
		t.Errorf("a load: %v", said(err, "done"))
	}
}

// realEngine is a real engine with the folder of its models.
type realEngine struct {
	*testing.T
	kind        engine.Kind
	folder, log string
	flags       []string
	process     *process.Process
}

// engines starts real engines.
var engines = process.NewStarter()

func newRealEngine(t *testing.T, kind engine.Kind, flags ...string) *realEngine {
	t.Helper()
	dir := t.TempDir()
	s := &realEngine{T: t, kind: kind, folder: filepath.Join(dir, "models"), log: filepath.Join(dir, "loads"), flags: flags}
	s.write("", "", nil)
	if kind == engine.MLServer {
		s.write("", "shelf.py", []byte(sklearnModel))
		out, err := exec.CommandContext(t.Context(), "../../../bench/real/mlserver", "model", *installed[kind], dir,
			"template").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	s.start()
	t.Cleanup(func() { s.T = t; s.kill() })
	return s
}

// sklearnModel is a model of scikit-learn that records its loads, and may load slowly.
const sklearnModel = `
import os
import time

from mlserver_sklearn import SKLearnModel


class Model(SKLearnModel):
    async def load(self):
        with open(os.environ["LOADS"], "a") as log:
            log.write(self.name + "\n")
        time.sleep(self.settings.parameters.extra["load"])
        return await super().load()

    async def unload(self):
        time.sleep(self.settings.parameters.extra["unload"])
        return True
`

const pythonModel = `
import os
import time

import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        with open(os.environ["LOADS"], "a") as log:
            log.write(args["model_name"] + "\n")
        time.sleep(%v)
        if %q:
            raise Exception(%[2]q)

    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("y", pb.get_input_tensor_by_name(r, "x").as_numpy())]) for r in requests]

    def finalize(self):
        time.sleep(%v)
`

func (s *realEngine) write(folder, name string, text []byte) {
	s.Helper()
	at := filepath.Join(s.folder, folder)
	if err := os.MkdirAll(at, 0o755); err != nil {
		s.Fatal(err)
	}
	if name != "" {
		if err := os.WriteFile(filepath.Join(at, name), text, 0o644); err != nil { //nolint:gosec // the engine reads it
			s.Fatal(err)
		}
	}
}

const handler = `
import os
import time

with open(os.environ["LOADS"], "a") as log:
    log.write(%q + "\n")
time.sleep(%v)
if %q:
    raise Exception(%[3]q)


def handle(data, context):
    return ["ok"] * len(data or [])
`

func (s *realEngine) put(name string, m repository.Model) {
	s.Helper()
	if s.kind == engine.TorchServe {
		s.write("../handlers", name+".py", fmt.Appendf(nil, handler, name, m.Load.Seconds(), m.Fail))
		out, err := exec.CommandContext(s.Context(), "../../../bench/real/torchserve", "archive", filepath.Join(s.folder, name+".mar"),
			name, //nolint:gosec // of this file
			filepath.Join(s.folder, "../handlers", name+".py")).CombinedOutput()
		if err != nil {
			s.Fatalf("%v: %s", err, out)
		}
		return
	}
	if s.kind == engine.Triton {
		s.write(name, "config.pbtxt", fmt.Appendf(nil, "name: %q\nbackend: \"python\"\nmax_batch_size: 0\n"+
			"input [ { name: \"x\", data_type: TYPE_FP32, dims: [ -1 ] } ]\noutput [ { name: \"y\", data_type: TYPE_FP32, dims: [ -1 ] } ]\n"+
			"instance_group [ { kind: KIND_CPU } ]\n", name))
		s.write(filepath.Join(name, "1"), "model.py", fmt.Appendf(nil, pythonModel, m.Load.Seconds(), m.Fail, m.Unload.Seconds()))
		return
	}
	s.write(name, "model-settings.json", fmt.Appendf(nil,
		`{"name": %q, "implementation": "shelf.Model", "parameters": {"uri": "./model.joblib", "extra": {"load": %v, "unload": %v}}}`,
		name, m.Load.Seconds(), m.Unload.Seconds()))
	if m.Fileless {
		return
	}
	fitted, err := os.ReadFile(filepath.Join(s.folder, "../template/model.joblib"))
	if err != nil {
		s.Fatal(err)
	}
	if m.Fail != "" {
		fitted = []byte(m.Fail)
	}
	s.write(name, "model.joblib", fitted)
}

func (s *realEngine) endpoint() Endpoint {
	e := Endpoint{Address: realHosts[s.kind] + ":" + realPorts[s.kind], Kind: s.kind}
	if overGRPC {
		port, err := strconv.Atoi(realPorts[s.kind])
		if err != nil {
			s.Fatal(err)
		}
		e.RepositoryOverGRPC, e.GRPC = true, fmt.Sprintf("%s:%d", realHosts[s.kind], port+1)
	}
	if s.kind == engine.TorchServe {
		e.Management = realHosts[s.kind] + ":8081"
	}
	return e
}

func (s *realEngine) access() engineclient.Access { return engineclient.Access{} }

func (s *realEngine) loads(name string) (n int) {
	s.Helper()
	text, err := os.ReadFile(s.log)
	if err != nil {
		s.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.TrimSuffix(line, "\n") == name {
			n++
		}
	}
	return n
}

func (s *realEngine) start() {
	s.Helper()
	if err := os.WriteFile(s.log, nil, 0o600); err != nil {
		s.Fatal(err)
	}
	args := append([]string{"serve", *installed[s.kind], s.folder, realHosts[s.kind], realPorts[s.kind]}, s.flags...)
	command := exec.Command("../../../bench/real/"+string(s.kind), args...) //nolint:gosec // of this file
	command.Env = append(os.Environ(), "LOADS="+s.log, "PYTHONPATH="+s.folder)
	var err error
	if s.process, err = engines.Start(string(s.kind), filepath.Dir(s.log), command); err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.endpoint().Address+alive[s.kind], nil)
		if err != nil {
			s.Fatal(err)
		}
		if resp, err := (&http.Client{Timeout: time.Second}).Do(r); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		if !wait(ctx, 50*time.Millisecond) {
			s.Fatalf("%s does not serve: %s", s.kind, s.process.LastWords())
		}
	}
}

func (s *realEngine) kill() {
	s.process.KillGroup()
	for { // TorchServe runs as two processes
		conn, err := net.DialTimeout("tcp", cmp.Or(s.endpoint().Management, s.endpoint().Address), time.Second)
		if err != nil {
			return
		}
		_ = conn.Close()
		time.Sleep(minPoll)
	}
}
