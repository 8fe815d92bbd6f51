package plan_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/golden"
	"github.com/headgate/headgate/test/network"
)

func httpRoute(name string) objects.Object {
	return objects.Object{Kind: objects.HTTPRouteKind, Name: objects.Name{Namespace: "ns", Name: name}}
}

// The input of a block is the same as in [TestScenarios]. The output is the plan after Gateway g
// has left out the HTTPRoutes "bad" and "worse".
func TestRejectedRoutesAreLeftOut(t *testing.T) {
	golden.Run(t, "testdata/left/*.txt", func(t *testing.T) func(string) string {
		return func(input string) string {
			n := network.Read(t, network.Standard(input))
			all := plan.Of(attach.Of(n), n, plan.Known{Certificates: certificates})
			before := all.Text()
			told := all.LeaveOut(map[objects.Name]plan.Refused{{Namespace: "ns", Name: "g"}: {
				Routes: map[objects.Object]plan.LeftOut{
					httpRoute("bad"):   {Message: "Envoy's words"},
					httpRoute("worse"): {Message: "a regular expression, it says", Dropped: true},
				},
				Others: []string{"cluster service/ns/a/80: no"},
			}}).Text()
			if all.Text() != before {
				t.Errorf("the earlier plans have changed:\n%s", all.Text())
			}
			return told
		}
	})
}

// A listener without rejected routes keeps its Hosts slice, so its resources are reused.
func TestLeaveOutKeepsTheOtherListeners(t *testing.T) {
	n := network.Read(t,
		network.Standard("kind: Gateway\nmetadata: {namespace: ns, name: g}\nspec: {gatewayClassName: headgate, listeners: [{name: x, port: 80, protocol: HTTP, hostname: x.test}, {name: z, port: 80, protocol: HTTP, hostname: z.test}]}\n---\n"+
			"kind: HTTPRoute\nmetadata: {namespace: ns, name: good}\nspec: {parentRefs: [{name: g, sectionName: x}], rules: [{backendRefs: [{name: a, port: 80}]}]}\n---\n"+
			"kind: HTTPRoute\nmetadata: {namespace: ns, name: bad}\nspec: {parentRefs: [{name: g, sectionName: z}], rules: [{backendRefs: [{name: a, port: 80}]}]}"))
	all := plan.Of(attach.Of(n), n, plan.Known{}).Gateways[0]
	without := all.LeaveOut(map[objects.Object]plan.LeftOut{httpRoute("bad"): {}})
	for i, kept := range []bool{true, false} {
		if is := &without.Ports[0].Listeners[i].Hosts[0] == &all.Ports[0].Listeners[i].Hosts[0]; is != kept {
			t.Errorf("listener %d is kept: %v, want %v", i, is, kept)
		}
	}
}

// The content of a route changes when its rules change at any of its listeners.
func TestContentCoversAllListeners(t *testing.T) {
	const text = "kind: Gateway\nmetadata: {namespace: ns, name: g}\nspec:\n  gatewayClassName: headgate\n  listeners: [{name: a, port: %d, protocol: HTTP}, {name: b, port: %d, protocol: HTTP}]\n---\n" +
		"kind: HTTPRoute\nmetadata: {namespace: ns, name: one}\nspec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: a, port: 80}]}]}"
	contents := func(a, b int) string {
		n := network.Read(t, network.Standard(fmt.Sprintf(text, a, b)))
		return plan.Of(attach.Of(n), n, plan.Known{}).Gateways[0].Contents[httpRoute("one")]
	}
	before := contents(80, 90)
	if contents(80, 90) != before || contents(81, 90) == before || contents(80, 91) == before {
		t.Errorf("contents are %s, %s and %s; want the first to equal %s, and the others not", contents(80, 90), contents(81, 90),
			contents(80, 91), before)
	}
}

// The content of a route changes only with the route's own rules.
func TestContents(t *testing.T) {
	const gateway = "kind: Gateway\nmetadata: {namespace: ns, name: g}\nspec:\n  gatewayClassName: headgate\n  listeners: [{name: http, port: 80, protocol: HTTP}]\n---\n"
	const one = "kind: HTTPRoute\nmetadata: {namespace: ns, name: one}\nspec: {parentRefs: [{name: g}], rules: [{matches: [{path: {value: /one}}], backendRefs: [{name: a, port: 80}]}]}\n---\n"
	const two = "kind: HTTPRoute\nmetadata: {namespace: ns, name: two}\nspec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: b, port: 80}, {name: c, port: 80}]}]}\n"
	contents := func(text string) map[objects.Object]string {
		n := network.Read(t, network.Standard(text))
		return plan.Of(attach.Of(n), n, plan.Known{}).Gateways[0].Contents
	}
	before := contents(gateway + one + two)
	if names := slices.Collect(maps.Keys(before)); len(names) != 2 {
		t.Errorf("there are contents for %v", names)
	}
	for what, test := range map[string]struct {
		text     string
		one, two bool // whether the contents of routes one and two change
	}{
		"the same":  {gateway + one + two, false, false},
		"a path":    {gateway + strings.Replace(one, "/one", "/1", 1) + two, true, false},
		"a backend": {gateway + strings.Replace(one, "name: a", "name: b", 1) + two, true, false},
		"a header": {
			gateway + strings.Replace(one, "backendRefs",
				"filters: [{type: RequestHeaderModifier, requestHeaderModifier: {add: [{name: a, value: b}]}}], backendRefs", 1) + two,
			true, false,
		},
		"a hostname":        {gateway + strings.Replace(one, "rules:", "hostnames: [one.test], rules:", 1) + two, true, true},
		"a port":            {strings.Replace(gateway, "port: 80,", "port: 81,", 1) + one + two, true, true},
		"a listener's name": {strings.Replace(gateway, "name: http", "name: web", 1) + one + two, true, true},
		"a Service appears": {gateway + one + two +
			"---\nkind: Service\nmetadata: {namespace: ns, name: c}\nspec: {ports: [{port: 80}]}\n", false, true},
		"there is one alone": {gateway + strings.TrimSuffix(one, "---\n"), false, true},
	} {
		now := contents(test.text)
		if changed := now[httpRoute("one")] != before[httpRoute("one")]; changed != test.one {
			t.Errorf("%s: first route changed: %v", what, changed)
		}
		if changed := now[httpRoute("two")] != before[httpRoute("two")]; changed != test.two {
			t.Errorf("%s: second route changed: %v", what, changed)
		}
	}
}
