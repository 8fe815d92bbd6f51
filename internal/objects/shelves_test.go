package objects

import (
	"reflect"
	"testing"

	"github.com/headgate/headgate/api/v1alpha1"
)

// A field of Set without a shelf would be neither counted nor joined: its objects would be gone on their way to the World.
func TestEveryFieldOfASetWithObjectsIsAShelf(t *testing.T) {
	var s Set
	shelved := make(map[any]bool)
	for _, shelf := range s.shelves() {
		shelved[reflect.ValueOf(shelf).FieldByName("all").UnsafePointer()] = true
	}
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct && !shelved[v.Field(i).Addr().UnsafePointer()] {
			t.Errorf("Set.%s is not on a shelf", f.Name)
		}
	}
}

func TestAJoinHasTheObjectsOfBoth(t *testing.T) {
	one := Set{Pods: make([]Pod, 1, 8), Models: []v1alpha1.Model{{}}, At: map[Object]string{{PodKind, Name{}}: "a:1"}}
	two := Set{Pods: make([]Pod, 2), At: map[Object]string{{PodKind, Name{}}: "b:1", {PodKind, Name{Name: "x"}}: "b:2"}}
	all := one.Join(two)
	if len(all.Pods) != 3 || len(all.Models) != 1 || all.At[Object{PodKind, Name{}}] != "a:1" || len(all.At) != 2 || len(one.At) != 1 {
		t.Errorf("joined they are %+v", all)
	}
	if all.Pods[0].Name.Name = "changed"; one.Pods[0].Name.Name != "" {
		t.Error("who changes what is joined changes what it was joined of")
	}
}
