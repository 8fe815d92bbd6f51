package modelmesh

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/decide"
)

// moveTimeout limits how long a call waits for a VModel to move, as in ModelMesh.
const moveTimeout = 4 * time.Minute

// SetVModel creates a VModel or changes its target. It also registers the target model if the
// request asks for that. The errors are ModelMesh's (VModelManager.java).
func (s *Server) SetVModel(ctx context.Context, r *mmesh.SetVModelRequest) (*mmesh.VModelStatusInfo, error) {
	key, err := s.keyOf("vModelId", r.GetVModelId())
	if err != nil {
		return nil, err
	}
	target, err := s.keyOf("targetModelId", r.GetTargetModelId())
	if err != nil {
		return nil, err
	}
	var model *v1alpha1.Model
	if info := r.GetModelInfo(); info != nil {
		if model, err = s.modelOf(target, info); err != nil {
			return nil, err
		}
		if r.GetAutoDeleteTargetModel() {
			model.Annotations = map[string]string{decide.AutoDelete: "true"}
		}
	}
	used := s.used(r.GetLoadNow())
	o := &v1alpha1.VModel{
		ObjectMeta: s.meta(key),
		Spec: v1alpha1.VModelSpec{
			ID: key.ID, PoolRef: v1alpha1.PoolReference{Name: key.Pool.Name}, Target: target.ID, Owner: r.GetOwner(),
		},
	}
	terms := decide.Conditions{UpdateOnly: r.GetUpdateOnly(), Expected: r.GetExpectedTargetModelId(), Force: r.GetForce(), Used: used}
	var owned *decide.OwnedError
	switch err := s.placer.SetVModel(o, model, terms); {
	case errors.Is(err, decide.ErrExists):
		return nil, errExists
	case errors.As(err, &owned):
		return nil, status.Errorf(codes.AlreadyExists, "vmodel %s already exists with different owner %q", key.ID, owned.Owner)
	case errors.Is(err, decide.ErrNoVModel):
		return nil, status.Error(codes.NotFound, "vmodel not found")
	case errors.Is(err, decide.ErrNoModel):
		return nil, status.Error(codes.NotFound, "model not found")
	case errors.Is(err, decide.ErrUnexpected), errors.Is(err, decide.ErrDeclared):
		return nil, status.Errorf(codes.FailedPrecondition, "%v", err)
	case err != nil:
		return nil, status.Errorf(codes.Internal, "the vmodel could not be stored: %v", err)
	}
	if r.GetLoadNow() {
		if _, err := s.ensure(ctx, target, used, r.GetSync()); err != nil {
			return nil, err
		}
	}
	if r.GetSync() {
		limited, cancel := context.WithTimeout(ctx, moveTimeout)
		defer cancel()
		err := s.placer.AwaitVModel(limited, key, func(st decide.VModelStatus) bool { return st.Active == st.Target || st.Failed != "" })
		if err != nil && ctx.Err() != nil {
			return nil, status.FromContextError(ctx.Err()).Err() // the move continues
		}
	}
	return s.vmodel(key, r.GetOwner()), nil
}

// DeleteVModel deletes a VModel. It does nothing if the VModel is missing or has another owner.
func (s *Server) DeleteVModel(_ context.Context, r *mmesh.DeleteVModelRequest) (*mmesh.DeleteVModelResponse, error) {
	key, err := s.keyOf("vModelId", r.GetVModelId())
	if err != nil {
		return nil, err
	}
	switch err := s.placer.DeleteVModel(key, r.GetOwner()); {
	case errors.Is(err, decide.ErrDeclared):
		return nil, status.Errorf(codes.FailedPrecondition, "%v", err)
	case err != nil:
		return nil, status.Errorf(codes.Internal, "it could not be stored: %v", err)
	}
	return &mmesh.DeleteVModelResponse{}, nil
}

// GetVModelStatus returns the status of a VModel, which is NOT_FOUND if the VModel is missing or
// has another owner.
func (s *Server) GetVModelStatus(_ context.Context, r *mmesh.GetVModelStatusRequest) (*mmesh.VModelStatusInfo, error) {
	key, err := s.keyOf("vModelId", r.GetVModelId())
	if err != nil {
		return nil, err
	}
	return s.vmodel(key, r.GetOwner()), nil
}

// vmodel returns the status of a VModel.
func (s *Server) vmodel(key decide.Key, owner string) *mmesh.VModelStatusInfo {
	st, is, there := s.placer.VModel(key)
	if !there || is != owner {
		return &mmesh.VModelStatusInfo{ActiveModelStatus: &mmesh.ModelStatusInfo{}}
	}
	out := &mmesh.VModelStatusInfo{
		Status: mmesh.VModelStatusInfo_DEFINED, ActiveModelId: st.Active, TargetModelId: st.Target, Owner: is,
		ActiveModelStatus: s.status(decide.Key{Pool: key.Pool, ID: st.Active}),
	}
	if st.Active == st.Target {
		return out
	}
	out.Status, out.TargetModelStatus = mmesh.VModelStatusInfo_TRANSITIONING, s.status(decide.Key{Pool: key.Pool, ID: st.Target})
	if st.Failed != "" {
		out.Status = mmesh.VModelStatusInfo_TRANSITION_FAILED
	} else if out.TargetModelStatus.Status == mmesh.ModelStatusInfo_LOADING_FAILED {
		out.TargetModelStatus.Status = mmesh.ModelStatusInfo_LOADING // the load is retried at another endpoint
	}
	return out
}
