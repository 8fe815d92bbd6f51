package attach

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// objectMeta is the metadata of any object.
type objectMeta interface {
	GetNamespace() string
	GetName() string
	GetCreationTimestamp() metav1.Time
}

// gateways returns the Gateways of our classes, sorted by name, without routes.
func gateways(n *objects.Network, classes map[string]Class, settings settings, namespaces map[string]labels.Set) []*Gateway {
	var all []*Gateway
	for i := range n.Gateways {
		class, ours := classes[string(n.Gateways[i].Spec.GatewayClassName)]
		if !ours {
			continue
		}
		g := &Gateway{Gateway: &n.Gateways[i], Name: objects.Name{Namespace: n.Gateways[i].Namespace, Name: n.Gateways[i].Name}}
		g.Settings, g.Refused = settings.ofGateway(g.Gateway, class)
		g.Sets = setsOf(g, n.Listeners, namespaces)
		g.addListeners()
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b *Gateway) int { return a.Name.Compare(b.Name) })
	return all
}

// setsOf returns the ListenerSets that name a Gateway, the oldest first, then by name.
func setsOf(g *Gateway, all []gatewayv1.ListenerSet, namespaces map[string]labels.Set) []*Set {
	var sets []*Set
	for i := range all {
		s := &Set{ListenerSet: &all[i], Name: objects.Name{Namespace: all[i].Namespace, Name: all[i].Name}}
		ref := s.Spec.ParentRef
		of := objects.Name{Namespace: string(ptr.Deref(ref.Namespace, gatewayv1.Namespace(s.Namespace))), Name: string(ref.Name)}
		if of != g.Name || ptr.Deref(ref.Group, gatewayv1.GroupName) != gatewayv1.GroupName ||
			ptr.Deref(ref.Kind, objects.GatewayKind) != objects.GatewayKind {
			continue
		}
		from, selector := gatewayv1.NamespacesFromNone, (*metav1.LabelSelector)(nil)
		if a := g.Spec.AllowedListeners; a != nil && a.Namespaces != nil {
			from, selector = ptr.Deref(a.Namespaces.From, from), a.Namespaces.Selector
		}
		if !allows(from, selector, g.Namespace, s.Namespace, namespaces) {
			s.Refused = Verdict{
				string(gatewayv1.ListenerSetReasonNotAllowed),
				fmt.Sprintf("spec.allowedListeners of Gateway %s does not allow ListenerSets of namespace %s", g.Name, s.Namespace),
			}
		}
		sets = append(sets, s)
	}
	slices.SortFunc(sets, func(a, b *Set) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), a.Name.Compare(b.Name))
	})
	return sets
}

// addListeners collects the listeners of a Gateway and refuses those that cannot be served.
func (g *Gateway) addListeners() {
	var own []*Listener
	for _, l := range g.Spec.Listeners {
		own = append(own, newListener(objects.Object{Kind: objects.GatewayKind, Name: g.Name}, gatewayv1.ListenerEntry(l)))
	}
	g.add(own)
	for _, s := range g.Sets {
		if s.Refused != (Verdict{}) {
			continue
		}
		var more []*Listener
		for _, l := range s.Spec.Listeners {
			more = append(more, newListener(objects.Object{Kind: objects.ListenerSetKind, Name: s.Name}, l))
		}
		g.add(more)
	}
}

// add adds the listeners of one object. A listener that conflicts with one of an earlier object is
// refused. Of conflicting listeners within the object, all are refused.
func (g *Gateway) add(listeners []*Listener) {
	for _, l := range listeners {
		for _, other := range served(g.Listeners) {
			l.refuse(other)
		}
		if l.Refused == (Verdict{}) && l.Protocol != gatewayv1.HTTPProtocolType && l.Protocol != gatewayv1.HTTPSProtocolType {
			l.Refused = Verdict{
				string(gatewayv1.ListenerReasonUnsupportedProtocol),
				fmt.Sprintf("Headgate serves HTTP and HTTPS, not %s", l.Protocol),
			}
		}
		if what := Reserved[l.Port]; l.Refused == (Verdict{}) && what != "" && g.Managed() {
			l.Refused = Verdict{
				string(gatewayv1.ListenerReasonPortUnavailable),
				fmt.Sprintf("at port %d of a Gateway's pods %s: choose another port", l.Port, what),
			}
		}
	}
	rest := served(listeners)
	for _, l := range rest {
		for _, other := range rest {
			if l != other {
				l.refuse(other)
			}
		}
	}
	g.Listeners = append(g.Listeners, listeners...)
}

// Address is the address that the Gateway's Envoy listens on: the first IP address in the Gateway's
// spec, otherwise all addresses.
func (g *Gateway) Address() string { return cmp.Or(g.Asked(), "0.0.0.0") }

