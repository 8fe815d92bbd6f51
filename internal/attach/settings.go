package attach

import (
	"fmt"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

// Reserved are ports that the pods of managed Gateways use for other purposes, with the purpose.
var Reserved = map[int32]string{
	9090: "extproc serves its metrics",
	9901: "Envoy serves its administration",
	9902: "Envoy answers probes",
}

// settings are the specs of GatewaySettings by name.
type settings map[objects.Name]*v1alpha1.GatewaySettingsSpec

func newSettings(n *objects.Network) settings {
	all := make(settings, len(n.GatewaySettings))
	for i := range n.GatewaySettings {
		s := &n.GatewaySettings[i]
		all[objects.Name{Namespace: s.Namespace, Name: s.Name}] = &s.Spec
	}
	return all
}

// of returns the settings that a reference in a field names, or why they cannot be used; both are
// zero for no reference.
func (s settings) of(ref *gatewayv1.ParametersReference, field, reason string) (v1alpha1.GatewaySettingsSpec, Verdict) {
	if ref == nil {
		return v1alpha1.GatewaySettingsSpec{}, Verdict{}
	}
	if string(ref.Group) != v1alpha1.SchemeGroupVersion.Group || string(ref.Kind) != v1alpha1.GatewaySettingsKind {
		return v1alpha1.GatewaySettingsSpec{}, Verdict{reason, fmt.Sprintf("%s names %s %s of group %q: name a %s of group %s",
			field, ref.Kind, ref.Name, ref.Group, v1alpha1.GatewaySettingsKind, v1alpha1.SchemeGroupVersion.Group)}
	}
	name := objects.Name{Namespace: string(ptr.Deref(ref.Namespace, "")), Name: ref.Name}
	if name.Namespace == "" {
		return v1alpha1.GatewaySettingsSpec{}, Verdict{
			reason,
			fmt.Sprintf("%s names GatewaySettings %s without a namespace: add it", field, ref.Name),
		}
	}
	is := s[name]
	if is == nil {
		return v1alpha1.GatewaySettingsSpec{}, Verdict{
			reason,
			fmt.Sprintf("%s names GatewaySettings %s, which does not exist", field, name),
		}
	}
	return *is, Verdict{}
}

// ofClass returns a GatewayClass with its settings.
func (s settings) ofClass(c *gatewayv1.GatewayClass) Class {
	is, refused := s.of(c.Spec.ParametersRef, "spec.parametersRef", string(gatewayv1.GatewayClassReasonInvalidParameters))
	return Class{is, refused}
}

// ofGateway returns a Gateway's settings, completed by those of its class.
func (s settings) ofGateway(g *gatewayv1.Gateway, c Class) (v1alpha1.GatewaySettingsSpec, Verdict) {
	const reason = string(gatewayv1.GatewayReasonInvalidParameters)
	if c.Refused != (Verdict{}) {
		return c.Settings, Verdict{reason, fmt.Sprintf("GatewayClass %s: %s", g.Spec.GatewayClassName, c.Refused.Message)}
	}
	var ref *gatewayv1.ParametersReference
	if i := g.Spec.Infrastructure; i != nil && i.ParametersRef != nil {
		ref = &gatewayv1.ParametersReference{
			Group: i.ParametersRef.Group, Kind: i.ParametersRef.Kind, Name: i.ParametersRef.Name,
			Namespace: (*gatewayv1.Namespace)(&g.Namespace),
		}
	}
	own, refused := s.of(ref, "spec.infrastructure.parametersRef", reason)
	if own.Payloads != nil {
		refused = Verdict{
			reason,
			fmt.Sprintf("GatewaySettings %s/%s has spec.payloads, which only the settings of a GatewayClass may have: take it away",
				g.Namespace, ref.Name),
		}
	}
	return merge(own, c.Settings), refused
}

// merge returns a, with its unset fields taken from b.
func merge(a, b v1alpha1.GatewaySettingsSpec) v1alpha1.GatewaySettingsSpec {
	a.Managed = or(a.Managed, b.Managed)
	a.Replicas = or(a.Replicas, b.Replicas)
	a.Service = both(a.Service, b.Service, func(x, y v1alpha1.GatewayService) v1alpha1.GatewayService {
		return v1alpha1.GatewayService{Type: or(x.Type, y.Type)}
	})
	a.Resources = both(a.Resources, b.Resources, func(x, y v1alpha1.GatewayResources) v1alpha1.GatewayResources {
		return v1alpha1.GatewayResources{Envoy: or(x.Envoy, y.Envoy), Extproc: or(x.Extproc, y.Extproc)}
	})
	a.Timeouts = both(a.Timeouts, b.Timeouts, func(x, y v1alpha1.GatewayTimeouts) v1alpha1.GatewayTimeouts {
		return v1alpha1.GatewayTimeouts{Idle: or(x.Idle, y.Idle)}
	})
	a.Payloads = b.Payloads
	return a
}

func or[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

// both merges two values if both are set.
func both[T any](a, b *T, merge func(T, T) T) *T {
	if a == nil || b == nil {
		return or(a, b)
	}
	is := merge(*a, *b)
	return &is
}

// Managed reports whether control manages the pods of a Gateway. A Gateway with unreadable settings
// is treated as managed, so that its pods are not deleted meanwhile.
func (g *Gateway) Managed() bool {
	return g.Refused != (Verdict{}) || ptr.Deref(g.Settings.Managed, true)
}
