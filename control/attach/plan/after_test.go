package plan_test

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/network"
)

// After any change, incremental plans equal plans made from the beginning.
func TestAfterIsOf(t *testing.T) {
	const walks, steps = 10, 60
	kept, all, rules := 0, 0, 0
	for seed := range uint64(walks) {
		var last *plan.Plans
		known := plan.Known{Certificates: map[objects.Name]plan.Certificate{{Namespace: "ns", Name: "x"}: {Chain: []byte("x")}}}
		for step, n := range network.Walk(t, seed, steps) {
			if step%10 == 9 { // Secrets and ConfigMaps also change, without a change of objects
				known.Authorities = map[objects.Name]plan.Certificate{{Namespace: "ns", Name: "ca"}: {Chain: fmt.Append(nil, step)}}
			}
			a := attach.Of(n)
			want, got := plan.Of(a, n, known), plan.After(last, a, n, known)
			for what, both := range map[string][2]any{
				"Gateways": {want.Gateways, got.Gateways}, "Routes": {want.Routes, got.Routes}, "Policies": {want.Policies, got.Policies},
				"Showing": {want.Presenting, got.Presenting}, "Refused": {want.Refused, got.Refused},
				"Listeners": {want.Listeners, got.Listeners}, "Pools": {want.Pools, got.Pools},
			} {
				if !reflect.DeepEqual(both[0], both[1]) {
					t.Fatalf("walk %d, step %d: %s differ: want\n%s\ngot\n%s", seed, step, what, want.Text(), got.Text())
				}
			}
			if last != nil {
				had := hostsOf(last)
				for hosts := range hostsOf(got) {
					if all++; had[hosts] {
						kept++
					}
				}
			}
			rules += len(got.Routes)
			last = got
		}
	}
	t.Logf("%d of %d listeners kept their hosts; there were %d routes", kept, all, rules)
	if kept < all/3 || rules < walks*steps {
		t.Errorf("%d of %d listeners kept their hosts, of %d routes", kept, all, rules)
	}
}

// Changes of objects other than routes may change the plans, even if the routes and their
// attachments stay the same.
func TestAfterAnythingElse(t *testing.T) {
	const (
		route = "kind: HTTPRoute\nmetadata: {namespace: ns, name: r}\nspec: {parentRefs: [{name: g}], rules: [{backendRefs: [{namespace: other, name: a, port: 80}]}]}"
		grant = "\n---\nkind: ReferenceGrant\nmetadata: {namespace: other, name: to}\nspec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: ns}], to: [{group: '', kind: Service}]}"
		sets  = "kind: Gateway\nmetadata: {namespace: ns, name: g}\nspec: {gatewayClassName: headgate, allowedListeners: {namespaces: {from: Selector, selector: {matchLabels: {may: 'yes'}}}}, listeners: [{name: http, port: 80, protocol: HTTP}]}\n---\n" +
			"kind: ListenerSet\nmetadata: {namespace: one, name: s}\nspec: {parentRef: {namespace: ns, name: g}, listeners: [{name: l, port: 81, hostname: one.test, protocol: HTTP}]}\n---\n" +
			"kind: ListenerSet\nmetadata: {namespace: two, name: s}\nspec: {parentRef: {namespace: ns, name: g}, listeners: [{name: l, port: 81, hostname: two.test, protocol: HTTP}]}\n---\n" +
			"kind: Namespace\nmetadata: {name: two, labels: {may: 'yes'}}\n---\nkind: Namespace\nmetadata: {name: one, labels: {may: '%s'}}"
		tls = "kind: Gateway\nmetadata: {namespace: ns, name: g}\nspec: {gatewayClassName: headgate, listeners: [{name: http, port: 80, protocol: HTTP}], tls: {backend: {clientCertificateRef: {name: %s}}}}\n---\n" +
			"kind: BackendTLSPolicy\nmetadata: {namespace: ns, name: p}\nspec: {targetRefs: [{group: '', kind: Service, name: a}], validation: {hostname: a.test, wellKnownCACertificates: System}}\n---\n" +
			"kind: HTTPRoute\nmetadata: {namespace: ns, name: r}\nspec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: a, port: 80}]}]}"
		pool = "kind: Gateway\nmetadata: {namespace: ns, name: g}\nspec: {gatewayClassName: headgate, listeners: [{name: http, port: 80, protocol: HTTP, allowedRoutes: {kinds: [{group: inference.networking.k8s.io, kind: InferencePool}]}}]}"
		its  = "\n---\nkind: LLMRoute\nmetadata: {namespace: ns, name: of-another}\nspec: {backendRefs: [{name: llama}]}"
		host = "kind: Gateway\nmetadata: {namespace: ns, name: g}\nspec: {gatewayClassName: headgate, listeners: [{name: http, port: 80, protocol: HTTP, hostname: %s}]}"
	)
	known := plan.Known{Certificates: map[objects.Name]plan.Certificate{
		{Namespace: "ns", Name: "x"}: {Chain: []byte("x")},
		{Namespace: "ns", Name: "z"}: {Chain: []byte("z")},
	}}
	for _, test := range []struct{ what, before, after string }{
		{"a grant is taken back", route + grant, route},
		{"a grant comes", route, route + grant},
		{"a namespace may have no listeners any more", fmt.Sprintf(sets, "yes"), fmt.Sprintf(sets, "no")},
		{"Envoys show another certificate", fmt.Sprintf(tls, "x"), fmt.Sprintf(tls, "z")},
		{"a route names a pool that none named", pool, pool + its},
		{"a listener has another hostname", fmt.Sprintf(host, "x.test"), fmt.Sprintf(host, "z.test")},
	} {
		before, after := network.Read(t, network.Standard(test.before)), network.Read(t, network.Standard(test.after))
		last := plan.Of(attach.Of(before), before, known)
		a := attach.Of(after)
		want, got := plan.Of(a, after, known), plan.After(last, a, after, known)
		if reflect.DeepEqual(want.Gateways, last.Gateways) {
			t.Errorf("%s: the case changes nothing", test.what)
		}
		if !reflect.DeepEqual(want.Gateways, got.Gateways) || !reflect.DeepEqual(want.Routes, got.Routes) {
			t.Errorf("%s: the plan is\n%s\nwant\n%s", test.what, got.Text(), want.Text())
		}
	}
}

