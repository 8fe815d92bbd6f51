package statuswriter

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/internal/objects"
)

// PutModel returns a function that creates the Model of a registered model. The function returns
// when the Model exists.
func (r *Writer) PutModel(o *v1alpha1.Model) (wait func() error) {
	made := labelled(o.DeepCopy())
	return r.turn(objectOf(v1alpha1.ModelKind, made), func(ctx context.Context) error {
		err := r.client.Create(ctx, made)
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create Model %s: %w", nameOf(made), err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if err == nil {
			r.uids[objectOf(v1alpha1.ModelKind, made)] = made.UID
		}
		e := objects.EntryOf(made)
		m := r.of(modelKey{e.Pool.String(), e.ID})
		m.belongs(e.Object, e.UID)
		m.generation = max(m.generation, made.Generation)
		return nil
	})
}

// DeleteModel returns a function that deletes the Model of a registered model, but no other Model
// that has replaced it. The function returns when the Model is deleted.
func (r *Writer) DeleteModel(o *v1alpha1.Model) (wait func() error) {
	return r.delete(v1alpha1.ModelKind, named(&v1alpha1.Model{}, nameOf(o)))
}

// labelled adds the label that marks an object as registered by a client.
func labelled[O client.Object](o O) O {
	labels := o.GetLabels()
	if labels == nil {
		labels = make(map[string]string)
	}
	labels[RegisteredLabel] = "true"
	o.SetLabels(labels)
	return o
}

// named sets the namespace and name of an empty object, and returns it.
func named[O client.Object](o O, name objects.Name) O {
	o.SetNamespace(name.Namespace)
	o.SetName(name.Name)
	return o
}

func objectOf(kind string, o client.Object) objects.Object {
	return objects.Object{Kind: kind, Name: nameOf(o)}
}

// delete returns a function that deletes an object which a client had registered, but no other
// object that has replaced it. The function returns when the object is deleted.
func (r *Writer) delete(kind string, gone client.Object) (wait func() error) {
	name := objectOf(kind, gone)
	return r.turn(name, func(ctx context.Context) error {
		r.mu.Lock()
		uid := r.uids[name]
		r.mu.Unlock()
		var options []client.DeleteOption
		if uid != "" {
			options = append(options, client.Preconditions{UID: &uid})
		}
		if err := r.client.Delete(ctx, gone, options...); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete %s: %w", name, err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.uids, name)
		return nil
	})
}

// turn orders the calls that create, change or delete one object. It returns a function that waits
// for earlier calls to end, then runs this call.
func (r *Writer) turn(name objects.Object, call func(context.Context) error) (wait func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, mine := r.turns[name], make(chan struct{})
	r.turns[name] = mine
	return func() error {
		if before != nil {
			<-before
		}
		defer func() {
			close(mine)
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.turns[name] == mine {
				delete(r.turns, name)
			}
		}()
		ctx, cancel := context.WithTimeout(r.ctx, writeTimeout)
		defer cancel()
		return call(ctx)
	}
}

// PutCopy stores the state of a copy at a model runtime. It ignores copies at other engines, since
// these list their models. If wait is set, PutCopy returns when the API server has stored the
// state.
func (r *Writer) PutCopy(c store.Copy, wait bool) error {
	if c.Listed {
		return nil
	}
	key := modelKey{c.Pool, c.ID}
	r.mu.Lock()
	m := r.of(key)
	m.belongs(c.Object, c.UID)
	m.asked[c.Endpoint] = c
	known := m.object.Name != ""
	if !wait {
		r.mark(modelSubject(key))
	}
	r.mu.Unlock()
	switch {
	case !wait:
		return nil
	case !known:
		return fmt.Errorf("no Model has the id %q in the pool %s, and the engine cannot list its models: create one", c.ID, c.Pool)
	case !r.leads():
		return errUncertain
	}
	ctx, cancel := context.WithTimeout(r.ctx, statusTimeout)
	defer cancel()
	err := r.writeModel(ctx, key)
	if apierrors.IsNotFound(err) && c.State == unloading { // without a Model there is no status to write
		return nil
	}
	switch {
	case err == nil && !r.leads(): // the write took too long
		return errUncertain
	case err == nil, apierrors.IsNotFound(err), apierrors.IsInvalid(err), apierrors.IsForbidden(err):
		return err
	}
	return fmt.Errorf("%w: %w", store.ErrNotNow, err)
}

