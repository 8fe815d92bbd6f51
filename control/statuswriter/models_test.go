package statuswriter_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/control/statuswriter"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/apiserver"
)

const inPool = "default/p"

// The state of a copy at a model runtime is in the Model's status before the runtime is called.
// Another control finds the copy there, and the runtime's state. Changes of other parts of the
// status do not remove them.
func TestRequestsToARuntimeAreStored(t *testing.T) {
	c := newCluster(t)
	typed := c.typed(c.Admin())
	r := c.open(typed, always)
	model := &v1alpha1.Model{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"},
		Spec:       v1alpha1.ModelSpec{PoolRef: v1alpha1.PoolReference{Name: "p"}},
	}
	model.Spec.ID = "a"
	if err := r.PutModel(model)(); err != nil {
		t.Fatal(err)
	}
	record := store.Runtime{
		Endpoint: "10.0.0.1:8033", Incarnation: "one", Bytes: 1 << 30, DefaultBytes: 50 << 20, Loads: 6,
		LoadTimeout: time.Minute, LimitsConcurrency: true,
	}
	if err := r.PutRuntime(record); err != nil {
		t.Fatal(err)
	}
	asked := store.Copy{
		Endpoint: record.Endpoint, Pool: inPool, ID: "a", State: "loading", Concurrency: 7, Incarnation: "one",
		Since: time.Now().Round(time.Second),
	}
	if err := r.PutCopy(asked, true); err != nil {
		t.Fatal(err)
	}
	// These are a late, older status, and a copy at an engine that lists its models.
	r.PutStatuses([]store.Status{{Pool: inPool, ID: "a", Status: v1alpha1.ModelStatus{
		Copies:     []v1alpha1.CopyStatus{{Endpoint: "10.0.0.2:8000", State: "loaded", Since: metav1.NowMicro()}},
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonLoaded}},
	}}})
	if err := r.PutCopy(store.Copy{Endpoint: "10.0.0.2:8000", Pool: inPool, ID: "a", State: "loaded", Listed: true}, true); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}

	var is v1alpha1.Model
	if err := typed.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "a"}, &is); err != nil {
		t.Fatal(err)
	}
	var copies []string
	for _, copied := range is.Status.Copies {
		copies = append(copies, copied.Endpoint+" "+copied.State)
	}
	if want := []string{"10.0.0.1:8033 loading", "10.0.0.2:8000 loaded"}; !slices.Equal(copies, want) {
		t.Errorf("the copies are %q, want %q", copies, want)
	}
	if ready := is.Status.Conditions; len(ready) != 1 || ready[0].ObservedGeneration != 1 || ready[0].LastTransitionTime.IsZero() ||
		is.Status.ObservedGeneration != 1 {
		t.Errorf("the status is %+v", is.Status)
	}

	r = c.open(typed, always)
	recorded, _ := r.Copies()
	if len(recorded) != 1 || recorded[0].State != "loading" || !recorded[0].Since.Equal(asked.Since) || recorded[0].Incarnation != "one" ||
		recorded[0].Concurrency != 7 {
		t.Errorf("another control reads %+v", recorded)
	}
	runtimes, _ := r.Runtimes()
	if len(runtimes) != 1 || runtimes[0] != record {
		t.Errorf("and %+v", runtimes)
	}
	registered, _ := r.Models()
	if len(registered) != 1 || registered[0].Spec.ID != "a" {
		t.Errorf("and %+v", registered)
	}
	if err := r.DeleteModel(model)(); err != nil {
		t.Error(err)
	}
	asked.State = "unloading"
	if err := r.PutCopy(asked, true); err != nil {
		t.Errorf("a model whose Model was deleted cannot be unloaded: %v", err)
	}
	asked.State = "loading"
	if err := r.PutCopy(asked, true); err == nil {
		t.Error("a load is allowed although the Model was deleted")
	}
	r.DeleteCopy(record.Endpoint, inPool, "a")
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := typed.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "a"}, &is); err == nil {
		t.Error("the Model still exists")
	}
}

