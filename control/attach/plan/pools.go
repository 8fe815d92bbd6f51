package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// PoolVerdict has the errors of an InferencePool.
type PoolVerdict struct {
	// Refused is why the pool gets no requests; zero if it gets them.
	Refused attach.Verdict
	// Refs is why the pool's endpointPickerRef does not resolve; zero if it resolves or is missing.
	Refs attach.Verdict
}

// Reasons of InferencePools' conditions (Gateway API Inference Extension v1).
const (
	ReasonNotSupported        = "NotSupportedByParent"
	ReasonInvalidExtensionRef = "InvalidExtensionRef"
)

// oursKey and oursValue are the label of Headgate's pods. If a Service selects this label, Envoys
// of Gateways use the extproc beside them as the picker.
const oursKey, oursValue = "app.kubernetes.io/name", "headgate"

// pooled contains what plans need of an InferencePool: its clusters, its picker and its errors.
type pooled struct {
	PoolVerdict
	cluster Cluster
	// picker is the cluster of the picker for requests of HTTPRoutes; empty for none.
	picker string
	// asked is the picker's cluster if the plan must contain it; nil for extproc or no picker.
	asked *Cluster
}

// poolOf evaluates an InferencePool; settings may be nil. A pool with engine tokens cannot use
// another project's picker: only extproc replaces the Authorization header for engines.
func poolOf(p *pool.InferencePool, services map[objects.Name]*objects.Service, settings *v1alpha1.PoolSettings) *pooled {
	name := objects.Name{Namespace: p.Namespace, Name: p.Name}
	is := &pooled{cluster: Cluster{Name: wire.PoolCluster(name.Namespace, name.Name), Pool: true, Object: name}}
	switch p.Spec.AppProtocol {
	case "", pool.HTTP:
	case pool.H2C:
		is.cluster.H2C = true
	default:
		is.Refused = attach.Verdict{
			Reason: ReasonNotSupported,
			Message: fmt.Sprintf("spec.appProtocol is %q, which Headgate does not support: use %s or %s", p.Spec.AppProtocol, pool.HTTP,
				pool.H2C),
		}
	}
	replaced := false
	if settings != nil {
		replaced = settings.Spec.Authorization == v1alpha1.AuthorizationOfEngine
		is.cluster.TLS = ptr.Deref(settings.Spec.EngineTLS, v1alpha1.EngineTLS{})
	}
	ref := p.Spec.EndpointPickerRef
	if ref == nil {
		is.picker = wire.ExtprocCluster
		return is
	}
	is.cluster.Open = ref.FailureMode == pool.FailOpen && !replaced
	asked, fault := pickerOf(ref, name.Namespace, services)
	switch {
	case fault != "":
		is.Refs = attach.Verdict{Reason: ReasonInvalidExtensionRef, Message: "spec.endpointPickerRef " + fault}
	case asked == nil:
		is.picker = wire.ExtprocCluster
	case replaced:
		is.Refs = attach.Verdict{
			Reason: ReasonInvalidExtensionRef,
			Message: fmt.Sprintf("spec.endpointPickerRef names Service %s, and by PoolSettings %s/%s requests carry the token of the engines, which only Headgate's own picker sends: leave out one of them",
				asked.Object,
				settings.Namespace,
				settings.Name),
		}
	default:
		is.picker, is.asked = asked.Name, asked
	}
	return is
}

// pickerOf returns the cluster of the picker that a reference names, nil for the extproc beside
// Envoy. If the reference does not resolve, fault is why.
func pickerOf(ref *pool.EndpointPickerRef, namespace string, services map[objects.Name]*objects.Service) (asked *Cluster, fault string) {
	if kind := ref.Kind; kind != "" && kind != objects.ServiceKind || ptr.Deref(ref.Group, "") != "" {
		return nil, fmt.Sprintf("names %s %s of group %q: name a Service", kind, ref.Name, ptr.Deref(ref.Group, ""))
	}
	name := objects.Name{Namespace: namespace, Name: ref.Name}
	s := services[name]
	switch {
	case s == nil:
		return nil, fmt.Sprintf("names Service %s, which does not exist", name)
	case s.External:
		return nil, fmt.Sprintf("names Service %s, which is of type ExternalName and has no endpoints", name)
	case s.Selector[oursKey] == oursValue:
		return nil, ""
	case ref.Port == nil:
		return nil, fmt.Sprintf("names no port of Service %s", name)
	}
	i := slices.IndexFunc(s.Ports, func(p objects.ServicePort) bool { return p.Port == ref.Port.Number && p.Protocol == "TCP" })
	if i < 0 {
		return nil, fmt.Sprintf("names port %d of Service %s, which has no such TCP port", ref.Port.Number, name)
	}
	return &Cluster{
		Name: pickerCluster(name, ref.Port.Number), Picker: true, Object: name, Port: ref.Port.Number,
		H2C: s.Ports[i].AppProtocol == pool.H2C,
	}, ""
}

const pickerPrefix = "picker/"

func pickerCluster(service objects.Name, port int32) string {
	return pickerPrefix + service.String() + "/" + strconv.Itoa(int(port))
}

// PickerAuthority returns the :authority of requests to another project's endpoint picker,
// SERVICE.NAMESPACE.svc:PORT, from the name of its cluster. A picker of several pools uses it to
// distinguish them.
func PickerAuthority(cluster string) string {
	parts := strings.Split(strings.TrimPrefix(cluster, pickerPrefix), "/")
	if len(parts) != 3 {
		return cluster
	}
	return parts[1] + "." + parts[0] + ".svc:" + parts[2]
}

// pool returns an InferencePool as a backend, or the zero Backend if the pool cannot serve.
func (r *routing) pool(name objects.Name) Backend {
	p := r.pools[name]
	if p == nil {
		r.ref(gatewayv1.RouteReasonBackendNotFound, "InferencePool %s does not exist", name)
		return Backend{}
	}
	r.used[name] = true
	switch {
	case p.Refused != (attach.Verdict{}):
		r.ref(gatewayv1.RouteReasonUnsupportedProtocol, "InferencePool %s: %s", name, p.Refused.Message)
		return Backend{}
	case p.picker == "" && !p.cluster.Open:
		return Backend{} // the status of the pool reports why
	}
	if r.of.Kind == objects.GRPCRouteKind {
		return r.calls(name, p)
	}
	if p.asked != nil {
		r.use(*p.asked)
	}
	return Backend{Cluster: r.use(p.cluster), Picker: p.picker, Open: p.cluster.Open}
}

// calls returns the gRPC port of a pool as a backend. Only extproc can pick an endpoint for gRPC
// calls, since it reads their model. Calls without a pick fail.
func (r *routing) calls(name objects.Name, p *pooled) Backend {
	if p.picker != wire.ExtprocCluster {
		r.ref(gatewayv1.RouteReasonUnsupportedProtocol,
			"InferencePool %s: its endpointPickerRef names another project's picker, which cannot pick for gRPC calls here", name)
		return Backend{}
	}
	return Backend{Cluster: r.use(p.calls()), Picker: p.picker}
}

// calls returns the cluster of a pool's gRPC port.
func (p *pooled) calls() Cluster {
	c := p.cluster
	c.Name, c.Calls, c.H2C, c.Open = wire.PoolCallsCluster(c.Object.Namespace, c.Object.Name), true, false, false
	return c
}
