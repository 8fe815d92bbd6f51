package conditions

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/attach"
)

// The API server's limits on the parents in a status and on the ancestors in a policy's status.
// Entries of other controllers are included.
const (
	maxParents   = 32
	maxAncestors = 16
)

// Empty reports whether the object needs no status from Headgate.
func (s *Status) Empty() bool { return len(s.Conditions) == 0 && len(s.Parents) == 0 && !s.Own }

// Put writes the status into an object of the matching Go type at the time now. It keeps the
// conditions of other types and the parents of other controllers. The transition time of a
// condition changes only with its status.
func (s *Status) Put(o any, now metav1.Time) {
	switch o := o.(type) {
	case *gatewayv1.GatewayClass:
		o.Status.Conditions = s.conditions(o.Status.Conditions, s.Conditions, now)
		o.Status.SupportedFeatures = make([]gatewayv1.SupportedFeature, len(s.Features))
		for i, f := range s.Features {
			o.Status.SupportedFeatures[i].Name = f
		}
	case *gatewayv1.Gateway:
		o.Status.Conditions = s.conditions(o.Status.Conditions, s.Conditions, now)
		o.Status.Addresses, o.Status.AttachedListenerSets = make([]gatewayv1.GatewayStatusAddress, len(s.Addresses)), new(s.Sets)
		for i := range s.Addresses {
			o.Status.Addresses[i] = *s.Addresses[i].DeepCopy()
		}
		o.Status.Listeners = listeners(s, o.Status.Listeners, now)
	case *gatewayv1.ListenerSet:
		o.Status.Conditions = s.conditions(o.Status.Conditions, s.Conditions, now)
		o.Status.Listeners = listeners(s, o.Status.Listeners, now)
	case *gatewayv1.HTTPRoute:
		o.Status.Parents = parents(s, o.Status.Parents, now, ofRoute)
	case *gatewayv1.GRPCRoute:
		o.Status.Parents = parents(s, o.Status.Parents, now, ofRoute)
	case *v1alpha1.LLMRoute:
		if s.Own {
			o.Status.Models, o.Status.Pools = slices.Clone(s.Models), slices.Clone(s.Pools)
			o.Status.Columns = v1alpha1.LLMRouteColumns{Models: Column(s.Models), Pools: Column(s.Pools)}
			o.Status.Conditions = s.conditions(o.Status.Conditions, s.Conditions, now)
		}
		if s.Attached {
			o.Status.Parents = parents(s, o.Status.Parents, now, ofLLMRoute)
		}
	case *v1alpha1.PoolSettings:
		o.Status.ObservedGeneration, o.Status.Endpoints = s.Generation, s.Endpoints
		o.Status.Conditions = s.conditions(o.Status.Conditions, s.Conditions, now)
	case *v1alpha1.EndpointList:
		o.Status.ObservedGeneration, o.Status.Endpoints = s.Generation, s.Endpoints
		o.Status.Conditions = s.conditions(o.Status.Conditions, s.Conditions, now)
	case *pool.InferencePool:
		o.Status.Parents = parents(s, o.Status.Parents, now, ofPool)
	case *gatewayv1.BackendTLSPolicy:
		o.Status.Ancestors = parents(s, o.Status.Ancestors, now, ofPolicy)
	}
}

// listeners returns the listeners in the status of a Gateway or ListenerSet, whose Go types have
// the same fields.
func listeners[L gatewayv1.ListenerStatus | gatewayv1.ListenerEntryStatus](s *Status, are []L, now metav1.Time) []L {
	before := make(map[gatewayv1.SectionName][]metav1.Condition, len(are))
	for _, was := range are {
		l := gatewayv1.ListenerStatus(was)
		before[l.Name] = l.Conditions
	}
	all := make([]L, len(s.Listeners))
	for i, l := range s.Listeners {
		all[i] = L(gatewayv1.ListenerStatus{
			Name: l.Name, SupportedKinds: kindsOf(l), AttachedRoutes: l.Routes, Conditions: s.conditions(before[l.Name], l.Conditions, now),
		})
	}
	return all
}

// kindsOf returns a copy of a listener's kinds, since clients write into the objects that they get.
func kindsOf(l Listener) []gatewayv1.RouteGroupKind {
	all := make([]gatewayv1.RouteGroupKind, len(l.Kinds))
	for i := range l.Kinds {
		all[i] = *l.Kinds[i].DeepCopy()
	}
	return all
}

// fleeting are the types of our conditions that an object has only while they apply: Put removes a
// condition of these types that does not apply.
var fleeting = []string{
	string(gatewayv1.GatewayClassConditionStatusSupportedVersion), string(gatewayv1.ListenerConditionOverlappingTLSConfig),
	string(gatewayv1.RouteConditionPartiallyInvalid), string(gatewayv1.GatewayConditionInsecureFrontendValidationMode),
	v1alpha1.ConditionEndpoints,
	string(gatewayv1.GatewayConditionResolvedRefs), // optional only for a Gateway; other objects always have it
}

// conditions merges the wanted conditions into those of an object, or of a part of it.
func (s *Status) conditions(are, want []metav1.Condition, now metav1.Time) []metav1.Condition {
	var all []metav1.Condition
	find := func(in []metav1.Condition, of string) int {
		return slices.IndexFunc(in, func(c metav1.Condition) bool { return c.Type == of })
	}
	for _, c := range are {
		if find(want, c.Type) >= 0 || !slices.Contains(fleeting, c.Type) {
			all = append(all, c)
		}
	}
	for _, c := range want {
		c.ObservedGeneration, c.LastTransitionTime = s.Generation, now
		i := find(all, c.Type)
		if i < 0 {
			all = append(all, c)
			continue
		}
		if all[i].Status == c.Status {
			c.LastTransitionTime = all[i].LastTransitionTime
		}
		all[i] = c
	}
	return all
}

