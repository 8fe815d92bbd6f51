package statuswriter

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// duplicate is the status of a Model or VModel whose id an older object already has. The statuses
// of other Models come from placement.
type duplicate struct {
	uid        string
	generation int64
	taken      string
}

// SetWorld queues the statuses that depend on a World: those of LLMRoutes, pools, PoolSettings and
// EndpointLists after the first call of SetObserved, and those of Models and VModels whose id an
// older object already has.
func (r *Writer) SetWorld(w *objects.World) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.world = w
	r.setEndpoints(r.mark)
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
