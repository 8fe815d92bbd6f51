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

	"github.com/headgate/headgate/control/attach/conditions"
	"github.com/headgate/headgate/internal/objects"
)

// attached is what an object is to say of the Gateways that it has to do with. It is guarded by Writer.mu.
type attached struct {
	want *conditions.Status
	said *conditions.Status // what it says, as far as that is known: want when it is done, nil where nobody knows
}

func (a *attached) done() bool { return a == nil || a.said == a.want }

func attachedSubject(o objects.Object) subject { return subject{kind: o.Kind, name: o.Name} }

// SetGateways makes due what objects are to say of Gateways, and what of it they do not say yet. Objects that name no Gateway of ours
// are not asked for, but for one list of each kind: they may have named one before.
func (r *Writer) SetGateways(in conditions.Input) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gateways = &in
	r.setGateways()
}

// setGateways does so for the latest of what is known. The caller holds mu.
func (r *Writer) setGateways() {
	in := *r.gateways
	in.Versions = r.release
	all := conditions.Of(in)
	there := make(map[objects.Object]bool, len(all))
	for _, want := range all {
		there[want.Object] = true
		is := r.attached[want.Object]
		var silent bool // it says nothing of us, as far as that is known
		switch {
		case is == nil:
			is, silent = new(attached), r.surveyed[want.Object.Kind] // it is new
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
		r.mark(attachedSubject(want.Object))
	}
	for o := range r.attached {
		if !there[o] {
			delete(r.attached, o)
			delete(r.told, attachedSubject(o))
		}
	}
}

// writeAttached writes what one object is to say of Gateways.
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
		if put(o, want) {
			if err := r.client.Status().Update(ctx, o); err != nil {
				return err
			}
		}
		was := o.DeepCopyObject().(client.Object)
		if putFinalizer(o, want) { // of this version alone, for all finalizers are one field of such a patch
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

// put makes an object say what is wanted, and says whether it did not yet. One that is not meant stays as it is.
func put(o client.Object, want *conditions.Status) bool {
	if !meant(o, want) {
		return false
	}
	before := o.DeepCopyObject()
	want.Put(o, metav1.Now())
	return !equality.Semantic.DeepEqual(before, o)
}

// putFinalizer makes an object have the finalizer that it is to have, or not to have, and says whether that was otherwise. One that is not
// meant stays as it is.
func putFinalizer(o client.Object, want *conditions.Status) bool {
	if !meant(o, want) {
		return false
	}
	before := o.GetFinalizers()
	want.PutFinalizer(o)
	return !slices.Equal(before, o.GetFinalizers())
}

// meant says whether an object is what a status is of. Another of the name, and one that is newer than the World that is known, is not:
// what it is to say is another thing, which follows.
func meant(o client.Object, want *conditions.Status) bool {
	return (want.UID == "" || want.UID == string(o.GetUID())) && o.GetGeneration() <= want.Generation
}

// survey reads once what all objects of a kind say, for a control that begins to lead finds nearly all as it should be: it saves a
// request for each. It says whether it did that now, so that the object is due again.
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
		if is := r.attached[objects.Object{Kind: of.Kind, Name: name}]; is != nil && !put(object, is.want) && !putFinalizer(object, is.want) {
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
