package repository

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/tensorflow"
	"github.com/headgate/headgate/internal/engine"
)

// serving is TensorFlow Serving's model management API, from its protocol and source: no real
// server was recorded. It starts with an empty model list and with --max_num_load_retries=0.
type serving struct {
	tensorflow.UnimplementedModelServiceServer
	*Server
}

// serveCalls serves TensorFlow Serving's gRPC API until ctx ends.
func serveCalls(ctx context.Context, s *Server, listener net.Listener) error {
	calls := grpc.NewServer()
	tensorflow.RegisterModelServiceServer(calls, serving{Server: s})
	defer context.AfterFunc(ctx, calls.Stop)()
	if err := calls.Serve(listener); !errors.Is(err, grpc.ErrServerStopped) && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// GetModelStatus returns the state of a model that the server knows.
func (s serving) GetModelStatus(_ context.Context, q *tensorflow.GetModelStatusRequest) (*tensorflow.GetModelStatusResponse, error) {
	name := q.GetModelSpec().GetName()
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.slots[name]
	if at == nil {
		return nil, status.Errorf(codes.NotFound, "Could not find any versions of model %s", name)
	}
	v := &tensorflow.ModelVersionStatus{Version: 1, State: tensorflow.ModelVersionStatus_END, Status: &tensorflow.StatusProto{}}
	switch at.stage {
	case engine.Coming:
		v.State = tensorflow.ModelVersionStatus_LOADING
	case engine.Serving:
		v.State = tensorflow.ModelVersionStatus_AVAILABLE
	case engine.Leaving:
		v.State = tensorflow.ModelVersionStatus_UNLOADING
	default:
		if at.reason != "" {
			v.Status = &tensorflow.StatusProto{ErrorCode: int32(codes.Unknown), ErrorMessage: at.reason}
		}
	}
	return &tensorflow.GetModelStatusResponse{ModelVersionStatus: []*tensorflow.ModelVersionStatus{v}}, nil
}

// filesPause is the interval at which the engine checks whether the files of a model exist.
const filesPause = time.Second

// HandleReloadConfigRequest loads the models of a list and unloads all others. Calls run one after
// another, and continue if the caller disconnects. A call waits for missing files without limit.
func (s serving) HandleReloadConfigRequest(_ context.Context, q *tensorflow.ReloadConfigRequest) (*tensorflow.ReloadConfigResponse, error) {
	if _, is := q.GetConfig().GetConfig().(*tensorflow.ModelServerConfig_ModelConfigList); !is {
		return nil, status.Error(codes.InvalidArgument,
			"ServerModelConfig type not supported by HandleReloadConfigRequest. Only ModelConfigList is currently supported")
	}
	defer s.loader.take()()
	list := make(map[string]string)
	for _, m := range q.GetConfig().GetModelConfigList().GetConfig() {
		if _, twice := list[m.GetName()]; twice || m.GetName() == "" || m.GetBasePath() == "" || m.GetModelPlatform() == "" {
			return nil, status.Errorf(codes.InvalidArgument,
				"Illegal to list model %s multiple times in config list, or without name, path or platform", m.GetName())
		}
		list[m.GetName()] = m.GetBasePath()
	}
	var coming []string
	for name := range list {
		if _, was := s.list[name]; !was {
			coming = append(coming, name)
		}
	}
	for name := range s.list {
		if _, stays := list[name]; !stays {
			s.retire(name)
		}
	}
	s.list = list
	slices.Sort(coming)
	return &tensorflow.ReloadConfigResponse{Status: &tensorflow.StatusProto{}}, s.bring(coming)
}

// bring loads models in parallel. It returns when each model serves or its load has failed.
func (s serving) bring(coming []string) error {
	var over sync.WaitGroup
	failed := make([]string, len(coming))
	for i, name := range coming {
		over.Go(func() {
			if !s.come(name, path.Base(s.list[name])) {
				failed[i] = fmt.Sprintf("{name: %s version: 1}, ", name)
			}
		})
	}
	over.Wait()
	if text := strings.Join(failed, ""); text != "" {
		return status.Error(codes.Unknown, "Some models did not become available: {"+text+"}")
	}
	return nil
}

// come loads a model from its files and reports whether it serves then.
func (s serving) come(name, stored string) bool {
	var m Model
	for there := false; !there; {
		s.set(func() { m, there = s.stored[stored] })
		there = there && !m.Fileless
		if !there && !s.pass(filesPause, nil) {
			return false
		}
	}
	ended := s.config.Events.Begin("load", "loaded", name)
	at := &slot{turn: newTurn(), stage: engine.Coming}
	s.set(func() { s.slots[name] = at })
	s.pass(m.Load, nil)
	s.set(func() {
		if at.stage = engine.Serving; m.Fail != "" {
			at.stage, at.reason = engine.Stored, m.Fail
		}
		at.unload = m.Unload
	})
	ended(m.Fail)
	return m.Fail == ""
}

// retire unloads a model that was removed from the list.
func (s serving) retire(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.slots[name]
	if at == nil || at.stage != engine.Serving {
		return
	}
	ended := s.config.Events.Begin("unload", "unloaded", name)
	at.stage = engine.Leaving
	time.AfterFunc(at.unload, func() {
		s.set(func() { at.stage = engine.Stored })
		ended("")
	})
}
