// Package modelmesh serves ModelMesh's management API (mmesh.ModelMesh 0.12) to its existing
// clients: they register and unregister models, read their status, load them in advance, and move
// VModels.
package modelmesh

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// Default ages of the last use of a registered model, as in kserve/modelmesh 0.12
// (LASTUSED_AGE_ON_ADD). A model that is loaded at once gets the smaller age.
const (
	ageIfLoaded = time.Hour
	ageIfNot    = 6 * time.Hour
)

// syncTimeout limits how long a call waits for a load, as in ModelMesh.
const syncTimeout = 10 * time.Minute

// Placer is the backend; [place.Placer] is one. Register may return [decide.ErrExists], and
// Unregister [decide.ErrDeclared].
type Placer interface {
	Register(m *v1alpha1.Model, used time.Time) (fresh bool, err error)
	Unregister(key decide.Key) error
	Ensure(key decide.Key, used time.Time)
	Status(key decide.Key) (decide.Status, bool)
	Await(ctx context.Context, key decide.Key, done func(decide.Status) bool) (st decide.Status, there bool, err error)
	// SetVModel may return [decide.ErrExists] and package decide's errors about VModels.
	// DeleteVModel may return [decide.ErrDeclared].
	SetVModel(o *v1alpha1.VModel, model *v1alpha1.Model, terms decide.Conditions) error
	DeleteVModel(key decide.Key, owner string) error
	VModel(key decide.Key) (st decide.VModelStatus, owner string, there bool)
	AwaitVModel(ctx context.Context, key decide.Key, done func(decide.VModelStatus) bool) error
	// Pool returns the pool of registered models.
	Pool() (objects.Name, error)
}

// Server serves the API. It is safe for concurrent use.
type Server struct {
	mmesh.UnimplementedModelMeshServer
	placer Placer
	now    func() time.Time
}

// New returns a Server.
func New(p Placer) *Server { return &Server{placer: p, now: time.Now} }

// RegisterModel registers a model, and loads it if the request has loadNow.
func (s *Server) RegisterModel(ctx context.Context, r *mmesh.RegisterModelRequest) (*mmesh.ModelStatusInfo, error) {
	key, err := s.key(r.GetModelId())
	if err != nil {
		return nil, err
	}
	m, err := s.modelOf(key, r.GetModelInfo())
	if err != nil {
		return nil, err
	}
	used := s.used(r.GetLoadNow())
	if ms := r.GetLastUsedTime(); ms > 0 {
		used = s.time(ms)
	}
	_, err = s.placer.Register(m, used)
	switch {
	case errors.Is(err, decide.ErrExists):
		return nil, errExists
	case err != nil:
		return nil, status.Errorf(codes.Internal, "the model could not be stored: %v", err)
	}
	if r.GetLoadNow() {
		return s.ensure(ctx, key, used, r.GetSync())
	}
	return s.status(key), nil
}

// used returns the default time of last use.
func (s *Server) used(loaded bool) time.Time {
	if loaded {
		return s.now().Add(-ageIfLoaded)
	}
	return s.now().Add(-ageIfNot)
}

var errExists = status.Error(codes.AlreadyExists, "Model already exists with different attribute values")

// modelOf converts a client's description of a model.
func (s *Server) modelOf(key decide.Key, info *mmesh.ModelInfo) (*v1alpha1.Model, error) {
	if info.GetType() == "" {
		return nil, status.Error(codes.InvalidArgument, "modelInfo must be there, with a type")
	}
	m := &v1alpha1.Model{
		ObjectMeta: s.meta(key),
		Spec: v1alpha1.ModelSpec{
			ID: key.ID, PoolRef: v1alpha1.PoolReference{Name: key.Pool.Name},
			Type: info.GetType(), Source: info.GetPath(), Key: info.GetKey(),
		},
	}
	if faults := objects.CheckModelObject(m); len(faults) > 0 {
		return nil, status.Errorf(codes.InvalidArgument, "%s: %s", fieldNames[faults[0].Field], faults[0].ErrorBody())
	}
	return m, nil
}