// hostsOf returns the address of the first Host of each listener, which identifies its Hosts slice.
func hostsOf(p *plan.Plans) map[*plan.Host]bool {
	all := make(map[*plan.Host]bool)
	for _, g := range p.Gateways {
		for _, port := range g.Ports {
			for _, l := range port.Listeners {
				all[&l.Hosts[0]] = true
			}
		}
	}
	return all
}

// If a route changes, listeners without that route keep their Hosts slices.
func TestAfterKeepsUnchangedHosts(t *testing.T) {
	const text = "kind: Gateway\nmetadata: {namespace: ns, name: g}\nspec: {gatewayClassName: headgate, listeners: [{name: x, port: 80, protocol: HTTP, hostname: x.test}, {name: z, port: 80, protocol: HTTP, hostname: z.test}]}\n---\n" +
		"kind: HTTPRoute\nmetadata: {namespace: ns, name: of-x}\nspec: {parentRefs: [{name: g, sectionName: x}], rules: [{backendRefs: [{name: a, port: 80}]}]}\n---\n" +
		"kind: HTTPRoute\nmetadata: {namespace: ns, name: of-z}\nspec: {parentRefs: [{name: g, sectionName: z}], rules: [{backendRefs: [{name: %s, port: 80}]}]}"
	of := func(last *plan.Plans, service string) *plan.Plans {
		n := network.Read(t, network.Standard(fmt.Sprintf(text, service)))
		return plan.After(last, attach.Of(n), n, plan.Known{})
	}
	first := of(nil, "a")
	same, other := of(first, "a"), of(first, "b")
	host := func(p *plan.Plans, listener int) *plan.Host {
		return &p.Gateways[0].Ports[0].Listeners[listener].Hosts[0]
	}
	for listener, kept := range []bool{true, false} {
		if host(same, listener) != host(first, listener) {
			t.Errorf("listener %d is made again without a change", listener)
		}
		if is := host(other, listener) == host(first, listener); is != kept {
			t.Errorf("listener %d is kept: %v, want %v", listener, is, kept)
		}
	}
}

// A plan contains the policies of the Services that it sends requests to. When it sends requests to
// none of a policy's Services any more, it loses the policy.
func TestPoliciesOfAPlan(t *testing.T) {
	const text = "kind: BackendTLSPolicy\nmetadata: {namespace: ns, name: p}\nspec: {targetRefs: [{group: '', kind: Service, name: b}], validation: {hostname: b.test, wellKnownCACertificates: System}}\n---\n" +
		"kind: HTTPRoute\nmetadata: {namespace: ns, name: r}\nspec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: %s, port: 80}]}]}"
	var last *plan.Plans
	for _, test := range []struct {
		to   string
		some bool
	}{{"a", false}, {"b", true}, {"b", true}, {"a", false}} {
		n := network.Read(t, network.Standard(fmt.Sprintf(text, test.to)))
		last = plan.After(last, attach.Of(n), n, plan.Known{})
		if is := last.Gateways[0].Policies; (len(is) == 1) != test.some || len(last.Policies) != len(is) {
			t.Errorf("to %s: the plan has the policies %v, and overall there are %v", test.to, is, last.Policies)
		}
	}
}
