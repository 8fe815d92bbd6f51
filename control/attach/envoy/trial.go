package envoy

import (
	"fmt"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/objects"
)

// TrialName is the name of a trial's listener and of its route configuration.
const TrialName = "trial"

// RoutesIn returns, for each route configuration, the routes with rules in it, without duplicates,
// in order of appearance.
func (m *Maker) RoutesIn(p *plan.Plan) map[string][]objects.Object {
	defer m.routes.NextRound()
	all := make(map[string][]objects.Object)
	for i := range p.Ports {
		port := &p.Ports[i]
		seen := make(map[objects.Object]bool)
		for j := range port.Listeners {
			l := &port.Listeners[j]
			if overTLS(port) {
				clear(seen) // with TLS, each listener has its own route configuration
			}
			of, _ := m.routes.Get(&l.Hosts[0], func() ([]objects.Object, error) { return routesIn(l.Hosts), nil })
			name := routesName(port, l)
			for _, route := range of {
				if !seen[route] {
					seen[route] = true
					all[name] = append(all[name], route)
				}
			}
		}
	}
	return all
}

// routesIn returns the routes with rules in some hosts, without duplicates, in order of appearance.
func routesIn(hosts []plan.Host) (all []objects.Object) {
	seen := make(map[objects.Object]bool)
	for _, h := range hosts {
		for _, r := range h.Rules {
			if r.Of != (objects.Object{}) && !seen[r.Of] {
				seen[r.Of] = true
				all = append(all, r.Of)
			}
		}
	}
	return all
}

// Trial returns resources with which Envoy validates a route configuration without using it: a
// listener without a port, and its routes. Callers pass the same options as for other resources.
func (t *Template) Trial(p *plan.Plan, routes string, o Options) (*Resources, error) {
	t = t.as(wantsOf(p))
	for i := range p.Ports {
		port := &p.Ports[i]
		all, err := routesOf(port, t.parts(o))
		if err != nil {
			return nil, fmt.Errorf("port %d: %w", port.Number, err)
		}
		for _, is := range all {
			if is.GetName() != routes {
				continue
			}
			is.Name = TrialName
			chain, err := t.chain(TrialName, t.parts(o).manager)
			if err != nil {
				return nil, err
			}
			return &Resources{Routes: []*routev3.RouteConfiguration{is}, Listeners: []*listenerv3.Listener{{
				Name: TrialName, Address: socketAddress("127.0.0.1", 1), BindToPort: wrapperspb.Bool(false),
				FilterChains: []*listenerv3.FilterChain{chain},
			}}}, nil
		}
	}
	return nil, fmt.Errorf("there are no routes %q", routes)
}
