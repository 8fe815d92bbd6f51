package pods

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/headgate/headgate/control/pods/gateway"
)

// fieldManager is the name under which control owns the fields that it writes by server-side apply.
const fieldManager = "headgate-control"

// Kinds of the objects of a Gateway, in the order of deletion. The Deployment is last, so that its
// pods end only after clients can no longer reach them.
const (
	services = iota
	budgets
	policies
	deployments
)

// kind is a kind of object that is made for Gateways.
type kind struct {
	name     string
	informer cache.SharedIndexInformer
	patch    func(ctx context.Context, name string, how types.PatchType, text []byte, o metav1.PatchOptions) (metav1.Object, error)
	delete   func(ctx context.Context, name string, o metav1.DeleteOptions) error
	// version returns a string that changes whenever the specification of an object is written. For
	// some kinds it also changes with other writes.
	version func(metav1.Object) string
}

// kindsOf returns the kinds, indexed by the constants above.
func (k *reconciler) kindsOf(f informers.SharedInformerFactory) []kind {
	byGeneration := func(o metav1.Object) string { return fmt.Sprint(o.GetUID(), " ", o.GetGeneration()) }
	byResource := func(o metav1.Object) string { return o.GetResourceVersion() }
	s, d := k.Client.CoreV1().Services(k.Namespace), k.Client.AppsV1().Deployments(k.Namespace)
	b, p := k.Client.PolicyV1().PodDisruptionBudgets(k.Namespace), k.Client.NetworkingV1().NetworkPolicies(k.Namespace)
	return []kind{
		services:    {"Service", f.Core().V1().Services().Informer(), patchOf(s.Patch), s.Delete, byResource},
		budgets:     {"PodDisruptionBudget", f.Policy().V1().PodDisruptionBudgets().Informer(), patchOf(b.Patch), b.Delete, byGeneration},
		policies:    {"NetworkPolicy", f.Networking().V1().NetworkPolicies().Informer(), patchOf(p.Patch), p.Delete, byGeneration},
		deployments: {"Deployment", f.Apps().V1().Deployments().Informer(), patchOf(d.Patch), d.Delete, byGeneration},
	}
}

// patchOf adapts the Patch method of a typed client to return any kind of object.
func patchOf[T metav1.Object](patch func(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (T,
	error),
) func(context.Context, string, types.PatchType, []byte, metav1.PatchOptions) (metav1.Object, error) {
	return func(ctx context.Context, name string, how types.PatchType, text []byte, o metav1.PatchOptions) (metav1.Object, error) {
		return patch(ctx, name, how, text, o)
	}
}

// there returns the last seen version of an object of a kind; nil if there is none.
func (k *reconciler) there(of int, name string) metav1.Object {
	o, there, err := k.kinds[of].informer.GetStore().GetByKey(k.Namespace + "/" + name)
	if err != nil || !there {
		return nil
	}
	return o.(metav1.Object)
}

// applied is a hash of the content that control applied to an object, and the version that the
// object had after that.
type applied struct {
	text    [sha256.Size]byte
	version string
}

// apply writes an object by server-side apply, unless nothing has changed. Fields that control does
// not set keep their values.
func (k *reconciler) apply(ctx context.Context, of int, o metav1.Object) error {
	text, err := written(o)
	if err != nil {
		return err
	}
	is := k.kinds[of]
	key, sum := is.name+"/"+o.GetName(), sha256.Sum256(text)
	if was, there := k.applied[key], k.there(of, o.GetName()); there != nil && was == (applied{sum, is.version(there)}) {
		return nil
	}
	if d, is := o.(*appsv1.Deployment); is && d.Spec.Replicas == nil {
		if err := k.scale(ctx, d); err != nil {
			return err
		}
		if text, err = written(d); err != nil {
			return err
		}
	}
	made, err := is.patch(ctx, o.GetName(), types.ApplyPatchType, text, metav1.PatchOptions{FieldManager: fieldManager, Force: new(true)})
	if err != nil {
		return err
	}
	k.applied[key] = applied{sum, is.version(made)}
	return nil
}

// scale sets the replicas of d to the present number, since others may have scaled the Deployment,
// or to [gateway.DefaultReplicas] if there is no Deployment yet. It also sets the resource version,
// so that the apply fails if the Deployment is scaled meanwhile, instead of undoing that.
func (k *reconciler) scale(ctx context.Context, d *appsv1.Deployment) error {
	is, err := k.Client.AppsV1().Deployments(k.Namespace).Get(ctx, d.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		d.Spec.Replicas = new(int32(gateway.DefaultReplicas))
		return nil
	case err != nil:
		return err
	}
	d.Spec.Replicas, d.ResourceVersion = is.Spec.Replicas, is.ResourceVersion
	return nil
}

// written encodes an object in JSON without its status.
func written(o metav1.Object) ([]byte, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	delete(fields, "status")
	return json.Marshal(fields)
}

// move deletes a Service that needs another ClusterIP, since the field is immutable. It first tests
// the new address with a temporary Service. If that fails, it returns the error, and the old
// Service stays.
func (k *reconciler) move(ctx context.Context, want *corev1.Service) error {
	is, there := k.there(services, want.Name).(*corev1.Service)
	if !there || want.Spec.ClusterIP == "" || want.Spec.ClusterIP == is.Spec.ClusterIP {
		return nil
	}
	all := k.Client.CoreV1().Services(k.Namespace)
	try := want.DeepCopy()
	// the temporary Service belongs to no Gateway, so it is deleted later if the delete below fails
	try.Name, try.GenerateName, try.Spec.Selector = "", "gateway-tries-an-address-", nil
	tried, err := all.Create(ctx, try, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if err := all.Delete(ctx, tried.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	uid := is.UID
	return all.Delete(ctx, want.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
}

// remove deletes all objects of a Gateway.
func (k *reconciler) remove(ctx context.Context, name string) error {
	for of, is := range k.kinds {
		delete(k.applied, is.name+"/"+name)
		if k.there(of, name) == nil {
			continue
		}
		if err := is.delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}); err != nil &&
			!apierrors.IsNotFound(err) {
			return err
		}
	}
	return k.forget(ctx, name)
}