// view reads and writes an entry of a status's parents, which has the Go type P.
type view[P any] struct {
	most       int
	controller func(*P) string
	ref        func(*P) gatewayv1.ParentReference
	conditions func(*P) *[]metav1.Condition
	make       func(gatewayv1.ParentReference) P
}

// parents merges our parents into those of a route, pool or policy. Existing entries keep their
// places, and new ones follow.
func parents[P any](s *Status, are []P, now metav1.Time, v view[P]) []P {
	all := make([]P, 0, len(are)+len(s.Parents)) // not nil, since API servers reject null
	said := make(map[string]bool)
	put := func(p P, want Parent) {
		said[keyOf(want.Ref)] = true
		*v.conditions(&p) = s.conditions(*v.conditions(&p), want.Conditions, now)
		all = append(all, p)
	}
	for i := range are {
		p := are[i]
		if v.controller(&p) != string(attach.Controller) {
			all = append(all, p)
			continue
		}
		key := keyOf(v.ref(&p))
		if j := slices.IndexFunc(s.Parents, func(want Parent) bool { return keyOf(want.Ref) == key }); j >= 0 && !said[key] {
			put(p, s.Parents[j])
		}
	}
	for _, want := range s.Parents {
		if !said[keyOf(want.Ref)] && len(all) < v.most {
			put(v.make(*want.Ref.DeepCopy()), want)
		}
	}
	return all
}

var ofRoute = view[gatewayv1.RouteParentStatus]{
	most:       maxParents,
	controller: func(p *gatewayv1.RouteParentStatus) string { return string(p.ControllerName) },
	ref:        func(p *gatewayv1.RouteParentStatus) gatewayv1.ParentReference { return p.ParentRef },
	conditions: func(p *gatewayv1.RouteParentStatus) *[]metav1.Condition { return &p.Conditions },
	make: func(ref gatewayv1.ParentReference) gatewayv1.RouteParentStatus {
		return gatewayv1.RouteParentStatus{ParentRef: ref, ControllerName: attach.Controller}
	},
}

var ofLLMRoute = view[v1alpha1.ParentStatus]{
	most:       maxParents,
	controller: func(p *v1alpha1.ParentStatus) string { return p.ControllerName },
	ref:        func(p *v1alpha1.ParentStatus) gatewayv1.ParentReference { return attach.ParentRef(p.ParentRef) },
	conditions: func(p *v1alpha1.ParentStatus) *[]metav1.Condition { return &p.Conditions },
	make: func(ref gatewayv1.ParentReference) v1alpha1.ParentStatus {
		return v1alpha1.ParentStatus{
			ParentRef: v1alpha1.ParentReference{
				Group: (*string)(ref.Group), Kind: (*string)(ref.Kind), Namespace: (*string)(ref.Namespace),
				Name: string(ref.Name), SectionName: (*string)(ref.SectionName), Port: ref.Port,
			},
			ControllerName: string(attach.Controller),
		}
	},
}

var ofPolicy = view[gatewayv1.PolicyAncestorStatus]{
	most:       maxAncestors,
	controller: func(p *gatewayv1.PolicyAncestorStatus) string { return string(p.ControllerName) },
	ref:        func(p *gatewayv1.PolicyAncestorStatus) gatewayv1.ParentReference { return p.AncestorRef },
	conditions: func(p *gatewayv1.PolicyAncestorStatus) *[]metav1.Condition { return &p.Conditions },
	make: func(ref gatewayv1.ParentReference) gatewayv1.PolicyAncestorStatus {
		return gatewayv1.PolicyAncestorStatus{AncestorRef: ref, ControllerName: attach.Controller}
	},
}

var ofPool = view[pool.ParentStatus]{
	most:       maxParents,
	controller: func(p *pool.ParentStatus) string { return p.ControllerName },
	ref: func(p *pool.ParentStatus) gatewayv1.ParentReference {
		is := gatewayv1.ParentReference{Group: (*gatewayv1.Group)(p.ParentRef.Group), Name: gatewayv1.ObjectName(p.ParentRef.Name)}
		if p.ParentRef.Kind != "" {
			is.Kind = new(gatewayv1.Kind(p.ParentRef.Kind))
		}
		if p.ParentRef.Namespace != "" {
			is.Namespace = new(gatewayv1.Namespace(p.ParentRef.Namespace))
		}
		return is
	},
	conditions: func(p *pool.ParentStatus) *[]metav1.Condition { return &p.Conditions },
	make: func(ref gatewayv1.ParentReference) pool.ParentStatus {
		return pool.ParentStatus{
			ParentRef: pool.ParentReference{
				Group: (*string)(ref.Group), Kind: string(ptr.Deref(ref.Kind, "")), Namespace: string(ptr.Deref(ref.Namespace, "")),
				Name: string(ref.Name),
			},
			ControllerName: string(attach.Controller),
		}
	},
}

// maxColumn is the length up to which a column of kubectl get lists names.
const maxColumn = 40

// Column formats names for a column of kubectl get, such as "chat,code,+7". It lists as many names
// as fit, but at least one.
func Column(names []string) string {
	var words strings.Builder
	for i, name := range names {
		if i > 0 && words.Len()+len(name) > maxColumn {
			fmt.Fprintf(&words, ",+%d", len(names)-i)
			break
		}
		if i > 0 {
			words.WriteString(",")
		}
		words.WriteString(name)
	}
	return words.String()
}
