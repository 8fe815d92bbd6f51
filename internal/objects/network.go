package objects

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
)

// Network is the objects that say how requests come in and where they may go: Gateways, what attaches to them, and what these name.
// It is immutable, and made anew only when one of these objects changes, so that who depends on nothing else compares pointers: pods
// come and go without another Network. Objects of each kind are in order of name.
type Network struct {
	Classes    []gatewayv1.GatewayClass
	Gateways   []gatewayv1.Gateway
	Listeners  []gatewayv1.ListenerSet
	HTTPRoutes []gatewayv1.HTTPRoute
	GRPCRoutes []gatewayv1.GRPCRoute
	Grants     []gatewayv1.ReferenceGrant
	// Policies say how Services are reached by TLS.
	Policies   []gatewayv1.BackendTLSPolicy
	Namespaces []Namespace
	Services   []Service
	// GatewaySettings say how the Envoys of Gateways run.
	GatewaySettings []v1alpha1.GatewaySettings
	// KeyPairs are the Secrets of a folder, Authorities its ConfigMaps.
	KeyPairs    []KeyPair
	Authorities []Authorities

	// What else attaches, or is named: a Set has these kinds too.
	Routes   []v1alpha1.LLMRoute
	Pools    []pool.InferencePool
	Settings []v1alpha1.PoolSettings
}

// Kinds that a [Network] has and a [Set] has not: those of Gateway API, and Kubernetes' own.
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

// shelves are where a Network keeps its objects, by kind: a field of Network has a line here.
func (n *Network) shelves() map[string]shelf {
	return map[string]shelf{
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

// ordered is a shelf that is in order of name once something was added.
type ordered[T any] struct {
	all  *[]T
	name func(*T) Name
}

func (o ordered[T]) count() int { return len(*o.all) }

func (o ordered[T]) add(same shelf) {
	*o.all = slices.Concat(*o.all, *same.(ordered[T]).all)
	slices.SortStableFunc(*o.all, func(a, b T) int { return o.name(&a).Compare(o.name(&b)) })
}

// named is a shelf of objects that have metadata.
func named[T any, P interface {
	*T
	metav1.Object
}](all *[]T) ordered[T] {
	return ordered[T]{all, func(o *T) Name { return Name{P(o).GetNamespace(), P(o).GetName()} }}
}

// join is a Network with the objects of both; where one is nil, the other itself.
func (n *Network) join(m *Network) *Network {
	if n == nil {
		return m
	}
	if m == nil {
		return n
	}
	both := new(Network)
	for _, one := range []*Network{n, m} {
		more := one.shelves()
		for kind, shelf := range both.shelves() {
			shelf.add(more[kind])
		}
	}
	return both
}

// Namespace is what Headgate needs of a Kubernetes Namespace: by its labels Gateways allow routes.
type Namespace struct {
	Name   string
	Labels map[string]string
}

// Service is what Headgate needs of a Kubernetes Service.
type Service struct {
	Name Name
	// Labels of the Service, and the labels by which it selects pods.
	Labels, Selector map[string]string
	// External says that it is of type ExternalName, which has no endpoints.
	External bool
	Ports    []ServicePort
}

// ServicePort is a port of a Service.
type ServicePort struct {
	// Name is empty where the Service has one port.
	Name string
	Port int32
	// Protocol is TCP, UDP or SCTP.
	Protocol string
	// AppProtocol is what is spoken there, such as kubernetes.io/h2c; empty if nobody says.
	AppProtocol string
}
