package kinds

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// Network is the table of the kinds read in addition to [All] for Gateways: those that only an
// [objects.Network] has, and EndpointSlices. It requires [All], since a Network has some of those
// kinds, too. Each call returns a new slice.
func Network() []Kind {
	return []Kind{
		gateway(Row[gatewayv1.GatewayClass, gatewayv1.GatewayClass]{
			Resource: gatewayResource("gatewayclasses"), Kind: objects.GatewayClassKind, List: new(gatewayv1.GatewayClassList),
			ClusterScoped: true,
			Trim: func(c *gatewayv1.GatewayClass) {
				TrimMeta(&c.ObjectMeta)
				c.Status = gatewayv1.GatewayClassStatus{}
			},
			Net: func(n *objects.Network) *[]gatewayv1.GatewayClass { return &n.Classes },
		}),
		gateway(Row[gatewayv1.Gateway, gatewayv1.Gateway]{
			Resource: gatewayResource("gateways"), Kind: objects.GatewayKind, List: new(gatewayv1.GatewayList),
			Folder: checked(objects.CheckGateway),
			Trim: func(g *gatewayv1.Gateway) {
				TrimMeta(&g.ObjectMeta)
				g.Status = gatewayv1.GatewayStatus{}
			},
			Net: func(n *objects.Network) *[]gatewayv1.Gateway { return &n.Gateways },
		}),
		gateway(Row[gatewayv1.ListenerSet, gatewayv1.ListenerSet]{
			Resource: gatewayResource("listenersets"), Kind: objects.ListenerSetKind, List: new(gatewayv1.ListenerSetList),
			Trim: func(l *gatewayv1.ListenerSet) {
				TrimMeta(&l.ObjectMeta)
				l.Status = gatewayv1.ListenerSetStatus{}
			},
			Net: func(n *objects.Network) *[]gatewayv1.ListenerSet { return &n.Listeners },
		}),
		gateway(Row[gatewayv1.HTTPRoute, gatewayv1.HTTPRoute]{
			Resource: gatewayResource("httproutes"), Kind: objects.HTTPRouteKind, List: new(gatewayv1.HTTPRouteList),
			Trim: func(r *gatewayv1.HTTPRoute) {
				TrimMeta(&r.ObjectMeta)
				r.Status = gatewayv1.HTTPRouteStatus{}
			},
			Net: func(n *objects.Network) *[]gatewayv1.HTTPRoute { return &n.HTTPRoutes },
		}),
		gateway(Row[gatewayv1.GRPCRoute, gatewayv1.GRPCRoute]{
			Resource: gatewayResource("grpcroutes"), Kind: objects.GRPCRouteKind, List: new(gatewayv1.GRPCRouteList),
			Trim: func(r *gatewayv1.GRPCRoute) {
				TrimMeta(&r.ObjectMeta)
				r.Status = gatewayv1.GRPCRouteStatus{}
			},
			Net: func(n *objects.Network) *[]gatewayv1.GRPCRoute { return &n.GRPCRoutes },
		}),
		gateway(Row[gatewayv1.ReferenceGrant, gatewayv1.ReferenceGrant]{
			Resource: gatewayResource("referencegrants"), Kind: objects.ReferenceGrantKind, List: new(gatewayv1.ReferenceGrantList),
			Trim: func(g *gatewayv1.ReferenceGrant) { TrimMeta(&g.ObjectMeta) },
			Net:  func(n *objects.Network) *[]gatewayv1.ReferenceGrant { return &n.Grants },
		}),
		gateway(Row[gatewayv1.BackendTLSPolicy, gatewayv1.BackendTLSPolicy]{
			Resource: gatewayResource("backendtlspolicies"), Kind: objects.BackendTLSPolicyKind, List: new(gatewayv1.BackendTLSPolicyList),
			Trim: func(p *gatewayv1.BackendTLSPolicy) {
				TrimMeta(&p.ObjectMeta)
				p.Status = gatewayv1.PolicyStatus{}
			},
			Net: func(n *objects.Network) *[]gatewayv1.BackendTLSPolicy { return &n.Policies },
		}),
		Of(Row[v1alpha1.GatewaySettings, v1alpha1.GatewaySettings]{
			Resource: v1alpha1.SchemeGroupVersion.WithResource("gatewaysettings"), Kind: v1alpha1.GatewaySettingsKind,
			List:     new(v1alpha1.GatewaySettingsList),
			Optional: true,
			Strict:   true,
			Folder:   checked(objects.CheckGatewaySettings),
			Trim:     func(s *v1alpha1.GatewaySettings) { TrimMeta(&s.ObjectMeta) },
			Net:      func(n *objects.Network) *[]v1alpha1.GatewaySettings { return &n.GatewaySettings },
		}),
		Of(Row[corev1.Namespace, objects.Namespace]{
			Resource: corev1.SchemeGroupVersion.WithResource("namespaces"), Kind: objects.NamespaceKind, List: new(corev1.NamespaceList),
			ClusterScoped: true,
			Folder: func(n *corev1.Namespace) (objects.Namespace, field.ErrorList) {
				return objects.Namespace{Name: n.Name, Labels: n.Labels}, objects.CheckName(n.Name)
			},
			Trim: func(n *corev1.Namespace) {
				*n = corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels, ResourceVersion: n.ResourceVersion}}
			},
			Net: func(n *objects.Network) *[]objects.Namespace { return &n.Namespaces },
		}),
		Of(Row[corev1.Service, objects.Service]{
			Resource: corev1.SchemeGroupVersion.WithResource("services"), Kind: objects.ServiceKind, List: new(corev1.ServiceList),
			Folder: serviceOf,
			Trim:   trimService,
			Net:    func(n *objects.Network) *[]objects.Service { return &n.Services },
		}),
		Of(Row[discoveryv1.EndpointSlice, objects.Slice]{
			Resource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), Kind: objects.EndpointSliceKind,
			List:   new(discoveryv1.EndpointSliceList),
			Folder: sliceOf,
			Trim:   trimSlice,
			In:     func(s *objects.Set) *[]objects.Slice { return &s.Slices },

			AnyOrder: true,
		}),
	}
}

