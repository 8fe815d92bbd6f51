package store_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/store"
)

func vmodel(name, target string) *v1alpha1.VModel {
	v := &v1alpha1.VModel{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "object-" + name}}
	v.Spec = v1alpha1.VModelSpec{ID: name, PoolRef: v1alpha1.PoolReference{Name: "p"}, Target: target, Owner: "me"}
	return v
}

func moved(name, active string) store.VModelStatus {
	return store.VModelStatus{Pool: "default/p", ID: name, Status: v1alpha1.VModelStatus{Active: active}}
}

// expectVModels fails the test unless a file contains these VModels and statuses. A VModel is
// written as ID to TARGET, a status as ID at ACTIVE.
func expectVModels(t *testing.T, when string, f *store.File, want ...string) {
	t.Helper()
	all, err := f.VModels()
	if err != nil {
		t.Error(err)
	}
	statuses, err := f.VModelStatuses()
	if err != nil {
		t.Error(err)
	}
	var got []string
	for _, v := range all {
		got = append(got, v.Spec.ID+" to "+v.Spec.Target)
	}
	for _, st := range statuses {
		got = append(got, fmt.Sprintf("%s at %s", st.ID, st.Status.Active))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s there is %q, want %q", when, got, want)
	}
}

// VModels and their statuses are still there after the file is reopened; statuses without a VModel
// are not.
func TestVModelsAreDurable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.db")
	f := open(t, path)
	expectVModels(t, "in the beginning", f)
	var waits []func() error
	for _, name := range []string{"a", "b", "c"} {
		waits = append(waits, f.PutVModel(vmodel(name, "m1"), true))
	}
	waits = append(waits, f.PutVModel(vmodel("a", "m2"), false))
	until := metav1.NewMicroTime(time.Unix(1e9, 123456000).UTC())
	went := moved("a", "m2")
	went.Status.Previous, went.Status.PreviousUntil = "m1", &until
	f.PutVModelStatuses([]store.VModelStatus{moved("a", "m1"), moved("b", "m1"), moved("c", "m1"), moved("of an object", "m9"), went})
	f.PutStatuses([]store.Status{{Pool: "default/p", ID: "b"}}) // status of a model with the same name
	for _, wait := range waits {
		if err := wait(); err != nil {
			t.Error(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	f = open(t, path)
	expectVModels(t, "then", f, "a to m2", "b to m1", "c to m1", "a at m2", "b at m1", "c at m1", "of an object at m9")
	all, _ := f.VModels()
	if v := all[0]; v.Namespace != "default" || v.Name != "object-a" || v.Spec.PoolRef.Name != "p" || v.Spec.Owner != "me" {
		t.Errorf("it is %+v", v)
	}
	statuses, _ := f.VModelStatuses()
	if st := statuses[0]; st.Pool != "default/p" || st.Status.Previous != "m1" || !st.Status.PreviousUntil.Equal(&until) {
		t.Errorf("its status is %+v", st)
	}
	if err := f.DeleteVModel(vmodel("b", "whatever"))(); err != nil {
		t.Error(err)
	}
	gone := moved("of an object", "")
	gone.Gone = true
	f.PutVModelStatuses([]store.VModelStatus{gone, moved("c", "m3")})
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	f = open(t, path)
	defer f.Close()
	expectVModels(t, "when one was deleted, and another is gone,", f, "a to m2", "c to m1", "a at m2", "c at m3")
	if models, err := f.Statuses(); err != nil || len(models) != 1 {
		t.Errorf("of models there is %v, %v", models, err)
	}
}

// Corrupt VModels and statuses are reported before the file is used.
func TestGarbledVModelsAreReported(t *testing.T) {
	path := filepath.Join(folder(t), "control.db")
	f := open(t, path)
	if err := f.PutVModel(vmodel("a", "target-of-it"), true)(); err != nil {
		t.Fatal(err)
	}
	f.PutVModelStatuses([]store.VModelStatus{moved("a", "active-model")})
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	all, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if opened, words := try(t, all); !opened {
		t.Fatalf("as it was written: %s", words)
	}
	for value, want := range map[string]string{
		`"target":"target-of-it"`: `vmodels "default\x00object-a": `,
		`"active":"active-model"`: `moves "default/p\x00a": `,
	} {
		garbled := bytes.ReplaceAll(all, []byte(value), []byte(strings.Repeat("7", len(value))))
		if bytes.Equal(garbled, all) {
			t.Fatalf("%s is nowhere", value)
		}
		if opened, words := try(t, garbled); opened || !strings.Contains(words, "control.db: it is damaged: ") ||
			!strings.Contains(words, want) {
			t.Errorf("without %s: opened %v, %q", value, opened, words)
		}
	}
}
