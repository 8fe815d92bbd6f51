package manage

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/control/place/loader"
	"github.com/headgate/headgate/headgate/simulated/repository"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
)

// repositoryProcess is a simulated engine with a model repository, which can end and start again.
type repositoryProcess struct {
	*repository.Server
	address string
	config  repository.Config
	stop    func()
}

func newRepository(t *testing.T, kind engine.Kind) *repositoryProcess {
	t.Helper()
	p := &repositoryProcess{address: "127.0.0.1:0", config: repository.Config{Kind: kind, Models: map[string]repository.Model{
		"a": {}, "b": {}, "own": {}, "broken": {Fail: "it is broken"},
		"a.mar": {}, "b.mar": {}, "own.mar": {}, "broken.mar": {Fail: "it is broken"},
	}}}
	p.start(t)
	t.Cleanup(func() { p.stop() })
	return p
}

func (p *repositoryProcess) start(t *testing.T) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", p.address)
	if err != nil {
		t.Fatal(err)
	}
	p.address, p.Server = l.Addr().String(), repository.New(p.config)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- repository.Serve(ctx, p.Server, l) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (p *repositoryProcess) endpoint() loader.Endpoint {
	return loader.Endpoint{Address: p.address, Management: p.address, Kind: p.config.Kind}
}

// fakeLayout is a [Layout] that keeps the names of models in memory.
type fakeLayout struct {
	mu   sync.Mutex
	all  map[string]bool
	kind engine.Kind
}

func (l *fakeLayout) Apply(r Request, at Local) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.Path == "sim:?keras" {
		return "", &FetchError{Message: "convert it first"}
	}
	l.all[r.ID] = true
	if l.kind == engine.TorchServe {
		return r.ID + ".mar", nil
	}
	return "/models/" + r.ID, nil
}

func (l *fakeLayout) Remove(id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, id)
	return nil
}

func (l *fakeLayout) Clear() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.all)
	return nil
}

func (l *fakeLayout) Models() (map[string]string, error) {
	all := make(map[string]string)
	for _, id := range l.models() {
		all[id] = "/models/" + id
	}
	return all, nil
}

