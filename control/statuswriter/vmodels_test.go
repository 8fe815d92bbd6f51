package statuswriter_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/control/statuswriter"
	"github.com/headgate/headgate/internal/objects"
)

func vmodel(name, spec string) string {
	return ours + "kind: VModel\nmetadata: {name: " + name + "}\nspec: " + spec
}

func (c cluster) vmodelNamed(name string) (v v1alpha1.VModel) {
	c.Helper()
	if err := c.typed(c.Admin()).Get(c.Context(), client.ObjectKey{Namespace: "default", Name: name}, &v); err != nil {
		c.Fatal(err)
	}
	return v
}

// moved returns a status of a VModel, with its active model and the reason of its condition.
func moved(object v1alpha1.VModel, active, reason string) store.VModelStatus {
	return store.VModelStatus{
		Pool: inPool, ID: "v", Object: objects.Name{Namespace: object.Namespace, Name: object.Name}, UID: string(object.UID),
		Status: v1alpha1.VModelStatus{
			ObservedGeneration: object.Generation, Active: active,
			Conditions: []metav1.Condition{{
				Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: reason,
				Message: "requests go to " + active,
			}},
		},
	}
}

// The status of a VModel reports where its requests go. The next leader reads it.
func TestVModelStatusIsReadByTheNextLeader(t *testing.T) {
	c := newCluster(t)
	c.Apply(inferencePool(""))
	c.Apply(vmodel("v", "{poolRef: {name: p}, target: b}"))
	is := c.vmodelNamed("v")
	until := metav1.NewMicroTime(time.Now().Add(time.Minute).Round(time.Microsecond))
	says := moved(is, "a", v1alpha1.ReasonTransitioning)
	says.Status.Previous, says.Status.PreviousUntil = "z", &until
	const lists = 2
	for _, writes := range []int{1, 0} { // the second control finds the status up to date
		before := c.Asked("writer")
		r := c.open(c.typed(writer(c)), always)
		r.PutVModelStatuses([]store.VModelStatus{says})
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if n := c.Asked("writer") - before; n != lists+writes {
			t.Errorf("%d requests, want %d", n, lists+writes)
		}
	}
	is = c.vmodelNamed("v")
	ready := is.Status.Conditions
	if is.Status.Active != "a" || is.Status.Previous != "z" || !is.Status.PreviousUntil.Equal(&until) ||
		is.Status.ObservedGeneration != 1 ||
		len(ready) != 1 || ready[0].Reason != "Transitioning" || ready[0].ObservedGeneration != 1 || ready[0].LastTransitionTime.IsZero() {
		t.Errorf("the status is %+v", is.Status)
	}
	before := c.Asked("writer")
	r := c.open(c.typed(writer(c)), always)
	defer r.Close()
	found, err := r.VModelStatuses()
	if err != nil || len(found) != 1 || found[0].Pool != inPool || found[0].ID != "v" || found[0].Status.Active != "a" ||
		found[0].Status.Previous != "z" {
		t.Errorf("the next leader finds %+v, %v", found, err)
	}
	if all, _ := r.VModels(); len(all) != 0 {
		t.Errorf("a VModel from an object counts as registered: %+v", all)
	}
	r.PutVModelStatuses([]store.VModelStatus{says, moved(is, "b", v1alpha1.ReasonDefined)})
	c.Await("it moves", func() bool { return c.vmodelNamed("v").Status.Active == "b" })
	if n := c.Asked("writer") - before; n != lists+1 {
		t.Errorf("%d requests", n)
	}
	if columns := c.columns("vmodels"); !strings.Contains(columns, "v | <nil> | p | b | b | True | Defined | requests go to b") {
		t.Errorf("kubectl get prints\n%s", columns)
	}
	c.NothingDenied("writer")
}