// fieldNames maps fields of a Model to the API's names.
var fieldNames = map[string]string{
	"metadata.name": "modelId", "spec.id": "modelId", "spec.type": "modelInfo.type", "spec.source": "modelInfo.path",
	"spec.key": "modelInfo.key",
}

// UnregisterModel unregisters a model. Its copies are unloaded later.
func (s *Server) UnregisterModel(_ context.Context, r *mmesh.UnregisterModelRequest) (*mmesh.UnregisterModelResponse, error) {
	key, err := s.key(r.GetModelId())
	if err != nil {
		return nil, err
	}
	switch err := s.placer.Unregister(key); {
	case errors.Is(err, decide.ErrDeclared), errors.Is(err, decide.ErrReferred):
		return nil, status.Errorf(codes.FailedPrecondition, "%v", err)
	case err != nil:
		return nil, status.Errorf(codes.Internal, "it could not be stored: %v", err)
	}
	return &mmesh.UnregisterModelResponse{}, nil
}

// GetModelStatus returns the status of a model.
func (s *Server) GetModelStatus(_ context.Context, r *mmesh.GetStatusRequest) (*mmesh.ModelStatusInfo, error) {
	key, err := s.key(r.GetModelId())
	if err != nil {
		return nil, err
	}
	return s.status(key), nil
}

// EnsureLoaded loads a model if it has no copy, and sets the model's time of last use.
func (s *Server) EnsureLoaded(ctx context.Context, r *mmesh.EnsureLoadedRequest) (*mmesh.ModelStatusInfo, error) {
	key, err := s.key(r.GetModelId())
	if err != nil {
		return nil, err
	}
	if _, there := s.placer.Status(key); !there {
		return nil, status.Error(codes.NotFound, "model not found")
	}
	used := s.now()
	if ms := r.GetLastUsedTime(); ms > 0 {
		used = s.time(ms)
	}
	return s.ensure(ctx, key, used, r.GetSync())
}

// ensure loads a model. With wait, it returns when the load has ended; without wait, at once.
func (s *Server) ensure(ctx context.Context, key decide.Key, used time.Time, wait bool) (*mmesh.ModelStatusInfo, error) {
	s.placer.Ensure(key, used)
	if !wait {
		return s.status(key), nil
	}
	limited, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	st, there, err := s.placer.Await(limited, key, func(st decide.Status) bool {
		switch summary(st) {
		case mmesh.ModelStatusInfo_LOADED:
			return true
		case mmesh.ModelStatusInfo_LOADING:
			return false
		case mmesh.ModelStatusInfo_LOADING_FAILED:
			if slices.ContainsFunc(st.Copies, decide.Copy.Failed) { // only the cleanup after a failed load is still running
				return true
			}
		}
		return !st.Asked // the load failed, no engine has room, or the model was evicted again
	})
	switch {
	case ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err() // the load continues
	case err != nil: // syncTimeout has passed
		return nil, status.Errorf(codes.Internal, "the model was not loaded within %v", syncTimeout)
	case !there:
		return nil, status.Error(codes.NotFound, "model not found")
	}
	return info(st), nil
}

// status returns the status of a model.
func (s *Server) status(key decide.Key) *mmesh.ModelStatusInfo {
	st, there := s.placer.Status(key)
	if !there {
		return &mmesh.ModelStatusInfo{Status: mmesh.ModelStatusInfo_NOT_FOUND}
	}
	return info(st)
}

