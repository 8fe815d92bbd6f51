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
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// Status writes the status of LLMRoutes into an API server, and of Models whose id is another's; that of other Models is
// [Memory]'s. One process at a time should, for it remembers what it wrote last and writes only what is other; who begins to
// write makes a new one.
//
// It needs the verbs get and list of llmroutes, update of llmroutes/status and patch of models/status. It is not safe for
// concurrent use.
type Status struct {
	client    client.Client
	namespace string
	routes    map[objects.Name]told          // as last read or written; nil before the first reading
	doubles   map[objects.Name]objects.Entry // as last written
}

// told is the status that an object has.
type told struct {
	uid    string // of the object: another one of its name has none
	status v1alpha1.LLMRouteStatus
}

// NewStatus returns a Status for the objects of a namespace, or of all where that is empty. It calls nobody.
func NewStatus(c client.Client, namespace string) *Status {
	return &Status{client: c, namespace: namespace, doubles: make(map[objects.Name]objects.Entry)}
}

// Write writes what is not yet written of a World. It goes on after an error, and returns all of them; what failed is tried
// again in the next call.
func (s *Status) Write(ctx context.Context, w *objects.World) error {
	if s.routes == nil {
		var all v1alpha1.LLMRouteList
		if err := s.client.List(ctx, &all, client.InNamespace(s.namespace)); err != nil {
			return fmt.Errorf("read the status of routes: %w", err)
		}
		s.routes = make(map[objects.Name]told, len(all.Items))
		for _, r := range all.Items {
			s.routes[objects.Name{Namespace: r.Namespace, Name: r.Name}] = told{string(r.UID), r.Status}
		}
	}
	var errs []error
	there := make(map[objects.Name]bool)
	for _, want := range routeStatuses(w) {
		there[want.name] = true
		if is := s.routes[want.name]; is.uid == want.uid && sameRoute(is.status, want.status) {
			continue
		}
		errs = append(errs, s.route(ctx, want))
	}
	for name := range s.routes {
		if !there[name] {
			delete(s.routes, name)
		}
	}
	clear(there)
	for _, e := range w.Doubles {
		if there[e.Object] = true; s.doubles[e.Object] != e {
			errs = append(errs, s.double(ctx, e))
		}
	}
	for name := range s.doubles {
		if !there[name] {
			delete(s.doubles, name)
		}
	}
	return errors.Join(errs...)
}

// double says of a Model that its id is another's. That it is gone is no error.
func (s *Status) double(ctx context.Context, e objects.Entry) error {
	taken := metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonModelNameTaken, Message: e.Taken,
		ObservedGeneration: e.Generation, LastTransitionTime: metav1.Now(),
	}
	status := v1alpha1.ModelStatus{ObservedGeneration: e.Generation, Message: e.Taken, Conditions: []metav1.Condition{taken}}
	if _, err := putStatus(ctx, s.client, e.Object, e.UID, status); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	s.doubles[e.Object] = e
	return nil
}

// route writes the status of one route, again where somebody else wrote meanwhile. That it is gone is no error, nor that
// another of its name is there: that one's status follows when its World does.
func (s *Status) route(ctx context.Context, w wanted) error {
	name, want := w.name, w.status
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var r v1alpha1.LLMRoute
		if err := s.client.Get(ctx, client.ObjectKey(name), &r); err != nil {
			return err
		}
		if w.uid != "" && w.uid != string(r.UID) {
			return nil
		}
		before := *r.Status.DeepCopy()
		r.Status.Models, r.Status.Pools = want.Models, want.Pools
		for _, c := range want.Conditions {
			meta.SetStatusCondition(&r.Status.Conditions, c)
		}
		if !equality.Semantic.DeepEqual(before, r.Status) {
			if err := s.client.Status().Update(ctx, &r); err != nil {
				return err
			}
		}
		s.routes[name] = told{string(r.UID), r.Status}
		return nil
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write the status of the LLMRoute %s: %w", name, err)
	}
	return nil
}

// wanted is the status that a route should have, its conditions without times.
type wanted struct {
	name   objects.Name
	uid    string // of the route, empty where nobody knows it
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
		all = append(all, wanted{r.Name, r.UID, status})
	}
	return all
}

// maxMessage is how long the message of a condition may be: Kubernetes' own limit, in bytes as if all were ASCII.
const maxMessage = 32768

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
		if len(c.Message) > maxMessage {
			c.Message = strings.ToValidUTF8(c.Message[:maxMessage-len("…")], "") + "…"
		}
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
