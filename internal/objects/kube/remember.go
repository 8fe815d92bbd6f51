package kube

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// What control/place asks of a memory.

// PutModel makes a Model of a registered model. Wait returns when it is there.
func (m *Memory) PutModel(o *v1alpha1.Model) (wait func() error) {
	made := o.DeepCopy()
	if made.Labels == nil {
		made.Labels = make(map[string]string)
	}
	made.Labels[RegisteredLabel] = "true"
	return m.turn(made, func(ctx context.Context) error {
		if err := m.client.Create(ctx, made); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("the Model cannot be made: %w", err)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		e := objects.EntryOf(made)
		r := m.of(modelKey{e.Pool.String(), e.ID})
		r.belongs(e.Object, e.UID)
		r.generation = max(r.generation, made.Generation)
		return nil
	})
}

// DeleteModel deletes the Model of a registered model. Wait returns when it is gone.
func (m *Memory) DeleteModel(o *v1alpha1.Model) (wait func() error) {
	return m.turn(o, func(ctx context.Context) error {
		gone := &v1alpha1.Model{}
		gone.Namespace, gone.Name = o.Namespace, o.Name
		if err := m.client.Delete(ctx, gone); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("the Model cannot be deleted: %w", err)
		}
		return nil
	})
}

// turn returns what makes a call that makes or deletes an object, after those that were asked for before.
func (m *Memory) turn(o *v1alpha1.Model, call func(context.Context) error) (wait func() error) {
	name := objects.Name{Namespace: o.Namespace, Name: o.Name}
	m.mu.Lock()
	defer m.mu.Unlock()
	before, mine := m.turns[name], make(chan struct{})
	m.turns[name] = mine
	return func() error {
		if before != nil {
			<-before
		}
		defer func() {
			close(mine)
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.turns[name] == mine {
				delete(m.turns, name)
			}
		}()
		ctx, cancel := context.WithTimeout(m.ctx, writeTimeout)
		defer cancel()
		return call(ctx)
	}
}

// PutCopy keeps what is asked of a model runtime; engines that list what they have are asked. With wait it returns when the
// API server has it.
func (m *Memory) PutCopy(c objects.CopyRecord, wait bool) error {
	if c.Listed {
		return nil
	}
	key := modelKey{c.Pool, c.ID}
	m.mu.Lock()
	r := m.of(key)
	r.belongs(c.Object, c.UID)
	r.asked[c.Endpoint] = c
	known := r.object.Name != ""
	if !wait {
		m.mark(key)
	}
	m.mu.Unlock()
	switch {
	case !wait:
		return nil
	case !known:
		return fmt.Errorf("no Model has the id %q in the pool %s, and the engine cannot list what it has: write one", c.ID, c.Pool)
	case !m.decides():
		return errUncertain
	}
	ctx, cancel := context.WithTimeout(m.ctx, statusTimeout)
	defer cancel()
	err := m.write(ctx, key)
	if apierrors.IsNotFound(err) && c.State == unloading { // what is deleted has to leave, and there is nothing more to say
		return nil
	}
	switch {
	case err == nil && !m.decides(): // it took long
		return errUncertain
	case err == nil, apierrors.IsNotFound(err), apierrors.IsInvalid(err), apierrors.IsForbidden(err):
		return err
	}
	return fmt.Errorf("%w: %w", objects.ErrNotNow, err)
}

var errUncertain = fmt.Errorf("%w: it is not certain that this control decides", objects.ErrNotNow)

// unloading is the state of a copy that an engine is told to unload.
const unloading = "unloading"

// DeleteCopy forgets what was asked.
func (m *Memory) DeleteCopy(endpoint, pool, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := modelKey{pool, id}
	if r := m.models[key]; r != nil {
		if _, asked := r.asked[endpoint]; asked {
			delete(r.asked, endpoint)
			m.mark(key)
		}
	}
}

// PutRuntime keeps what a model runtime said of itself, with the first copy there: one that has none may be asked again. What
// was asked of an earlier life of it is forgotten.
func (m *Memory) PutRuntime(r objects.RuntimeRecord) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.runtimes[r.Endpoint] = r
	for key, of := range m.models {
		if a, asked := of.asked[r.Endpoint]; asked && a.Incarnation != r.Incarnation {
			delete(of.asked, r.Endpoint)
			m.mark(key)
		}
	}
	return nil
}

// PutStatuses keeps the status of models, when there is time.
func (m *Memory) PutStatuses(all []objects.ModelRecord) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, st := range all {
		key := modelKey{st.Pool, st.ID}
		if st.Gone {
			m.forget(key)
			continue
		}
		r := m.of(key)
		r.belongs(st.Object, st.UID)
		r.status = st.Status
		r.generation = max(r.generation, st.Status.ObservedGeneration)
		m.mark(key)
	}
}

// copyStatus is what was asked of a runtime, as the status has it. The caller holds mu.
func (m *Memory) copyStatus(a objects.CopyRecord) v1alpha1.CopyStatus {
	runtime := m.runtimes[a.Endpoint]
	return v1alpha1.CopyStatus{
		Endpoint: a.Endpoint, State: a.State, Since: metav1.NewMicroTime(a.Since), Bytes: a.Bytes, Size: a.Size, Incarnation: a.Incarnation,
		Runtime: &v1alpha1.RuntimeStatus{
			Bytes: runtime.Bytes, DefaultBytes: runtime.DefaultBytes, Loads: int32(runtime.Loads),
			LoadTimeout: metav1.Duration{Duration: runtime.LoadTimeout},
		},
	}
}

// Models returns the models that were registered before.
func (m *Memory) Models() ([]v1alpha1.Model, error) { return m.registered, nil }

// Copies returns what was asked of model runtimes before.
func (m *Memory) Copies() ([]objects.CopyRecord, error) { return m.recorded, nil }

// Runtimes returns what model runtimes said of themselves before.
func (m *Memory) Runtimes() (all []objects.RuntimeRecord, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.runtimes {
		all = append(all, r)
	}
	return all, nil
}

// Statuses returns the status of models as it was before.
func (m *Memory) Statuses() (all []objects.ModelRecord, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, r := range m.models {
		all = append(all, objects.ModelRecord{Pool: key.pool, ID: key.id, Object: r.object, Status: r.status})
	}
	return all, nil
}
