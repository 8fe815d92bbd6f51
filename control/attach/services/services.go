// Package services finds the endpoints of the Services in plans. Plans do not contain endpoints, so
// pods that start and stop change no plan, route or cluster.
package services

import (
	"net/netip"
	"slices"

	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/objects"
)

// tcp is the protocol of ports that can get requests.
const tcp = "TCP"

// Of returns the endpoints of each Service cluster, by Gateway and cluster name. Each list is
// sorted, without duplicates, and empty for a Service without endpoints. Clusters may share lists.
//
// A slice belongs to the Service in its label, and its ports to the Service's ports of the same
// name (EndpointSlice of discovery/v1). As in kube-proxy, requests go to ready endpoints. If a port
// has none, they go to endpoints that are terminating but still serving (KEP-1669), so the last
// pods of a Service still get requests while they are replaced.
func Of(plans []*plan.Plan, n *objects.Network, all []objects.Slice) map[objects.Name]map[string][]netip.AddrPort {
	f := newFinder(plans, n, all)
	found := make(map[target][]netip.AddrPort)
	lists := make(map[objects.Name]map[string][]netip.AddrPort, len(plans))
	for _, p := range plans {
		of := make(map[string][]netip.AddrPort)
		for _, c := range p.Clusters {
			if c.Pool {
				continue
			}
			at := target{c.Object, c.Port}
			list, known := found[at]
			if !known {
				list = f.endpoints(at)
				found[at] = list
			}
			of[c.Name] = list
		}
		lists[p.Gateway] = of
	}
	return lists
}

// target is a Service and the number of one of its ports.
type target struct {
	service objects.Name
	port    int32
}

// finder contains the ports and EndpointSlices of the Services that plans name.
type finder struct {
	ports  map[target]string // name of the port, which may be empty
	slices map[objects.Name][]*objects.Slice
}

func newFinder(plans []*plan.Plan, n *objects.Network, all []objects.Slice) finder {
	f := finder{ports: make(map[target]string), slices: make(map[objects.Name][]*objects.Slice)}
	for _, p := range plans {
		for _, c := range p.Clusters {
			if !c.Pool {
				f.slices[c.Object] = nil
			}
		}
	}
	for _, s := range n.Services {
		if _, named := f.slices[s.Name]; !named {
			continue
		}
		for _, p := range s.Ports {
			if p.Protocol == tcp {
				f.ports[target{s.Name, p.Port}] = p.Name
			}
		}
	}
	for i := range all {
		s := &all[i]
		if of, named := f.slices[s.Service]; named && s.Type != objects.FQDN {
			f.slices[s.Service] = append(of, s)
		}
	}
	return f
}

// endpoints returns the endpoints of a Service port.
func (f finder) endpoints(of target) []netip.AddrPort {
	name, there := f.ports[of]
	if !there {
		return nil
	}
	var ready, leaving []netip.AddrPort
	for _, s := range f.slices[of.service] {
		for _, p := range s.Ports {
			if p.Name != name || p.Protocol != tcp {
				continue
			}
			for _, e := range s.Endpoints {
				at := netip.AddrPortFrom(e.Address, uint16(p.Number))
				switch {
				case e.Ready:
					ready = append(ready, at)
				case e.Serving && e.Terminating:
					leaving = append(leaving, at)
				}
			}
		}
	}
	if len(ready) == 0 {
		ready = leaving
	}
	slices.SortFunc(ready, netip.AddrPort.Compare)
	return slices.Compact(ready)
}
