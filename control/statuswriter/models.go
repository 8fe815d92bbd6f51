package statuswriter

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// RegisteredLabel marks Models and VModels that clients of ModelMesh registered, and may
// unregister.
const RegisteredLabel = "inference.x-k8s.io/registered"

// modelKey identifies a model by its pool, as "namespace/name", and its id.
type modelKey struct{ pool, id string }

func modelSubject(key modelKey) subject { return subject{kind: v1alpha1.ModelKind, key: key} }

// model is the current and the written status of a model. Writer.mu guards all fields except
// writing.
type model struct {
	writing sync.Mutex // locked while the status is written; lock it before Writer.mu

	object     objects.Name
	uid        string // UID of the object; empty while unknown
	generation int64
	status     v1alpha1.ModelStatus  // status to write, without copies at model runtimes
	asked      map[string]store.Copy // copies at model runtimes, by endpoint
	written    v1alpha1.ModelStatus
	at         time.Time // time of the last write
}

// belongs records which object a model belongs to. If the object was replaced, the new one has no
// status yet. The caller holds mu.
func (m *model) belongs(object objects.Name, uid string) {
	if object.Name == "" {
		return
	}
	if m.object != object || m.uid != "" && uid != "" && m.uid != uid {
		m.uid, m.generation, m.written, m.at = "", 0, v1alpha1.ModelStatus{}, time.Time{}
	}
	m.object, m.uid = object, cmp.Or(uid, m.uid)
}

// restore records the status that an earlier control wrote to a Model.
func (r *Writer) restore(o *v1alpha1.Model) {
	e := objects.EntryOf(o)
	key := modelKey{e.Pool.String(), e.ID}
	if r.models[key] != nil {
		return
	}
	m := &model{
		object: e.Object, uid: e.UID, generation: o.Generation, status: o.Status, written: *o.Status.DeepCopy(),
		asked: make(map[string]store.Copy),
	}
	r.models[key] = m
	if o.Labels[RegisteredLabel] != "" {
		r.registered = append(r.registered, *o)
		r.uids[objectOf(v1alpha1.ModelKind, o)] = o.UID
	}
	for _, c := range o.Status.Copies {
		if c.Runtime == nil {
			continue
		}
		if latest, known := r.since[c.Endpoint]; !known || c.Since.After(latest) { // a runtime may restart, so the latest copy describes it
			r.since[c.Endpoint] = c.Since.Time
			r.runtimes[c.Endpoint] = store.Runtime{
				Endpoint: c.Endpoint, Incarnation: c.Incarnation, Bytes: c.Runtime.CapacityBytes, DefaultBytes: c.Runtime.DefaultModelBytes,
				Loads: int(c.Runtime.MaxConcurrentLoads), LoadTimeout: c.Runtime.LoadTimeout.Duration,
				Methods:           engine.MethodsOfLines(c.Runtime.Methods),
				LimitsConcurrency: c.Runtime.LimitsConcurrency,
			}
		}
		record := store.Copy{
			Endpoint: c.Endpoint, Pool: key.pool, ID: key.id, State: c.State, Bytes: c.Bytes, Size: c.SizeSource,
			Concurrency: max(0, int(c.Concurrency)), Incarnation: c.Incarnation, Since: c.Since.Time,
		}
		m.asked[c.Endpoint] = record
		r.recorded = append(r.recorded, record)
	}
}

