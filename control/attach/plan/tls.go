package plan

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// ServiceTLS contains the TLS settings for requests to a Service port.
type ServiceTLS struct {
	// Hostname is the SNI. If Names is empty, the server's certificate must also contain it.
	Hostname string
	// Names are alternatives: the server's certificate must contain one of them.
	Names []AltName
	// Authorities are trusted certificates in PEM. If empty, those of the Envoy's system are
	// trusted.
	Authorities []byte
	// Chain and Key are the client certificate that Envoy presents, in PEM; nil for none.
	Chain []byte
	Key   objects.PrivateKey
}

// AltName is a name in a certificate: a hostname, or a URI if URI is true.
type AltName struct {
	Name string
	URI  bool
}

// PolicyVerdict has the errors of a BackendTLSPolicy.
type PolicyVerdict struct {
	// Refused is why the policy is not used; zero if it is. Requests to its target get 500 if no
	// other policy of the target is used.
	Refused attach.Verdict
	// Refs is the first unresolved reference of the policy; zero if there is none.
	Refs attach.Verdict
}

// Known contains what was read of the objects that [Secrets] and [ConfigMaps] return. The Chain of
// a ConfigMap contains its authorities.
type Known struct {
	Certificates, Authorities map[objects.Name]Certificate
}

// policy is an evaluated BackendTLSPolicy.
type policy struct {
	PolicyVerdict
	name objects.Name
	tls  *ServiceTLS // nil if the policy is invalid
}

// servicePort is a Service and the name of one of its ports; an empty name means all ports.
type servicePort struct {
	service objects.Name
	port    string
}

// ConfigMaps returns the ConfigMaps with authorities that our Gateways name, and those that the
// BackendTLSPolicies of their Services name. They are sorted, without duplicates. control reads no
// other ConfigMap.
func ConfigMaps(a *attach.Attachments, n *objects.Network) []objects.Name {
	var all []objects.Name
	for _, g := range a.Gateways {
		for _, l := range g.Listeners {
			v := g.Clients(l.Port)
			if v == nil || l.Protocol != gatewayv1.HTTPSProtocolType {
				continue
			}
			for _, ref := range v.CACertificateRefs {
				if name, fault := clientsRef(n.Grants, g, ref); fault == (attach.Verdict{}) {
					all = append(all, name)
				}
			}
		}
	}
	led := make(map[objects.Name]bool)
	if len(n.Policies) > 0 {
		led = ledTo(a, n)
	}
	for i := range n.Policies {
		p := &n.Policies[i]
		for _, t := range p.Spec.TargetRefs {
			if !isService(t) || !led[objects.Name{Namespace: p.Namespace, Name: string(t.Name)}] {
				continue
			}
			for _, ref := range p.Spec.Validation.CACertificateRefs {
				if isConfigMap(ref) {
					all = append(all, objects.Name{Namespace: p.Namespace, Name: string(ref.Name)})
				}
			}
		}
	}
	slices.SortFunc(all, objects.Name.Compare)
	return slices.Compact(all)
}

func isService(t gatewayv1.LocalPolicyTargetReferenceWithSectionName) bool {
	return t.Group == "" && t.Kind == objects.ServiceKind
}

func isConfigMap(ref gatewayv1.LocalObjectReference) bool {
	return ref.Group == "" && ref.Kind == objects.ConfigMapKind
}

// ledTo returns the names of the objects that the routes of our Gateways refer to.
func ledTo(a *attach.Attachments, n *objects.Network) map[objects.Name]bool {
	all := make(map[objects.Name]bool)
	add := func(kind string, r metav1.Object, f forwarding) {
		if a.Parents[objects.Object{Kind: kind, Name: objects.Name{Namespace: r.GetNamespace(), Name: r.GetName()}}] == nil {
			return
		}
		for _, ref := range f.refs() {
			all[objects.Name{
				Namespace: string(ptr.Deref(ref.Namespace, gatewayv1.Namespace(r.GetNamespace()))),
				Name:      string(ref.Name),
			}] = true
		}
	}
	for i := range n.HTTPRoutes {
		for j := range n.HTTPRoutes[i].Spec.Rules {
			add(objects.HTTPRouteKind, &n.HTTPRoutes[i], httpForwarding(&n.HTTPRoutes[i], j))
		}
	}
	for i := range n.GRPCRoutes {
		for j := range n.GRPCRoutes[i].Spec.Rules {
			add(objects.GRPCRouteKind, &n.GRPCRoutes[i], grpcForwarding(&n.GRPCRoutes[i], j))
		}
	}
	return all
}

