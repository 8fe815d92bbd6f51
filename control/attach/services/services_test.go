package services_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/control/attach/services"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/golden"
	"github.com/headgate/headgate/test/network"
)

// named contains Gateways whose routes name an InferencePool and several Services. These are: two
// ports of ns/a, one of them also with HTTP/2; ns/b; ns/both, whose port 80 exists for TCP and UDP;
// and other/a.
const named = `kind: Service
metadata: {namespace: ns, name: both}
spec: {ports: [{port: 80, name: web}, {port: 80, name: quic, protocol: UDP}]}
---
kind: Gateway
metadata: {namespace: ns, name: g}
spec: {gatewayClassName: headgate, listeners: [{name: http, port: 80, protocol: HTTP}, {name: grpc, port: 81, protocol: HTTP}]}
---
kind: Gateway
metadata: {namespace: other, name: h}
spec: {gatewayClassName: headgate, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
kind: HTTPRoute
metadata: {namespace: ns, name: r}
spec:
  parentRefs: [{name: g, sectionName: http}]
  rules:
  - backendRefs: [{name: a, port: 80}, {name: a, port: 81}, {name: b, port: 80}, {name: both, port: 80}, {group: inference.networking.k8s.io, kind: InferencePool, name: llama}]
---
kind: GRPCRoute
metadata: {namespace: ns, name: r}
spec: {parentRefs: [{name: g, sectionName: grpc}], rules: [{backendRefs: [{name: a, port: 80}]}]}
---
kind: HTTPRoute
metadata: {namespace: other, name: r}
spec: {parentRefs: [{name: h}], rules: [{backendRefs: [{name: a, port: 80}]}]}
`

// The input of a block is EndpointSlices in YAML. They are added to the Services of
// [network.Standard] and routes to these. The output is the clusters with endpoints, and the number
// of clusters without.
func TestScenarios(t *testing.T) {
	golden.Run(t, "testdata/*.txt", func(t *testing.T) func(string) string {
		return func(input string) string {
			set := network.Set(t, network.Standard(named)+"---\n"+input)
			lists := services.Of(plan.Of(attach.Of(set.Network), set.Network, plan.Known{}).Gateways, set.Network, set.Slices)
			var out strings.Builder
			for _, gateway := range slices.SortedFunc(maps.Keys(lists), objects.Name.Compare) {
				empty := 0
				for _, cluster := range slices.Sorted(maps.Keys(lists[gateway])) {
					list := lists[gateway][cluster]
					if len(list) == 0 {
						empty++
						continue
					}
					fmt.Fprintf(&out, "%s %s:", gateway, cluster)
					for _, at := range list {
						fmt.Fprintf(&out, " %s", at)
					}
					fmt.Fprintln(&out)
				}
				fmt.Fprintf(&out, "%s: %d without endpoints\n", gateway, empty)
			}
			return out.String()
		}
	})
}

// If a Service of the plan no longer exists, its cluster gets no endpoints, not those of another
// port.
func TestDeletedServiceHasNoEndpoints(t *testing.T) {
	plans := []*plan.Plan{{
		Gateway:  objects.Name{Namespace: "ns", Name: "g"},
		Clusters: []plan.Cluster{{Name: "c", Object: objects.Name{Namespace: "ns", Name: "a"}, Port: 80}},
	}}
	slice := objects.Slice{
		Service: objects.Name{Namespace: "ns", Name: "a"}, Type: objects.IPv4, Ports: []objects.SlicePort{{Number: 8080, Protocol: "TCP"}},
		Endpoints: []objects.SliceEndpoint{{Address: netip.MustParseAddr("10.0.0.1"), Ready: true}},
	}
	lists := services.Of(plans, new(objects.Network), []objects.Slice{slice})
	if list, there := lists[plans[0].Gateway]["c"]; !there || len(list) > 0 {
		t.Errorf("the endpoints are %v", lists)
	}
}
