package controller

import (
	"strings"
	"testing"

	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/network"
)

// A problem contains the name of its object, and its file and line.
func TestProblemsNameTheirObjects(t *testing.T) {
	n := network.Read(t, network.Standard(`kind: Gateway
metadata: {namespace: ns, name: g}
spec:
  gatewayClassName: headgate
  listeners:
    - {name: http, port: 80, protocol: HTTP}
    - {name: tcp, port: 81, protocol: TCP}
    - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: bad}, {name: old}]}}
---
kind: ListenerSet
metadata: {namespace: ns, name: more}
spec: {parentRef: {name: g}, listeners: [{name: x, port: 82, protocol: HTTP}]}
---
kind: HTTPRoute
metadata: {namespace: ns, name: nowhere}
spec: {parentRefs: [{name: g, sectionName: none}]}
---
kind: HTTPRoute
metadata: {namespace: ns, name: refs}
spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: nobody, port: 80}]}]}
---
kind: HTTPRoute
metadata: {namespace: ns, name: regex}
spec: {parentRefs: [{name: g}], rules: [{matches: [{path: {type: RegularExpression, value: "("}}, {path: {value: /x}}], backendRefs: [{name: a, port: 80}]}]}
---
kind: HTTPRoute
metadata: {namespace: ns, name: fine}
spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: a, port: 80}, {name: lost, group: inference.networking.k8s.io, kind: InferencePool}]}]}
---
kind: InferencePool
metadata: {namespace: ns, name: lost}
spec: {endpointPickerRef: {name: unknown, port: {number: 9002}}}
---
kind: InferencePool
metadata: {namespace: ns, name: nobody-names-it}
spec: {endpointPickerRef: {name: unknown, port: {number: 9002}}}`))
	a := attach.Of(n)
	secret := func(name string) objects.Name { return objects.Name{Namespace: "ns", Name: name} }
	plans := plan.Of(a, n, plan.Known{Certificates: map[objects.Name]plan.Certificate{
		secret("bad"): {Fault: "no key"}, secret("old"): {Chain: []byte("c"), Key: []byte("k"), Warning: "it expired"},
	}})
	got := problems(plans, func(kind string, name objects.Name) string { return kind + " " + name.Name + " at 7" })
	want := []string{
		"Gateway g at 7, listener https: InvalidCertificateRef: Secret ns/bad: no key",
		"Gateway g at 7, listener tcp: UnsupportedProtocol: ",
		"HTTPRoute nowhere at 7: NoMatchingParent: ",
		"HTTPRoute refs at 7: BackendNotFound: ",
		"HTTPRoute regex at 7: in part: ",
		"InferencePool lost at 7: InvalidExtensionRef: ",
		"ListenerSet more at 7: NotAllowed: ",
		"Secret old at 7: it expired",
	}
	if len(got) != len(want) {
		t.Fatalf("the problems are\n%s", strings.Join(got, "\n"))
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("the problem is %q, want %q", got[i], want[i])
		}
	}
}