// Asked is the first IP address in the Gateway's spec; empty if there is none.
func (g *Gateway) Asked() string {
	for _, a := range g.Spec.Addresses {
		if _, err := netip.ParseAddr(a.Value); err == nil && ptr.Deref(a.Type, gatewayv1.IPAddressType) == gatewayv1.IPAddressType {
			return a.Value
		}
	}
	return ""
}

// Clients returns how client certificates are verified on a TLS port; nil if none are needed.
func (g *Gateway) Clients(port int32) *gatewayv1.FrontendTLSValidation {
	if g.Spec.TLS == nil || g.Spec.TLS.Frontend == nil {
		return nil
	}
	for _, p := range g.Spec.TLS.Frontend.PerPort {
		if p.Port == port {
			return p.TLS.Validation
		}
	}
	return g.Spec.TLS.Frontend.Default.Validation
}

// Shows is the client certificate that Envoys present to Services; nil if there is none.
func (g *Gateway) Shows() *gatewayv1.SecretObjectReference {
	if g.Spec.TLS == nil || g.Spec.TLS.Backend == nil {
		return nil
	}
	return g.Spec.TLS.Backend.ClientCertificateRef
}

// served returns the listeners that are not refused.
func served(all []*Listener) []*Listener {
	return slices.DeleteFunc(slices.Clone(all), func(l *Listener) bool { return l.Refused != (Verdict{}) })
}

// refuse refuses a listener that conflicts with another one.
func (l *Listener) refuse(other *Listener) {
	if l.Refused != (Verdict{}) || l.Port != other.Port {
		return
	}
	switch {
	case l.Protocol != other.Protocol:
		l.Refused = Verdict{
			string(gatewayv1.ListenerReasonProtocolConflict),
			fmt.Sprintf("port %d is that of listener %s, whose protocol is %s", l.Port, other, other.Protocol),
		}
	case l.Hostname == other.Hostname:
		l.Refused = Verdict{
			string(gatewayv1.ListenerReasonHostnameConflict),
			fmt.Sprintf("port %d and hostname %q are those of listener %s", l.Port, l.Hostname, other),
		}
	}
}

// String names a listener for people.
func (l *Listener) String() string { return l.Of.String() + " " + l.Section }

func newListener(of objects.Object, e gatewayv1.ListenerEntry) *Listener {
	l := &Listener{
		Of: of, Section: string(e.Name), Port: e.Port, Protocol: e.Protocol, Hostname: string(ptr.Deref(e.Hostname, "")),
		TLS: e.TLS,
	}
	var named []gatewayv1.RouteGroupKind
	if e.AllowedRoutes != nil {
		named, l.namespaces = e.AllowedRoutes.Kinds, e.AllowedRoutes.Namespaces
	}
	supported := supportedKinds(e.Protocol)
	if len(named) == 0 {
		l.Kinds = supported
		return l
	}
	if len(supported) > 0 {
		supported = append(supported, poolKind)
	}
	for _, k := range named {
		i := slices.IndexFunc(supported, func(s gatewayv1.RouteGroupKind) bool {
			return s.Kind == k.Kind && *s.Group == ptr.Deref(k.Group, gatewayv1.GroupName)
		})
		if i < 0 {
			l.OtherKinds = true
			continue
		}
		l.Kinds = append(l.Kinds, supported[i])
	}
	return l
}

// supportedKinds are the default kinds of routes for a protocol.
func supportedKinds(protocol gatewayv1.ProtocolType) []gatewayv1.RouteGroupKind {
	if protocol != gatewayv1.HTTPProtocolType && protocol != gatewayv1.HTTPSProtocolType {
		return nil
	}
	gateway, inference := gatewayv1.Group(gatewayv1.GroupName), gatewayv1.Group(v1alpha1.SchemeGroupVersion.Group)
	return []gatewayv1.RouteGroupKind{
		{Group: &gateway, Kind: objects.HTTPRouteKind},
		{Group: &gateway, Kind: objects.GRPCRouteKind},
		{Group: &inference, Kind: v1alpha1.LLMRouteKind},
	}
}

// labelsOf returns the labels of namespaces by name. A folder may lack Namespace objects.
func labelsOf(all []objects.Namespace) map[string]labels.Set {
	of := make(map[string]labels.Set, len(all))
	for _, n := range all {
		of[n.Name] = n.Labels
	}
	return of
}

// allows reports whether an object of one namespace may reference or attach to an object of
// another.
func allows(from gatewayv1.FromNamespaces, selector *metav1.LabelSelector, own, other string, namespaces map[string]labels.Set) bool {
	switch from {
	case gatewayv1.NamespacesFromAll:
		return true
	case gatewayv1.NamespacesFromSame:
		return own == other
	case gatewayv1.NamespacesFromSelector:
		s, err := metav1.LabelSelectorAsSelector(selector)
		// Every namespace has this label, even without a Namespace object (Kubernetes 1.22).
		return err == nil && s.Matches(labels.Merge(namespaces[other], labels.Set{"kubernetes.io/metadata.name": other}))
	}
	return false
}
