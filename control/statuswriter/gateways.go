package statuswriter

import (
	"context"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/internal/objects"
)

// attached is the part of an object's status that reports about its Gateways. Writer.mu guards it.
type attached struct {
	want *conditions.Status
	said *conditions.Status // last known written status: equal to want if up to date, nil if unknown
}

func (a *attached) done() bool { return a == nil || a.said == a.want }

func attachedSubject(o objects.Object) subject { return subject{kind: o.Kind, name: o.Name} }

// SetGateways computes the statuses of Gateways and of all objects that may attach to them, and
// queues those that differ from the written ones. It lists the objects of each kind once, since
// objects that refer to none of our Gateways may still have an old status.
func (r *Writer) SetGateways(in conditions.Input) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gateways = &in
	r.setGateways()
}

// setGateways computes the statuses of the latest input, and queues those that differ from the
// written ones. The caller holds mu.
func (r *Writer) setGateways() {
	in := *r.gateways
	in.Versions = r.release
	r.want(conditions.OfGateways(in), false, r.mark)
	r.setEndpoints(r.mark)
}

// SetObserved queues the statuses that depend on the state of endpoints and on data planes. They
// are written later than others, since the state of many endpoints may change often. Before the
// first call, no such status is written. Call it only after [Writer.SetGateways], if that is called
// at all.
func (r *Writer) SetObserved(o conditions.Observed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	mark := r.mark
	if r.observed != nil {
		mark = r.markLate
	}
	r.observed = &o
	r.setEndpoints(mark)
}

// setEndpoints computes the statuses that depend on endpoints, and calls mark with those that
// differ from the written ones. The caller holds mu.
func (r *Writer) setEndpoints(mark func(subject)) {
	if r.observed == nil || r.world == nil {
		return
	}
	var in conditions.Input
	if r.gateways != nil {
		in = *r.gateways
	}
	in.World, in.Observed = r.world, *r.observed
	r.want(conditions.OfEndpoints(in), true, mark)
}

// endpointKinds are the kinds of the statuses that depend on endpoints.
var endpointKinds = map[string]bool{
	v1alpha1.LLMRouteKind: true, pool.Kind: true, v1alpha1.PoolSettingsKind: true, v1alpha1.EndpointListKind: true,
}

// want sets the statuses that objects should have: those of endpointKinds, or those of all other
// kinds. It calls mark with those that differ from the written ones. The caller holds mu.
func (r *Writer) want(all []*conditions.Status, endpoints bool, mark func(subject)) {
	there := make(map[objects.Object]bool, len(all))
	for _, want := range all {
		there[want.Object] = true
		is := r.attached[want.Object]
		var silent bool // true if Headgate is not known to have written a status for it
		switch {
		case is == nil:
			is, silent = new(attached), r.surveyed[want.Object.Kind] // first seen
			r.attached[want.Object] = is
		case reflect.DeepEqual(is.want, want):
			continue
		default:
			silent = is.done() && is.want.Empty()
		}
		if is.want = want; silent && want.Empty() {
			is.said = want
			continue
		}
		mark(attachedSubject(want.Object))
	}
	for o := range r.attached {
		if !there[o] && endpointKinds[o.Kind] == endpoints {
			delete(r.attached, o)
			delete(r.dirty, attachedSubject(o))
			delete(r.logged, attachedSubject(o))
			r.forgetEvents(o)
		}
	}
}

// writeAttached writes the status of one object.
func (r *Writer) writeAttached(ctx context.Context, of objects.Object) error {
	r.mu.Lock()
	is := r.attached[of]
	if is.done() {
		r.mu.Unlock()
		return nil
	}
	want := is.want
	r.mu.Unlock()
	if again, err := r.survey(of); again || err != nil {
		return err
	}
	kind := r.kinds[of.Kind]
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		o := kind.New()
		if err := r.client.Get(ctx, client.ObjectKey(of.Name), o); err != nil {
			return err
		}
		before := o.DeepCopyObject()
		if put(o, want) {
			if err := r.client.Status().Update(ctx, o); err != nil {
				return err
			}
			r.mu.Lock()
			r.observe(of, o.GetUID(), before, o)
			r.mu.Unlock()
		}
		was := o.DeepCopyObject().(client.Object)
		if putFinalizer(o, want) { // fails if the object has changed, since a patch replaces all finalizers
			return r.client.Patch(ctx, o, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
		}
		return nil
	})
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	is.said = want
	return nil
}

// put writes a status into an object, and reports whether that changed the object. It skips an
// object for which meant returns false.
func put(o client.Object, want *conditions.Status) bool {
	if !meant(o, want) {
		return false
	}
	before := o.DeepCopyObject()
	want.Put(o, metav1.Now())
	return !equality.Semantic.DeepEqual(before, o)
}

// putFinalizer adds or removes the finalizer of an object, and reports whether that changed the
// object. It skips an object for which meant returns false.
func putFinalizer(o client.Object, want *conditions.Status) bool {
	if !meant(o, want) {
		return false
	}
	before := o.GetFinalizers()
	want.PutFinalizer(o)
	return !slices.Equal(before, o.GetFinalizers())
}

// meant reports whether a status was computed for this object. It was not if the object was
// replaced since, or if its spec has changed. A status that is computed later is for the new
// object.
func meant(o client.Object, want *conditions.Status) bool {
	return (want.UID == "" || want.UID == string(o.GetUID())) && o.GetGeneration() <= want.Generation
}

// survey lists all objects of a kind once, and records which statuses are up to date. A new leader
// finds nearly all up to date, so this saves a request for each. If survey has just listed the
// objects, it returns true and has queued the object again.
func (r *Writer) survey(of objects.Object) (bool, error) {
	r.mu.Lock()
	known := r.surveyed[of.Kind]
	r.mu.Unlock()
	if known {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(r.writes, writeTimeout)
	defer cancel()
	all := r.kinds[of.Kind].NewList()
	if err := list(ctx, r.client, r.namespace, all); err != nil {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.surveyed[of.Kind] = true
	there := make(map[objects.Name]bool)
	err := meta.EachListItem(all, func(o runtime.Object) error {
		object := o.(client.Object)
		name := nameOf(object)
		there[name] = true
		if is := r.attached[objects.Object{Kind: of.Kind, Name: name}]; is != nil && !put(object, is.want) &&
			!putFinalizer(object, is.want) {
			is.said = is.want
		}
		return nil
	})
	for o, is := range r.attached {
		if o.Kind == of.Kind && !there[o.Name] && is.want.Empty() {
			is.said = is.want
		}
	}
	r.mark(attachedSubject(of))
	return true, err
}
