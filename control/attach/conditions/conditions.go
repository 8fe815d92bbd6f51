// Package conditions computes the status of Gateway API objects, LLMRoutes and InferencePools: what
// attaches to which Gateway, the errors, and whether the configuration is in use. It also merges a
// status into an object that other controllers write to. It is pure.
package conditions

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// Input is what statuses are computed from. Plans and Attachments were computed from Network.
type Input struct {
	Attachments *attach.Attachments
	Plans       *plan.Plans
	Network     *objects.Network
	Facts
}

// Facts is what control knows besides the objects: the state of Envoys and of Gateways' pods. The
// zero Facts are valid.
type Facts struct {
	// Versions has the values of the annotation gateway.networking.k8s.io/bundle-version of Gateway
	// API's CRDs, sorted and unique; empty for a CRD without one. It is nil before they are read.
	Versions []string
	// Gateways has the facts by Gateway, if there are any.
	Gateways map[objects.Name]Gateway
}

// Gateway has the facts of a Gateway.
type Gateway struct {
	// Addresses has the addresses for clients, at most 16.
	Addresses []gatewayv1.GatewayStatusAddress
	// Fault is why the pods of its Envoys cannot be made; zero if there is no error.
	Fault attach.Verdict
	// Ports has the ports for which an Envoy answered the current plan. A missing one is pending.
	Ports map[int32]Port
}

// Port is an Envoy's answer about a port.
type Port struct {
	// Refused is Envoy's error; empty if it accepts.
	Refused string
}

// Status is the status that an object should have. Fields that its kind does not have are zero.
type Status struct {
	Object objects.Object
	// UID and Generation are the object's; zero in a folder.
	UID        string
	Generation int64
	// Conditions has no times and generations: [Status.Put] adds them. This holds for all lists of
	// conditions below.
	Conditions []metav1.Condition
	// Features are those of a GatewayClass, sorted. Used is true while Gateways use it.
	Features []gatewayv1.FeatureName
	Used     bool
	// Addresses, and the number of attached ListenerSets, are a Gateway's.
	Addresses []gatewayv1.GatewayStatusAddress
	Sets      int32
	// Listeners are those of a Gateway or a ListenerSet, in the object's order.
	Listeners []Listener
	// Parents has one entry for each of our Gateways that a route, pool or policy refers to.
	Parents []Parent
}

// Listener is the status of a listener.
type Listener struct {
	Name       gatewayv1.SectionName
	Kinds      []gatewayv1.RouteGroupKind
	Routes     int32
	Conditions []metav1.Condition
}

// Parent is the status of a route at a parent, or of a pool at a Gateway.
type Parent struct {
	// Ref has its group and kind.
	Ref        gatewayv1.ParentReference
	Conditions []metav1.Condition
}

// Of returns the status of every object of the Network that is ours: our GatewayClasses, their
// Gateways and ListenerSets, and all routes and pools. A route that refers to none of our Gateways
// gets an empty status, which removes an earlier one.
func Of(in Input) []*Status {
	w := &writer{Input: in, served: make(map[*attach.Listener]bool)}
	for _, p := range in.Plans.Gateways {
		for _, port := range p.Ports {
			for _, l := range port.Listeners {
				w.served[l.Listener] = true
			}
		}
	}
	w.classes()
	for _, g := range in.Attachments.Gateways {
		w.gateway(g)
	}
	w.routes()
	w.pools()
	w.policies()
	return w.all
}

// writer has the input of one computation.
type writer struct {
	Input
	served map[*attach.Listener]bool
	all    []*Status
}

// add adds the status of an object.
func (w *writer) add(kind string, o metav1.Object) *Status {
	s := &Status{
		Object: objects.Object{Kind: kind, Name: objects.Name{Namespace: o.GetNamespace(), Name: o.GetName()}},
		UID:    string(o.GetUID()), Generation: o.GetGeneration(),
	}
	w.all = append(w.all, s)
	return s
}

// maxMessage is Kubernetes' limit for the message of a condition, in bytes.
const maxMessage = 32768

// Message truncates a text to the limit of a condition's message: an API server rejects longer
// ones.
func Message(words string) string {
	if len(words) > maxMessage {
		return strings.ToValidUTF8(words[:maxMessage-len("…")], "") + "…"
	}
	return words
}

// name is a string type for the types or reasons of conditions.
type name interface{ ~string }

// is returns a true condition with a reason.
func is[T, R name](of T, reason R, words string) metav1.Condition {
	return metav1.Condition{Type: string(of), Status: metav1.ConditionTrue, Reason: string(reason), Message: Message(words)}
}

// not returns a false condition with a reason.
func not[T, R name](of T, reason R, words string) metav1.Condition {
	return metav1.Condition{Type: string(of), Status: metav1.ConditionFalse, Reason: string(reason), Message: Message(words)}
}

// good reports whether a condition is true.
func good(c metav1.Condition) bool { return c.Status == metav1.ConditionTrue }
