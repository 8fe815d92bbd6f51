package manage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/control/place/loader"
	"github.com/headgate/headgate/internal/engineclient"
)

// unlimited is the time limit of a load: the caller sets one.
const unlimited = 24 * time.Hour

// Layout makes the folders from which the engine reads models. Calls for different models may run
// at the same time.
type Layout interface {
	// Apply lays out a model in place of an earlier layout, and returns the source with which the
	// engine loads it. It fails with a [*FetchError].
	Apply(r Request, l Local) (source string, err error)
	// Remove removes the layout of a model, if there is one.
	Remove(id string) error
	// Clear removes the layouts of all models.
	Clear() error
	// Models returns the source of each model that is laid out.
	Models() (map[string]string, error)
}

// Limits are the limits that the agent reports to control for a driven engine, as ModelMesh's
// adapters do.
type Limits struct {
	Bytes        int64   // memory for all models together
	DefaultBytes int64   // assumed size of a model of unknown size
	SizeFactor   float64 // a model's size in memory in relation to its size on disk
	Loads        int     // maximum number of concurrent loads
	LoadTimeout  time.Duration
	Concurrency  int                 // maximum number of concurrent requests for one model; 0 means no limit
	Methods      map[string][]uint32 // methodInfos: the gRPC methods, with the field numbers that lead to the model's name
	Version      string              // reported as the runtime's version
}

// Driven is an [Engine] without mmesh.ModelRuntime, which a driver of package loader calls.
type Driven struct {
	endpoint loader.Endpoint
	place    place
	limits   Limits
	layout   Layout
	loader   *loader.Loader
	log      *slog.Logger

	mu     sync.Mutex       // guards the fields below
	last   Sight            // result of the last scrape; without marks before the first one, and after a failure
	record loader.Record    // of that scrape
	sizes  map[string]int64 // size in memory of each loaded model
}

// Drive returns the engine at an endpoint, whose Management, or Address if that is empty, is where
// it is called. layout may be nil for engines that read models as they are stored.
func Drive(e loader.Endpoint, l Limits, layout Layout, log *slog.Logger) (*Driven, error) {
	at := e.Management
	if at == "" {
		at = e.Address
	}
	own, err := loader.Open(e, engineclient.Access{}, func(a loader.Answer) {
		if a.Err != nil {
			log.Debug("a load or unload failed at the engine", "model", a.Model, "unload", a.Unload, "outcome", a.Err.Outcome.String(), "err", a.Err.Message)
		}
	})
	if err != nil {
		return nil, err
	}
	return &Driven{endpoint: e, place: place(at), limits: l, layout: layout, loader: own, log: log, sizes: make(map[string]int64)}, nil
}

// Recall passes models to the driver of an engine that does not list its models. Each has the
// source from which the engine loaded it.
func (d *Driven) Recall(models []loader.Model) {
	if d.layout == nil {
		d.loader.Recall(models)
		return
	}
	sources, err := d.layout.Models()
	if err != nil {
		d.log.Error("cannot read which models are laid out for the engine", "err", err)
		return
	}
	var all []loader.Model
	for _, m := range models {
		if source, there := sources[m.ID]; there {
			all = append(all, loader.Model{ID: m.ID, Source: source})
		}
	}
	d.loader.Recall(all)
}