func (l *fakeLayout) models() (ids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.all {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

var drivenLimits = Limits{
	Bytes: 1 << 30, DefaultBytes: 1_000_000, SizeFactor: 1.25, Loads: 2, LoadTimeout: 90 * time.Second, Concurrency: 3, Version: "v1",
	Methods: map[string][]uint32{"inference.GRPCInferenceService/ModelInfer": {1}},
}

// drivenKinds are the kinds of driven engines that the tests simulate.
var drivenKinds = []engine.Kind{engine.Triton, engine.MLServer, engine.TorchServe, engine.TFServing}

func newDriven(t *testing.T, p *repositoryProcess, l Layout) func() Engine {
	return func() Engine {
		d, err := Drive(p.endpoint(), drivenLimits, l, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
}

// A driven engine reports what ModelMesh's adapters report, and loads and unloads models.
func TestDrivenEngines(t *testing.T) {
	for _, kind := range drivenKinds {
		t.Run(string(kind), func(t *testing.T) {
			process, storage := newRepository(t, kind), newStorage()
			layout := &fakeLayout{all: map[string]bool{"left": true}, kind: kind}
			agent := newAgent(t, Config{Storage: storage}, newDriven(t, process, layout))
			client := calls(t, agent.address)
			ready, err := client.RuntimeStatus(t.Context(), &mmesh.RuntimeStatusRequest{})
			want := &mmesh.RuntimeStatusResponse{
				Status: mmesh.RuntimeStatusResponse_READY, CapacityInBytes: 1 << 30, MaxLoadingConcurrency: 2,
				ModelLoadingTimeoutMs: 90_000, DefaultModelSizeInBytes: 1_000_000, RuntimeVersion: "v1", LimitModelConcurrency: true,
				MethodInfos: map[string]*mmesh.RuntimeStatusResponse_MethodInfo{
					"inference.GRPCInferenceService/ModelInfer": {IdInjectionPath: []uint32{1}},
				},
			}
			if diff := cmp.Diff(want, ready, protocmp.Transform()); diff != "" || err != nil {
				t.Fatalf("runtimeStatus: %v (-want +got):\n%s", err, diff)
			}
			if left := layout.models(); len(left) > 0 {
				t.Errorf("the layouts of %q are left from before", left)
			}
			for _, c := range []struct {
				id, path, key string
				size          uint64
				code          codes.Code
			}{
				{"a", "fetch:x", "", 1250, codes.OK},
				{"b", "/models/b", `{"disk_size_bytes":2000}`, 2500, codes.OK},
				{"own", "/models/own", "", 1_000_000, codes.OK},
				{"broken", "fetch:x", "", 0, codes.FailedPrecondition},
				{"keras", "fetch:keras", "", 0, codes.FailedPrecondition},
			} {
				q := &mmesh.LoadModelRequest{ModelId: c.id, ModelPath: c.path, ModelKey: c.key}
				answer, err := client.LoadModel(t.Context(), q)
				if status.Code(err) != c.code || answer.GetSizeInBytes() != c.size || err == nil && answer.GetMaxConcurrency() != 3 {
					t.Errorf("a load of %s: %v, %v, want %d bytes and %v", c.id, answer, err, c.size, c.code)
				}
				if err != nil {
					continue
				}
				predicted, err := client.PredictModelSize(t.Context(), &mmesh.PredictModelSizeRequest{ModelId: c.id, ModelKey: c.key})
				if err != nil || c.key != "" && predicted.GetSizeInBytes() != c.size {
					t.Errorf("the predicted size of %s: %v, %v", c.id, predicted, err)
				}
				size, err := client.ModelSize(t.Context(), &mmesh.ModelSizeRequest{ModelId: c.id})
				if err != nil || size.GetSizeInBytes() != c.size {
					t.Errorf("the size of %s: %v, %v", c.id, size, err)
				}
			}
			want1, want2 := []string{"a", "b", "own"}, []string{"a"}
			got := process.Models()
			if !slices.Equal(got, want1) || !slices.Equal(layout.models(), want1) || !slices.Equal(storage.Models(), want2) {
				t.Errorf("the engine has %q, layouts %q, files %q", got, layout.models(), storage.Models())
			}
			for _, id := range append(want1, "nobody") {
				if _, err := unload(id)(client); err != nil {
					t.Errorf("an unload of %s: %v", id, err)
				}
			}
			if got := process.Models(); len(got)+len(layout.models())+len(storage.Models()) > 0 {
				t.Errorf("the engine has %q, layouts %q, files %q", got, layout.models(), storage.Models())
			}
			empty(t, agent)
		})
	}
}

// If only the agent restarts, the models of an engine that lists them stay. If the engine restarts,
// control learns it. Models that the agent did not load are unloaded once in each life.
func TestLivesOfDrivenEngines(t *testing.T) {
	for _, kind := range drivenKinds {
		t.Run(string(kind), func(t *testing.T) {
			process, storage := newRepository(t, kind), newStorage()
			layout := &fakeLayout{all: map[string]bool{}, kind: kind}
			agent := newAgent(t, Config{Storage: storage, StateFile: filepath.Join(t.TempDir(), "state")}, newDriven(t, process, layout))
			control := newControl(t, agent.address)
			direct, err := loader.Open(process.endpoint(), engineclient.Access{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = direct.Close() })
			foreign := func() {
				t.Helper()
				if kind == engine.TFServing {
					return // a list of a client replaces that of another one
				}
				source := "/models/own"
				if kind == engine.TorchServe {
					source = "own.mar"
				}
				if _, err := direct.Load(t.Context(), loader.Model{ID: "own", Source: source}, testTimeout); err != nil {
					t.Fatal(err)
				}
			}
			has := func(what string, want ...string) {
				t.Helper()
				if got := process.Models(); !slices.Equal(got, want) {
					t.Errorf("%s: the engine has %q, want %q", what, got, want)
				}
			}
			foreign()
			control.look("the first look", true)
			has("after the purge")
			control.mustLoad("a", "fetch:x")
			control.mustLoad("b", "/models/b")
			agent.stop()
			agent.start(t)
			control.look("the look after a restart of the agent", false)
			has("after a restart of the agent", "a", "b")
			control.mustLoad("b", "/models/b")
			if err := control.loader.Unload(t.Context(), "b"); err != nil {
				t.Error(err)
			}
			has("after an unload", "a")
			process.stop()
			process.start(t)
			foreign()
			control.look("the look after a restart of the engine", true)
			has("after the second purge")
			if got := append(storage.Models(), layout.models()...); len(got) > 0 {
				t.Errorf("files of %q are left", got)
			}
			control.mustLoad("a", "fetch:x")
			has("after the second purge and a load", "a")
		})
	}
}

// An engine that allows no loads is reported with what to do.
func TestClosedEngines(t *testing.T) {
	process := newRepository(t, engine.Triton)
	process.stop()
	process.config.Fixed = true
	process.start(t)
	agent := newAgent(t, Config{}, newDriven(t, process, nil))
	_, err := calls(t, agent.address).RuntimeStatus(t.Context(), &mmesh.RuntimeStatusRequest{})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "--model-control-mode=explicit") {
		t.Errorf("%v", err)
	}
}

// The outcomes of drivers become the codes that have the same meaning for control.
func TestCodesOfOutcomes(t *testing.T) {
	for want, err := range map[codes.Code]error{
		codes.FailedPrecondition: &loader.Error{Outcome: loader.Refused},
		codes.Unavailable:        &loader.Error{Outcome: loader.Refused, Transient: true},
		codes.Internal:           &loader.Error{Outcome: loader.Unclear},
	} {
		if got := status.Code(callError(err)); got != want {
			t.Errorf("%+v: %v, want %v", err, got, want)
		}
	}
	if got := status.Code(callError(&loader.Error{Outcome: loader.Unreached})); got != codes.Unavailable {
		t.Errorf("an engine that is not there: %v", got)
	}
}
