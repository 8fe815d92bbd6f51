package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// verdict collects the errors of a route.
type verdict struct {
	kept    bool     // at least one rule is valid
	dropped []string // messages about invalid rules
	refs    attach.Verdict
}

// drop records a message about an invalid rule.
func (v *verdict) drop(format string, args ...any) {
	if words := fmt.Sprintf(format, args...); !slices.Contains(v.dropped, words) {
		v.dropped = append(v.dropped, words)
	}
}

// ref records an unresolved reference, unless one was recorded before.
func (v *verdict) ref(reason gatewayv1.RouteConditionReason, format string, args ...any) {
	if v.refs == (attach.Verdict{}) {
		v.refs = attach.Verdict{Reason: string(reason), Message: fmt.Sprintf(format, args...)}
	}
}

// result returns the collected errors as a verdict.
func (v *verdict) result() RouteVerdict {
	words := strings.Join(v.dropped, "; ")
	if words != "" && !v.kept {
		return RouteVerdict{Refused: attach.Verdict{Reason: string(gatewayv1.RouteReasonUnsupportedValue), Message: words}, Refs: v.refs}
	}
	return RouteVerdict{Partly: words, Refs: v.refs}
}

// target returns the backend that a reference names, or the zero Backend if the reference does not
// resolve.
func (r *routing) target(ref gatewayv1.BackendObjectReference) Backend {
	from, namespace := r.of.Kind, r.of.Name.Namespace
	kind, of := string(ptr.Deref(ref.Kind, objects.ServiceKind)), string(ptr.Deref(ref.Group, ""))
	name := objects.Name{Namespace: string(ptr.Deref(ref.Namespace, gatewayv1.Namespace(namespace))), Name: string(ref.Name)}
	isPool := of == pool.SchemeGroupVersion.Group && kind == pool.Kind
	if !isPool && (of != "" || kind != objects.ServiceKind) {
		r.ref(gatewayv1.RouteReasonInvalidKind, "%s %s of group %q is not a supported backend: name a Service or an InferencePool", kind,
			name, of)
		return Backend{}
	}
	if !granted(r.Grants, from, namespace, of, kind, name) {
		r.ref(gatewayv1.RouteReasonRefNotPermitted, "no ReferenceGrant in namespace %s allows %ss of namespace %s to refer to %s %s",
			name.Namespace, from, namespace, kind, name.Name)
		return Backend{}
	}
	if isPool {
		return r.pool(name)
	}
	return Backend{Cluster: r.service(ref, name)}
}

// mirror returns the cluster for copies of requests, which must be that of a Service. It is empty
// if the reference does not resolve.
func (r *routing) mirror(ref gatewayv1.BackendObjectReference) string {
	if string(ptr.Deref(ref.Group, "")) == pool.SchemeGroupVersion.Group {
		r.ref(gatewayv1.RouteReasonInvalidKind, "%s %s cannot get copies of requests: name a Service", ptr.Deref(ref.Kind, ""), ref.Name)
		return ""
	}
	return r.target(ref).Cluster
}

// service returns the cluster of a Service port, empty if the reference does not resolve. Requests
// of a GRPCRoute use HTTP/2, whatever the port's appProtocol is.
func (r *routing) service(ref gatewayv1.BackendObjectReference, name objects.Name) string {
	s := r.services[name]
	if s == nil {
		r.ref(gatewayv1.RouteReasonBackendNotFound, "Service %s does not exist", name)
		return ""
	}
	if s.External {
		r.ref(gatewayv1.RouteReasonUnsupportedProtocol, "Service %s is of type ExternalName, which has no endpoints", name)
		return ""
	}
	if ref.Port == nil {
		r.ref(gatewayv1.RouteReasonBackendNotFound, "the reference to Service %s names no port", name)
		return ""
	}
	i := slices.IndexFunc(s.Ports, func(p objects.ServicePort) bool { return p.Port == *ref.Port && p.Protocol == "TCP" })
	if i < 0 {
		r.ref(gatewayv1.RouteReasonBackendNotFound, "Service %s has no TCP port %d", name, *ref.Port)
		return ""
	}
	secure, ok := r.secure(s, &s.Ports[i])
	if !ok {
		return "" // the status of the policy reports why
	}
	if s.Ports[i].AppProtocol == "kubernetes.io/wss" && secure == nil {
		r.ref(gatewayv1.RouteReasonUnsupportedProtocol, "port %d of Service %s uses WebSocket over TLS: create a BackendTLSPolicy for it",
			*ref.Port, name)
		return ""
	}
	c := Cluster{Secure: secure, Object: name, Port: s.Ports[i].Port, H2C: r.of.Kind == objects.GRPCRouteKind ||
		s.Ports[i].AppProtocol == "kubernetes.io/h2c"}
	c.Name = "service/" + name.Namespace + "/" + name.Name + "/" + strconv.Itoa(int(c.Port))
	if c.H2C {
		c.Name += "/h2c"
	}
	return r.use(c)
}

// use adds a cluster to the plan, and returns its name.
func (b *builder) use(c Cluster) string {
	b.clusters[c.Name] = c
	return c.Name
}

// granted reports whether objects of a Gateway API kind in a namespace may refer to another object.
// In the same namespace they may; otherwise a ReferenceGrant must allow it.
func granted(grants []gatewayv1.ReferenceGrant, from, namespace, toGroup, toKind string, to objects.Name) bool {
	if namespace == to.Namespace {
		return true
	}
	for i := range grants {
		g := &grants[i]
		if g.Namespace == to.Namespace && slices.ContainsFunc(g.Spec.From, func(f gatewayv1.ReferenceGrantFrom) bool {
			return f.Group == gatewayv1.GroupName && string(f.Kind) == from && string(f.Namespace) == namespace
		}) && slices.ContainsFunc(g.Spec.To, func(t gatewayv1.ReferenceGrantTo) bool {
			return string(t.Group) == toGroup && string(t.Kind) == toKind &&
				string(ptr.Deref(t.Name, gatewayv1.ObjectName(to.Name))) == to.Name
		}) {
			return true
		}
	}
	return false
}
