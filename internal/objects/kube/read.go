package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/pods"
)

// shelves are the objects that are in force, by kind and name.
type shelves struct {
	pods     map[objects.Name]objects.Pod
	pools    map[objects.Name]pool.InferencePool
	routes   map[objects.Name]v1alpha1.LLMRoute
	models   map[objects.Name]v1alpha1.Model
	settings map[objects.Name]v1alpha1.PoolSettings
	lists    map[objects.Name]objects.List
}

func newShelves() shelves {
	return shelves{
		make(map[objects.Name]objects.Pod), make(map[objects.Name]pool.InferencePool), make(map[objects.Name]v1alpha1.LLMRoute),
		make(map[objects.Name]v1alpha1.Model), make(map[objects.Name]v1alpha1.PoolSettings), make(map[objects.Name]objects.List),
	}
}

// set is all of them: pods in any order, which nothing depends on, the rest in order of name.
func (s *shelves) set() objects.Set {
	return objects.Set{
		Pods: slices.AppendSeq(make([]objects.Pod, 0, len(s.pods)), maps.Values(s.pods)), Pools: ordered(s.pools),
		Routes: ordered(s.routes), Models: ordered(s.models), Settings: ordered(s.settings), Lists: ordered(s.lists),
	}
}

func ordered[T any](shelf map[objects.Name]T) []T {
	all := make([]T, 0, len(shelf))
	for _, name := range slices.SortedFunc(maps.Keys(shelf), objects.Name.Compare) {
		all = append(all, shelf[name])
	}
	return all
}

// lighten takes from an object what nobody reads.
func lighten(o client.Object) {
	switch o := o.(type) {
	case *corev1.Pod:
		pods.Trim(o)
	case *pool.InferencePool:
		trimMeta(&o.ObjectMeta)
		o.Status = pool.Status{}
	case *v1alpha1.LLMRoute:
		trimMeta(&o.ObjectMeta)
		o.Status = v1alpha1.LLMRouteStatus{}
	case *v1alpha1.Model:
		trimMeta(&o.ObjectMeta)
		o.Status = v1alpha1.ModelStatus{}
	case *v1alpha1.PoolSettings:
		trimMeta(&o.ObjectMeta)
	case *v1alpha1.EndpointList:
		trimMeta(&o.ObjectMeta)
	}
}

// The readers below return an object as a Set has it, and what is wrong with it. Versions that differ in their status
// alone are read alike.

func readPod(o client.Object) (objects.Pod, field.ErrorList) {
	pod := o.(*corev1.Pod)
	p, faults := pods.Of(pod)
	// One whose kubelet has not yet said that it is ready is not.
	p.Ready = p.Ready && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	return p, faults
}

func readPool(o client.Object) (pool.InferencePool, field.ErrorList) {
	p := *o.(*pool.InferencePool)
	p.ResourceVersion = ""
	return p, objects.CheckPool(&p)
}

func readRoute(o client.Object) (v1alpha1.LLMRoute, field.ErrorList) {
	r := *o.(*v1alpha1.LLMRoute)
	r.ResourceVersion = ""
	return r, objects.CheckRoute(&r)
}

func readModel(o client.Object) (v1alpha1.Model, field.ErrorList) {
	m := *o.(*v1alpha1.Model)
	m.ResourceVersion = ""
	return m, objects.CheckModelObject(&m)
}

func readSettings(o client.Object) (v1alpha1.PoolSettings, field.ErrorList) {
	s := *o.(*v1alpha1.PoolSettings)
	s.ResourceVersion = ""
	return s, objects.CheckSettings(&s)
}

func readList(o client.Object) (objects.List, field.ErrorList) {
	l := *o.(*v1alpha1.EndpointList)
	l.ResourceVersion = ""
	return objects.List{EndpointList: l}, objects.CheckClusterList(&l)
}

// Read reads the objects of a namespace once, or of all where that is empty. Those that are not valid are an error.
func Read(ctx context.Context, c *rest.Config, namespace string) (objects.Set, error) {
	reader, err := Client(c)
	if err != nil {
		return objects.Set{}, err
	}
	known := newShelves()
	var (
		podList   corev1.PodList
		pools     pool.InferencePoolList
		routes    v1alpha1.LLMRouteList
		models    v1alpha1.ModelList
		settings  v1alpha1.PoolSettingsList
		endpoints v1alpha1.EndpointListList
	)
	for _, list := range []client.ObjectList{&podList, &pools, &routes, &models, &settings, &endpoints} {
		if err := reader.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return objects.Set{}, fmt.Errorf("read objects: %w%s", err, HintFor(err))
		}
	}
	err = errors.Join(
		fill(known.pods, podList.Items, readPod), fill(known.pools, pools.Items, readPool), fill(known.routes, routes.Items, readRoute),
		fill(known.models, models.Items, readModel), fill(known.settings, settings.Items, readSettings), fill(known.lists, endpoints.Items, readList),
	)
	return known.set(), err
}

// object is a client.Object by the type that it points to.
type object[O any] interface {
	*O
	client.Object
}

// fill puts what a list has onto its shelf.
func fill[T, O any, P object[O]](shelf map[objects.Name]T, items []O, read func(client.Object) (T, field.ErrorList)) error {
	var errs []error
	for i := range items {
		o := P(&items[i])
		lighten(o)
		name := objects.Name{Namespace: o.GetNamespace(), Name: o.GetName()}
		is, faults := read(o)
		if len(faults) > 0 {
			errs = append(errs, fmt.Errorf("%T %s: %w", is, name, faults.ToAggregate()))
			continue
		}
		shelf[name] = is
	}
	return errors.Join(errs...)
}

// HintFor says what to do about an answer of the API server; empty if nobody knows.
func HintFor(err error) string {
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		if hint := hints[int(status.ErrStatus.Code)]; hint != "" {
			return ": " + hint
		}
	}
	return ""
}
