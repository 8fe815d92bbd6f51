// Package attach says who attaches where: which listeners there are, and which routes each of them has. It is pure, and the one place
// that says so: control builds Envoy's configuration from it, and extproc finds by it the models of a listener.
//
// It knows nothing of what routes do, nor whether what they name exists. The rules are those of Gateway API 1.6
// (gateway-api.sigs.k8s.io/reference/spec).
package attach

import (
	"cmp"
	"slices"
	"time"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// Controller is the controllerName of the GatewayClasses that are Headgate's.
const Controller = gatewayv1.GatewayController("headgate.dev/gateway-controller")

// Attachments are the Gateways of Headgate's classes, and what attaches to them. They are immutable.
type Attachments struct {
	// Classes are the GatewayClasses of ours, by name.
	Classes map[string]Class
	// Gateways in order of name.
	Gateways []*Gateway
	// Parents are what became of each parentRef of a route that names a Gateway of ours, or a ListenerSet of one, by the route, in
	// the order of the route's.
	Parents map[objects.Object][]Parent
}

// Class is what a GatewayClass says of its Gateways.
type Class struct {
	Settings v1alpha1.GatewaySettingsSpec
	// Refused is why it says nothing, though it names settings; zero if it does not.
	Refused Verdict
}

// Gateway is a Gateway with all its listeners.
type Gateway struct {
	*gatewayv1.Gateway
	Name objects.Name
	// Settings are what its GatewaySettings say, and those of its class where they say nothing.
	Settings v1alpha1.GatewaySettingsSpec
	// Refused is why Settings are not what the Gateway asks for; zero if they are.
	Refused Verdict
	// Listeners in order of precedence: the Gateway's own, then those of its ListenerSets, the oldest first.
	Listeners []*Listener
	// Sets are the ListenerSets that name it, in the same order, the refused ones too.
	Sets []*Set
}

// Set is a ListenerSet that names a Gateway.
type Set struct {
	*gatewayv1.ListenerSet
	Name objects.Name
	// Refused is why its listeners are none of the Gateway's; zero if they are.
	Refused Verdict
}

// Listener is a listener of a Gateway.
type Listener struct {
	// Of is the Gateway or ListenerSet that declares it, under the name Section.
	Of       objects.Object
	Section  string
	Port     int32
	Protocol gatewayv1.ProtocolType
	// Hostname is a pattern as of [Intersect].
	Hostname string
	TLS      *gatewayv1.ListenerTLSConfig
	// Kinds of routes that may attach, in the order of the listener's, and whether it names others too.
	Kinds      []gatewayv1.RouteGroupKind
	OtherKinds bool
	// Refused is why nothing is served there; zero if it is.
	Refused Verdict
	// Routes that attach, whose parentRef is Accepted, the oldest first, then in order of name.
	Routes []Attached
	// Pools that no LLMRoute names, whose models it serves, in order of name.
	Pools []objects.Name

	namespaces *gatewayv1.RouteNamespaces
	kinds      map[string]bool // of Routes
}

// Verdict is why something is not in force: a reason of a condition, and words for people. The zero Verdict says that it is.
type Verdict struct{ Reason, Words string }

// Attached is a route at a listener.
type Attached struct {
	Route objects.Object
	// Hostnames are patterns as of [Intersect] that the listener and the route have in common.
	Hostnames []string
}

// Parent is a parentRef of a route that names an object of ours.
type Parent struct {
	Ref gatewayv1.ParentReference
	// Gateway is the one that it leads to.
	Gateway *Gateway
	// Refused is why the route does not attach; zero if it does.
	Refused Verdict
	// Listeners are those to which the route attaches by it, in order of precedence; none where it is refused.
	Listeners []*Listener
}

// route is what is known of routes of every kind.
type route struct {
	objects.Object
	group     string
	created   time.Time
	hostnames []string // nil for every one
	parents   []gatewayv1.ParentReference
}

// Of returns who attaches where.
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

// routes returns every route, the oldest first, then in order of name: in that order they take what two of them want.
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

// parentsOf returns the parentRefs of an LLMRoute in Gateway API's words.
func parentsOf(r *v1alpha1.LLMRoute) []gatewayv1.ParentReference {
	all := make([]gatewayv1.ParentReference, len(r.Spec.ParentRefs))
	for i, p := range r.Spec.ParentRefs {
		all[i] = ParentRef(p)
	}
	return all
}

// ParentRef is what an LLMRoute names, in Gateway API's words.
func ParentRef(p v1alpha1.ParentReference) gatewayv1.ParentReference {
	return gatewayv1.ParentReference{
		Group: (*gatewayv1.Group)(p.Group), Kind: (*gatewayv1.Kind)(p.Kind), Namespace: (*gatewayv1.Namespace)(p.Namespace),
		Name: gatewayv1.ObjectName(p.Name), SectionName: (*gatewayv1.SectionName)(p.SectionName), Port: p.Port,
	}
}
