package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// RegisteredLabel is on Models that clients of ModelMesh registered, which may take them away again.
const RegisteredLabel = "inference.x-k8s.io/registered"

const (
	// writeInterval is between two writes of status that nobody waits for.
	writeInterval = 50 * time.Millisecond
	// usedInterval is how old the time of a model's last use may be in its status, where nothing else changed.
	usedInterval = time.Minute
	// retryInterval is after which what could not be written is tried again, and whether this control decides now.
	retryInterval = time.Second
	// statusTimeout bounds a write of status: one that begins when this control stops deciding, 12 s after it last renewed its
	// Lease at the latest, has ended when another begins, at 15 s.
	statusTimeout = 2 * time.Second
	// writeTimeout bounds other writes, closeTimeout all that are made when it closes: a process that ends has 30 s.
	writeTimeout = 10 * time.Second
	closeTimeout = 5 * time.Second
)

// Memory is what control remembers of models in a cluster, while it is the one that decides: nothing but objects. A
// registered model is a Model. What was asked of a model runtime, which cannot list what it has, is in the status of its
// Model before the call. The rest of the status is for people, and follows when there is time.
//
// Open one with [OpenMemory]. It is safe for concurrent use. It needs models create, delete and list, and models/status
// patch.
type Memory struct {
	client  client.Client
	log     *slog.Logger
	decides func() bool
	ctx     context.Context // until Close
	stop    context.CancelFunc
	writes  context.Context // until Close has waited for closeTimeout
	abort   context.CancelFunc
	done    chan struct{} // closed when the last write is
	due     chan struct{} // capacity 1; never closed

	registered []v1alpha1.Model     // at the start
	recorded   []objects.CopyRecord // at the start
	since      map[string]time.Time // at the start: of the latest copy at a runtime

	mu       sync.Mutex // guards the following
	models   map[modelKey]*remembered
	runtimes map[string]objects.RuntimeRecord
	dirty    map[modelKey]bool
	turns    map[objects.Name]chan struct{} // closed when the last call that makes or deletes an object has ended
}

// modelKey is a model's pool, "namespace/name", and id.
type modelKey struct{ pool, id string }

// remembered is a model. All but writing is guarded by Memory.mu.
type remembered struct {
	writing sync.Mutex // held while its status is written, before Memory.mu

	object     objects.Name
	uid        string // of the object, empty while nobody knows it
	generation int64
	status     v1alpha1.ModelStatus          // as is to be written, but for copies at runtimes
	asked      map[string]objects.CopyRecord // of runtimes, by endpoint
	written    v1alpha1.ModelStatus
	at         time.Time // of the last write
	fault      string    // why it could not be written last, as it was told; empty if it could
}

// belongs notes which object a model is. One that was made again has no status yet. The caller holds mu.
func (r *remembered) belongs(object objects.Name, uid string) {
	if object.Name == "" {
		return
	}
	if r.object != object || r.uid != "" && uid != "" && r.uid != uid {
		r.uid, r.generation, r.written, r.at = "", 0, v1alpha1.ModelStatus{}, time.Time{}
	}
	r.object, r.uid = object, cmp.Or(uid, r.uid)
}

