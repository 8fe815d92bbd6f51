package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// Status writes into an API server: the status of LLMRoutes and Models, and Models that clients register. One process at a
// time should, for it remembers what it wrote last and writes only what is other; who begins to write makes a new one.
//
// It needs the verbs get and list of llmroutes, update of llmroutes/status, get, list, create and delete of models, and
// update of models/status. It is not safe for concurrent use. Calls are not made faster than the client's limit; how often
// a status that changes much is written is for the caller to say.
type Status struct {
	client    client.Client
	namespace string
	routes    map[objects.Name]v1alpha1.LLMRouteStatus // as last read or written; nil before the first reading
	models    map[objects.Name]v1alpha1.ModelStatus    // as last read or written
}

// NewStatus returns a Status for the objects of a namespace, or of all where that is empty. It calls nobody.
func NewStatus(c *rest.Config, namespace string) (*Status, error) {
	writer, err := newClient(c)
	if err != nil {
		return nil, fmt.Errorf("the API server: %w", err)
	}
	return &Status{client: writer, namespace: namespace, models: make(map[objects.Name]v1alpha1.ModelStatus)}, nil
}

// Routes writes of every LLMRoute of a World what is not yet written. It goes on after an error, and returns all of them;
// what failed is tried again in the next call.
func (s *Status) Routes(ctx context.Context, w *objects.World) error {
	if s.routes == nil {
		var all v1alpha1.LLMRouteList
		if err := s.client.List(ctx, &all, client.InNamespace(s.namespace)); err != nil {
			return fmt.Errorf("read the status of routes: %w", err)
		}
		s.routes = make(map[objects.Name]v1alpha1.LLMRouteStatus, len(all.Items))
		for _, r := range all.Items {
			s.routes[objects.Name{Namespace: r.Namespace, Name: r.Name}] = r.Status
		}
	}
	var errs []error
	there := make(map[objects.Name]bool)
	for _, want := range routeStatuses(w) {
		there[want.name] = true
		if sameRoute(s.routes[want.name], want.status) {
			continue
		}
		errs = append(errs, s.route(ctx, want.name, want.status))
	}
	for name := range s.routes {
		if !there[name] {
			delete(s.routes, name)
		}
	}
	return errors.Join(errs...)
}

// route writes the status of one route.
func (s *Status) route(ctx context.Context, name objects.Name, want v1alpha1.LLMRouteStatus) error {
	r, err := update(ctx, s.client, name, func(r *v1alpha1.LLMRoute) bool {
		before := *r.Status.DeepCopy()
		r.Status.Models, r.Status.Pools = want.Models, want.Pools
		for _, c := range want.Conditions {
			meta.SetStatusCondition(&r.Status.Conditions, c)
		}
		return !equality.Semantic.DeepEqual(before, r.Status)
	})
	if r != nil {
		s.routes[name] = r.Status
	}
	return err
}

// wanted is the status that a route should have, its conditions without times.
type wanted struct {
	name   objects.Name
	status v1alpha1.LLMRouteStatus
}

// routeStatuses are those of the LLMRoutes of a World.
func routeStatuses(w *objects.World) []wanted {
	faults := make(map[objects.Name][]objects.Fault)
	for _, f := range w.Faults {
		if f.Kind == v1alpha1.LLMRouteKind {
			faults[f.Object] = append(faults[f.Object], f)
		}
	}
	var all []wanted
	for _, r := range w.Routes {
		if r.Kind != v1alpha1.LLMRouteKind {
			continue
		}
		status := v1alpha1.LLMRouteStatus{
			Models: r.Models,
			Conditions: []metav1.Condition{
				condition(v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, v1alpha1.ReasonModelNameTaken, faults[r.Name], r.Generation),
				condition(v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonResolvedRefs, v1alpha1.ReasonBackendNotFound, faults[r.Name], r.Generation),
			},
		}
		for _, b := range r.Backends {
			status.Pools = append(status.Pools, b.Pool.Name)
		}
		all = append(all, wanted{r.Name, status})
	}
	return all
}

// condition is true with the reason good, or false with the reason bad and the words of the faults that have it.
func condition(kind, good, bad string, faults []objects.Fault, generation int64) metav1.Condition {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: good, ObservedGeneration: generation}
	var words []string
	for _, f := range faults {
		if f.Reason == bad {
			words = append(words, f.Words)
		}
	}
	if len(words) > 0 {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, bad, strings.Join(words, "; ")
	}
	return c
}