// Look returns the marks of the engine's listener and its list of models. It reads the list only if
// the marks differ from those of the last call, or are unknown. Reading a list may be expensive,
// and a busy engine answers late.
func (d *Driven) Look(ctx context.Context) (Sight, error) {
	marks, err := d.place.look(ctx)
	if err != nil {
		d.stale()
		return Sight{}, err
	}
	d.mu.Lock()
	last, record := d.last, d.record
	d.mu.Unlock()
	if len(marks) > 0 && slices.Equal(marks, last.Marks) {
		last.Restarted = false
		return last, nil
	}
	seen, err := d.loader.Scrape(ctx, record)
	if err != nil {
		d.stale()
		return Sight{}, err
	}
	now := Sight{Marks: marks, Lists: seen.Lists, Restarted: seen.Purged}
	for _, m := range seen.Models {
		if !m.Base {
			now.Models = append(now.Models, m.ID)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last, d.record = now, loader.Record{Known: true, Incarnation: seen.Incarnation, Limits: seen.Limits}
	return now, nil
}

// stale makes the next call of Look read the list.
func (d *Driven) stale() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last, d.record.Stale = Sight{}, true
}

// Status unloads every model that the engine lists, and returns the limits.
func (d *Driven) Status(ctx context.Context, _ *mmesh.RuntimeStatusRequest) (*mmesh.RuntimeStatusResponse, error) {
	d.mu.Lock()
	record := d.record
	d.mu.Unlock()
	record.Stale = true
	seen, err := d.loader.Scrape(ctx, record)
	switch {
	case err != nil:
		return nil, callError(err)
	case !seen.Takes:
		return nil, status.Errorf(codes.FailedPrecondition,
			"the engine does not allow loads: %s", closed[string(d.endpoint.Kind)])
	}
	for _, m := range seen.Models {
		if m.Base {
			continue
		}
		if err := d.loader.Unload(ctx, m.ID); err != nil {
			return nil, callError(fmt.Errorf("cannot unload the model %s of an earlier process: %w", m.ID, err))
		}
	}
	if d.layout != nil {
		if err := d.layout.Clear(); err != nil {
			return nil, status.Errorf(codes.Internal, "cannot remove the files of models of an earlier process: %v", err)
		}
	}
	d.mu.Lock()
	clear(d.sizes)
	d.mu.Unlock()
	answer := &mmesh.RuntimeStatusResponse{
		Status:          mmesh.RuntimeStatusResponse_READY,
		CapacityInBytes: uint64(d.limits.Bytes), MaxLoadingConcurrency: uint32(d.limits.Loads),
		ModelLoadingTimeoutMs:   uint32(d.limits.LoadTimeout.Milliseconds()),
		DefaultModelSizeInBytes: uint64(d.limits.DefaultBytes), RuntimeVersion: d.limits.Version,
		LimitModelConcurrency: d.limits.Concurrency > 0,
		MethodInfos:           make(map[string]*mmesh.RuntimeStatusResponse_MethodInfo, len(d.limits.Methods)),
	}
	for method, path := range d.limits.Methods {
		answer.MethodInfos[method] = &mmesh.RuntimeStatusResponse_MethodInfo{IdInjectionPath: path}
	}
	return answer, nil
}

// closed is the advice for an engine that does not allow loads.
var closed = map[string]string{
	"triton": "start Triton with --model-control-mode=explicit", "torchserve": "start TorchServe with --enable-model-api",
}

// Load lays out a model's files, and calls the engine to load it.
func (d *Driven) Load(ctx context.Context, q *mmesh.LoadModelRequest, l Local) (*mmesh.LoadModelResponse, error) {
	source := l.Path
	if d.layout != nil {
		r := Request{ID: q.GetModelId(), Type: q.GetModelType(), Path: q.GetModelPath(), Key: q.GetModelKey()}
		var err error
		if source, err = d.layout.Apply(r, l); err != nil {
			return nil, statusOf(ctx, err)
		}
	}
	_, err := d.loader.Load(ctx, loader.Model{ID: q.GetModelId(), Type: q.GetModelType(), Source: source, Info: l.Key}, unlimited)
	if err != nil {
		if outcomeOf(err) == loader.Refused {
			_ = d.remove(q.GetModelId()) // the next layout of the model replaces it
		}
		return nil, callError(err)
	}
	bytes := l.Bytes
	if bytes == 0 {
		bytes = diskBytes(q.GetModelKey())
	}
	size := d.size(bytes)
	d.mu.Lock()
	d.sizes[q.GetModelId()] = size
	d.mu.Unlock()
	return &mmesh.LoadModelResponse{SizeInBytes: uint64(size), MaxConcurrency: uint32(d.limits.Concurrency)}, nil
}

// size returns the size in memory of a model with a size on disk, which may be unknown.
func (d *Driven) size(disk int64) int64 {
	if disk <= 0 {
		return d.limits.DefaultBytes
	}
	return int64(float64(disk) * d.limits.SizeFactor)
}

// diskBytes returns the size on disk that a model's key states; 0 if it states none.
func diskBytes(key string) int64 {
	var k struct {
		Bytes int64 `json:"disk_size_bytes"`
	}
	if json.Unmarshal([]byte(key), &k) != nil {
		return 0
	}
	return k.Bytes
}

// Unload unloads a model, and removes its layout.
func (d *Driven) Unload(ctx context.Context, q *mmesh.UnloadModelRequest) error {
	if err := d.loader.Unload(ctx, q.GetModelId()); err != nil {
		return callError(err)
	}
	return d.remove(q.GetModelId())
}

// remove removes the layout and the size of a model that the engine does not have.
func (d *Driven) remove(id string) error {
	d.mu.Lock()
	delete(d.sizes, id)
	d.mu.Unlock()
	if d.layout == nil {
		return nil
	}
	if err := d.layout.Remove(id); err != nil {
		return status.Errorf(codes.Internal, "cannot remove the files of the model: %v", err)
	}
	return nil
}

// Predict estimates the size from the size on disk that the key states.
func (d *Driven) Predict(_ context.Context, q *mmesh.PredictModelSizeRequest) (*mmesh.PredictModelSizeResponse, error) {
	return &mmesh.PredictModelSizeResponse{SizeInBytes: uint64(d.size(diskBytes(q.GetModelKey())))}, nil
}

// Size returns the size of a loaded model.
func (d *Driven) Size(_ context.Context, q *mmesh.ModelSizeRequest) (*mmesh.ModelSizeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	size, known := d.sizes[q.GetModelId()]
	if !known {
		size = d.limits.DefaultBytes
	}
	return &mmesh.ModelSizeResponse{SizeInBytes: uint64(size)}, nil
}

// Quit abandons calls to a process that has ended.
func (d *Driven) Quit() {
	d.loader.Quit()
	d.stale()
}

// Close closes connections.
func (d *Driven) Close() error { return d.loader.Close() }

func outcomeOf(err error) loader.Outcome {
	if failed, ok := errors.AsType[*loader.Error](err); ok {
		return failed.Outcome
	}
	return loader.Unclear
}

// callError converts an error of package loader to the gRPC status with the same meaning.
func callError(err error) error {
	var failed *loader.Error
	code := codes.Internal
	switch {
	case !errors.As(err, &failed):
	case failed.Transient, failed.Stopping, failed.Outcome == loader.Unreached:
		code = codes.Unavailable
	case failed.Outcome == loader.Refused:
		code = codes.FailedPrecondition
	}
	return status.Error(code, err.Error())
}
