// Package attach determines the listeners of Gateways and which routes attach to each. It is pure,
// and the only implementation of these rules: control builds Envoy's configuration from it, and
// extproc finds a listener's models with it.
//
// It neither interprets routes nor checks whether what they reference exists. The rules are those
// of Gateway API 1.6 (gateway-api.sigs.k8s.io/reference/spec).
package attach

import (
	"cmp"
	"slices"
	"time"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// Controller is the controllerName of Headgate's GatewayClasses.
const Controller = gatewayv1.GatewayController("headgate.dev/gateway-controller")

// Attachments are the Gateways of Headgate's classes, and what attaches to them. They are
// immutable.
type Attachments struct {
	// Classes are Headgate's GatewayClasses, by name.
	Classes map[string]Class
	// Gateways are sorted by name.
	Gateways []*Gateway
	// Parents are the results for a route's parentRefs that name a Gateway of ours or a ListenerSet
	// of one, in the route's order.
	Parents map[objects.Object][]Parent
}

// Class is a GatewayClass with its settings.
type Class struct {
	Settings v1alpha1.GatewaySettingsSpec
	// Refused is why its reference to settings is not used; zero if it is.
	Refused Verdict
}

// Gateway is a Gateway with all its listeners.
type Gateway struct {
	*gatewayv1.Gateway
	Name objects.Name
	// Settings are those of its GatewaySettings, completed by those of its class.
	Settings v1alpha1.GatewaySettingsSpec
	// Refused is why the Gateway's own settings are not used; zero if they are.
	Refused Verdict
	// Listeners are in order of precedence: the Gateway's own, then those of its ListenerSets, the
	// oldest first.
	Listeners []*Listener
	// Sets are the ListenerSets that name it, in the same order, including refused ones.
	Sets []*Set
}

// Set is a ListenerSet that names a Gateway.
type Set struct {
	*gatewayv1.ListenerSet
	Name objects.Name
	// Refused is why its listeners are not part of the Gateway; zero if they are.
	Refused Verdict
}

// Listener is a listener of a Gateway.
type Listener struct {
	// Of is the Gateway or ListenerSet that declares it, under the name Section.
	Of       objects.Object
	Section  string
	Port     int32
	Protocol gatewayv1.ProtocolType
	// Hostname is a pattern, see [Intersect].
	Hostname string
	TLS      *gatewayv1.ListenerTLSConfig
	// Kinds are the kinds of routes that may attach, in the listener's order; the flag says whether
	// it also names unsupported ones.
	Kinds      []gatewayv1.RouteGroupKind
	OtherKinds bool
	// Refused is why the listener does not serve; zero if it does.
	Refused Verdict
	// Routes are the accepted routes, the oldest first, then by name.
	Routes []Attached
	// Pools are pools without LLMRoutes whose models it serves, sorted by name.
	Pools []objects.Name

	namespaces *gatewayv1.RouteNamespaces
	kinds      map[string]bool // kinds of routes that may attach
}

// Verdict is why something does not take effect: the reason of a condition, and a message for
// people. The zero Verdict means that it does.
type Verdict struct{ Reason, Message string }

// Attached is a route at a listener.
type Attached struct {
	Route objects.Object
	// Hostnames are the hostname patterns that the listener and the route have in common, see
	// [Intersect].
	Hostnames []string
}

// Parent is a route's parentRef to an object of ours.
type Parent struct {
	Ref gatewayv1.ParentReference
	// Gateway is the referenced Gateway, or the ListenerSet's.
	Gateway *Gateway
	// Refused is why the route does not attach; zero if it does.
	Refused Verdict
	// Listeners are those to which the route attaches by this reference, in order of precedence;
	// none if it is refused.
	Listeners []*Listener
}

// route is a route of any kind.
type route struct {
	objects.Object
	group     string
	created   time.Time
	hostnames []string // nil for any
	parents   []gatewayv1.ParentReference
}

// Of returns the attachments in a Network.
func Of(n *objects.Network) *Attachments {
	a := &Attachments{Classes: make(map[string]Class)}
	settings := newSettings(n)
	for i := range n.Classes {
		if n.Classes[i].Spec.ControllerName == Controller {
			a.Classes[n.Classes[i].Name] = settings.ofClass(&n.Classes[i])
		}
	}
	byName := make(map[objects.Object]target)
	labels := labelsOf(n.Namespaces)
	for _, g := range gateways(n, a.Classes, settings, labels) {
		a.Gateways = append(a.Gateways, g)
		own := objects.Object{Kind: objects.GatewayKind, Name: g.Name}
		byName[own] = newTarget(g, own, Verdict{})
		for _, s := range g.Sets {
			of := objects.Object{Kind: objects.ListenerSetKind, Name: s.Name}
			byName[of] = newTarget(g, of, s.Refused)
		}
	}
	all := routes(n)
	a.Parents = make(map[objects.Object][]Parent, len(all))
	for i := range all {
		a.attach(&all[i], byName, labels)
	}
	a.attachPools(n, labels)
	return a
}

// routes returns every route, the oldest first, then by name: this is the order of precedence in
// conflicts.
func routes(n *objects.Network) []route {
	all := make([]route, 0, len(n.HTTPRoutes)+len(n.GRPCRoutes)+len(n.Routes))
	add := func(kind, group string, m objectMeta, hostnames []gatewayv1.Hostname, parents []gatewayv1.ParentReference) {
		r := route{
			Object: objects.Object{Kind: kind, Name: objects.Name{Namespace: m.GetNamespace(), Name: m.GetName()}},
			group:  group, created: m.GetCreationTimestamp().Time, parents: parents,
		}
		for _, h := range hostnames {
			r.hostnames = append(r.hostnames, string(h))
		}
		all = append(all, r)
	}
	for i := range n.HTTPRoutes {
		r := &n.HTTPRoutes[i]
		add(objects.HTTPRouteKind, gatewayv1.GroupName, r, r.Spec.Hostnames, r.Spec.ParentRefs)
	}
	for i := range n.GRPCRoutes {
		r := &n.GRPCRoutes[i]
		add(objects.GRPCRouteKind, gatewayv1.GroupName, r, r.Spec.Hostnames, r.Spec.ParentRefs)
	}
	for i := range n.Routes {
		r := &n.Routes[i]
		add(v1alpha1.LLMRouteKind, v1alpha1.SchemeGroupVersion.Group, r, nil, parentsOf(r))
	}
	slices.SortStableFunc(all, func(a, b route) int {
		return cmp.Or(a.created.Compare(b.created), a.Name.Compare(b.Name), cmp.Compare(a.Kind, b.Kind))
	})
	return all
}

// parentsOf returns the parentRefs of an LLMRoute as Gateway API's type.
func parentsOf(r *v1alpha1.LLMRoute) []gatewayv1.ParentReference {
	all := make([]gatewayv1.ParentReference, len(r.Spec.ParentRefs))
	for i, p := range r.Spec.ParentRefs {
		all[i] = ParentRef(p)
	}
	return all
}

// ParentRef converts an LLMRoute's parentRef to Gateway API's type.
func ParentRef(p v1alpha1.ParentReference) gatewayv1.ParentReference {
	return gatewayv1.ParentReference{
		Group: (*gatewayv1.Group)(p.Group), Kind: (*gatewayv1.Kind)(p.Kind), Namespace: (*gatewayv1.Namespace)(p.Namespace),
		Name: gatewayv1.ObjectName(p.Name), SectionName: (*gatewayv1.SectionName)(p.SectionName), Port: p.Port,
	}
}