// OpenMemory reads what an earlier control remembered, in a namespace or, if that is empty, in all, when the API server
// answers. Nothing is written while decides is false: another control may be the one that does.
func OpenMemory(ctx context.Context, c client.Client, namespace string, log *slog.Logger, decides func() bool) (*Memory, error) {
	var list v1alpha1.ModelList
	for told := false; ; told = true {
		err := c.List(ctx, &list, client.InNamespace(namespace))
		if err == nil {
			break
		}
		if !told && ctx.Err() == nil {
			log.Warn("the status of models cannot be read; it is tried again", "err", fmt.Sprint(err, hintFor(err)))
		}
		if err := wait(ctx, retryInterval); err != nil {
			return nil, fmt.Errorf("read the status of models: %w", err)
		}
	}
	m := &Memory{
		client: c, log: log, decides: decides, done: make(chan struct{}), due: make(chan struct{}, 1),
		models: make(map[modelKey]*remembered), runtimes: make(map[string]objects.RuntimeRecord), dirty: make(map[modelKey]bool),
		turns: make(map[objects.Name]chan struct{}), since: make(map[string]time.Time),
	}
	m.ctx, m.stop = context.WithCancel(context.WithoutCancel(ctx))
	m.writes, m.abort = context.WithCancel(context.WithoutCancel(ctx))
	slices.SortFunc(list.Items, func(a, b v1alpha1.Model) int { // of two of one id the older one has it
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	for i := range list.Items {
		m.recall(&list.Items[i])
	}
	go m.run()
	return m, nil
}

// recall takes up a Model as it is.
func (m *Memory) recall(o *v1alpha1.Model) {
	e := objects.EntryOf(o)
	key := modelKey{e.Pool.String(), e.ID}
	if m.models[key] != nil {
		return
	}
	r := &remembered{
		object: e.Object, uid: e.UID, generation: o.Generation, status: o.Status, written: *o.Status.DeepCopy(),
		asked: make(map[string]objects.CopyRecord),
	}
	m.models[key] = r
	if o.Labels[RegisteredLabel] != "" {
		m.registered = append(m.registered, *o)
	}
	for _, c := range o.Status.Copies {
		if c.Runtime == nil {
			continue
		}
		if latest, known := m.since[c.Endpoint]; !known || c.Since.After(latest) { // the runtime may have lived before
			m.since[c.Endpoint] = c.Since.Time
			m.runtimes[c.Endpoint] = objects.RuntimeRecord{
				Endpoint: c.Endpoint, Incarnation: c.Incarnation, Bytes: c.Runtime.Bytes, DefaultBytes: c.Runtime.DefaultBytes,
				Loads: int(c.Runtime.Loads), LoadTimeout: c.Runtime.LoadTimeout.Duration,
			}
		}
		record := objects.CopyRecord{
			Endpoint: c.Endpoint, Pool: key.pool, ID: key.id, State: c.State, Bytes: c.Bytes, Size: c.Size,
			Incarnation: c.Incarnation, Since: c.Since.Time,
		}
		r.asked[c.Endpoint] = record
		m.recorded = append(m.recorded, record)
	}
}

// Close writes what is still to be written, if this control decides and the API server answers in time, and ends.
func (m *Memory) Close() error {
	m.stop()
	defer m.abort()
	defer time.AfterFunc(closeTimeout, m.abort).Stop()
	<-m.done
	return nil
}

// run writes what is due, not too much at once.
func (m *Memory) run() {
	defer close(m.done)
	timer := time.NewTimer(writeInterval)
	defer timer.Stop()
	retry := time.NewTicker(retryInterval)
	defer retry.Stop()
	for last := false; !last; {
		select {
		case <-m.due:
		case <-retry.C:
		case <-m.ctx.Done():
			last = true
		}
		for key, due := m.next(); due; key, due = m.next() {
			ctx, cancel := context.WithTimeout(m.writes, statusTimeout)
			err := m.write(ctx, key)
			cancel()
			if m.failed(key, err) {
				break
			}
			timer.Reset(writeInterval)
			select {
			case <-timer.C:
			case <-m.ctx.Done(): // quickly now
			}
		}
	}
}

// failed tells of a write that failed, if it is news, and says whether there is no use in another one now: then what was not
// written waits for its turn.
func (m *Memory) failed(key modelKey, err error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, words := m.models[key], ""
	if err != nil {
		words = err.Error()
	}
	if r != nil && r.fault != words {
		if r.fault = words; err != nil {
			m.log.Warn("the status of a model cannot be written; it is tried again", "model", key.id, "err", err)
		}
	}
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsInvalid(err): // until it changes
		return false
	}
	m.dirty[key] = true // and not due: the API server has to come back first
	return true
}

// next takes a model whose status is due.
func (m *Memory) next() (modelKey, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.dirty {
		if !m.decides() {
			break
		}
		delete(m.dirty, key)
		return key, true
	}
	return modelKey{}, false
}

// mark makes a model due. The caller holds mu.
func (m *Memory) mark(key modelKey) {
	m.dirty[key] = true
	select {
	case m.due <- struct{}{}:
	default:
	}
}

// write writes the status of a model as it is to be now.
func (m *Memory) write(ctx context.Context, key modelKey) error {
	m.mu.Lock()
	r := m.models[key]
	m.mu.Unlock()
	if r == nil {
		return nil
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	m.mu.Lock()
	object, uid := r.object, r.uid
	status, changed := m.wanted(r)
	m.mu.Unlock()
	if object.Name == "" || !changed {
		return nil
	}
	o, err := putStatus(ctx, m.client, object, uid, status)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case apierrors.IsNotFound(err):
		r.written = v1alpha1.ModelStatus{}
		if len(r.asked) > 0 {
			return err
		}
		m.forget(key)
		return nil
	case err != nil:
		return err
	case r.object != object || r.uid != uid: // it is another's since, which is to be written
		return nil
	}
	r.written, r.at, r.uid = status, time.Now(), string(o.UID)
	if r.generation != o.Generation { // its spec has changed since: this status is of that, too
		r.generation = o.Generation
		m.mark(key)
	}
	return nil
}

// putStatus puts a status in the place of that of a Model, whole, for it is one control's to write. Another Model of the name,
// where it is known which one is meant, is left alone: that one is not found.
func putStatus(ctx context.Context, c client.Client, object objects.Name, uid string, status v1alpha1.ModelStatus) (*v1alpha1.Model, error) {
	steps := []map[string]any{{"op": "add", "path": "/status", "value": status}}
	if uid != "" {
		steps = slices.Insert(steps, 0, map[string]any{"op": "test", "path": "/metadata/uid", "value": uid})
	}
	patch, err := json.Marshal(steps)
	if err != nil {
		return nil, err
	}
	o := &v1alpha1.Model{}
	o.Namespace, o.Name = object.Namespace, object.Name
	err = c.Status().Patch(ctx, o, client.RawPatch(types.JSONPatchType, patch))
	if uid != "" && misfits(err) {
		err = apierrors.NewNotFound(v1alpha1.SchemeGroupVersion.WithResource("models").GroupResource(), object.Name)
	}
	return o, err
}

// misfits says whether a patch met an object that it is not for: where the object that it makes is not valid the API server
// says which.
func misfits(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && apierrors.IsInvalid(err) && (status.ErrStatus.Details == nil || len(status.ErrStatus.Details.Causes) == 0)
}

// forget forgets a model that is no more, unless a runtime may have it. The caller holds mu.
func (m *Memory) forget(key modelKey) {
	if r := m.models[key]; r != nil && len(r.asked) == 0 {
		delete(m.models, key)
		delete(m.dirty, key)
	}
}

// wanted is the status that a model is to have, and whether that is worth a write. The caller holds mu.
func (m *Memory) wanted(r *remembered) (v1alpha1.ModelStatus, bool) {
	status := *r.status.DeepCopy()
	status.ObservedGeneration = r.generation
	status.Conditions = slices.Clone(r.written.Conditions)
	for _, c := range r.status.Conditions {
		c.ObservedGeneration = r.generation
		meta.SetStatusCondition(&status.Conditions, c)
	}
	status.Copies = slices.DeleteFunc(status.Copies, func(c v1alpha1.CopyStatus) bool {
		_, runtime := m.runtimes[c.Endpoint]
		return runtime
	})
	for _, a := range r.asked {
		status.Copies = append(status.Copies, m.copyStatus(a))
	}
	slices.SortFunc(status.Copies, func(a, b v1alpha1.CopyStatus) int { return strings.Compare(a.Endpoint, b.Endpoint) })
	before := *r.written.DeepCopy()
	if time.Since(r.at) < usedInterval {
		before.LastUsed = status.LastUsed
	}
	return status, !equality.Semantic.DeepEqual(before, status)
}

// of returns a model, and makes it if it is not known yet. The caller holds mu.
func (m *Memory) of(key modelKey) *remembered {
	r := m.models[key]
	if r == nil {
		r = &remembered{asked: make(map[string]objects.CopyRecord)}
		m.models[key] = r
	}
	return r
}
