package statuswriter

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/control/conditions"
)

// The status of a duplicate is written once. It is written again for another object with the same
// name.
func TestRefusalIsOfOneObject(t *testing.T) {
	want := &conditions.Status{UID: "a", Generation: 1, Conditions: []metav1.Condition{
		{Type: "Accepted", Status: metav1.ConditionFalse, Reason: "ModelNameTaken", Message: "m"},
	}}
	all, changed := refusal{}.to(want)
	if !changed {
		t.Error("a new one is not written")
	}
	if _, changed := (refusal{"a", all}).to(want); changed {
		t.Error("it is written twice")
	}
	if again, changed := (refusal{"b", all}).to(want); !changed || len(again) != 1 {
		t.Errorf("that of another object counts: %v", again)
	}
	later := *want
	later.Generation = 2
	if _, changed := (refusal{"a", all}).to(&later); !changed {
		t.Error("a new generation is not written")
	}
}
