// Package conditions computes all conditions in the status of objects. They say which data planes
// serve an object, its errors, and whether requests for it would be served now. The status that
// control writes, headgate status and headgate doctor use the same function [Of]. The package also
// merges a status into an object to which other controllers write. It does no I/O.
package conditions

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// Input is the input of [Of].
type Input struct {
	// Attachments and Plans were computed from Network. All three are nil if no Gateways are
	// served, or if Pending says that they are not known yet.
	Attachments *attach.Attachments
	Plans       *plan.Plans
	Network     *objects.Network
	Pending     bool
	Facts
	// World is the objects of the statuses that do not depend on Gateways alone: LLMRoutes,
	// PoolSettings, EndpointLists and duplicates. If it is nil, [Of] returns only statuses of
	// Gateway API.
	World *objects.World
	Observed
}

// Facts is what control knows in addition to the objects: the state of Envoys and of Gateways'
// pods, and the versions of CRDs. The zero Facts are valid.
type Facts struct {
	// Versions are the values of the annotation gateway.networking.k8s.io/bundle-version of Gateway
	// API's CRDs, sorted, without duplicates. A CRD without the annotation adds an empty value.
	// Versions is nil before the CRDs are read.
	Versions []string
	// Gateways contains facts by Gateway. A Gateway may be missing.
	Gateways map[objects.Name]Gateway
}

// Gateway is what control knows of a Gateway's Envoys.
type Gateway struct {
	// Addresses are the addresses for clients, at most 16.
	Addresses []gatewayv1.GatewayStatusAddress
	// Fault is why control cannot create the pods of the Gateway's Envoys; zero if it can.
	Fault attach.Verdict
	// Ports contains the answer of an Envoy to the current plan, by port. A missing port is
	// pending.
	Ports map[int32]Port
}

// Port is an Envoy's answer to the resources of a port.
type Port struct {
	// Refused is Envoy's error; empty if Envoy accepted the resources.
	Refused string
}

// Status is the status that an object should have. Fields that its kind does not have are zero.
type Status struct {
	Object objects.Object
	// UID and Generation are those of the object, zero for an object of a folder.
	UID        string
	Generation int64
	// Conditions lack times and generations, like all conditions below: [Status.Put] adds them.
	Conditions []metav1.Condition
	// Features are the supported features of a GatewayClass, sorted. Used is true while Gateways
	// use the class.
	Features []gatewayv1.FeatureName
	Used     bool
	// Addresses are a Gateway's. Sets is the number of ListenerSets that attach to it.
	Addresses []gatewayv1.GatewayStatusAddress
	Sets      int32
	// Listeners are those of a Gateway or ListenerSet, in the order of the object.
	Listeners []Listener
	// Parents has one entry for each of our Gateways that a route, pool or policy refers to.
	Parents []Parent
	// Attached says that Parents is known. Otherwise an LLMRoute keeps its parents.
	Attached bool
	// Own says that Conditions, Models and Pools are those of an LLMRoute, or Conditions and
	// Endpoints those of a PoolSettings or an EndpointList. Otherwise such an object keeps its own.
	Own bool
	// Models are the model names that an LLMRoute serves, and Pools the names of its pools.
	Models, Pools []string
	// Endpoints is how many of the object's endpoints answer, as in "3/4". It is empty for other
	// objects, and for a PoolSettings that is not in force.
	Endpoints string
}

// Listener is the status of a listener.
type Listener struct {
	Name       gatewayv1.SectionName
	Kinds      []gatewayv1.RouteGroupKind
	Routes     int32
	Conditions []metav1.Condition
}

// Parent is the status of a route at one of its parents, or of a pool or policy at a Gateway.
type Parent struct {
	// Ref always contains the group and the kind.
	Ref        gatewayv1.ParentReference
	Conditions []metav1.Condition
}

// Of returns the status of every object: of our GatewayClasses, their Gateways and ListenerSets, of
// all routes, pools and policies, of PoolSettings and EndpointLists, and of duplicate Models and
// VModels. A route that refers to none of our Gateways gets no parents, which removes earlier ones.
func Of(in Input) []*Status {
	all := append(OfGateways(in), OfEndpoints(in)...)
	if in.World != nil {
		all = append(all, OfDuplicates(in.World)...)
	}
	return all
}

// OfGateways returns the part of [Of] that does not depend on endpoints.
func OfGateways(in Input) []*Status {
	w := newWriter(in)
	if in.Attachments == nil {
		return nil
	}
	w.classes()
	for _, g := range in.Attachments.Gateways {
		w.gateway(g)
	}
	w.routes()
	w.policies()
	return w.all
}

// OfEndpoints returns the part of [Of] that depends on endpoints: the statuses of LLMRoutes,
// InferencePools, PoolSettings and EndpointLists.
func OfEndpoints(in Input) []*Status {
	w := newWriter(in)
	w.llmRoutes()
	if in.Attachments != nil {
		w.pools()
	}
	if in.World != nil {
		w.settings()
		w.lists()
	}
	return w.all
}

// writer is the state of one call of [Of].
type writer struct {
	Input
	served  map[*attach.Listener]bool
	tallies map[objects.Name]*Tally // of pools
	all     []*Status
}

func newWriter(in Input) *writer {
	w := &writer{Input: in, served: make(map[*attach.Listener]bool), tallies: make(map[objects.Name]*Tally)}
	if in.Plans == nil {
		return w
	}
	for _, p := range in.Plans.Gateways {
		for _, port := range p.Ports {
			for _, l := range port.Listeners {
				w.served[l.Listener] = true
			}
		}
	}
	return w
}

// add adds the status of an object.
func (w *writer) add(kind string, o metav1.Object) *Status {
	s := &Status{
		Object: objects.Object{Kind: kind, Name: objects.Name{Namespace: o.GetNamespace(), Name: o.GetName()}},
		UID:    string(o.GetUID()), Generation: o.GetGeneration(), Attached: true,
	}
	w.all = append(w.all, s)
	return s
}

// maxMessage is Kubernetes' limit for the message of a condition, in bytes.
const maxMessage = 32768

// Message truncates a text to maxMessage bytes, since an API server rejects longer messages.
func Message(words string) string {
	if len(words) > maxMessage {
		return strings.ToValidUTF8(words[:maxMessage-len("…")], "") + "…"
	}
	return words
}

// name is any string type for a condition's type or reason.
type name interface{ ~string }

// is returns a condition that is true, with a reason.
func is[T, R name](of T, reason R, words string) metav1.Condition {
	return metav1.Condition{Type: string(of), Status: metav1.ConditionTrue, Reason: string(reason), Message: Message(words)}
}

// not returns a condition that is false, with a reason.
func not[T, R name](of T, reason R, words string) metav1.Condition {
	return metav1.Condition{Type: string(of), Status: metav1.ConditionFalse, Reason: string(reason), Message: Message(words)}
}

// good reports whether a condition is true.
func good(c metav1.Condition) bool { return c.Status == metav1.ConditionTrue }
