// Package runtime is a simulated model runtime: it serves ModelMesh's interface for runtimes (mmesh.ModelRuntime) by gRPC,
// and answers requests for the models that are loaded by HTTP. It computes nothing; sizes, times and failures of a model
// come from its path, so that any scenario can be written where the path is: in an object.
//
// It is strict where real runtimes are not, so that tests see what nobody should do: a load beyond its memory or beyond
// its loading threads fails with RESOURCE_EXHAUSTED, and so does an inference beyond the limit of its model. As the real ones do, it loses every model when it is asked whether it
// is ready, and answers OK to an unload of what it has not got.
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
	"github.com/headgate/headgate/bench/simulated/llm"
)

// Config is how a runtime is set up.
type Config struct {
	Capacity       int64 // bytes that models may take together
	DefaultSize    int64 // of a model whose path says none
	LoadingThreads int   // loads at once
	LoadTimeout    time.Duration
	Startup        time.Duration // until it is ready
	// Unpredicting leaves predictModelSize unimplemented.
	Unpredicting bool
	// Concurrency is how many requests for a model it takes at once whose path says none; 0: as many as come, and it says of no model how many.
	Concurrency int
	// Unknown is the status of a gRPC call for a model that it does not have; %s in its words stands for the model's id. Nil is Triton's.
	Unknown *status.Status
	Events  *llm.Events // may be nil
}

// Runtime is one simulated runtime. Make it with New. Its methods are safe for concurrent use.
type Runtime struct {
	mmesh.UnimplementedModelRuntimeServer
	config Config
	born   time.Time
	over   chan struct{} // closed by Close

	mu      sync.Mutex // guards what follows, and the models' fields
	models  map[string]*model
	used    int64          // bytes, of models that load, are loaded or unload
	loading int            // loads that are on
	failed  map[string]int // loads that failed, by the model's id
	purges  int
}

// model is a model from the beginning of its load to the end of its unload.
type model struct {
	id string
	spec
	loaded  chan struct{} // closed when the load has ended; err says how
	err     error
	ready   bool
	running int           // inferences that are on
	unwant  chan struct{} // closed when the load is to be given up
	given   bool          // unwant is closed
	leaving chan struct{} // closed at the end of the unload; nil before it began
	gone    bool          // it is no more in models, and its memory is free
	// What tells the event log of the end of the load and of the unload, for each call that asked for it.
	loads, unloads []func(failure string)
}

// New returns a runtime that starts now.
func New(c Config) *Runtime {
	return &Runtime{config: c, born: time.Now(), over: make(chan struct{}), models: map[string]*model{}, failed: map[string]int{}}
}

// RuntimeStatus says whether the runtime is ready. It takes every model away, at once.
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
		r.give(m)
		r.drop(m)
	}
}

// LoadModel returns when the model is loaded. A second load of a model that loads waits for the first.
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
			r.give(m)
		}
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if m.err != nil { // set before loaded was closed
		return nil, m.err
	}
	answer := &mmesh.LoadModelResponse{MaxConcurrency: uint32(m.concurrency)}
	if !m.sizes {
		answer.SizeInBytes = uint64(m.size)
	}
	return answer, nil
}

// begin takes the memory of a model and begins its load, whose end is told.
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
		return nil, status.Errorf(codes.ResourceExhausted, "model %s takes %d bytes, and %d of %d are free", id, s.size, free, r.config.Capacity)
	}
	m := &model{id: id, spec: s, loaded: make(chan struct{}), unwant: make(chan struct{}), loads: []func(string){ended}}
	r.models[id] = m
	r.used += s.size
	r.loading++
	go r.run(m)
	return m, nil
}

// run is a load, to its end or until it is given up.
func (r *Runtime) run(m *model) {
	var end <-chan time.Time
	if !m.hang {
		timer := time.NewTimer(m.load)
		defer timer.Stop()
		end = timer.C
	}
	given := false
	select {
	case <-end:
	case <-m.unwant:
		given = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loading--
	switch {
	case given || m.gone:
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
		ended(status.Convert(m.err).Message()) // empty of a nil error
	}
	close(m.loaded)
}

// give gives a load up. The caller holds mu.
func (r *Runtime) give(m *model) {
	if !m.given {
		m.given = true
		close(m.unwant)
	}
}

// drop forgets a model and frees its memory. The caller holds mu.
func (r *Runtime) drop(m *model) {
	m.ready = false
	if !m.gone {
		m.gone = true
		r.used -= m.size
		delete(r.models, m.id)
	}
}

// UnloadModel returns when the model's memory is free. It gives up a load of it, or waits for the end of a stubborn one.
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

// beginUnload begins the unload of a model, whose end is told, and returns what is closed then; nil if there is no such
// model.
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
			r.give(m)
		}
		go r.leave(m)
	}
	return m.leaving
}

// leave is an unload. It goes on when nobody waits for it any more.
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

// PredictModelSize estimates the size of a model by its path.
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

// ModelSize tells a model's size. It answers for models that it does not know, with the default, as common runtimes do:
// it proves nothing.
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

// Loaded says whether a model answers requests.
func (r *Runtime) Loaded(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.models[id]
	return m != nil && m.ready
}

// Purges is how often the runtime was asked whether it is ready.
func (r *Runtime) Purges() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.purges
}

// Models are the models that answer requests, in order.
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

// Used is the memory that is taken, in bytes.
func (r *Runtime) Used() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.used
}

// Close ends every load and unload, so that nothing of the runtime is left. It may be called once.
func (r *Runtime) Close() {
	close(r.over)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.models {
		r.give(m)
		r.drop(m)
	}
}
