package ads_test

import (
	"reflect"
	"runtime"
	"testing"
	"weak"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate"
	"github.com/headgate/headgate/control/attach/ads"
	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/network"
)

// After any change, a used Encoder returns the same snapshot as a new one.
func TestEncoderEncodesTheResources(t *testing.T) {
	template, err := envoy.Read(headgate.EnvoyYAML)
	if err != nil {
		t.Fatal(err)
	}
	o := template.FromControl(func(port int32) (string, uint32) { return "127.0.0.1", uint32(port) })
	known := plan.Known{Certificates: map[objects.Name]plan.Certificate{{Namespace: "ns", Name: "x"}: {Chain: []byte("x")}}}
	name := objects.Name{Namespace: "ns", Name: "g"}
	maker, encoder := envoy.Maker{Template: template}, new(ads.Encoder)
	var last *plan.Plans
	read := 0
	for step, n := range network.Walk(t, 1, 120) {
		last = plan.After(last, attach.Of(n), n, known)
		for _, p := range last.Gateways {
			if p.Gateway != name {
				continue
			}
			r, err := maker.Of(p, o)
			if err != nil {
				t.Fatal(err)
			}
			want, err := ads.SnapshotOf(r)
			if err != nil {
				t.Fatal(err)
			}
			got, err := encoder.SnapshotOf(r)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(want, got) {
				t.Fatalf("step %d: versions\n%v\nwant\n%v", step, got, want)
			}
			for of, messages := range messagesOf(r) {
				if len(got[of]) != len(messages) {
					t.Errorf("step %d: %d resources of %s, want %d", step, len(got[of]), of, len(messages))
				}
				for name, m := range messages {
					is := m.ProtoReflect().New().Interface()
					if err := proto.Unmarshal(got[of][name].Body.GetValue(), is); err != nil {
						t.Fatal(err)
					}
					if !proto.Equal(is, m) {
						t.Fatalf("step %d: %s is\n%v\nwant\n%v", step, name, is, m)
					}
					read++
				}
			}
		}
	}
	if read < 200 {
		t.Errorf("there were %d resources", read)
	}
}

// An Encoder caches only messages of the last snapshot, so its memory does not grow.
func TestEncoderDropsUnusedResources(t *testing.T) {
	encoder := new(ads.Encoder)
	// encoded encodes a route configuration. The returned functions report whether the message of
	// the routes, or of the host, is still in memory.
	encoded := func(name string) (routes, host func() bool) {
		h := &routev3.VirtualHost{Name: name, Domains: []string{name}}
		c := &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{h}}
		if _, err := encoder.SnapshotOf(&envoy.Resources{Routes: []*routev3.RouteConfiguration{c}}); err != nil {
			t.Fatal(err)
		}
		ofRoutes, ofHost := weak.Make(c), weak.Make(h)
		return func() bool { return ofRoutes.Value() != nil }, func() bool { return ofHost.Value() != nil }
	}
	routes, host := encoded("a")
	encoded("b")
	runtime.GC()
	if routes() || host() {
		t.Errorf("still cached from before the previous snapshot: routes %v, a host %v", routes(), host())
	}
	runtime.KeepAlive(encoder)
}

// messagesOf returns resources by type and name.
func messagesOf(r *envoy.Resources) map[string]map[string]proto.Message {
	all := map[string]map[string]proto.Message{order.Listeners: {}, order.Routes: {}, order.Clusters: {}, order.Secrets: {}}
	for _, m := range r.Listeners {
		all[order.Listeners][m.GetName()] = m
	}
	for _, m := range r.Routes {
		all[order.Routes][m.GetName()] = m
	}
	for _, m := range r.Clusters {
		all[order.Clusters][m.GetName()] = m
	}
	for _, m := range r.Secrets {
		all[order.Secrets][m.GetName()] = m
	}
	return all
}
