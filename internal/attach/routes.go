package attach

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/internal/objects"
)

// target is an object that a parentRef can name.
type target struct {
	gateway *Gateway
	of      objects.Object // the Gateway or ListenerSet
	refused Verdict        // why the ListenerSet is not part of the Gateway
	// own are its listeners in order of precedence; bySection are the same by name.
	own       []*Listener
	bySection map[string][]*Listener
}

func newTarget(g *Gateway, of objects.Object, refused Verdict) target {
	t := target{gateway: g, of: of, refused: refused, bySection: make(map[string][]*Listener)}
	for _, l := range g.Listeners {
		if l.Of == of {
			t.own, t.bySection[l.Section] = append(t.own, l), append(t.bySection[l.Section], l)
		}
	}
	return t
}

// attach attaches a route to the targets of its parentRefs.
func (a *Attachments) attach(r *route, targets map[objects.Object]target, namespaces map[string]labels.Set) {
	for _, ref := range r.parents {
		kind := string(ptr.Deref(ref.Kind, objects.GatewayKind))
		name := objects.Name{Namespace: string(ptr.Deref(ref.Namespace, gatewayv1.Namespace(r.Name.Namespace))), Name: string(ref.Name)}
		t, ours := targets[objects.Object{Kind: kind, Name: name}]
		if !ours || ptr.Deref(ref.Group, gatewayv1.GroupName) != gatewayv1.GroupName {
			continue
		}
		p := Parent{Ref: ref, Gateway: t.gateway}
		p.Listeners, p.Refused = t.listeners(r, ref, namespaces)
		for _, l := range p.Listeners {
			l.attach(r)
		}
		a.Parents[r.Object] = append(a.Parents[r.Object], p)
	}
}

// listeners returns the listeners to which a route attaches by a parentRef, or why there are none.
func (t target) listeners(r *route, ref gatewayv1.ParentReference, namespaces map[string]labels.Set) ([]*Listener, Verdict) {
	if t.refused != (Verdict{}) {
		return nil, Verdict{
			string(gatewayv1.RouteReasonNoMatchingParent),
			fmt.Sprintf("%s is not accepted by Gateway %s", t.of, t.gateway.Name),
		}
	}
	all := t.own
	if ref.SectionName != nil {
		all = t.bySection[string(*ref.SectionName)]
	}
	named := slices.DeleteFunc(slices.Clone(all), func(l *Listener) bool { return ref.Port != nil && *ref.Port != l.Port })
	if len(named) == 0 {
		return nil, Verdict{string(gatewayv1.RouteReasonNoMatchingParent), fmt.Sprintf("%s has no listener%s", t.of, asked(ref))}
	}
	open := slices.DeleteFunc(named, func(l *Listener) bool { return !l.allows(r.group, r.Object, t.gateway.Namespace, namespaces) })
	if len(open) == 0 {
		return nil, Verdict{
			string(gatewayv1.RouteReasonNotAllowedByListeners),
			fmt.Sprintf("allowedRoutes of no listener of %s%s allows %ss of namespace %s", t.of, asked(ref), r.Kind, r.Name.Namespace),
		}
	}
	fitting := slices.DeleteFunc(open, func(l *Listener) bool { return len(l.common(r)) == 0 })
	if len(fitting) == 0 {
		return nil, Verdict{
			string(gatewayv1.RouteReasonNoMatchingListenerHostname),
			fmt.Sprintf("no listener of %s%s has a hostname in common with %v", t.of, asked(ref), r.hostnames),
		}
	}
	// If an older route of the other kind has some of its hostnames, only one of the two is
	// accepted (GRPCRoute, spec.hostnames).
	var other objects.Object
	free := slices.DeleteFunc(fitting, func(l *Listener) bool {
		of, taken := l.takenBy(r)
		if taken {
			other = of
		}
		return taken
	})
	if len(free) == 0 {
		return nil, Verdict{
			reasonHostnameConflict,
			fmt.Sprintf("%s has some of its hostnames, and a listener takes HTTPRoutes or GRPCRoutes for a hostname, not both", other),
		}
	}
	return free, Verdict{}
}

// reasonHostnameConflict is the reason for a route refused because of one of the other kind;
// Gateway API defines none.
const reasonHostnameConflict = "HostnameConflict"

// takenBy returns a route of the other kind (GRPCRoute or HTTPRoute) with some of the hostnames at
// a listener; false if there is none.
func (l *Listener) takenBy(r *route) (objects.Object, bool) {
	other, exclusive := map[string]string{
		objects.HTTPRouteKind: objects.GRPCRouteKind,
		objects.GRPCRouteKind: objects.HTTPRouteKind,
	}[r.Kind]
	if !exclusive || !l.kinds[other] {
		return objects.Object{}, false
	}
	for _, at := range l.Routes {
		if at.Route.Kind == other && slices.ContainsFunc(l.common(r), func(own string) bool {
			return slices.ContainsFunc(at.Hostnames, func(its string) bool {
				_, both := Intersect(own, its)
				return both
			})
		}) {
			return at.Route, true
		}
	}
	return objects.Object{}, false
}

// asked describes the part of a parent that a parentRef names.
func asked(ref gatewayv1.ParentReference) string {
	var words string
	if ref.SectionName != nil {
		words = fmt.Sprintf(" named %s", *ref.SectionName)
	}
	if ref.Port != nil {
		words += fmt.Sprintf(" at port %d", *ref.Port)
	}
	return words
}

// allows reports whether a listener of a Gateway in a namespace allows an object of a group.
func (l *Listener) allows(group string, r objects.Object, gateway string, namespaces map[string]labels.Set) bool {
	if !slices.ContainsFunc(l.Kinds, func(k gatewayv1.RouteGroupKind) bool {
		return string(k.Kind) == r.Kind && string(*k.Group) == group
	}) {
		return false
	}
	own := gateway
	if l.Of.Kind == objects.ListenerSetKind {
		own = l.Of.Name.Namespace
	}
	if l.namespaces == nil {
		return own == r.Name.Namespace
	}
	return allows(ptr.Deref(l.namespaces.From, gatewayv1.NamespacesFromSame), l.namespaces.Selector, own, r.Name.Namespace, namespaces)
}

// common returns the hostnames that a listener and a route have in common, in the route's order and
// without duplicates.
func (l *Listener) common(r *route) []string {
	if len(r.hostnames) == 0 {
		return []string{l.Hostname}
	}
	var all []string
	for _, h := range r.hostnames {
		if both, ok := Intersect(l.Hostname, h); ok && !slices.Contains(all, both) {
			all = append(all, both)
		}
	}
	return all
}

// attach adds a route to a listener, once even if several parentRefs lead there. A route's
// references are processed together.
func (l *Listener) attach(r *route) {
	if n := len(l.Routes); n > 0 && l.Routes[n-1].Route == r.Object {
		return
	}
	l.Routes = append(l.Routes, Attached{r.Object, l.common(r)})
	if l.kinds == nil {
		l.kinds = make(map[string]bool)
	}
	l.kinds[r.Kind] = true
}