// policiesOf returns the BackendTLSPolicies of each target, in order of precedence. The oldest is
// first; policies of the same age are sorted by name (Gateway API, BackendTLSPolicy).
func policiesOf(n *objects.Network, authorities map[objects.Name]Certificate) map[servicePort][]*policy {
	of := make(map[servicePort][]*policy)
	ordered := make([]*gatewayv1.BackendTLSPolicy, len(n.Policies))
	for i := range n.Policies {
		ordered[i] = &n.Policies[i]
	}
	slices.SortStableFunc(ordered, func(a, b *gatewayv1.BackendTLSPolicy) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name))
	})
	for _, p := range ordered {
		is := policyOf(p, authorities)
		var lost *policy // the policy that takes precedence
		won := false
		for _, t := range p.Spec.TargetRefs {
			if !isService(t) {
				continue
			}
			at := servicePort{objects.Name{Namespace: p.Namespace, Name: string(t.Name)}, string(ptr.Deref(t.SectionName, ""))}
			if of[at] = append(of[at], is); of[at][0] == is {
				won = true
			} else if lost == nil {
				lost = of[at][0]
			}
		}
		if lost != nil && !won {
			is.Refused = attach.Verdict{
				Reason:  string(gatewayv1.PolicyReasonConflicted),
				Message: fmt.Sprintf("BackendTLSPolicy %s has the same target and takes precedence", lost.name),
			}
		}
	}
	return of
}

// policyOf evaluates a BackendTLSPolicy without regard to other policies.
func policyOf(p *gatewayv1.BackendTLSPolicy, authorities map[objects.Name]Certificate) *policy {
	is := &policy{name: objects.Name{Namespace: p.Namespace, Name: p.Name}}
	v := &p.Spec.Validation
	tls := &ServiceTLS{Hostname: string(v.Hostname)}
	for _, n := range v.SubjectAltNames {
		switch n.Type {
		case gatewayv1.HostnameSubjectAltNameType:
			tls.Names = append(tls.Names, AltName{Name: string(n.Hostname)})
		case gatewayv1.URISubjectAltNameType:
			tls.Names = append(tls.Names, AltName{Name: string(n.URI), URI: true})
		}
	}
	fault := func(reason gatewayv1.PolicyConditionReason, format string, args ...any) {
		if is.Refs == (attach.Verdict{}) {
			is.Refs = attach.Verdict{Reason: string(reason), Message: fmt.Sprintf(format, args...)}
		}
	}
	some := false
	for _, ref := range v.CACertificateRefs {
		name := objects.Name{Namespace: p.Namespace, Name: string(ref.Name)}
		if !isConfigMap(ref) {
			fault(gatewayv1.BackendTLSPolicyReasonInvalidKind,
				"%s %s of group %q is not a supported source of authorities: name a ConfigMap", ref.Kind, name, ref.Group)
			continue
		}
		c, usable, words := find(authorities, objects.ConfigMapKind, name)
		if words != "" {
			fault(gatewayv1.BackendTLSPolicyReasonInvalidCACertificateRef, "%s", words)
		}
		if usable {
			some = true
			tls.Authorities = append(tls.Authorities, c.Chain...)
		}
	}
	wellKnown := ptr.Deref(v.WellKnownCACertificates, "")
	switch {
	case v.Hostname == "" || slices.ContainsFunc(tls.Names, func(n AltName) bool { return n.Name == "" }):
		is.Refused = attach.Verdict{
			Reason:  string(gatewayv1.PolicyReasonInvalid),
			Message: "spec.validation has no hostname, or an empty subjectAltName: any certificate would be accepted",
		}
	case len(v.CACertificateRefs) > 0 && !some:
		is.Refused = attach.Verdict{Reason: string(gatewayv1.BackendTLSPolicyReasonNoValidCACertificate), Message: is.Refs.Message}
	case len(v.CACertificateRefs) == 0 && wellKnown != gatewayv1.WellKnownCACertificatesSystem:
		is.Refused = attach.Verdict{
			Reason: string(gatewayv1.PolicyReasonInvalid),
			Message: fmt.Sprintf("spec.validation names no supported authorities: name ConfigMaps in caCertificateRefs, or set wellKnownCACertificates: %s",
				gatewayv1.WellKnownCACertificatesSystem),
		}
	default:
		is.tls = tls
	}
	return is
}

// secure returns the TLS settings for a Service port, nil for plain text. It returns false if the
// policy of the port is invalid. A policy for the port takes precedence over one for the Service.
func (b *builder) secure(service *objects.Service, port *objects.ServicePort) (*ServiceTLS, bool) {
	all := slices.Concat(b.policies[servicePort{service.Name, port.Name}], b.policies[servicePort{service.Name, ""}])
	for _, p := range all { // also policies without effect, since each gets a verdict
		b.applied[p.name] = p
	}
	if len(all) == 0 {
		return nil, true
	}
	if all[0].tls == nil {
		return nil, false
	}
	is := *all[0].tls
	if b.shows != nil {
		is.Chain, is.Key = b.shows.Chain, b.shows.Key
	}
	return &is, true
}