// sameRoute says whether a status says what is wanted.
func sameRoute(is, want v1alpha1.LLMRouteStatus) bool {
	return slices.Equal(is.Models, want.Models) && slices.Equal(is.Pools, want.Pools) && hasConditions(is.Conditions, want.Conditions)
}

// hasConditions says whether conditions say what is wanted, whenever they came true.
func hasConditions(are, want []metav1.Condition) bool {
	return !slices.ContainsFunc(want, func(c metav1.Condition) bool {
		is := meta.FindStatusCondition(are, c.Type)
		if is == nil {
			return true
		}
		c.LastTransitionTime = is.LastTransitionTime
		return c != *is
	})
}

// Model writes the status of a Model, whole, if it is other than it was last written. The times of its conditions are set
// here. A Model that is gone is no error.
func (s *Status) Model(ctx context.Context, name objects.Name, want v1alpha1.ModelStatus) error {
	if was, ok := s.models[name]; ok && sameModel(was, want) {
		return nil
	}
	m, err := update(ctx, s.client, name, func(m *v1alpha1.Model) bool {
		before := *m.Status.DeepCopy()
		conditions := m.Status.Conditions
		for _, c := range want.Conditions {
			c.LastTransitionTime = metav1.Time{}
			meta.SetStatusCondition(&conditions, c)
		}
		want.DeepCopyInto(&m.Status)
		m.Status.Conditions = conditions
		return !equality.Semantic.DeepEqual(before, m.Status)
	})
	if m != nil {
		s.models[name] = m.Status
	}
	return err
}

// sameModel says whether a status says what is wanted.
func sameModel(is, want v1alpha1.ModelStatus) bool {
	if !hasConditions(is.Conditions, want.Conditions) {
		return false
	}
	is.Conditions = want.Conditions
	return equality.Semantic.DeepEqual(is, want)
}

// Models reads all Models with their status: what who wrote before knew.
func (s *Status) Models(ctx context.Context) ([]v1alpha1.Model, error) {
	var all v1alpha1.ModelList
	if err := s.client.List(ctx, &all, client.InNamespace(s.namespace)); err != nil {
		return nil, fmt.Errorf("read models: %w", err)
	}
	for _, m := range all.Items {
		s.models[objects.Name{Namespace: m.Namespace, Name: m.Name}] = m.Status
	}
	return all.Items, nil
}

// update reads an object, changes it, and writes its status if change says that it is other; again where somebody else
// wrote meanwhile. It returns the object as the API server has it; nil, and no error, if it is gone.
func update[O any, P object[O]](ctx context.Context, c client.Client, name objects.Name, change func(P) bool) (P, error) {
	var o P
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		o = new(O)
		if err := c.Get(ctx, client.ObjectKey(name), o); err != nil {
			return err
		}
		if !change(o) {
			return nil
		}
		return c.Status().Update(ctx, o)
	})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("write the status of %T %s: %w", o, name, err)
	}
	return o, nil
}

// ErrExists is that of a Model whose name another one has.
var ErrExists = errors.New("a Model of this name exists")

// CreateModel makes a Model, and returns it as the API server has it. That one of its name exists is ErrExists.
func (s *Status) CreateModel(ctx context.Context, m *v1alpha1.Model) (*v1alpha1.Model, error) {
	made := &v1alpha1.Model{ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, Labels: m.Labels, Annotations: m.Annotations}, Spec: m.Spec}
	err := s.client.Create(ctx, made)
	if apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("%s/%s: %w", m.Namespace, m.Name, ErrExists)
	}
	if err != nil {
		return nil, fmt.Errorf("create Model %s/%s: %w", m.Namespace, m.Name, err)
	}
	return made, nil
}

// GetModel returns a Model; nil if there is none of the name.
func (s *Status) GetModel(ctx context.Context, name objects.Name) (*v1alpha1.Model, error) {
	var m v1alpha1.Model
	err := s.client.Get(ctx, client.ObjectKey(name), &m)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read Model %s: %w", name, err)
	}
	return &m, nil
}

// DeleteModel deletes a Model. That there is none is no error.
func (s *Status) DeleteModel(ctx context.Context, name objects.Name) error {
	delete(s.models, name)
	err := s.client.Delete(ctx, &v1alpha1.Model{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete Model %s: %w", name, err)
	}
	return nil
}