// info converts a status for the API.
func info(st decide.Status) *mmesh.ModelStatusInfo {
	info := &mmesh.ModelStatusInfo{Status: summary(st)}
	for _, c := range st.Copies {
		is := copyStatuses[c.State]
		if c.Failed() {
			if slices.ContainsFunc(st.Failures, func(f decide.Failure) bool { return f.Endpoint == c.Endpoint }) {
				continue // the copy's failure, reported below, says more
			}
			is = mmesh.ModelStatusInfo_NOT_LOADED
		}
		info.ModelCopyInfos = append(info.ModelCopyInfos, &mmesh.ModelStatusInfo_ModelCopyInfo{
			Location: c.Endpoint, CopyStatus: is, Time: uint64(c.Since.UnixMilli()),
		})
	}
	for _, f := range st.Failures {
		info.ModelCopyInfos = append(info.ModelCopyInfos, &mmesh.ModelStatusInfo_ModelCopyInfo{
			Location: f.Endpoint, CopyStatus: mmesh.ModelStatusInfo_LOADING_FAILED, Time: uint64(f.At.UnixMilli()),
		})
	}
	slices.SortStableFunc(info.ModelCopyInfos, func(a, b *mmesh.ModelStatusInfo_ModelCopyInfo) int {
		return int(int64(b.Time) - int64(a.Time))
	})
	if info.Status == mmesh.ModelStatusInfo_LOADING_FAILED {
		for _, f := range st.Failures {
			info.Errors = append(info.Errors, f.Message)
		}
	}
	if len(info.Errors) == 0 && st.Why != "" && info.Status != mmesh.ModelStatusInfo_LOADED {
		info.Errors = append(info.Errors, st.Why.Message())
	}
	return info
}

var copyStatuses = map[decide.CopyState]mmesh.ModelStatusInfo_ModelStatus{
	decide.Queued: mmesh.ModelStatusInfo_LOADING, decide.Loading: mmesh.ModelStatusInfo_LOADING,
	decide.Loaded: mmesh.ModelStatusInfo_LOADED,
	// A copy that is draining or unloading gets no requests.
	decide.Draining: mmesh.ModelStatusInfo_NOT_LOADED, decide.Unloading: mmesh.ModelStatusInfo_NOT_LOADED,
}

// summary returns the status of a model. It is loaded if a copy is loaded. Otherwise it is loading
// if a copy is queued or loading, or if a load will be retried. Otherwise it is failed if a load
// has failed, and not loaded if none has.
func summary(st decide.Status) mmesh.ModelStatusInfo_ModelStatus {
	best := mmesh.ModelStatusInfo_NOT_LOADED
	for _, c := range st.Copies {
		switch c.State {
		case decide.Loaded:
			return mmesh.ModelStatusInfo_LOADED
		case decide.Queued, decide.Loading:
			if !c.Failed() {
				best = mmesh.ModelStatusInfo_LOADING
			}
		}
	}
	if st.Retrying && (st.Queued > 0 || st.Asked && !st.Exhausted) {
		return mmesh.ModelStatusInfo_LOADING
	}
	if best == mmesh.ModelStatusInfo_NOT_LOADED && len(st.Failures) > 0 {
		return mmesh.ModelStatusInfo_LOADING_FAILED
	}
	return best
}

// key returns the key of a model id.
func (s *Server) key(id string) (decide.Key, error) { return s.keyOf("modelId", id) }

// keyOf returns the key of an id. Errors name the field of the request that contains the id.
func (s *Server) keyOf(field, id string) (decide.Key, error) {
	if id == "" {
		return decide.Key{}, status.Errorf(codes.InvalidArgument, "%s must not be empty", field)
	}
	if err := engine.CheckName(id); err != nil {
		return decide.Key{}, status.Errorf(codes.InvalidArgument, "no model can have the id %.100q: %v", id, err)
	}
	pool, err := s.placer.Pool()
	if err != nil {
		return decide.Key{}, status.Errorf(codes.FailedPrecondition, "%v", err)
	}
	return decide.Key{Pool: pool, ID: id}, nil
}

// time converts ms since 1970. A future time becomes now, because clocks differ.
func (s *Server) time(ms uint64) time.Time {
	now := s.now()
	if ms > uint64(now.UnixMilli()) {
		return now
	}
	return time.UnixMilli(int64(ms))
}

// meta is the metadata of a registered model's or VModel's object.
func (s *Server) meta(key decide.Key) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: key.Pool.Namespace, Name: objectName(key), CreationTimestamp: metav1.NewTime(s.now())}
}

// objectName returns the name of a registered model's object: ids are any UTF-8, but object names
// are restricted.
func objectName(key decide.Key) string {
	sum := sha256.Sum256([]byte(key.ID))
	pool := strings.TrimRight(fmt.Sprintf("%.30s", key.Pool.Name), ".")
	return pool + "-" + hex.EncodeToString(sum[:12])
}
