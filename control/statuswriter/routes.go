package statuswriter

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/internal/objects"
)

// route is the status of an LLMRoute. Writer.mu guards it.
type route struct {
	uid     string // UID of the object that was last read or written
	written v1alpha1.LLMRouteStatus
	want    *wanted // nil before the first World
}

// done reports whether the status is up to date.
func (r *route) done() bool {
	return r == nil || r.want == nil || (r.want.uid == "" || r.want.uid == r.uid) && sameRoute(r.written, r.want.status)
}

// duplicate is the status of a Model or VModel whose id an older object already has. The statuses
// of other Models come from placement.
type duplicate struct {
	uid        string
	generation int64
	taken      string
}

// SetWorld queues the statuses that do not depend on placement: those of LLMRoutes, and those of
// Models and VModels whose id an older object already has.
func (r *Writer) SetWorld(w *objects.World) {
	r.mu.Lock()
	defer r.mu.Unlock()
	there := make(map[objects.Name]bool)
	for _, want := range routeStatuses(w) {
		there[want.name] = true
		is := r.routes[want.name]
		if is == nil {
			is = new(route)
			r.routes[want.name] = is
		}
		if is.want = want; !is.done() {
			r.mark(subject{kind: v1alpha1.LLMRouteKind, name: want.name})
		}
	}
	for name := range r.routes {
		if !there[name] {
			delete(r.routes, name)
			delete(r.logged, subject{kind: v1alpha1.LLMRouteKind, name: name})
			r.forgetEvents(objects.Object{Kind: v1alpha1.LLMRouteKind, Name: name})
		}
	}
	duplicates := duplicatesOf(w)
	for object, d := range duplicates {
		if is, ok := r.duplicates[object]; !ok || is != d {
			r.mark(subject{kind: object.Kind, name: object.Name})
		}
	}
	for object := range r.duplicates {
		if _, ok := duplicates[object]; !ok {
			delete(r.logged, subject{kind: object.Kind, name: object.Name})
		}
	}
	r.duplicates = duplicates
}

// duplicatesOf returns the Models and VModels whose id an older object already has.
func duplicatesOf(w *objects.World) map[objects.Object]duplicate {
	all := make(map[objects.Object]duplicate)
	for _, e := range w.Doubles {
		all[objects.Object{Kind: v1alpha1.ModelKind, Name: e.Object}] = duplicate{e.UID, e.Generation, e.Taken}
	}
	for _, v := range w.VModels {
		if !w.HasItsID(v) {
			all[objects.Object{Kind: v1alpha1.VModelKind, Name: v.Object}] = duplicate{v.UID, v.Generation, v.Taken}
		}
	}
	return all
}

// writeDouble writes the status of a duplicate. It is no error if the object was deleted.
func (r *Writer) writeDouble(ctx context.Context, object objects.Object) error {
	r.mu.Lock()
	d, ok := r.duplicates[object]
	r.mu.Unlock()
	if !ok {
		return nil
	}
	taken := []metav1.Condition{{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonModelNameTaken, Message: d.taken,
		ObservedGeneration: d.generation, LastTransitionTime: metav1.Now(),
	}}
	var o client.Object = &v1alpha1.Model{}
	var status any = v1alpha1.ModelStatus{ObservedGeneration: d.generation, Message: d.taken, Conditions: taken}
	if object.Kind == v1alpha1.VModelKind {
		o, status = &v1alpha1.VModel{}, v1alpha1.VModelStatus{ObservedGeneration: d.generation, Conditions: taken}
	}
	if err := putStatus(ctx, r.client, named(o, object.Name), d.uid, status); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observe(object, o.GetUID(), nil, status)
	return nil
}

