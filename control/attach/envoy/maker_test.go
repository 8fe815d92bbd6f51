package envoy_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"weak"

	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/network"
)

// After any change, a used Maker returns the same resources as a new one, and most messages are
// those of its last result.
func TestMakerMatchesTemplate(t *testing.T) {
	tmpl, o := template(t), options(t)
	known := plan.Known{
		Certificates: map[objects.Name]plan.Certificate{{Namespace: "ns", Name: "x"}: {Chain: []byte("x")}},
		Authorities:  map[objects.Name]plan.Certificate{{Namespace: "ns", Name: "ca"}: {Chain: []byte("ca")}},
	}
	kept, made := 0, 0
	for seed := range uint64(5) {
		var last *plan.Plans
		makers := make(map[objects.Name]*envoy.Maker)
		had := make(map[proto.Message]bool)
		for step, n := range network.Walk(t, seed, 60) {
			last = plan.After(last, attach.Of(n), n, known)
			has := make(map[proto.Message]bool)
			for _, p := range last.Gateways {
				if step%2 == 0 {
					silent := *p
					silent.IdleTimeout += time.Minute
					silent.Copies = step%4 == 0
					p = &silent
				}
				if makers[p.Gateway] == nil {
					makers[p.Gateway] = &envoy.Maker{Template: tmpl}
				}
				want, err := tmpl.Of(p, o)
				if err != nil {
					t.Fatal(err)
				}
				got, err := makers[p.Gateway].Of(p, o)
				if err != nil {
					t.Fatal(err)
				}
				wanted, given := all(want), all(got)
				if len(wanted) != len(given) {
					t.Fatalf("walk %d, step %d: %d resources, want %d", seed, step, len(given), len(wanted))
				}
				for i := range wanted {
					if !proto.Equal(wanted[i], given[i]) {
						t.Fatalf("walk %d, step %d: resource\n%v\nwant\n%v", seed, step, given[i], wanted[i])
					}
				}
				for _, c := range got.Clusters {
					has[c] = true
				}
				for _, r := range got.Routes {
					for _, h := range r.GetVirtualHosts() {
						has[h] = true
					}
				}
			}
			for m := range has {
				if made++; had[m] {
					kept++
				}
			}
			had = has
		}
	}
	t.Logf("%d of %d messages were kept from the previous time", kept, made)
	if kept < made/10 {
		t.Errorf("%d of %d messages were kept from the previous time", kept, made)
	}
}

// A Maker caches only messages of the last plan, so its memory does not grow.
func TestMakerDropsUnusedMessages(t *testing.T) {
	m, o := &envoy.Maker{Template: template(t)}, options(t)
	// made makes the resources of a plan, and returns functions that report whether they are still
	// in memory.
	made := func(port int, service string) map[string]func() bool {
		n := network.Read(t,
			network.Standard(fmt.Sprintf("kind: Gateway\nmetadata: {namespace: ns, name: g}\nspec: {gatewayClassName: headgate, listeners: [{name: x, port: %d, protocol: HTTP}]}\n---\n"+
				"kind: HTTPRoute\nmetadata: {namespace: ns, name: r}\nspec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: %s, port: 80}]}]}", port,
				service)))
		p := plan.Of(attach.Of(n), n, plan.Known{}).Gateways[0]
		r, err := m.Of(p, o)
		if err != nil {
			t.Fatal(err)
		}
		m.RoutesIn(p)
		planned, host, cluster := weak.Make(&p.Ports[0].Listeners[0].Hosts[0]), weak.Make(r.Routes[0].GetVirtualHosts()[0]),
			weak.Make(r.Clusters[0])
		manager := weak.Make(r.Listeners[0].GetFilterChains()[0].GetFilters()[0].GetTypedConfig())
		return map[string]func() bool{
			"the Hosts of the plan": func() bool { return planned.Value() != nil }, "a virtual host": func() bool {
				return host.Value() != nil
			},
			"a cluster": func() bool { return cluster.Value() != nil }, "a connection manager": func() bool {
				return manager.Value() != nil
			},
		}
	}
	first := made(80, "a")
	made(81, "b")
	runtime.GC()
	for what, kept := range first {
		if kept() {
			t.Errorf("%s is kept from an older plan", what)
		}
	}
	runtime.KeepAlive(m)
}

// Messages of a result do not change later, although later results share them.
func TestMakerReusesMessages(t *testing.T) {
	m, o := &envoy.Maker{Template: template(t)}, options(t)
	var last *plan.Plans
	made := func(second string) *envoy.Resources {
		n := network.Read(t,
			network.Standard("kind: Gateway\nmetadata: {namespace: ns, name: g}\nspec: {gatewayClassName: headgate, listeners: [{name: x, port: 80, protocol: HTTP, hostname: '*.x.test'}, {name: z, port: 80, protocol: HTTP, hostname: z.test}]}\n---\n"+
				"kind: HTTPRoute\nmetadata: {namespace: ns, name: of-x}\nspec: {parentRefs: [{name: g, sectionName: x}], hostnames: [a.x.test, b.x.test, c.x.test, d.x.test, e.x.test], rules: [{backendRefs: [{name: a, port: 80}]}]}\n---\n"+
				"kind: HTTPRoute\nmetadata: {namespace: ns, name: of-z}\nspec: {parentRefs: [{name: g, sectionName: z}], rules: [{backendRefs: [{name: "+second+
				", port: 80}]}]}"))
		last = plan.After(last, attach.Of(n), n, plan.Known{})
		r, err := m.Of(last.Gateways[0], o)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := made("a")
	was := proto.CloneOf(first.Routes[0])
	if second := made("b"); proto.Equal(second.Routes[0], was) ||
		second.Routes[0].GetVirtualHosts()[0] != first.Routes[0].GetVirtualHosts()[0] {
		t.Error("the second set does not share the first's virtual host")
	}
	if !proto.Equal(first.Routes[0], was) {
		t.Errorf("the first set has changed to\n%v\nfrom\n%v", first.Routes[0], was)
	}
}
