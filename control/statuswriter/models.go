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

// RegisteredLabel marks Models that clients of ModelMesh registered, and may unregister.
const RegisteredLabel = "inference.x-k8s.io/registered"

// modelKey has a model's pool, "namespace/name", and id.
type modelKey struct{ pool, id string }

func modelSubject(key modelKey) subject { return subject{kind: v1alpha1.ModelKind, key: key} }

// model has the wanted and the written status of a model. Writer.mu guards everything but writing.
type model struct {
	writing sync.Mutex // held during a write of its status; locked before Writer.mu

	object     objects.Name
	uid        string // of the object, empty while unknown
	generation int64
	status     v1alpha1.ModelStatus  // wanted, without copies at runtimes
	asked      map[string]store.Copy // copies at runtimes, by endpoint
	written    v1alpha1.ModelStatus
	at         time.Time // of the last write
}

// belongs sets the object of a model. A replaced object has no status yet. The caller holds mu.
func (m *model) belongs(object objects.Name, uid string) {
	if object.Name == "" {
		return
	}
	if m.object != object || m.uid != "" && uid != "" && m.uid != uid {
		m.uid, m.generation, m.written, m.at = "", 0, v1alpha1.ModelStatus{}, time.Time{}
	}
	m.object, m.uid = object, cmp.Or(uid, m.uid)
}

// restore takes over a Model from before the start.
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
		if latest, known := r.since[c.Endpoint]; !known || c.Since.After(latest) { // the runtime may have restarted since
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
	case m.object != object || m.uid != uid: // replaced meanwhile; the new one is queued
		return nil
	}
	m.written, m.at, m.uid = status, time.Now(), string(o.UID)
	if m.generation != o.Generation { // its spec has changed: this status is for that spec too
		m.generation = o.Generation
		r.mark(modelSubject(key))
	}
	return nil
}

// putStatus replaces the whole status of a Model or VModel, which only control writes, and reads
// the object. If a UID is given, another object of the name is reported as not found.
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

// misfits reports whether a patch failed because it is for another object. If the result were
// invalid, the API server would give causes.
func misfits(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && apierrors.IsInvalid(err) && (status.ErrStatus.Details == nil || len(status.ErrStatus.Details.Causes) == 0)
}

// forget drops a model without an object, unless a runtime may have it. The caller holds mu.
func (r *Writer) forget(key modelKey) {
	if m := r.models[key]; m != nil && len(m.asked) == 0 {
		delete(r.models, key)
		delete(r.dirty, modelSubject(key))
		delete(r.logged, modelSubject(key))
	}
}

// wanted returns the wanted status, and whether it is worth a write. The caller holds mu.
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

// updated returns conditions for a generation, with the times of unchanged ones.
func updated(written, conditions []metav1.Condition, generation int64) []metav1.Condition {
	written = slices.Clone(written)
	for _, c := range conditions {
		c.ObservedGeneration = generation
		meta.SetStatusCondition(&written, c)
	}
	return written
}

// of returns a model, and creates it if needed. The caller holds mu.
func (r *Writer) of(key modelKey) *model {
	m := r.models[key]
	if m == nil {
		m = &model{asked: make(map[string]store.Copy)}
		r.models[key] = m
	}
	return m
}