// A registered VModel is an object, which people may read and edit.
func TestRegisteredVModelIsAnObject(t *testing.T) {
	c := newCluster(t)
	made := &v1alpha1.VModel{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p-1"},
		Spec:       v1alpha1.VModelSpec{ID: "模型", PoolRef: v1alpha1.PoolReference{Name: "p"}, Target: "a", Owner: "o"},
	}
	r := c.open(c.typed(writer(c)), always)
	if err := r.PutVModel(made, true)(); err != nil {
		t.Fatal(err)
	}
	if is := c.vmodelNamed("p-1"); is.Spec != made.Spec || is.Labels[statuswriter.RegisteredLabel] != "true" {
		t.Errorf("it is %+v", is)
	}
	// Edits of other clients stay, except for the target.
	is := c.vmodelNamed("p-1")
	is.Spec.Canary = &v1alpha1.Canary{Target: "c", Percent: 5}
	if err := c.typed(c.Admin()).Update(t.Context(), &is); err != nil {
		t.Fatal(err)
	}
	for i, target := range []string{"b", "c"} {
		made.Spec.Target = target
		made.Generation = int64(i)
		if err := r.PutVModel(made, i > 0)(); err != nil { // an existing VModel is no error
			t.Fatal(err)
		}
		if is := c.vmodelNamed("p-1"); is.Spec.Target != target || is.Spec.Canary == nil {
			t.Errorf("it is %+v", is.Spec)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r = c.open(c.typed(writer(c)), always)
	defer r.Close()
	if all, err := r.VModels(); err != nil || len(all) != 1 || all[0].Spec.ID != "模型" || all[0].Spec.Target != "c" {
		t.Errorf("the next leader finds %+v, %v", all, err)
	}
	// Another VModel that has replaced the registered one is not deleted.
	c.Delete(vmodel("p-1", "{poolRef: {name: p}, target: a}"))
	c.Apply(vmodel("p-1", "{poolRef: {name: p}, target: other}"))
	if err := r.DeleteVModel(made)(); err != nil {
		t.Error(err)
	}
	if is := c.vmodelNamed("p-1"); is.Spec.Target != "other" {
		t.Errorf("it is %+v", is.Spec)
	}
	made.Name = "p-2"
	if err := r.PutVModel(made, true)(); err != nil {
		t.Fatal(err)
	}
	if err := r.DeleteVModel(made)(); err != nil {
		t.Error(err)
	}
	var all v1alpha1.VModelList
	if err := c.typed(c.Admin()).List(t.Context(), &all); err != nil || len(all.Items) != 1 {
		t.Errorf("the VModels are %+v, %v", all.Items, err)
	}
	c.NothingDenied("writer")
}

// An id that a Model has stays with the Model, and an id of two VModels belongs to the older one.
// The status of the other VModel reports that.
func TestVModelWithATakenIDIsNotAccepted(t *testing.T) {
	c := newCluster(t)
	c.Apply(inferencePool(""))
	c.Apply(model("m", "{poolRef: {name: p}}"))
	c.Apply(vmodel("v", "{id: m, poolRef: {name: p}, target: a}"))
	r := c.open(c.typed(writer(c)), always)
	before := c.Asked("writer")
	r.SetWorld(c.world())
	r.SetObserved(standalone)
	c.Await("it is told", func() bool { return len(c.vmodelNamed("v").Status.Conditions) > 0 })
	is := c.vmodelNamed("v").Status
	if got := is.Conditions; len(got) != 2 || got[0].Type != "Accepted" || got[0].Status != "False" || got[0].Reason != "ModelNameTaken" ||
		got[0].ObservedGeneration != 1 ||
		got[0].Message != `its id "m" in InferencePool default/p is that of Model default/m, which keeps it` {
		t.Errorf("the status is %+v", is)
	}
	r.SetWorld(c.world())
	r.SetObserved(standalone)
	c.Delete(model("m", "{poolRef: {name: p}}"))
	r.SetWorld(c.world())
	r.SetObserved(standalone)
	if err := r.Close(); err != nil || c.Asked("writer") != before+1 {
		t.Errorf("%v: %d requests, want one", err, c.Asked("writer")-before)
	}
	c.NothingDenied("writer")
}

// A deleted VModel is dropped, and a new VModel with its id starts without a status.
func TestDeletedVModelIsForgotten(t *testing.T) {
	c := newCluster(t)
	c.Apply(inferencePool(""))
	c.Apply(vmodel("v", "{poolRef: {name: p}, target: a}"))
	r := c.open(c.typed(writer(c)), always)
	defer r.Close()
	r.PutVModelStatuses([]store.VModelStatus{moved(c.vmodelNamed("v"), "a", v1alpha1.ReasonDefined)})
	c.Await("it has a status", func() bool { return c.vmodelNamed("v").Status.Active == "a" })
	r.PutVModelStatuses([]store.VModelStatus{{Pool: inPool, ID: "v", Gone: true}})
	if all, _ := r.VModelStatuses(); len(all) != 0 {
		t.Errorf("the statuses are %+v", all)
	}
	c.Delete(vmodel("v", "{poolRef: {name: p}, target: a}"))
	c.Apply(vmodel("w", "{id: v, poolRef: {name: p}, target: a}"))
	r.PutVModelStatuses([]store.VModelStatus{moved(c.vmodelNamed("w"), "a", v1alpha1.ReasonDefined)})
	c.Await("the other has it", func() bool { return c.vmodelNamed("w").Status.Active == "a" })
	all, _ := r.VModelStatuses()
	if names := slices.Collect(func(yield func(string) bool) {
		for _, st := range all {
			yield(st.Object.Name)
		}
	}); !slices.Equal(names, []string{"w"}) {
		t.Errorf("the VModels are %v", names)
	}
}
