// Package runtime is a simulated model runtime. It serves ModelMesh's interface for runtimes
// (mmesh.ModelRuntime) over gRPC, and requests for loaded models over HTTP. It computes nothing.
// The path of a model defines its size, its times and its failures, so objects can describe any
// scenario.
//
// It is stricter than real runtimes, to expose errors in tests: a load beyond its memory or loading
// threads fails with RESOURCE_EXHAUSTED, and so does a request beyond the concurrency limit of its
// model. Like real runtimes, it unloads all models when its status is requested, and answers OK if
// an unknown model is unloaded.
package runtime

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/headgate/simulated/llm"
)

// Config configures a runtime.
type Config struct {
	Capacity       int64 // memory for models in bytes
	DefaultSize    int64 // bytes of a model whose path defines no size
	LoadingThreads int   // maximum number of parallel loads
	LoadTimeout    time.Duration
	Startup        time.Duration // time until the runtime is ready
	// Unpredicting means that predictModelSize is not implemented.
	Unpredicting bool
	// Concurrency is the default limit of concurrent requests per model. 0 means no limit; then
	// answers contain none.
	Concurrency int
	// Unknown is the gRPC status for an unknown model; %s in its message stands for the id. Nil
	// means the status that Triton returns.
	Unknown *status.Status
	Events  *llm.Events // event log; nil for none
}

// Runtime is a simulated runtime. Create it with New. Its methods are safe for concurrent use.
type Runtime struct {
	mmesh.UnimplementedModelRuntimeServer
	config Config
	born   time.Time
	over   chan struct{} // closed by Close

	mu      sync.Mutex // guards the fields below, and the fields of models
	models  map[string]*model
	used    int64          // bytes of models that are loading, loaded or unloading
	loading int            // number of running loads
	failed  map[string]int // number of failed loads by model id
	purges  int
}

// model is a model on the runtime, from the start of its load to the end of its unload.
type model struct {
	id string
	spec
	loaded  chan struct{} // closed when the load has ended; err is its result
	err     error
	ready   bool
	running int           // number of running inferences
	abort   chan struct{} // closed to abort the load
	aborted bool          // abort is closed
	leaving chan struct{} // closed at the end of the unload; nil before the unload starts
	gone    bool          // the model was removed from models and its memory freed
	// loads and unloads are functions that log the end of the load and of the unload. Each call of
	// LoadModel or UnloadModel adds one.
	loads, unloads []func(failure string)
}

// New returns a runtime that begins to start now.
func New(c Config) *Runtime {
	return &Runtime{config: c, born: time.Now(), over: make(chan struct{}), models: map[string]*model{}, failed: map[string]int{}}
}

// RuntimeStatus reports whether the runtime is ready. It also unloads all models immediately.
func (r *Runtime) RuntimeStatus(context.Context, *mmesh.RuntimeStatusRequest) (*mmesh.RuntimeStatusResponse, error) {
	r.purge()
	if time.Since(r.born) < r.config.Startup {
		return &mmesh.RuntimeStatusResponse{Status: mmesh.RuntimeStatusResponse_STARTING}, nil
	}
	return &mmesh.RuntimeStatusResponse{
		Status:                  mmesh.RuntimeStatusResponse_READY,
		CapacityInBytes:         uint64(r.config.Capacity),
		MaxLoadingConcurrency:   uint32(r.config.LoadingThreads),
		ModelLoadingTimeoutMs:   uint32(r.config.LoadTimeout.Milliseconds()),
		DefaultModelSizeInBytes: uint64(r.config.DefaultSize),
		RuntimeVersion:          "simulated",
		MethodInfos:             methods,
		LimitModelConcurrency:   r.config.Concurrency > 0,
	}, nil
}

func (r *Runtime) purge() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.purges++
	r.config.Events.Write(llm.Event{Event: "purge", Models: len(r.models)})
	for _, m := range r.models {
		r.abortLoad(m)
		r.drop(m)
	}
}

