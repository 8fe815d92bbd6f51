package conditions_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/internal/objects"
)

// line formats a condition as "Type Status Reason: message".
func line(c metav1.Condition) string {
	return fmt.Sprintf("%s %s %s: %s", c.Type, c.Status, c.Reason, c.Message)
}

// Every reason of a Model's conditions.
func TestConditionsOfModels(t *testing.T) {
	p := objects.Name{Namespace: "ns", Name: "p"}
	up := conditions.Tally{Counted: true, Total: 2, Answering: 1}
	down := conditions.Tally{Counted: true, Total: 2}
	for _, c := range []struct {
		is   conditions.Model
		want string
	}{
		{conditions.Model{Pool: p}, "Ready False PoolNotFound: the InferencePool ns/p does not exist: nothing can load it"},
		{conditions.Model{Pool: p, Exists: true, Endpoints: up}, "Ready True Loadable: control loads it when a request names it"},
		{conditions.Model{Pool: p, Exists: true}, "Ready True Loadable: control loads it when a request names it"},
		{
			conditions.Model{Pool: p, Exists: true, Endpoints: down},
			"Ready False NoEndpoints: InferencePool p: 0 of 2 endpoints answer",
		},
		{
			conditions.Model{Pool: p, Exists: true, Endpoints: down, Loaded: 1, Failed: "no room"},
			"Ready False NoEndpoints: InferencePool p: 0 of 2 endpoints answer",
		},
		{
			conditions.Model{Pool: p, Exists: true, Endpoints: conditions.Tally{Counted: true}},
			"Ready False NoEndpoints: InferencePool p: it has no endpoints",
		},
		{
			conditions.Model{Pool: p, Exists: true, Endpoints: conditions.Tally{Counted: true, Total: 2, Failing: 1}, Loaded: 1},
			"Ready False EndpointsFailing: InferencePool p: requests fail at 1 of 2 endpoints",
		},
		{conditions.Model{Pool: p, Exists: true, Endpoints: up, Failed: "no room"}, "Ready False CannotLoad: no room"},
		{conditions.Model{Pool: p, Exists: true, Endpoints: up, Min: 2}, "Ready False Loading: 0 of at least 2 copies are loaded"},
		{
			conditions.Model{Pool: p, Exists: true, Endpoints: up, Min: 2, Loaded: 1, Failed: "no room"},
			"Ready True Loading: 1 of at least 2 copies are loaded",
		},
		{conditions.Model{Pool: p, Exists: true, Endpoints: up, Loaded: 2}, "Ready True Loaded: 2 copies answer"},
	} {
		all := conditions.OfModel(c.is)
		if len(all) != 2 || line(all[1]) != c.want || line(all[0]) != "Accepted True Accepted: " {
			t.Errorf("the conditions of %+v are\n%v, want\n%s", c.is, all, c.want)
		}
	}
	if got := line(conditions.OfModel(conditions.Model{Taken: "another has its id"})[0]); got != "Accepted False ModelNameTaken: another has its id" {
		t.Error(got)
	}
}

// Every reason of a VModel's conditions.
func TestConditionsOfVModels(t *testing.T) {
	base := conditions.VModel{Pool: objects.Name{Namespace: "ns", Name: "p"}, Exists: true, Target: "b", Active: "b"}
	for _, c := range []struct {
		change func(v *conditions.VModel)
		want   string
	}{
		{func(*conditions.VModel) {}, "Ready True Defined: requests go to b"},
		{
			func(v *conditions.VModel) { v.Canary, v.ActiveCanary, v.Percent = "c", "c", 10 },
			"Ready True Defined: requests go to b, 10 % of them to c",
		},
		{func(v *conditions.VModel) { v.Exists = false }, "Ready False PoolNotFound: the InferencePool ns/p does not exist: nothing can load its models"},
		{func(v *conditions.VModel) { v.NameTaken = true }, "Ready False ModelNameTaken: a model has this name, and requests go to that model"},
		{
			func(v *conditions.VModel) { v.Unknown = "b" },
			"Ready False TargetNotFound: requests go to b: no Model, LLMRoute or engine of InferencePool p has b",
		},
		{
			func(v *conditions.VModel) { v.Active, v.Failed = "a", "no room" },
			"Ready False TransitionFailed: requests go to a: b cannot be loaded: no room",
		},
		{
			func(v *conditions.VModel) { v.Active, v.Loaded, v.Needed = "a", 1, 2 },
			"Ready False Transitioning: requests go to a until b has its copies: 1 of 2 are loaded",
		},
		{
			func(v *conditions.VModel) { v.Canary, v.Failed = "c", "no room" },
			"Ready False TransitionFailed: requests go to b: the canary c cannot be loaded: no room",
		},
		{func(v *conditions.VModel) { v.Canary = "c" }, "Ready False Transitioning: requests go to b until the canary c is loaded"},
		{
			func(v *conditions.VModel) { v.Behind = []string{"x", "y"} },
			"Ready False Transitioning: requests go to b; these extprocs may still send them to an earlier target: x, y",
		},
	} {
		v := base
		c.change(&v)
		all := conditions.OfVModel(v)
		if len(all) != 2 || line(all[1]) != c.want {
			t.Errorf("the conditions of %+v are\n%v, want\n%s", v, all, c.want)
		}
	}
}