// WithNetwork returns [All] and [Network]: the kinds of a Set and its Network.
func WithNetwork() []Kind { return slices.Concat(All(), Network()) }

// Listeners returns the kinds of [Network] by which LLMRoutes attach to listeners.
func Listeners() []Kind {
	by := []string{objects.GatewayClassKind, objects.GatewayKind, objects.ListenerSetKind, objects.NamespaceKind}
	return slices.DeleteFunc(Network(), func(k Kind) bool { return !slices.Contains(by, k.Kind) })
}

func gatewayResource(name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: gatewayv1.GroupVersion.Group, Version: gatewayv1.GroupVersion.Version, Resource: name}
}

// gateway makes a Kind from the row of a Gateway API kind, which clusters may lack. In an API
// server, its CRD validates objects and the object's status reports other errors, so that none is
// left out here. In a folder at least the name is validated.
func gateway[O any, P pointer[O]](r Row[O, O]) Kind {
	r.Optional = true
	if r.Folder == nil {
		r.Folder = checked(func(o *O) field.ErrorList { return objects.CheckName(P(o).GetName()) })
	}
	folder := r.Folder
	r.Folder = func(o *O) (O, field.ErrorList) { // the validation of the CRD
		is, errs := folder(o)
		return is, append(errs, objects.CheckLimits(r.Kind, o)...)
	}
	r.Server = func(o *O) (O, field.ErrorList) { return *o, nil }
	return Of[O, O, P](r)
}

// serviceOf converts a Service and returns what is invalid in it.
func serviceOf(s *corev1.Service) (objects.Service, field.ErrorList) {
	kept := objects.Service{
		Name: objects.Name{Namespace: s.Namespace, Name: s.Name}, Labels: s.Labels, Selector: s.Spec.Selector,
		External: s.Spec.Type == corev1.ServiceTypeExternalName,
	}
	for _, p := range s.Spec.Ports {
		port := objects.ServicePort{Name: p.Name, Port: p.Port, Protocol: string(cmp.Or(p.Protocol, corev1.ProtocolTCP))}
		if p.AppProtocol != nil {
			port.AppProtocol = *p.AppProtocol
		}
		kept.Ports = append(kept.Ports, port)
	}
	return kept, objects.CheckName(s.Name)
}

// trimService removes what [serviceOf] does not read.
func trimService(s *corev1.Service) {
	*s = corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, ResourceVersion: s.ResourceVersion, Labels: s.Labels},
		Spec:       corev1.ServiceSpec{Type: s.Spec.Type, Selector: s.Spec.Selector, Ports: s.Spec.Ports},
	}
	for i, p := range s.Spec.Ports {
		s.Spec.Ports[i] = corev1.ServicePort{Name: p.Name, Port: p.Port, Protocol: p.Protocol, AppProtocol: p.AppProtocol}
	}
}

// NewNetwork returns an empty Network for the kinds of a table; nil if none of them belongs only to
// a Network.
func NewNetwork(table []Kind) *objects.Network {
	if !slices.ContainsFunc(table, func(k Kind) bool { return !k.InSet }) {
		return nil
	}
	return new(objects.Network)
}
