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

// Whatever changes, plans that are made after others are those that are made from nothing.
func TestAfterIsOf(t *testing.T) {
	const walks, steps = 10, 60
	kept, all, rules := 0, 0, 0
	for seed := range uint64(walks) {
		var last *plan.Plans
		known := plan.Known{Certificates: map[objects.Name]plan.Certificate{{Namespace: "ns", Name: "x"}: {Chain: []byte("x")}}}
		for step, n := range network.Walk(t, seed, steps) {
			if step%10 == 9 { // what is known changes by itself
				known.Authorities = map[objects.Name]plan.Certificate{{Namespace: "ns", Name: "ca"}: {Chain: fmt.Append(nil, step)}}
			}
			a := attach.Of(n)
			want, got := plan.Of(a, n, known), plan.After(last, a, n, known)
			for what, both := range map[string][2]any{
				"Gateways": {want.Gateways, got.Gateways}, "Routes": {want.Routes, got.Routes}, "Policies": {want.Policies, got.Policies},
				"Showing": {want.Showing, got.Showing}, "Refused": {want.Refused, got.Refused}, "Listeners": {want.Listeners, got.Listeners}, "Pools": {want.Pools, got.Pools},
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

// hostsOf tells the Hosts of all listeners by the first.
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

// A route that changes leaves the Hosts of the listeners that have it not.
func TestAfterKeepsWhatHasNotChanged(t *testing.T) {
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
			t.Errorf("listener %d is made anew though nothing has changed", listener)
		}
		if is := host(other, listener) == host(first, listener); is != kept {
			t.Errorf("listener %d is kept: %v, want %v", listener, is, kept)
		}
	}
}

// A plan knows the policies of the Services that it leads to, and a plan that leads there no more has none.
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
			t.Errorf("to %s: the plan has policies %v, and of all there are %v", test.to, is, last.Policies)
		}
	}
}
