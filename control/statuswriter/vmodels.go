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
	uid     string // UID of the object; empty while unknown
	status  v1alpha1.VModelStatus
	written v1alpha1.VModelStatus
}

// restoreVModel records the status that an earlier control wrote to a VModel. Of two VModels with
// the same id, the one with a status uses it.
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

// PutVModel returns a function that creates the object of a registered VModel. If fresh is false or
// the object already exists, the function changes the object's target instead. It returns when that
// is done.
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

// DeleteVModel deletes the VModel object of a registered VModel, in the same way as DeleteModel.
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
			if v := r.vmodels[key]; v != nil {
				r.forgetEvents(objects.Object{Kind: v1alpha1.VModelKind, Name: v.object})
			}
			delete(r.vmodels, key)
			delete(r.dirty, s)
			delete(r.logged, s)
			continue
		}
		v := r.vmodels[key]
		if v == nil || v.object != st.Object || v.uid != "" && st.UID != "" && v.uid != st.UID { // a replaced object has no status yet
			v = &vmodel{object: st.Object}
			r.vmodels[key] = v
		}
		if v.status = st.Status; st.UID != "" {
			v.uid = st.UID
		}
		r.mark(s)
	}
}

// writeVModel writes the current status of a VModel. It is no error if the object was deleted or
// replaced: the World that contains the new object queues its status.
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
	o := named(&v1alpha1.VModel{}, object)
	if err := putStatus(ctx, r.client, o, uid, status); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observe(objectOf(v1alpha1.VModelKind, o), o.UID, v.written, status)
	v.written = status
	return nil
}

// VModels returns the VModels that clients had registered before the Writer was opened.
func (r *Writer) VModels() ([]v1alpha1.VModel, error) { return r.defined, nil }

// VModelStatuses returns the statuses of VModels, which include those that earlier controls wrote.
func (r *Writer) VModelStatuses() (all []store.VModelStatus, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, v := range r.vmodels {
		all = append(all, store.VModelStatus{Pool: key.pool, ID: key.id, Object: v.object, UID: v.uid, Status: v.status})
	}
	return all, nil
}
