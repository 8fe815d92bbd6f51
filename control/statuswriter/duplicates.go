package statuswriter

import (
	"context"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/internal/objects"
)

// refusal is the written status of a Model or VModel that is not accepted.
type refusal struct {
	uid        string
	conditions []metav1.Condition
}

// to returns the conditions that a duplicate should have, and whether they differ from the written
// ones.
func (is refusal) to(want *conditions.Status) ([]metav1.Condition, bool) {
	if is.uid != want.UID { // another object of this name
		is.conditions = nil
	}
	all := updated(is.conditions, want.Conditions, want.Generation)
	return all, !equality.Semantic.DeepEqual(is.conditions, all)
}

// SetWorld queues the statuses that depend on a World: those of LLMRoutes, pools, PoolSettings and
// EndpointLists after the first call of SetObserved, and those of Models and VModels whose id an
// older object already has.
func (r *Writer) SetWorld(w *objects.World) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.world = w
	r.setEndpoints(r.mark)
	duplicates := make(map[objects.Object]*conditions.Status)
	for _, d := range conditions.OfDuplicates(w) {
		duplicates[d.Object] = d
		if _, changed := r.refused[d.Object].to(d); changed && !reflect.DeepEqual(r.duplicates[d.Object], d) {
			r.mark(subject{kind: d.Object.Kind, name: d.Object.Name})
		}
	}
	for object := range r.duplicates {
		if duplicates[object] == nil {
			delete(r.logged, subject{kind: object.Kind, name: object.Name})
		}
	}
	for object := range r.refused {
		if duplicates[object] == nil {
			delete(r.refused, object)
		}
	}
	r.duplicates = duplicates
}

// restoreRefusal records the status that an earlier control wrote to a Model or VModel that is not
// accepted. So a new leader neither writes it again nor reports it as a change.
func (r *Writer) restoreRefusal(kind string, o client.Object, all []metav1.Condition) {
	if meta.IsStatusConditionFalse(all, v1alpha1.ConditionAccepted) {
		r.refused[objectOf(kind, o)] = refusal{string(o.GetUID()), slices.Clone(all)}
	}
}

// writeDouble writes the status of a duplicate, unless it is written already. It is no error if the
// object was deleted.
func (r *Writer) writeDouble(ctx context.Context, object objects.Object) error {
	r.mu.Lock()
	d, before := r.duplicates[object], r.refused[object]
	r.mu.Unlock()
	if d == nil {
		return nil
	}
	is, changed := before.to(d)
	if !changed {
		return nil
	}
	var o client.Object = &v1alpha1.Model{}
	var status any = v1alpha1.ModelStatus{ObservedGeneration: d.Generation, Message: d.Conditions[0].Message, Conditions: is}
	if object.Kind == v1alpha1.VModelKind {
		o, status = &v1alpha1.VModel{}, v1alpha1.VModelStatus{ObservedGeneration: d.Generation, Conditions: is}
	}
	if err := putStatus(ctx, r.client, named(o, object.Name), d.UID, status); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observe(object, o.GetUID(), v1alpha1.ModelStatus{Conditions: before.conditions}, status)
	if r.duplicates[object] != nil {
		r.refused[object] = refusal{string(o.GetUID()), is}
	}
	return nil
}
