package attach

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/internal/objects"
)

// poolKind is the kind that a listener must allow to serve pools without LLMRoutes.
var poolKind = gatewayv1.RouteGroupKind{Group: new(gatewayv1.Group(pool.SchemeGroupVersion.Group)), Kind: pool.Kind}

// attachPools attaches pools without LLMRoutes to the listeners that allow InferencePools from
// their namespaces.
func (a *Attachments) attachPools(n *objects.Network, namespaces map[string]labels.Set) {
	var takers []*Listener
	gateways := make(map[*Listener]string) // namespaces
	for _, g := range a.Gateways {
		for _, l := range g.Listeners {
			if slices.ContainsFunc(l.Kinds, func(k gatewayv1.RouteGroupKind) bool { return k.Kind == pool.Kind }) {
				takers, gateways[l] = append(takers, l), g.Namespace
			}
		}
	}
	if len(takers) == 0 {
		return
	}
	for _, name := range unrouted(n) {
		for _, l := range takers {
			if l.allows(pool.SchemeGroupVersion.Group, objects.Object{Kind: pool.Kind, Name: name}, gateways[l], namespaces) {
				l.Pools = append(l.Pools, name)
			}
		}
	}
}

// unrouted returns the pools without LLMRoutes, sorted by name. Other routes may use them, but name
// no models.
func unrouted(n *objects.Network) []objects.Name {
	routed := make(map[objects.Name]bool)
	for i := range n.Routes {
		for _, b := range n.Routes[i].Spec.BackendRefs {
			routed[objects.Name{Namespace: n.Routes[i].Namespace, Name: b.Name}] = true
		}
	}
	var all []objects.Name
	for i := range n.Pools {
		if name := (objects.Name{Namespace: n.Pools[i].Namespace, Name: n.Pools[i].Name}); !routed[name] {
			all = append(all, name)
		}
	}
	slices.SortFunc(all, objects.Name.Compare)
	return all
}