// writeModel writes the current status of a model.
func (r *Writer) writeModel(ctx context.Context, key modelKey) error {
	r.mu.Lock()
	m := r.models[key]
	r.mu.Unlock()
	if m == nil {
		return nil
	}
	m.writing.Lock()
	defer m.writing.Unlock()
	r.mu.Lock()
	object, uid := m.object, m.uid
	status, changed := r.wanted(m)
	r.mu.Unlock()
	if object.Name == "" || !changed {
		return nil
	}
	o := named(&v1alpha1.Model{}, object)
	err := putStatus(ctx, r.client, o, uid, status)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case apierrors.IsNotFound(err):
		m.written = v1alpha1.ModelStatus{}
		if len(m.asked) > 0 {
			return err
		}
		r.forget(key)
		return nil
	case err != nil:
		return err
	case m.object != object || m.uid != uid: // replaced during the write; the status of the new object is queued
		return nil
	}
	r.observe(objectOf(v1alpha1.ModelKind, o), o.UID, m.written, status)
	m.written, m.at, m.uid = status, time.Now(), string(o.UID)
	if m.generation != o.Generation { // the spec has changed, and the status also applies to the new spec
		m.generation = o.Generation
		r.mark(modelSubject(key))
	}
	return nil
}

// putStatus replaces the whole status of a Model or VModel, to which only control writes. o
// receives the object. If a UID is given and the object has another UID, the error is NotFound.
func putStatus(ctx context.Context, c client.Client, o client.Object, uid string, status any) error {
	steps := []map[string]any{{"op": "add", "path": "/status", "value": status}}
	if uid != "" {
		steps = slices.Insert(steps, 0, map[string]any{"op": "test", "path": "/metadata/uid", "value": uid})
	}
	patch, err := json.Marshal(steps)
	if err != nil {
		return err
	}
	err = c.Status().Patch(ctx, o, client.RawPatch(types.JSONPatchType, patch))
	if uid != "" && misfits(err) {
		err = apierrors.NewNotFound(v1alpha1.SchemeGroupVersion.WithResource("models").GroupResource(), o.GetName())
	}
	return err
}

// misfits reports whether a patch failed because the object has another UID. If the patched object
// were invalid, the API server's error would contain causes.
func misfits(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && apierrors.IsInvalid(err) && (status.ErrStatus.Details == nil || len(status.ErrStatus.Details.Causes) == 0)
}

// forget drops a model whose object was deleted, unless it has copies at model runtimes. The caller
// holds mu.
func (r *Writer) forget(key modelKey) {
	if m := r.models[key]; m != nil && len(m.asked) == 0 {
		delete(r.models, key)
		r.forgetEvents(objects.Object{Kind: v1alpha1.ModelKind, Name: m.object})
		delete(r.dirty, modelSubject(key))
		delete(r.logged, modelSubject(key))
	}
}

// wanted returns the status that a model should have, and whether it must be written. The caller
// holds mu.
func (r *Writer) wanted(m *model) (v1alpha1.ModelStatus, bool) {
	status := *m.status.DeepCopy()
	status.ObservedGeneration = m.generation
	status.Conditions = updated(m.written.Conditions, m.status.Conditions, m.generation)
	status.Copies = slices.DeleteFunc(status.Copies, func(c v1alpha1.CopyStatus) bool {
		_, runtime := r.runtimes[c.Endpoint]
		return runtime
	})
	for _, a := range m.asked {
		status.Copies = append(status.Copies, r.copyStatus(a))
	}
	slices.SortFunc(status.Copies, func(a, b v1alpha1.CopyStatus) int { return strings.Compare(a.Endpoint, b.Endpoint) })
	before := *m.written.DeepCopy()
	if time.Since(m.at) < usedInterval {
		before.LastUsed = status.LastUsed
	}
	return status, !equality.Semantic.DeepEqual(before, status)
}

// updated returns conditions with a generation. A condition whose status has not changed keeps its
// time.
func updated(written, conditions []metav1.Condition, generation int64) []metav1.Condition {
	written = slices.Clone(written)
	for _, c := range conditions {
		c.ObservedGeneration = generation
		meta.SetStatusCondition(&written, c)
	}
	return written
}

// of returns the model of a key, and creates it if it is missing. The caller holds mu.
func (r *Writer) of(key modelKey) *model {
	m := r.models[key]
	if m == nil {
		m = &model{asked: make(map[string]store.Copy)}
		r.models[key] = m
	}
	return m
}
