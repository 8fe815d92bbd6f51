package envoy_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/test/network"
)

const tried = `kind: Gateway
metadata: {namespace: ns, name: g}
spec:
  gatewayClassName: headgate
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: more, port: 80, protocol: HTTP, hostname: more.test}
  - {name: one, port: 443, protocol: HTTPS, hostname: one.test, tls: {certificateRefs: [{name: a}]}}
  - {name: two, port: 443, protocol: HTTPS, hostname: two.test, tls: {certificateRefs: [{name: a}]}}
---
kind: HTTPRoute
metadata: {namespace: ns, name: everywhere}
spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: a, port: 80}]}, {matches: [{path: {value: /a}}], backendRefs: [{name: a, port: 80}]}]}
---
kind: HTTPRoute
metadata: {namespace: ns, name: last}
spec: {parentRefs: [{name: g, sectionName: two}, {name: g, sectionName: more}], rules: [{backendRefs: [{name: a, port: 80}]}]}
---
kind: LLMRoute
metadata: {namespace: ns, name: llm}
spec: {parentRefs: [{name: g, sectionName: http}], backendRefs: [{name: llama}]}`

// A trial contains one route configuration under another name, and its listener has no port.
// RoutesIn lists each of its routes once, except LLMRoutes.
func TestTrialHasOneRouteConfigurationAndNoPort(t *testing.T) {
	n := network.Read(t, network.Standard(tried))
	p := plan.Of(attach.Of(n), n, plan.Known{Certificates: certificates(n)}).Gateways[0]
	var lines []string
	in := new(envoy.Maker).RoutesIn(p)
	for _, name := range slices.Sorted(maps.Keys(in)) {
		var names []string
		for _, of := range in[name] {
			names = append(names, of.Name.Name)
		}
		lines = append(lines, fmt.Sprint(name, names))
	}
	if want := "port-443 Gateway ns/g one[everywhere] port-443 Gateway ns/g two[everywhere last] port-80[everywhere last]"; strings.Join(lines,
		" ") != want {
		t.Errorf("the resources are %s, want %s", strings.Join(lines, " "), want)
	}
	o := options(t)
	all, err := template(t).Of(p, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, real := range all.Routes {
		trial, err := template(t).Trial(p, real.GetName(), o)
		if err != nil {
			t.Fatal(err)
		}
		if len(trial.Listeners) != 1 || len(trial.Routes) != 1 || len(trial.Clusters)+len(trial.Secrets) != 0 {
			t.Fatalf("the trial for %s is %v", real.GetName(), trial)
		}
		want := proto.CloneOf(real)
		if want.Name = envoy.TrialName; !proto.Equal(trial.Routes[0], want) {
			t.Errorf("the trial for %s is %v", real.GetName(), trial.Routes[0])
		}
		l := trial.Listeners[0]
		m := read(t, l.GetFilterChains()[0].GetFilters()[0].GetTypedConfig(), new(hcmv3.HttpConnectionManager))
		if l.GetName() != envoy.TrialName || l.GetBindToPort() == nil || l.GetBindToPort().GetValue() ||
			m.GetRds().GetRouteConfigName() != envoy.TrialName {
			t.Errorf("the trial's listener is %v", l)
		}
	}
	if _, err := template(t).Trial(p, "port-81", o); err == nil {
		t.Error("there is a trial for missing routes")
	}
}
