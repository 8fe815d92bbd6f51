// Package conditions decides what the status of Gateway API's objects, of LLMRoutes and of InferencePools is to say: who attaches where,
// what is wrong, and what is in force. It is pure: attachments, plans and what is known of Envoys in, statuses out, and how a status
// comes into an object that others write to, too.
package conditions

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// Input is what statuses are made of. The plans and attachments are of the Network.
type Input struct {
	Attachments *attach.Attachments
	Plans       *plan.Plans
	Network     *objects.Network
	Facts
}

// Facts are what is known beside objects. The zero Facts say that nothing is.
type Facts struct {
	// Versions are what the CRDs of Gateway API say in the annotation gateway.networking.k8s.io/bundle-version, each version once, in
	// order, and empty for a CRD that says nothing; nil while nobody has read them.
	Versions []string
	// Gateways are those of which something is known.
	Gateways map[objects.Name]Gateway
}

// Gateway is what is known of a Gateway.
type Gateway struct {
	// Addresses are those where clients reach it, at most 16; none while it has none.
	Addresses []gatewayv1.GatewayStatusAddress
	// Fault is why what its Envoys run in cannot be made; zero if it can, or nobody makes it.
	Fault attach.Verdict
	// Ports are those for which an Envoy has answered what the plan has now. One that is missing waits for it.
	Ports map[int32]Port
}

// Port is what an Envoy says of what it is to do at a port.
type Port struct {
	// Refused is why it does not do it, in its words; empty if it does.
	Refused string
}

// Status is what the status of an object is to say. Fields that its kind does not have are zero.
type Status struct {
	Object objects.Object
	// UID and Generation are the object's, zero where nobody counts.
	UID        string
	Generation int64
	// Conditions have neither times nor generations: [Status.Put] adds them. So has every list of conditions below.
	Conditions []metav1.Condition
	// Features are a GatewayClass's, in order, and Used says whether there are Gateways of it.
	Features []gatewayv1.FeatureName
	Used     bool
	// Addresses and Sets, how many ListenerSets attach, are a Gateway's.
	Addresses []gatewayv1.GatewayStatusAddress
	Sets      int32
	// Listeners are a Gateway's own, or a ListenerSet's, in its order.
	Listeners []Listener
	// Parents are what a route, a pool or a policy is to say of Gateways of ours, each once.
	Parents []Parent
}

// Listener is what is to be said of a listener.
type Listener struct {
	Name       gatewayv1.SectionName
	Kinds      []gatewayv1.RouteGroupKind
	Routes     int32
	Conditions []metav1.Condition
}

// Parent is what is to be said of a parent of a route, or of a Gateway that uses a pool.
type Parent struct {
	// Ref has its group and kind.
	Ref        gatewayv1.ParentReference
	Conditions []metav1.Condition
}

// Of returns what every object of the Network whose status is ours is to say: GatewayClasses of ours, their Gateways and these'
// ListenerSets, and all routes and pools, for one that names no Gateway of ours any more is to say nothing of one.
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

// writer is what is known while statuses are made.
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

// maxMessage is how long the message of a condition may be: Kubernetes' own limit, in bytes as if all were ASCII.
const maxMessage = 32768

// Message is words for a condition, cut where an API server would refuse them all.
func Message(words string) string {
	if len(words) > maxMessage {
		return strings.ToValidUTF8(words[:maxMessage-len("…")], "") + "…"
	}
	return words
}

// name is a type or reason of a condition, of any kind's.
type name interface{ ~string }

// is returns a condition that is true, with a reason of its own.
func is[T, R name](of T, reason R, words string) metav1.Condition {
	return metav1.Condition{Type: string(of), Status: metav1.ConditionTrue, Reason: string(reason), Message: Message(words)}
}

// not returns a condition that is false, and why.
func not[T, R name](of T, reason R, words string) metav1.Condition {
	return metav1.Condition{Type: string(of), Status: metav1.ConditionFalse, Reason: string(reason), Message: Message(words)}
}

// good says whether a condition is true.
func good(c metav1.Condition) bool { return c.Status == metav1.ConditionTrue }
