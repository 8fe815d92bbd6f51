package envoy

import (
	"net/netip"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
)

// Endpoints returns the endpoints of a cluster, in the given order. For an empty list, Envoy
// answers 503 at once.
func Endpoints(cluster string, all []netip.AddrPort) *endpointv3.ClusterLoadAssignment {
	is := &endpointv3.ClusterLoadAssignment{ClusterName: cluster}
	if len(all) == 0 {
		return is
	}
	hosts := &endpointv3.LocalityLbEndpoints{LbEndpoints: make([]*endpointv3.LbEndpoint, len(all))}
	for i, at := range all {
		hosts.LbEndpoints[i] = &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: socketAddress(at.Addr().String(), uint32(at.Port())),
		}}}
	}
	is.Endpoints = []*endpointv3.LocalityLbEndpoints{hosts}
	return is
}
