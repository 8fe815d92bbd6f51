package manage

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/api/mmesh"
)

// RuntimeStatus returns the engine's limits. If the models of this incarnation were not purged yet,
// or may be loaded, it first unloads all models and removes their files. While the engine does not
// answer, it reports STARTING.
func (s *Server) RuntimeStatus(ctx context.Context, q *mmesh.RuntimeStatusRequest) (*mmesh.RuntimeStatusResponse, error) {
	select {
	case s.purging <- struct{}{}:
		defer func() { <-s.purging }()
	case <-ctx.Done():
		return nil, statusOf(ctx, ctx.Err())
	}
	starting := &mmesh.RuntimeStatusResponse{Status: mmesh.RuntimeStatusResponse_STARTING}
	l, err := s.look(ctx)
	if err != nil {
		return starting, nil
	}
	s.mu.Lock()
	if l.status != nil && len(l.models) == 0 {
		defer s.mu.Unlock()
		return proto.CloneOf(l.status), nil
	}
	l.status = nil // no load may begin
	loads := l.work
	l.end(errPurged)
	err = s.save(l)
	s.mu.Unlock()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if err := wait(ctx, loads.Wait); err != nil {
		return nil, statusOf(ctx, err)
	}
	answer, err := s.config.Engine.Status(ctx, q)
	if err != nil || answer.GetStatus() != mmesh.RuntimeStatusResponse_READY {
		return answer, err
	}
	if now, err := s.look(ctx); err != nil || now != l {
		return starting, nil // it restarted meanwhile, and may have loaded models of its own
	}
	for _, id := range s.config.Storage.Models() {
		if err := s.config.Storage.Release(id); err != nil {
			return nil, status.Errorf(codes.Internal, "cannot remove the files of models of an earlier process: %v", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(l.models)
	l.renew()
	l.status = proto.CloneOf(answer)
	if err := s.save(l); err != nil {
		l.status = nil
		return nil, status.Error(codes.Internal, err.Error())
	}
	s.config.Log.Info("the engine is ready, without models", "incarnation", l.id)
	return answer, nil
}

// wait waits until work returns, and fails if ctx ends first.
func wait(ctx context.Context, work func()) error {
	done := make(chan struct{})
	go func() { work(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// enter begins a load in an incarnation that is ready. The load must end with the returned context,
// and the caller must call done at the end.
func (s *Server) enter(ctx context.Context) (l *life, loads context.Context, done func(), err error) {
	l, err = s.look(ctx)
	if err != nil {
		return nil, nil, nil, status.Error(codes.Unavailable, "the engine does not answer: "+err.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != l || l.status == nil {
		return nil, nil, nil, status.Error(codes.Unavailable, "the engine restarted: call runtimeStatus first")
	}
	l.work.Add(1)
	return l, l.loads, l.work.Done, nil
}

// LoadModel fetches the files of a model, and loads it. A load that fails leaves no files.
func (s *Server) LoadModel(ctx context.Context, q *mmesh.LoadModelRequest) (*mmesh.LoadModelResponse, error) {
	if q.GetModelId() == "" {
		return nil, status.Error(codes.InvalidArgument, "the call names no model: set modelId")
	}
	l, loads, done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	began := time.Now()
	ctx, leave, err := s.turns.load(ctx, loads, q.GetModelId())
	if err != nil {
		return nil, statusOf(ctx, err)
	}
	defer leave()
	answer, err := s.load(ctx, l, q)
	log := s.config.Log.With("model", q.GetModelId(), "took", time.Since(began).Round(time.Millisecond).String())
	if err != nil {
		log.Warn("cannot load a model", "code", status.Code(err).String(), "err", status.Convert(err).Message())
		return nil, err
	}
	log.Info("loaded a model")
	return answer, nil
}

// load runs in the model's turn.
func (s *Server) load(ctx context.Context, l *life, q *mmesh.LoadModelRequest) (*mmesh.LoadModelResponse, error) {
	r := Request{ID: q.GetModelId(), Type: q.GetModelType(), Path: q.GetModelPath(), Key: q.GetModelKey()}
	m, err := s.note(l, r)
	if err != nil {
		return nil, err
	}
	local := m.local
	if m.request == (Request{}) || !m.loaded {
		fetching, stop := early(ctx)
		local, err = s.config.Storage.Fetch(fetching, r)
		stop()
		if err != nil {
			if !m.loaded {
				s.drop(l, r.ID, true)
			}
			return nil, statusOf(ctx, err)
		}
	}
	if err := s.put(l, r.ID, model{request: r, local: local, loaded: m.loaded}); err != nil {
		if !m.loaded {
			s.drop(l, r.ID, true)
		}
		return nil, err
	}
	answer, err := s.config.Engine.Load(ctx, q, local)
	if err == nil {
		if now, failed := s.look(ctx); failed != nil || now != l { // the engine may have restarted right after its answer
			err = status.Error(codes.Unavailable, "the engine restarted during the load")
		} else {
			err = s.put(l, r.ID, model{request: r, local: local, loaded: true})
		}
	}
	if err == nil {
		return answer, nil
	}
	if code := status.Code(err); !m.loaded {
		s.drop(l, r.ID, code == codes.FailedPrecondition || code == codes.InvalidArgument)
	}
	return nil, statusOf(ctx, err)
}

// maxEarly is the maximum time between the end of a fetch and the deadline of its call.
const maxEarly = time.Second

// early returns a context that ends shortly before the deadline of ctx, if that has one. The caller
// then receives the reason why the fetch failed, instead of an exceeded deadline.
func early(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline.Add(-min(maxEarly, time.Until(deadline)/10)))
}

// note returns a copy of the state of a model, and adds an empty state if there is none.
func (s *Server) note(l *life, r Request) (model, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := l.models[r.ID]
	switch {
	case m == nil:
		m = new(model)
		l.models[r.ID] = m
		if err := s.save(l); err != nil {
			delete(l.models, r.ID)
			return model{}, status.Error(codes.Unavailable, err.Error())
		}
	case m.loaded && m.request != (Request{}) && m.request != r:
		return model{}, status.Error(codes.FailedPrecondition, "the model is loaded from another source: unload it first")
	}
	return *m, nil
}

// put stores the state of a model.
func (s *Server) put(l *life, id string, m model) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l != s.life {
		return status.Error(codes.Unavailable, "the engine restarted during the load")
	}
	l.models[id] = &m
	if err := s.save(l); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	return nil
}

// drop ends a failed load: it removes the files. sure means that the engine certainly does not have
// the model; then drop also removes the model's state. Otherwise an unload follows.
func (s *Server) drop(l *life, id string, sure bool) {
	s.release(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if sure {
		s.forget(l, id)
	} else if m := l.models[id]; m != nil {
		*m = model{}
	}
}

// forget removes a model that the engine does not have. The caller holds mu.
func (s *Server) forget(l *life, id string) {
	delete(l.models, id)
	if err := s.save(l); err != nil {
		s.config.Log.Error("cannot store the state", "err", err) // the file has one model too many, which is harmless
	}
}

// release removes the files of a model.
func (s *Server) release(id string) {
	if err := s.config.Storage.Release(id); err != nil {
		s.config.Log.Error("cannot remove the files of a model; the next purge tries again", "model", id, "err", err)
	}
}

// UnloadModel ends loads of a model, unloads it, and then removes its files.
func (s *Server) UnloadModel(ctx context.Context, q *mmesh.UnloadModelRequest) (*mmesh.UnloadModelResponse, error) {
	began := time.Now()
	leave, err := s.turns.unload(ctx, q.GetModelId())
	if err != nil {
		return nil, statusOf(ctx, err)
	}
	defer leave()
	l, err := s.look(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, "the engine does not answer: "+err.Error())
	}
	log := s.config.Log.With("model", q.GetModelId(), "took", time.Since(began).Round(time.Millisecond).String())
	if err := s.config.Engine.Unload(ctx, q); err != nil && status.Code(err) != codes.NotFound {
		err = statusOf(ctx, err)
		log.Warn("cannot unload a model", "code", status.Code(err).String(), "err", status.Convert(err).Message())
		return nil, err
	}
	s.release(q.GetModelId())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(l, q.GetModelId())
	log.Info("unloaded a model")
	return &mmesh.UnloadModelResponse{}, nil
}

// PredictModelSize passes the call to the engine.
func (s *Server) PredictModelSize(ctx context.Context, q *mmesh.PredictModelSizeRequest) (*mmesh.PredictModelSizeResponse, error) {
	return s.config.Engine.Predict(ctx, q)
}

// ModelSize passes the call to the engine.
func (s *Server) ModelSize(ctx context.Context, q *mmesh.ModelSizeRequest) (*mmesh.ModelSizeResponse, error) {
	return s.config.Engine.Size(ctx, q)
}

// statusOf returns the gRPC status of an error in a call with the context ctx.
func statusOf(ctx context.Context, err error) error {
	var failed *FetchError
	switch cause := context.Cause(ctx); {
	case ctx.Err() != nil && (errors.Is(cause, errRestarted) || errors.Is(cause, errPurged) || errors.Is(cause, errClosing)):
		return status.Error(codes.Unavailable, "the load was given up: "+cause.Error())
	case ctx.Err() != nil && errors.Is(cause, errUnloaded):
		return status.Error(codes.Aborted, "the load was given up: "+cause.Error())
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case errors.As(err, &failed) && failed.Transient:
		return status.Error(codes.Unavailable, failed.Message)
	case errors.As(err, &failed):
		return status.Error(codes.FailedPrecondition, failed.Message)
	}
	return status.Convert(err).Err()
}
