package statuswriter

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/internal/objects"
)

// vmodel is the status of a VModel. Writer.mu guards it.
type vmodel struct {
	object  objects.Name
	uid     string // of the object, empty while unknown
	status  v1alpha1.VModelStatus
	written v1alpha1.VModelStatus
}

// restoreVModel takes over a VModel from before the start. Of two with one id, the one with a
// status has it.
func (r *Writer) restoreVModel(o *v1alpha1.VModel) {
	v := objects.VModelOf(o)
	key := modelKey{v.Pool.String(), v.ID}
	if is := r.vmodels[key]; is == nil || is.written.Active == "" {
		r.vmodels[key] = &vmodel{object: v.Object, uid: v.UID, status: o.Status, written: *o.Status.DeepCopy()}
	}
	if o.Labels[RegisteredLabel] != "" {
		r.defined = append(r.defined, *o)
		r.uids[objectOf(v1alpha1.VModelKind, o)] = o.UID
	}
}

// PutVModel creates the VModel of a registered VModel, or changes its target. Wait returns when
// that is done.
func (r *Writer) PutVModel(o *v1alpha1.VModel, fresh bool) (wait func() error) {
	made := labelled(o.DeepCopy())
	made.ResourceVersion, made.Generation, made.UID = "", 0, ""
	name := objectOf(v1alpha1.VModelKind, made)
	return r.turn(name, func(ctx context.Context) error {
		var err error
		if fresh {
			err = r.client.Create(ctx, made)
		}
		if !fresh || apierrors.IsAlreadyExists(err) {
			patch, fault := json.Marshal([]map[string]any{{"op": "replace", "path": "/spec/target", "value": o.Spec.Target}})
			if fault != nil {
				return fault
			}
			err = r.client.Patch(ctx, made, client.RawPatch(types.JSONPatchType, patch))
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.uids[name] = made.UID
		return nil
	})
}

// DeleteVModel deletes the VModel of a registered VModel, like DeleteModel.
func (r *Writer) DeleteVModel(o *v1alpha1.VModel) (wait func() error) {
	return r.delete(v1alpha1.VModelKind, named(&v1alpha1.VModel{}, nameOf(o)))
}

// PutVModelStatuses queues statuses of VModels.
func (r *Writer) PutVModelStatuses(all []store.VModelStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, st := range all {
		key := modelKey{st.Pool, st.ID}
		s := subject{kind: v1alpha1.VModelKind, key: key}
		if st.Gone {
			delete(r.vmodels, key)
			delete(r.dirty, s)
			delete(r.logged, s)
			continue
		}
		v := r.vmodels[key]
		if v == nil || v.object != st.Object || v.uid != "" && st.UID != "" && v.uid != st.UID { // another object has no status yet
			v = &vmodel{object: st.Object}
			r.vmodels[key] = v
		}
		if v.status = st.Status; st.UID != "" {
			v.uid = st.UID
		}
		r.mark(s)
	}
}

// writeVModel writes the current status of a VModel. A missing object is no error: its status
// follows with its World.
func (r *Writer) writeVModel(ctx context.Context, key modelKey) error {
	r.mu.Lock()
	v := r.vmodels[key]
	if v == nil {
		r.mu.Unlock()
		return nil
	}
	status := *v.status.DeepCopy()
	status.Conditions = updated(v.written.Conditions, v.status.Conditions, status.ObservedGeneration)
	changed := !equality.Semantic.DeepEqual(v.written, status)
	object, uid := v.object, v.uid
	r.mu.Unlock()
	if !changed {
		return nil
	}
	if err := putStatus(ctx, r.client, named(&v1alpha1.VModel{}, object), uid, status); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	v.written = status
	return nil
}

// VModels returns the VModels registered before the start.
func (r *Writer) VModels() ([]v1alpha1.VModel, error) { return r.defined, nil }

// VModelStatuses returns the statuses of VModels from before the start.
func (r *Writer) VModelStatuses() (all []store.VModelStatus, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, v := range r.vmodels {
		all = append(all, store.VModelStatus{Pool: key.pool, ID: key.id, Object: v.object, UID: v.uid, Status: v.status})
	}
	return all, nil
}
