package doctor

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/internal/objects/kinds"
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

// An API server lists many objects in several answers.
func TestListsHaveSeveralPages(t *testing.T) {
	const model = `{"metadata": {"namespace": "a", "name": "%s"}, "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "X"}]}}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch q := r.URL.Query(); q.Get("continue") {
		case "":
			fmt.Fprintf(w, `{"metadata": {"continue": "next"}, "items": [`+model+`]}`, "on page "+q.Get("limit"))
		default:
			fmt.Fprintf(w, `{"metadata": {}, "items": [`+model+`]}`, "on the "+q.Get("continue")+" page")
		}
	}))
	t.Cleanup(server.Close)
	api, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	all, err := list(t.Context(), api, kinds.All()[0], "", make(owned))
	for _, c := range all {
		names = append(names, c.Name)
	}
	if want := []string{"a/on page 500", "a/on the next page"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("%v, %q, want %q", err, names, want)
	}
}

// The state of an endpoint in its conditions is that in which it gets requests.
func TestStatesOfExtproc(t *testing.T) {
	for state, want := range map[string]conditions.State{
		"healthy": conditions.Serving, "migrating": conditions.Serving, "suspect": conditions.Suspect, "stale": conditions.Suspect,
		"lost": conditions.Out, "out": conditions.Out,
	} {
		if is := stateOf(admin.Endpoint{State: state, Reason: "r"}); is.State != want || is.Reason != "r" {
			t.Errorf("%s is %+v, want %s", state, is, want)
		}
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
