package kinds

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/internal/objects"
)

func TestTrimmedEndpointSlice(t *testing.T) {
	k := of(t, "EndpointSlice")
	const meta = "metadata: {namespace: ns, name: s-1, resourceVersion: '9', uid: u, generateName: s-, generation: 3, annotations: {c: d}, labels: {a: b, kubernetes.io/service-name: s}}\n"
	name, service := objects.Name{Namespace: "ns", Name: "s-1"}, objects.Name{Namespace: "ns", Name: "s"}
	for _, c := range []struct {
		text, trimmed string
		kept          objects.Slice
		faults        string
	}{
		{ // nil values
			text: meta +
				"addressType: IPv4\nendpoints: [{addresses: [10.0.0.1, 10.0.0.2], nodeName: a, zone: z, hostname: h, targetRef: {kind: Pod, name: p}, hints: {forZones: [{name: z}]}}]\n" +
				"ports: [{port: 8080, appProtocol: http}, {name: none}]",
			trimmed: "metadata: {namespace: ns, name: s-1, resourceVersion: '9', labels: {kubernetes.io/service-name: s}}\n" +
				"addressType: IPv4\nendpoints: [{addresses: [10.0.0.1]}]\nports: [{port: 8080}, {name: none}]",
			kept: objects.Slice{
				Name: name, Service: service, Type: objects.IPv4,
				Endpoints: []objects.SliceEndpoint{{Address: netip.MustParseAddr("10.0.0.1"), Ready: true, Serving: true}},
				Ports:     []objects.SlicePort{{Number: 8080, Protocol: "TCP"}},
			},
		},
		{
			text: meta +
				"addressType: IPv6\nendpoints: [{addresses: ['fd00::1'], conditions: {ready: false, serving: true, terminating: true}}, {addresses: ['fd00::2'], conditions: {ready: true, serving: false, terminating: false}}]\n" +
				"ports: [{name: http, port: 8080, protocol: TCP}, {name: dns, port: 53, protocol: UDP}]",
			trimmed: "metadata: {namespace: ns, name: s-1, resourceVersion: '9', labels: {kubernetes.io/service-name: s}}\n" +
				"addressType: IPv6\nendpoints: [{addresses: ['fd00::1'], conditions: {ready: false, serving: true, terminating: true}}, {addresses: ['fd00::2'], conditions: {ready: true, serving: false, terminating: false}}]\n" +
				"ports: [{name: http, port: 8080, protocol: TCP}, {name: dns, port: 53, protocol: UDP}]",
			kept: objects.Slice{
				Name: name, Service: service, Type: objects.IPv6,
				Endpoints: []objects.SliceEndpoint{
					{Address: netip.MustParseAddr("fd00::1"), Serving: true, Terminating: true},
					{Address: netip.MustParseAddr("fd00::2"), Ready: true},
				},
				Ports: []objects.SlicePort{{Name: "http", Number: 8080, Protocol: "TCP"}, {Name: "dns", Number: 53, Protocol: "UDP"}},
			},
		},
		{ // an EndpointSlice without a Service, and ports with names
			text:    "metadata: {namespace: ns, name: s-1, resourceVersion: '9', labels: {a: b}}\naddressType: FQDN\nendpoints: [{addresses: [a.test], conditions: {ready: false}}]\n",
			trimmed: "metadata: {namespace: ns, name: s-1, resourceVersion: '9'}\naddressType: FQDN\nendpoints: [{addresses: [a.test], conditions: {ready: false}}]\n",
			kept:    objects.Slice{Name: name, Type: objects.FQDN, Endpoints: []objects.SliceEndpoint{{Serving: true}}},
		},
		{
			text:    "metadata: {namespace: ns, name: s-1}\naddressType: IPv4\nendpoints: [{addresses: [a.test]}, {addresses: ['fd00::1']}, {addresses: []}]",
			trimmed: "metadata: {namespace: ns, name: s-1}\naddressType: IPv4\nendpoints: [{addresses: [a.test]}, {addresses: ['fd00::1']}, {addresses: []}]",
			kept:    objects.Slice{Name: name, Type: objects.IPv4},
			faults:  "[endpoints[0].addresses[0] endpoints[1].addresses[0] endpoints[2].addresses]",
		},
		{
			text:    "metadata: {namespace: ns, name: s-1}\naddressType: IPv6\nendpoints: [{addresses: ['fe80::1%eth0']}, {addresses: [10.0.0.1]}]",
			trimmed: "metadata: {namespace: ns, name: s-1}\naddressType: IPv6\nendpoints: [{addresses: ['fe80::1%eth0']}, {addresses: [10.0.0.1]}]",
			kept:    objects.Slice{Name: name, Type: objects.IPv6},
			faults:  "[endpoints[0].addresses[0] endpoints[1].addresses[0]]",
		},
		{
			text:    "metadata: {namespace: ns, name: s-1}\naddressType: IPv4\nports: [{name: a, port: 65536}, {name: b, port: 0}]",
			trimmed: "metadata: {namespace: ns, name: s-1}\naddressType: IPv4\nports: [{name: a, port: 65536}, {name: b, port: 0}]",
			kept: objects.Slice{
				Name: name, Type: objects.IPv4,
				Ports: []objects.SlicePort{{Name: "a", Number: 65536, Protocol: "TCP"}, {Name: "b", Protocol: "TCP"}},
			},
			faults: "[ports[0].port ports[1].port]",
		},
		{
			text: "metadata: {namespace: ns, name: s 1}", trimmed: "metadata: {namespace: ns, name: s 1}",
			kept: objects.Slice{Name: objects.Name{Namespace: "ns", Name: "s 1"}}, faults: "[metadata.name addressType]",
		},
	} {
		o := read(t, k, c.text)
		whole, _ := k.Folder(o)
		k.Trim(o)
		kept, faults := k.Server(o)
		fields := []string{}
		for _, fault := range faults {
			fields = append(fields, fault.Field)
		}
		if !reflect.DeepEqual(kept, any(c.kept)) || !reflect.DeepEqual(whole, kept) || len(fields) > 0 && fmt.Sprint(fields) != c.faults ||
			(len(fields) > 0) != (c.faults != "") {
			t.Errorf("%s\nis taken as %+v, %+v before it was trimmed, want %+v; its faults are %v", c.text, kept, whole, c.kept, faults)
		}
		if diff := cmp.Diff(read(t, k, c.trimmed), o); diff != "" {
			t.Errorf("trimmed (-want +got):\n%s", diff)
		}
	}
	if k.CRD() != "" || k.Optional || k.ClusterScoped {
		t.Errorf("it needs the CRD %q, is optional %v and cluster-scoped %v", k.CRD(), k.Optional, k.ClusterScoped)
	}
}