// A load may begin before the status of its Model is queued, since the copy names its Model. The
// copy is not written to another Model that replaced it.
func TestCopiesAreWrittenToTheirModel(t *testing.T) {
	c := newCluster(t)
	r := c.open(c.typed(c.Admin()), always)
	defer r.Close()
	c.Apply(model("m", "{poolRef: {name: p}, id: old}"))
	old := store.Copy{
		Endpoint: "10.0.0.1:8033", Pool: inPool, ID: "old", State: "loading", Since: time.Now(),
		Object: objects.Name{Namespace: "default", Name: "m"}, UID: string(c.modelNamed("m").UID),
	}
	if err := r.PutCopy(old, true); err != nil {
		t.Fatalf("a new Model: %v", err)
	}
	if copies := c.modelNamed("m").Status.Copies; len(copies) != 1 {
		t.Errorf("the copies are %+v", copies)
	}
	o := apiserver.ReadObjects(t, model("m", "{poolRef: {name: p}, id: new}"))[0]
	if err := c.At(o).Delete(t.Context(), "m", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Apply(model("m", "{poolRef: {name: p}, id: new}"))
	if old.State = "loaded"; r.PutCopy(old, true) == nil {
		t.Error("a load is allowed although the Model was deleted")
	}
	if old.State = "unloading"; r.PutCopy(old, true) != nil {
		t.Error("a model whose Model was deleted cannot be unloaded")
	}
	r.DeleteCopy(old.Endpoint, old.Pool, old.ID)
	if is := c.modelNamed("m").Status; len(is.Copies) > 0 || is.ObservedGeneration != 0 {
		t.Errorf("the new Model has the status of the old one: %+v", is)
	}
}

// A copy cannot be stored without a Model. A control that does not lead, or may not, writes
// nothing.
func TestWriterRejectsInvalidModels(t *testing.T) {
	c := newCluster(t)
	typed := c.typed(c.Admin())
	var leads atomic.Bool
	r := c.open(typed, leads.Load)
	asked := store.Copy{Endpoint: "10.0.0.1:8033", Pool: inPool, ID: "a", State: "loading"}
	if err := r.PutCopy(asked, true); err == nil ||
		err.Error() != `no Model has the id "a" in the pool default/p, and the engine cannot list its models: create one` {
		t.Errorf("without a Model: %v", err)
	}
	if err := r.PutModel(&v1alpha1.Model{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"},
		Spec:       v1alpha1.ModelSpec{ID: "a", PoolRef: v1alpha1.PoolReference{Name: "p"}},
	})(); err != nil {
		t.Fatal(err)
	}
	if err := r.PutCopy(asked, true); err == nil {
		t.Error("a control that does not lead writes")
	}
	r.PutStatuses([]store.Status{{Pool: inPool, ID: "a", Status: v1alpha1.ModelStatus{Message: "no"}}})
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	var is v1alpha1.Model
	if err := typed.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "a"}, &is); err != nil || is.Status.Message != "" ||
		len(is.Status.Copies) > 0 {
		t.Errorf("%v: the status is %+v", err, is.Status)
	}
}

// An unchanged status is not written again, nor one in which only the time of last use has changed.
// This also holds for the next control.
func TestOnlyChangedModelStatusIsWritten(t *testing.T) {
	c := newCluster(t)
	made := &v1alpha1.Model{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"},
		Spec:       v1alpha1.ModelSpec{ID: "a", PoolRef: v1alpha1.PoolReference{Name: "p"}},
	}
	status := v1alpha1.ModelStatus{
		Message:    "no room",
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonCannotLoad}},
	}
	lived := func(what string, wanted int, live func(r *statuswriter.Writer)) {
		t.Helper()
		before := c.Asked("writer")
		r := c.open(c.typed(writer(c)), always)
		live(r)
		r.PutStatuses([]store.Status{{Pool: inPool, ID: "a", Status: status}})
		if err := r.Close(); err != nil { // waits until everything is written
			t.Error(err)
		}
		if n := c.Asked("writer") - before - 2; n != wanted { // without the lists of Models and VModels
			t.Errorf("%s: %d writes, want %d", what, n, wanted)
		}
	}
	lived("made, made again, and its status", 3, func(r *statuswriter.Writer) {
		for range 2 {
			if err := r.PutModel(made)(); err != nil {
				t.Errorf("made: %v", err)
			}
		}
	})
	lived("the same", 0, func(*statuswriter.Writer) {})
	lived("other", 1, func(*statuswriter.Writer) { status.Message, status.Loaded = "", 2 })
	lived("a change, and then its use alone", 1, func(r *statuswriter.Writer) {
		status.Loaded = 1
		r.PutStatuses([]store.Status{{Pool: inPool, ID: "a", Status: status}})
		c.Await("it is written", func() bool {
			var is v1alpha1.Model
			return c.typed(c.Admin()).Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "a"}, &is) == nil &&
				is.Status.Loaded == 1
		})
		status.LastUsed = &metav1.Time{Time: time.Now()}
	})
	c.NothingDenied("writer")
}
