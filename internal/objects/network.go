package objects

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
)

// Network is the objects that define how requests enter and where they may go: Gateways, everything
// attached to them, and everything these reference. It is immutable and rebuilt only when one of
// these objects changes, so that its users can compare pointers: changes of pods build no new
// Network. Objects of each kind are sorted by name.
type Network struct {
	Classes    []gatewayv1.GatewayClass
	Gateways   []gatewayv1.Gateway
	Listeners  []gatewayv1.ListenerSet
	HTTPRoutes []gatewayv1.HTTPRoute
	GRPCRoutes []gatewayv1.GRPCRoute
	Grants     []gatewayv1.ReferenceGrant
	// Policies configure TLS to Services.
	Policies   []gatewayv1.BackendTLSPolicy
	Namespaces []Namespace
	Services   []Service
	// GatewaySettings configure the Envoys of Gateways.
	GatewaySettings []v1alpha1.GatewaySettings
	// KeyPairs are the Secrets of a folder, Authorities its ConfigMaps.
	KeyPairs    []KeyPair
	Authorities []Authorities

	// Other objects that attach or are referenced; a Set has these kinds, too.
	Routes   []v1alpha1.LLMRoute
	Pools    []pool.InferencePool
	Settings []v1alpha1.PoolSettings
}

// Kinds that only a [Network] has, not a [Set]: those of Gateway API and of Kubernetes itself.
const (
	GatewayClassKind     = "GatewayClass"
	GatewayKind          = "Gateway"
	ListenerSetKind      = "ListenerSet"
	HTTPRouteKind        = "HTTPRoute"
	GRPCRouteKind        = "GRPCRoute"
	ReferenceGrantKind   = "ReferenceGrant"
	BackendTLSPolicyKind = "BackendTLSPolicy"
	NamespaceKind        = "Namespace"
	ServiceKind          = "Service"
)

// collections returns the collection of each kind. Every list of Network has an entry here.
func (n *Network) collections() map[string]collection {
	return map[string]collection{
		GatewayClassKind:             named(&n.Classes),
		GatewayKind:                  named(&n.Gateways),
		ListenerSetKind:              named(&n.Listeners),
		HTTPRouteKind:                named(&n.HTTPRoutes),
		GRPCRouteKind:                named(&n.GRPCRoutes),
		ReferenceGrantKind:           named(&n.Grants),
		BackendTLSPolicyKind:         named(&n.Policies),
		NamespaceKind:                ordered[Namespace]{&n.Namespaces, func(ns *Namespace) Name { return Name{Name: ns.Name} }},
		ServiceKind:                  ordered[Service]{&n.Services, func(s *Service) Name { return s.Name }},
		v1alpha1.GatewaySettingsKind: named(&n.GatewaySettings),
		ConfigMapKind:                ordered[Authorities]{&n.Authorities, func(a *Authorities) Name { return a.Name }},
		SecretKind:                   ordered[KeyPair]{&n.KeyPairs, func(k *KeyPair) Name { return k.Name }},
		v1alpha1.LLMRouteKind:        named(&n.Routes),
		pool.Kind:                    named(&n.Pools),
		v1alpha1.PoolSettingsKind:    named(&n.Settings),
	}
}

// ordered is a collection that is sorted by name after additions.
type ordered[T any] struct {
	all  *[]T
	name func(*T) Name
}

func (o ordered[T]) count() int { return len(*o.all) }

func (o ordered[T]) add(same collection) {
	*o.all = slices.Concat(*o.all, *same.(ordered[T]).all)
	slices.SortStableFunc(*o.all, func(a, b T) int { return o.name(&a).Compare(o.name(&b)) })
}

// named is a collection of objects with metadata.
func named[T any, P interface {
	*T
	metav1.Object
}](all *[]T) ordered[T] {
	return ordered[T]{all, func(o *T) Name { return Name{P(o).GetNamespace(), P(o).GetName()} }}
}

// join returns a Network with the objects of both; if one is nil, the other itself.
func (n *Network) join(m *Network) *Network {
	if n == nil {
		return m
	}
	if m == nil {
		return n
	}
	both := new(Network)
	for _, one := range []*Network{n, m} {
		more := one.collections()
		for kind, collection := range both.collections() {
			collection.add(more[kind])
		}
	}
	return both
}

// Namespace is the part of a Kubernetes Namespace that Headgate needs: Gateways allow routes by its
// labels.
type Namespace struct {
	Name   string
	Labels map[string]string
}

// Service is the part of a Kubernetes Service that Headgate needs.
type Service struct {
	Name Name
	// Labels are the Service's labels; Selector selects its pods.
	Labels, Selector map[string]string
	// External means type ExternalName, which has no endpoints.
	External bool
	Ports    []ServicePort
}

// ServicePort is a port of a Service.
type ServicePort struct {
	// Name is empty if the Service has one port.
	Name string
	Port int32
	// Protocol is TCP, UDP or SCTP.
	Protocol string
	// AppProtocol is the application protocol, such as kubernetes.io/h2c; empty if unset.
	AppProtocol string
}