// LoadModel loads a model and returns when it is loaded. A second call for the model waits for the
// first.
func (r *Runtime) LoadModel(ctx context.Context, q *mmesh.LoadModelRequest) (*mmesh.LoadModelResponse, error) {
	ended := r.config.Events.Begin("load", "loaded", q.GetModelId())
	m, err := r.begin(q, ended)
	if err != nil {
		ended(status.Convert(err).Message())
		return nil, err
	}
	select {
	case <-m.loaded:
	case <-ctx.Done():
		r.mu.Lock()
		defer r.mu.Unlock()
		if !m.stubborn {
			r.abortLoad(m)
		}
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if m.err != nil { // safe to read: err was set before loaded was closed
		return nil, m.err
	}
	answer := &mmesh.LoadModelResponse{MaxConcurrency: uint32(m.concurrency)}
	if !m.sizes {
		answer.SizeInBytes = uint64(m.size)
	}
	return answer, nil
}

// begin allocates the memory of a model and starts its load. ended is called at the end of the load
// to log it.
func (r *Runtime) begin(q *mmesh.LoadModelRequest, ended func(string)) (*model, error) {
	id := q.GetModelId()
	s, err := parseSpec(q.GetModelPath(), r.config.DefaultSize)
	if err == nil && id == "" {
		err = errors.New("a model has an id")
	}
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	switch {
	case r.config.Concurrency == 0:
		s.concurrency = 0
	case s.concurrency == 0:
		s.concurrency = r.config.Concurrency
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.models[id]; m != nil {
		switch {
		case m.leaving != nil:
			return nil, status.Errorf(codes.Aborted, "model %s is being unloaded", id)
		case m.ready:
			ended("")
		default:
			m.loads = append(m.loads, ended)
		}
		return m, nil
	}
	if r.loading >= r.config.LoadingThreads {
		return nil, status.Errorf(codes.ResourceExhausted, "all %d loading threads are busy", r.config.LoadingThreads)
	}
	if free := r.config.Capacity - r.used; s.size > free {
		return nil, status.Errorf(codes.ResourceExhausted, "model %s takes %d bytes, and %d of %d are free", id, s.size, free,
			r.config.Capacity)
	}
	m := &model{id: id, spec: s, loaded: make(chan struct{}), abort: make(chan struct{}), loads: []func(string){ended}}
	r.models[id] = m
	r.used += s.size
	r.loading++
	go r.run(m)
	return m, nil
}

// run runs a load until it ends or is aborted.
func (r *Runtime) run(m *model) {
	var end <-chan time.Time
	if !m.hang {
		timer := time.NewTimer(m.load)
		defer timer.Stop()
		end = timer.C
	}
	aborted := false
	select {
	case <-end:
	case <-m.abort:
		aborted = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loading--
	switch {
	case aborted || m.gone:
		m.err = status.Errorf(codes.Aborted, "the load of model %s was given up", m.id)
	case m.code != codes.OK && (m.failures < 0 || r.failed[m.id] < m.failures):
		r.failed[m.id]++
		m.err = status.Error(m.code, m.words)
	default:
		m.ready = true
	}
	if m.err != nil {
		r.drop(m)
	}
	for _, ended := range m.loads {
		ended(status.Convert(m.err).Message()) // an empty message if err is nil
	}
	close(m.loaded)
}

// abortLoad aborts a load. The caller holds mu.
func (r *Runtime) abortLoad(m *model) {
	if !m.aborted {
		m.aborted = true
		close(m.abort)
	}
}

// drop removes a model and frees its memory. The caller holds mu.
func (r *Runtime) drop(m *model) {
	m.ready = false
	if !m.gone {
		m.gone = true
		r.used -= m.size
		delete(r.models, m.id)
	}
}

// UnloadModel unloads a model and returns when its memory is free. If the model is loading,
// UnloadModel aborts the load. If the load ignores that, it waits for its end.
func (r *Runtime) UnloadModel(ctx context.Context, q *mmesh.UnloadModelRequest) (*mmesh.UnloadModelResponse, error) {
	ended := r.config.Events.Begin("unload", "unloaded", q.GetModelId())
	left := r.beginUnload(q.GetModelId(), ended)
	if left == nil {
		ended("")
		return &mmesh.UnloadModelResponse{}, nil
	}
	select {
	case <-left:
		return &mmesh.UnloadModelResponse{}, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// beginUnload starts the unload of a model and calls ended to log its end. It returns a channel
// that is closed when the unload has ended; nil if there is no such model.
func (r *Runtime) beginUnload(id string, ended func(string)) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.models[id]
	if m == nil {
		return nil
	}
	m.unloads = append(m.unloads, ended)
	if m.leaving == nil {
		m.leaving = make(chan struct{})
		if !m.stubborn {
			r.abortLoad(m)
		}
		go r.leave(m)
	}
	return m.leaving
}

// leave runs the unload of a model, which continues if the caller disconnects.
func (r *Runtime) leave(m *model) {
	<-m.loaded
	r.mu.Lock()
	m.ready = false
	pause := m.unload
	if m.gone {
		pause = 0
	}
	r.mu.Unlock()
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.over:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(m)
	for _, ended := range m.unloads {
		ended("")
	}
	close(m.leaving)
}

// PredictModelSize estimates the size of a model from its path.
func (r *Runtime) PredictModelSize(_ context.Context, q *mmesh.PredictModelSizeRequest) (*mmesh.PredictModelSizeResponse, error) {
	if r.config.Unpredicting {
		return nil, status.Error(codes.Unimplemented, "sizes are not predicted")
	}
	s, err := parseSpec(q.GetModelPath(), r.config.DefaultSize)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &mmesh.PredictModelSizeResponse{SizeInBytes: uint64(s.predict)}, nil
}

// ModelSize returns the size of a model. Like common runtimes, it returns the default size for an
// unknown model.
func (r *Runtime) ModelSize(ctx context.Context, q *mmesh.ModelSizeRequest) (*mmesh.ModelSizeResponse, error) {
	r.mu.Lock()
	m := r.models[q.GetModelId()]
	r.mu.Unlock()
	if m == nil {
		return &mmesh.ModelSizeResponse{SizeInBytes: uint64(r.config.DefaultSize)}, nil
	}
	timer := time.NewTimer(m.sizing)
	defer timer.Stop()
	select {
	case <-timer.C:
		return &mmesh.ModelSizeResponse{SizeInBytes: uint64(m.size)}, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// Loaded reports whether a model is loaded and serves requests.
func (r *Runtime) Loaded(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.models[id]
	return m != nil && m.ready
}

// Purges returns how often the status was requested, which unloads all models.
func (r *Runtime) Purges() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.purges
}

// Models returns the ids of the models that serve requests, sorted.
func (r *Runtime) Models() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []string
	for id, m := range r.models {
		if m.ready {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Used returns the used memory in bytes.
func (r *Runtime) Used() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.used
}

// Close aborts all loads and unloads. It may be called once.
func (r *Runtime) Close() {
	close(r.over)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.models {
		r.abortLoad(m)
		r.drop(m)
	}
}
