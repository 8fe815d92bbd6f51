package kube

import (
	"cmp"
	"context"
	"encoding/json"
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
	// writeTimeout bounds one write.
	writeTimeout = 10 * time.Second
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
	done    chan struct{} // closed when the last write is
	due     chan struct{} // capacity 1; never closed

	registered []v1alpha1.Model     // at the start
	recorded   []objects.CopyRecord // at the start

	mu       sync.Mutex // guards the following
	models   map[modelKey]*remembered
	runtimes map[string]objects.RuntimeRecord
	dirty    map[modelKey]bool
}

// modelKey is a model's pool, "namespace/name", and id.
type modelKey struct{ pool, id string }

// remembered is a model. All but writing is guarded by Memory.mu.
type remembered struct {
	writing sync.Mutex // held while its status is written, before Memory.mu

	object     objects.Name
	generation int64
	status     v1alpha1.ModelStatus          // as is to be written, but for copies at runtimes
	asked      map[string]objects.CopyRecord // of runtimes, by endpoint
	written    v1alpha1.ModelStatus
	at         time.Time // of the last write
}

// OpenMemory reads what an earlier control remembered, in a namespace or, if that is empty, in all. Nothing is written while
// decides is false: another control may be the one that does.
func OpenMemory(ctx context.Context, c client.Client, namespace string, log *slog.Logger, decides func() bool) (*Memory, error) {
	var list v1alpha1.ModelList
	if err := c.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("read the status of models: %w", err)
	}
	m := &Memory{
		client: c, log: log, decides: decides, done: make(chan struct{}), due: make(chan struct{}, 1),
		models: make(map[modelKey]*remembered), runtimes: make(map[string]objects.RuntimeRecord), dirty: make(map[modelKey]bool),
	}
	m.ctx, m.stop = context.WithCancel(context.WithoutCancel(ctx))
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
		object: e.Object, generation: o.Generation, status: o.Status, written: *o.Status.DeepCopy(),
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
		m.runtimes[c.Endpoint] = objects.RuntimeRecord{
			Endpoint: c.Endpoint, Incarnation: c.Incarnation, Bytes: c.Runtime.Bytes, DefaultBytes: c.Runtime.DefaultBytes,
			Loads: int(c.Runtime.Loads), LoadTimeout: c.Runtime.LoadTimeout.Duration,
		}
		record := objects.CopyRecord{
			Endpoint: c.Endpoint, Pool: key.pool, ID: key.id, State: c.State, Bytes: c.Bytes, Size: c.Size,
			Incarnation: c.Incarnation, Since: c.Since.Time,
		}
		r.asked[c.Endpoint] = record
		m.recorded = append(m.recorded, record)
	}
}

// Close writes what is still to be written, if this control decides, and ends.
func (m *Memory) Close() error {
	m.stop()
	<-m.done
	return nil
}

// run writes what is due, not too much at once.
func (m *Memory) run() {
	defer close(m.done)
	timer := time.NewTimer(writeInterval)
	defer timer.Stop()
	for last := false; !last; {
		select {
		case <-m.due:
		case <-m.ctx.Done():
			last = true
		}
		for key, due := m.next(); due; key, due = m.next() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), writeTimeout)
			err := m.write(ctx, key)
			cancel()
			if err != nil {
				m.log.Warn("the status of a model cannot be written; it is tried again when it changes", "model", key.id, "err", err)
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
	if r == nil || r.object.Name == "" {
		return nil
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	m.mu.Lock()
	status, changed := m.wanted(r)
	m.mu.Unlock()
	if !changed {
		return nil
	}
	// The whole status is put in the place of what was there: it is one control's to write.
	patch, err := json.Marshal([]map[string]any{{"op": "add", "path": "/status", "value": status}})
	if err != nil {
		return err
	}
	o := &v1alpha1.Model{}
	o.Namespace, o.Name = r.object.Namespace, r.object.Name
	if err := m.client.Status().Patch(ctx, o, client.RawPatch(types.JSONPatchType, patch)); err != nil {
		if apierrors.IsNotFound(err) {
			m.mu.Lock()
			defer m.mu.Unlock()
			if len(r.asked) > 0 {
				r.written = v1alpha1.ModelStatus{}
				return err
			}
			delete(m.models, key)
			return nil
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.mark(key)
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r.written, r.at = status, time.Now()
	if r.generation != o.Generation { // its spec has changed since: this status is of that, too
		r.generation = o.Generation
		m.mark(key)
	}
	return nil
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