// writeRoute writes the status of an LLMRoute, and retries after a conflict. It is no error if the
// object was deleted or replaced. The World that contains the new object queues its status.
func (r *Writer) writeRoute(ctx context.Context, name objects.Name) error {
	of := objects.Object{Kind: v1alpha1.LLMRouteKind, Name: name}
	r.mu.Lock()
	is, at := r.routes[name], r.attached[of]
	if is.done() && at.done() {
		r.mu.Unlock()
		return nil
	}
	var want *wanted
	if is != nil {
		want = is.want
	}
	var parents *conditions.Status
	if at != nil {
		parents = at.want
	}
	asked := at.done()
	r.mu.Unlock()
	if !asked {
		if again, err := r.survey(of); again || err != nil {
			return err
		}
	}
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var o v1alpha1.LLMRoute
		if err := r.client.Get(ctx, client.ObjectKey(name), &o); err != nil {
			return err
		}
		before := *o.Status.DeepCopy()
		meant := want != nil && (want.uid == "" || want.uid == string(o.UID))
		if meant {
			o.Status.Models, o.Status.Pools = want.status.Models, want.status.Pools
			o.Status.Columns.Models = conditions.Column(want.status.Models)
			o.Status.Columns.Pools = conditions.Column(want.status.Pools)
			for _, c := range want.status.Conditions {
				meta.SetStatusCondition(&o.Status.Conditions, c)
			}
		}
		if parents != nil {
			put(&o, parents)
		}
		if !equality.Semantic.DeepEqual(before, o.Status) {
			if err := r.client.Status().Update(ctx, &o); err != nil {
				return err
			}
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.observe(of, o.UID, before, o.Status)
		if parents != nil {
			at.said = parents
		}
		if !meant {
			return nil
		}
		is.uid, is.written = string(o.UID), o.Status
		if is.want != want && !is.done() { // a new World arrived during the write
			r.mark(subject{kind: v1alpha1.LLMRouteKind, name: name})
		}
		return nil
	})
	return client.IgnoreNotFound(err)
}

// wanted is the status that an LLMRoute should have, without times.
type wanted struct {
	name   objects.Name
	uid    string // UID of the route; empty if unknown
	status v1alpha1.LLMRouteStatus
}

// routeStatuses returns the statuses that a World's LLMRoutes should have.
func routeStatuses(w *objects.World) []*wanted {
	faults := make(map[objects.Name][]objects.Fault)
	for _, f := range w.Faults {
		if f.Kind == v1alpha1.LLMRouteKind {
			faults[f.Object] = append(faults[f.Object], f)
		}
	}
	var all []*wanted
	for _, r := range w.Routes {
		if r.Kind != v1alpha1.LLMRouteKind {
			continue
		}
		status := v1alpha1.LLMRouteStatus{
			Models: r.Models,
			Conditions: []metav1.Condition{
				condition(v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, v1alpha1.ReasonModelNameTaken, faults[r.Name], r.Generation),
				condition(v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonResolvedRefs, v1alpha1.ReasonBackendNotFound, faults[r.Name],
					r.Generation),
			},
		}
		for _, b := range r.Backends {
			status.Pools = append(status.Pools, b.Pool.Name)
		}
		all = append(all, &wanted{r.Name, r.UID, status})
	}
	return all
}

// condition returns a condition of a type. If faults with the reason bad exist, it is false with
// their messages. Otherwise it is true with the reason good.
func condition(kind, good, bad string, faults []objects.Fault, generation int64) metav1.Condition {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: good, ObservedGeneration: generation}
	var words []string
	for _, f := range faults {
		if f.Reason == bad {
			words = append(words, f.Words)
		}
	}
	if len(words) > 0 {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, bad, conditions.Message(strings.Join(words, "; "))
	}
	return c
}

// sameRoute reports whether two statuses of an LLMRoute are equal, except for times.
func sameRoute(is, want v1alpha1.LLMRouteStatus) bool {
	return slices.Equal(is.Models, want.Models) && slices.Equal(is.Pools, want.Pools) && hasConditions(is.Conditions, want.Conditions)
}

// hasConditions reports whether a status already has all wanted conditions, ignoring their times.
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