var errUncertain = fmt.Errorf("%w: it is unknown whether this control leads", store.ErrNotNow)

// unloading is the state of a copy that is being unloaded.
const unloading = "unloading"

// DeleteCopy deletes the state of a copy at a model runtime.
func (r *Writer) DeleteCopy(endpoint, pool, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := modelKey{pool, id}
	if m := r.models[key]; m != nil {
		if _, asked := m.asked[endpoint]; asked {
			delete(m.asked, endpoint)
			r.mark(modelSubject(key))
		}
	}
}

// PutRuntime stores the state of a model runtime, and drops the copies of its earlier incarnation.
// The state is written with the first copy at the runtime. Before that, control can ask the runtime
// for its state again.
func (r *Writer) PutRuntime(runtime store.Runtime) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runtimes[runtime.Endpoint] = runtime
	for key, m := range r.models {
		if asked, ok := m.asked[runtime.Endpoint]; ok && asked.Incarnation != runtime.Incarnation {
			delete(m.asked, runtime.Endpoint)
			r.mark(modelSubject(key))
		}
	}
	return nil
}

// DeleteRuntime deletes the state of a model runtime and its copies. Otherwise the next leader
// would find a copy, and believe that the runtime is initialized.
func (r *Writer) DeleteRuntime(endpoint string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.runtimes, endpoint)
	for key, m := range r.models {
		if _, ok := m.asked[endpoint]; ok {
			delete(m.asked, endpoint)
			r.mark(modelSubject(key))
		}
	}
}

// PutStatuses queues statuses of models.
func (r *Writer) PutStatuses(all []store.Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, st := range all {
		key := modelKey{st.Pool, st.ID}
		if st.Gone {
			r.forget(key)
			continue
		}
		m := r.of(key)
		m.belongs(st.Object, st.UID)
		m.status = st.Status
		m.generation = max(m.generation, st.Status.ObservedGeneration)
		r.mark(modelSubject(key))
	}
}

// copyStatus converts a copy to the type of a Model's status. The caller holds mu.
func (r *Writer) copyStatus(a store.Copy) v1alpha1.CopyStatus {
	runtime := r.runtimes[a.Endpoint]
	return v1alpha1.CopyStatus{
		Endpoint: a.Endpoint, State: a.State, Since: metav1.NewMicroTime(a.Since), Bytes: a.Bytes, SizeSource: a.Size,
		Concurrency: int32(a.Concurrency), Incarnation: a.Incarnation,
		Runtime: &v1alpha1.RuntimeStatus{
			CapacityBytes: runtime.Bytes, DefaultModelBytes: runtime.DefaultBytes, MaxConcurrentLoads: int32(runtime.Loads),
			LoadTimeout: metav1.Duration{Duration: runtime.LoadTimeout}, Methods: runtime.Methods.Lines(),
			LimitsConcurrency: runtime.LimitsConcurrency,
		},
	}
}

// Models returns the Models that clients had registered before the Writer was opened.
func (r *Writer) Models() ([]v1alpha1.Model, error) { return r.registered, nil }

// Copies returns the copies at model runtimes that earlier controls stored.
func (r *Writer) Copies() ([]store.Copy, error) { return r.recorded, nil }

// Runtimes returns the states of model runtimes, which include those that earlier controls stored.
func (r *Writer) Runtimes() (all []store.Runtime, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, runtime := range r.runtimes {
		all = append(all, runtime)
	}
	return all, nil
}

// Statuses returns the statuses of models, which include those that earlier controls wrote.
func (r *Writer) Statuses() (all []store.Status, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, m := range r.models {
		all = append(all, store.Status{Pool: key.pool, ID: key.id, Object: m.object, Status: m.status})
	}
	return all, nil
}
