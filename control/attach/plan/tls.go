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

// ServiceTLS is how a port of a Service is reached by TLS.
type ServiceTLS struct {
	// Hostname is what Envoy asks for (SNI), and the name that the certificate has if there are no Names.
	Hostname string
	// Names are those of which the certificate has at least one.
	Names []AltName
	// Authorities are in PEM, those of the Envoy's own machine if there are none.
	Authorities []byte
	// Chain and Key are what Envoy shows of itself, in PEM; nil if nothing.
	Chain []byte
	Key   objects.PrivateKey
}

// AltName is a name of a certificate: a hostname, or a URI.
type AltName struct {
	Name string
	URI  bool
}

// PolicyVerdict is what is wrong with a BackendTLSPolicy.
type PolicyVerdict struct {
	// Refused is why it is not in force; zero if it is. Requests to what it names get 500 then, unless another policy is in force there.
	Refused attach.Verdict
	// Refs is the first of its references that cannot be followed; zero if all can.
	Refs attach.Verdict
}

// Known is what is known beside objects: what is in the Secrets of [Secrets], and in the ConfigMaps of [ConfigMaps], as Chain.
type Known struct {
	Certificates, Authorities map[objects.Name]Certificate
}

// policy is a BackendTLSPolicy, and what it makes of the ports that it names.
type policy struct {
	PolicyVerdict
	name objects.Name
	tls  *ServiceTLS // nil where it is refused
}

// servicePort is a port of a Service, by its name; empty is every one.
type servicePort struct {
	service objects.Name
	port    string
}

// ConfigMaps returns those with authorities that our Gateways name, and the BackendTLSPolicies of Services that their routes lead to, each
// once, in order. No other is to be read.
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

// ledTo are the names of what the routes of our Gateways name.
func ledTo(a *attach.Attachments, n *objects.Network) map[objects.Name]bool {
	all := make(map[objects.Name]bool)
	add := func(kind string, r metav1.Object, f forwarding) {
		if a.Parents[objects.Object{Kind: kind, Name: objects.Name{Namespace: r.GetNamespace(), Name: r.GetName()}}] == nil {
			return
		}
		for _, ref := range f.refs() {
			all[objects.Name{Namespace: string(ptr.Deref(ref.Namespace, gatewayv1.Namespace(r.GetNamespace()))), Name: string(ref.Name)}] = true
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

// policiesOf returns what BackendTLSPolicies say, by what they are for. Of several for one port, or for a whole Service, the first counts:
// the oldest, then the first by name (Gateway API, BackendTLSPolicy).
func policiesOf(n *objects.Network, authorities map[objects.Name]Certificate) map[servicePort][]*policy {
	of := make(map[servicePort][]*policy)
	ordered := make([]*gatewayv1.BackendTLSPolicy, len(n.Policies))
	for i := range n.Policies {
		ordered[i] = &n.Policies[i]
	}
	slices.SortStableFunc(ordered, func(a, b *gatewayv1.BackendTLSPolicy) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, p := range ordered {
		is := policyOf(p, authorities)
		var lost *policy // to whom it lost what it is for
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
			is.Refused = attach.Verdict{Reason: string(gatewayv1.PolicyReasonConflicted), Words: fmt.Sprintf("BackendTLSPolicy %s is for the same, and counts before", lost.name)}
		}
	}
	return of
}

// policyOf is what a BackendTLSPolicy says by itself.
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
			is.Refs = attach.Verdict{Reason: string(reason), Words: fmt.Sprintf(format, args...)}
		}
	}
	some := false
	for _, ref := range v.CACertificateRefs {
		name := objects.Name{Namespace: p.Namespace, Name: string(ref.Name)}
		if !isConfigMap(ref) {
			fault(gatewayv1.BackendTLSPolicyReasonInvalidKind, "%s %s of group %q has no authorities that Headgate knows: name a ConfigMap", ref.Kind, name, ref.Group)
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
		is.Refused = attach.Verdict{Reason: string(gatewayv1.PolicyReasonInvalid), Words: "spec.validation has no hostname, or a subjectAltName that is empty: any certificate would do"}
	case len(v.CACertificateRefs) > 0 && !some:
		is.Refused = attach.Verdict{Reason: string(gatewayv1.BackendTLSPolicyReasonNoValidCACertificate), Words: is.Refs.Words}
	case len(v.CACertificateRefs) == 0 && wellKnown != gatewayv1.WellKnownCACertificatesSystem:
		is.Refused = attach.Verdict{Reason: string(gatewayv1.PolicyReasonInvalid), Words: fmt.Sprintf("spec.validation names no authorities that Headgate knows: name ConfigMaps in caCertificateRefs, or write wellKnownCACertificates: %s", gatewayv1.WellKnownCACertificatesSystem)}
	default:
		is.tls = tls
	}
	return is
}

// secure returns how a port of a Service is reached by TLS, nil if it is not, and false where a policy says that it is, and cannot be
// followed. A policy for the port counts before one for the whole Service.
func (b *builder) secure(service *objects.Service, port *objects.ServicePort) (*ServiceTLS, bool) {
	all := slices.Concat(b.policies[servicePort{service.Name, port.Name}], b.policies[servicePort{service.Name, ""}])
	for _, p := range all { // those that do not count here say so
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
