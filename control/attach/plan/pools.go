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

// PoolVerdict is what is wrong with an InferencePool, whatever leads to it.
type PoolVerdict struct {
	// Refused is why no request is sent to it; zero if they are.
	Refused attach.Verdict
	// Refs is why its endpointPickerRef cannot be followed; zero if it can, or there is none.
	Refs attach.Verdict
}

// Reasons of verdicts on InferencePools (Gateway API Inference Extension v1).
const (
	ReasonNotSupported        = "NotSupportedByParent"
	ReasonInvalidExtensionRef = "InvalidExtensionRef"
)

// ours is the label of the pods of Headgate: a Service that selects them is the extproc beside Envoy to Envoys of Gateways.
const oursKey, oursValue = "app.kubernetes.io/name", "headgate"

// pooled is how requests reach the endpoints of an InferencePool.
type pooled struct {
	PoolVerdict
	cluster Cluster
	// picker is the cluster of the picker that is asked about requests of HTTPRoutes; empty where nobody can be.
	picker string
	// asked is that cluster, nil where it is none of the plan's.
	asked *Cluster
}

// poolOf looks at an InferencePool, whose settings are nil where nobody says any. What engines get as the Authorization of requests only our
// own extproc can replace: a pool of such engines is served by nobody else, and by none without it.
func poolOf(p *pool.InferencePool, services map[objects.Name]*objects.Service, settings *v1alpha1.PoolSettings) *pooled {
	name := objects.Name{Namespace: p.Namespace, Name: p.Name}
	is := &pooled{cluster: Cluster{Name: wire.PoolCluster(name.Namespace, name.Name), Pool: true, Object: name}}
	switch p.Spec.AppProtocol {
	case "", pool.HTTP:
	case pool.H2C:
		is.cluster.H2C = true
	default:
		is.Refused = attach.Verdict{Reason: ReasonNotSupported, Words: fmt.Sprintf("spec.appProtocol is %q, which Headgate does not speak: write %s or %s", p.Spec.AppProtocol, pool.HTTP, pool.H2C)}
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
		is.Refs = attach.Verdict{Reason: ReasonInvalidExtensionRef, Words: "spec.endpointPickerRef " + fault}
	case asked == nil:
		is.picker = wire.ExtprocCluster
	case replaced:
		is.Refs = attach.Verdict{Reason: ReasonInvalidExtensionRef, Words: fmt.Sprintf("spec.endpointPickerRef names Service %s, and by PoolSettings %s/%s requests carry the token of the engines, which only Headgate's own picker sends: leave out one of them", asked.Object, settings.Namespace, settings.Name)}
	default:
		is.picker, is.asked = asked.Name, asked
	}
	return is
}

// pickerOf returns the cluster of the picker that a reference in a namespace names, nil for the extproc beside Envoy, or why the reference
// cannot be followed.
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
		Name: pickerCluster(name, ref.Port.Number), Picker: true, Object: name, Port: ref.Port.Number, H2C: s.Ports[i].AppProtocol == pool.H2C,
	}, ""
}

const pickerPrefix = "picker/"

func pickerCluster(service objects.Name, port int32) string {
	return pickerPrefix + service.String() + "/" + strconv.Itoa(int(port))
}

// PickerAuthority is what an endpoint picker that others run is asked as, by the name of its cluster: SERVICE.NAMESPACE.svc:PORT. Those that
// pick for several pools know by it which is meant.
func PickerAuthority(cluster string) string {
	parts := strings.Split(strings.TrimPrefix(cluster, pickerPrefix), "/")
	if len(parts) != 3 {
		return cluster
	}
	return parts[1] + "." + parts[0] + ".svc:" + parts[2]
}

// pool returns a backend that is an InferencePool, whose picker is asked about its requests, or the zero Backend where there can be none.
func (r *routing) pool(name objects.Name) Backend {
	p := r.pools[name]
	if p == nil {
		r.ref(gatewayv1.RouteReasonBackendNotFound, "InferencePool %s does not exist", name)
		return Backend{}
	}
	r.used[name] = true
	switch {
	case p.Refused != (attach.Verdict{}):
		r.ref(gatewayv1.RouteReasonUnsupportedProtocol, "InferencePool %s: %s", name, p.Refused.Words)
		return Backend{}
	case p.picker == "" && !p.cluster.Open:
		return Backend{} // the pool's own status says why
	}
	if r.of.Kind == objects.GRPCRouteKind {
		return r.calls(name, p)
	}
	if p.asked != nil {
		r.use(*p.asked)
	}
	return Backend{Cluster: r.use(p.cluster), Picker: p.picker, Open: p.cluster.Open}
}

// calls is where a pool's endpoints take gRPC calls. Which endpoint gets one only our own extproc can say, which reads its model: one for which
// it has not picked is not answered.
func (r *routing) calls(name objects.Name, p *pooled) Backend {
	if p.picker != wire.ExtprocCluster {
		r.ref(gatewayv1.RouteReasonUnsupportedProtocol, "InferencePool %s: its endpointPickerRef names another picker than Headgate's, which picks for no gRPC calls here", name)
		return Backend{}
	}
	return Backend{Cluster: r.use(p.calls()), Picker: p.picker}
}

// calls is the cluster of where a pool's endpoints take gRPC calls.
func (p *pooled) calls() Cluster {
	c := p.cluster
	c.Name, c.Calls, c.H2C, c.Open = wire.PoolCallsCluster(c.Object.Namespace, c.Object.Name), true, false, false
	return c
}
