package doctor

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// Doctor checks the kinds that the roles of control allow it to list, and no others.
func TestKindsAreThoseOfTheRoles(t *testing.T) {
	rights, err := needed("headgate-system", "")
	if err != nil || len(rights) < 40 {
		t.Fatalf("%v, %v", rights, err)
	}
	listed, checked := make(map[string]bool), make(map[string]bool)
	for _, r := range rights {
		if slices.Contains(r.verbs, "list") && (strings.HasPrefix(r.group, "inference.") || strings.HasPrefix(r.group, "gateway.")) {
			listed[r.resource+"."+r.group] = true
		}
	}
	for _, k := range conditioned("") {
		checked[k.Resource.GroupResource().String()] = true
		if !listed[k.Resource.GroupResource().String()] {
			t.Errorf("no role of control lists %s", k.Plural())
		}
	}
	for resource := range listed {
		if !checked[resource] {
			t.Errorf("the roles of control name %s, which is not checked", resource)
		}
	}
	one, err := needed("headgate-system", "team")
	var texts []string
	for _, r := range one {
		texts = append(texts, r.String())
	}
	all := strings.Join(texts, "\n")
	if err != nil || strings.Contains(all, "httproutes.gateway") || !strings.Contains(all, "\nlist, watch inferencepools.inference.networking.k8s.io in team\n") ||
		!strings.Contains(all, "\nget, update leases.coordination.k8s.io headgate-control in headgate-system\n") {
		t.Errorf("one namespace: %v, %v", all, err)
	}
}

// Doctor ignores the conditions that other controllers set on objects and parents.
func TestConditionsOfOtherControllers(t *testing.T) {
	const conditions = `conditions: [{type: Accepted, status: 'False', reason: Denied}, {type: Conflicted, status: 'False', reason: NoConflicts}]`
	own, got := make(owned), []string{}
	for _, o := range []struct{ kind, text string }{
		{"GatewayClass", `{metadata: {name: other}, spec: {controllerName: example.com/other}, status: {` + conditions + `}}`},
		{"GatewayClass", `{metadata: {name: ours}, spec: {controllerName: headgate.dev/gateway-controller}, status: {` + conditions + `}}`},
		{"Gateway", `{metadata: {namespace: a, name: other}, spec: {gatewayClassName: other}, status: {` + conditions + `}}`},
		{"Gateway", `{metadata: {namespace: a, name: ours}, spec: {gatewayClassName: ours}, status: {listeners: [{name: http, ` + conditions + `}]}}`},
		{"ListenerSet", `{metadata: {namespace: a, name: other}, spec: {parentRef: {name: other}}, status: {` + conditions + `}}`},
		{"ListenerSet", `{metadata: {namespace: b, name: ours}, spec: {parentRef: {namespace: a, name: ours}}, status: {` + conditions + `}}`},
		{"HTTPRoute", `{metadata: {namespace: a, name: r}, status: {parents: [
			{controllerName: example.com/other, parentRef: {kind: Gateway, name: other}, ` + conditions + `},
			{controllerName: headgate.dev/gateway-controller, parentRef: {kind: Gateway, name: ours}, ` + conditions + `}]}}`},
	} {
		text, err := yaml.YAMLToJSON([]byte(strings.ReplaceAll(o.text, "\t", " ")))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range own.falseConditions(o.kind, json.RawMessage(text)) {
			got = append(got, fmt.Sprintf("%s %s %s %s", c.Kind, c.Name, c.Of, c.Type))
		}
	}
	want := []string{
		"GatewayClass ours  Accepted", "Gateway a/ours listener http Accepted", "ListenerSet b/ours  Accepted", "HTTPRoute a/r Gateway ours Accepted",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
