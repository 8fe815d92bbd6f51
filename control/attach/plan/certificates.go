package plan

import (
	"fmt"
	"slices"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// Secrets returns the Secrets that our Gateways and listeners name and may refer to, sorted,
// without duplicates. The caller reads them and passes their certificates to [Of]. control reads no
// other Secret.
func Secrets(a *attach.Attachments, n *objects.Network) []objects.Name {
	var all []objects.Name
	add := func(of objects.Object, ref gatewayv1.SecretObjectReference) {
		if name, fault := secret(n.Grants, of, ref); fault == (attach.Verdict{}) {
			all = append(all, name)
		}
	}
	for _, g := range a.Gateways {
		for _, l := range g.Listeners {
			for _, ref := range certificateRefs(l) {
				add(l.Of, ref)
			}
		}
		if ref := g.Shows(); ref != nil {
			add(objects.Object{Kind: objects.GatewayKind, Name: g.Name}, *ref)
		}
	}
	slices.SortFunc(all, objects.Name.Compare)
	return slices.Compact(all)
}

func certificateRefs(l *attach.Listener) []gatewayv1.SecretObjectReference {
	if l.Protocol != gatewayv1.HTTPSProtocolType || l.TLS == nil {
		return nil
	}
	return l.TLS.CertificateRefs
}

// secret returns the Secret that a Gateway or ListenerSet names. If the object may not refer to it,
// the verdict is why.
func secret(grants []gatewayv1.ReferenceGrant, by objects.Object, ref gatewayv1.SecretObjectReference) (objects.Name, attach.Verdict) {
	name := objects.Name{Namespace: string(ptr.Deref(ref.Namespace, gatewayv1.Namespace(by.Name.Namespace))), Name: string(ref.Name)}
	kind, of := string(ptr.Deref(ref.Kind, objects.SecretKind)), string(ptr.Deref(ref.Group, ""))
	switch {
	case kind != objects.SecretKind || of != "":
		return name, refused(gatewayv1.ListenerReasonInvalidCertificateRef,
			"%s %s of group %q is not a supported certificate: name a Secret", kind, name, of)
	case !granted(grants, by.Kind, by.Name.Namespace, "", objects.SecretKind, name):
		return name, refused(gatewayv1.ListenerReasonRefNotPermitted,
			"no ReferenceGrant in namespace %s allows %ss of namespace %s to refer to Secret %s", name.Namespace, by.Kind,
			by.Name.Namespace, name.Name)
	}
	return name, attach.Verdict{}
}

// certify returns the Secrets whose certificates an HTTPS listener can serve, and records the first
// fault. A Secret with invalid new content keeps its last valid certificate, so a mistake in it
// does not disconnect clients. The listener's condition reports the fault at once.
func (b *builder) certify(l *attach.Listener) []objects.Name {
	note := func(v attach.Verdict) {
		if _, noted := b.listeners[l]; !noted {
			b.listeners[l] = v
		}
	}
	if mode := mode(l); mode != gatewayv1.TLSModeTerminate {
		note(refused(gatewayv1.ListenerReasonInvalidCertificateRef, "tls.mode %s is not for protocol HTTPS: write Terminate", mode))
		return nil
	}
	var all []objects.Name
	for _, ref := range certificateRefs(l) {
		name, fault := secret(b.Grants, l.Of, ref)
		if fault != (attach.Verdict{}) {
			note(fault)
			continue
		}
		_, usable, words := find(b.certificates, objects.SecretKind, name)
		if words != "" {
			note(attach.Verdict{Reason: string(gatewayv1.ListenerReasonInvalidCertificateRef), Message: words})
		}
		if usable && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	if len(certificateRefs(l)) == 0 {
		note(refused(gatewayv1.ListenerReasonInvalidCertificateRef, "tls.certificateRefs names no Secret"))
	}
	return all
}

// find returns the content of a Secret or ConfigMap, whether it is usable, and its fault. It is
// usable despite a fault if it is the last valid content.
func find(all map[objects.Name]Certificate, kind string, name objects.Name) (c Certificate, usable bool, words string) {
	c, known := all[name]
	switch {
	case !known:
		return c, false, fmt.Sprintf("%s %s is not known", kind, name)
	case c.Fault != "":
		words = fmt.Sprintf("%s %s: %s", kind, name, c.Fault)
	}
	return c, c.serves(), words
}

func mode(l *attach.Listener) gatewayv1.TLSModeType {
	if l.TLS == nil {
		return gatewayv1.TLSModeTerminate
	}
	return ptr.Deref(l.TLS.Mode, gatewayv1.TLSModeTerminate)
}

func refused(reason gatewayv1.ListenerConditionReason, format string, args ...any) attach.Verdict {
	return attach.Verdict{Reason: string(reason), Message: fmt.Sprintf(format, args...)}
}

// show records the client certificate, if any, that the Envoys of a Gateway present to Services.
func (b *builder) show(g *attach.Gateway) {
	b.shows = nil
	ref := g.Shows()
	if ref == nil {
		return
	}
	const invalid = string(gatewayv1.GatewayReasonInvalidClientCertificateRef)
	name, fault := secret(b.Grants, objects.Object{Kind: objects.GatewayKind, Name: g.Name}, *ref)
	if fault != (attach.Verdict{}) {
		if fault.Reason != string(gatewayv1.GatewayReasonRefNotPermitted) {
			fault.Reason = invalid
		}
		b.showing[g.Name] = fault
		return
	}
	c, usable, words := find(b.certificates, objects.SecretKind, name)
	if words != "" {
		b.showing[g.Name] = attach.Verdict{Reason: invalid, Message: words}
	}
	if usable {
		b.shows = &c
	}
}

// Clients defines which clients may call a TLS listener.
type Clients struct {
	// Authorities are the certificates, in PEM, of the authorities that sign clients' certificates.
	Authorities []byte
	// Anybody also admits clients without a certificate of these authorities. Backends do not see
	// such clients' certificates.
	Anybody bool
}

// clientsRef returns the ConfigMap with authorities of clients that a Gateway names. If the Gateway
// may not refer to it, the verdict is why.
func clientsRef(grants []gatewayv1.ReferenceGrant, g *attach.Gateway, ref gatewayv1.ObjectReference) (objects.Name, attach.Verdict) {
	name := objects.Name{Namespace: string(ptr.Deref(ref.Namespace, gatewayv1.Namespace(g.Name.Namespace))), Name: string(ref.Name)}
	switch {
	case ref.Group != "" || ref.Kind != objects.ConfigMapKind:
		return name, refused(gatewayv1.ListenerReasonInvalidCACertificateKind,
			"%s %s of group %q is not a supported source of authorities: name a ConfigMap", ref.Kind, name, ref.Group)
	case !granted(grants, objects.GatewayKind, g.Name.Namespace, "", objects.ConfigMapKind, name):
		return name, refused(gatewayv1.ListenerReasonRefNotPermitted,
			"no ReferenceGrant in namespace %s allows Gateways of namespace %s to refer to ConfigMap %s", name.Namespace, g.Name.Namespace,
			name.Name)
	}
	return name, attach.Verdict{}
}

// askClients sets which clients may call an HTTPS listener. It returns false if the authorities are
// unknown, so that the listener admits no client.
func (b *builder) askClients(g *attach.Gateway, l *Listener) bool {
	v := g.Clients(l.Port)
	if v == nil {
		return true
	}
	is, some := &Clients{Anybody: v.Mode == gatewayv1.AllowInsecureFallback}, false
	note := func(v attach.Verdict) {
		if _, noted := b.listeners[l.Listener]; !noted {
			b.listeners[l.Listener] = v
		}
	}
	for _, ref := range v.CACertificateRefs {
		name, fault := clientsRef(b.Grants, g, ref)
		if fault != (attach.Verdict{}) {
			note(fault)
			continue
		}
		c, usable, words := find(b.authorities, objects.ConfigMapKind, name)
		if words != "" {
			note(attach.Verdict{Reason: string(gatewayv1.ListenerReasonInvalidCACertificateRef), Message: words})
		}
		if usable {
			some = true
			is.Authorities = append(is.Authorities, c.Chain...)
		}
	}
	if !some {
		b.refused[l.Listener] = refused(gatewayv1.ListenerReasonNoValidCACertificate,
			"spec.tls.frontend of Gateway %s requires client certificates, but none of its caCertificateRefs resolves", g.Name)
		return false
	}
	l.Clients = is
	return true
}
