package conditions

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// routes adds the status of every HTTPRoute and GRPCRoute.
func (w *writer) routes() {
	for i := range w.Network.HTTPRoutes {
		w.route(w.add(objects.HTTPRouteKind, &w.Network.HTTPRoutes[i]), nil)
	}
	for i := range w.Network.GRPCRoutes {
		w.route(w.add(objects.GRPCRouteKind, &w.Network.GRPCRoutes[i]), nil)
	}
}

// route fills the status of a route. others is the result of [writer.taken].
func (w *writer) route(s *Status, others map[at]taken) {
	for _, p := range w.Attachments.Parents[s.Object] {
		ref := p.Ref
		ref.Group = new(ptr.Deref(ref.Group, gatewayv1.GroupName))
		ref.Kind = new(ptr.Deref(ref.Kind, objects.GatewayKind))
		if slices.ContainsFunc(s.Parents, func(before Parent) bool { return keyOf(before.Ref) == keyOf(ref) }) {
			continue
		}
		s.Parents = append(s.Parents, Parent{ref, w.conditions(s.Object, p, others)})
	}
}

// conditions returns the conditions of a route at a parent.
func (w *writer) conditions(of objects.Object, p attach.Parent, others map[at]taken) []metav1.Condition {
	verdict := w.Plans.Routes[of]
	refused := p.Refused
	if refused == (attach.Verdict{}) {
		refused = verdict.Refused
	}
	accepted := is(gatewayv1.RouteConditionAccepted, gatewayv1.RouteReasonAccepted, "")
	if refused != (attach.Verdict{}) {
		accepted = not(gatewayv1.RouteConditionAccepted, refused.Reason, refused.Message)
	}
	resolved := is(gatewayv1.RouteConditionResolvedRefs, gatewayv1.RouteReasonResolvedRefs, "")
	if verdict.Refs != (attach.Verdict{}) {
		resolved = not(gatewayv1.RouteConditionResolvedRefs, verdict.Refs.Reason, verdict.Refs.Message)
	}
	all := []metav1.Condition{accepted, resolved}
	if !good(accepted) {
		return all
	}
	if verdict.Partly != "" {
		// Gateway API requires the prefix "Dropped Rule".
		return append(all, is(gatewayv1.RouteConditionPartiallyInvalid, gatewayv1.RouteReasonUnsupportedValue, "Dropped Rule: "+
			verdict.Partly))
	}
	var words []string
	for _, l := range p.Listeners {
		if w := others[at{of.Name, l}].words; w != "" {
			words = append(words, w)
		}
	}
	if len(words) > 0 {
		all = append(all, is(gatewayv1.RouteConditionPartiallyInvalid, v1alpha1.ReasonModelNameTaken, strings.Join(words, "; ")))
	}
	return all
}

// at is an LLMRoute at a listener.
type at struct {
	route    objects.Name
	listener *attach.Listener
}

// taken is model names of an LLMRoute that older routes of a listener already have, and a message.
type taken struct {
	names []string
	words string
}

// taken returns, for each LLMRoute at a listener, its model names that an older route at that
// listener already has. The argument contains the model names of each route. The rules are those of
// [objects.Offer].
func (w *writer) taken(wants map[objects.Name][]string) map[at]taken {
	all := make(map[at]taken)
	for _, g := range w.Attachments.Gateways {
		for _, l := range g.Listeners {
			first := make(map[string]objects.Name)
			for _, attached := range l.Routes {
				if attached.Route.Kind != v1alpha1.LLMRouteKind {
					continue
				}
				var names, words []string
				for _, name := range wants[attached.Route.Name] {
					switch by, has := first[name]; {
					case !has:
						first[name] = attached.Route.Name
					case by != attached.Route.Name:
						names = append(names, name)
						words = append(words, fmt.Sprintf("%q (LLMRoute %s)", name, by))
					}
				}
				if len(words) > 0 {
					all[at{attached.Route.Name, l}] = taken{
						names, fmt.Sprintf("at %s, older routes have the models %s", l, strings.Join(words, ", ")),
					}
				}
			}
		}
	}
	return all
}

// pools adds the status of every InferencePool. As Gateway API Inference Extension v1 requires, the
// conditions have the types of a route's.
func (w *writer) pools() {
	users := w.users(func(p *plan.Plan) []objects.Name { return p.Pools })
	for i := range w.Network.Pools {
		s := w.add(pool.Kind, &w.Network.Pools[i])
		v := w.Plans.Pools[s.Object.Name]
		all := judged(v.Refused, v.Refs)
		if w.World != nil {
			_, conditions := w.pool(s.Object.Name)
			all = append(all, conditions...)
		}
		s.messageOf(users[s.Object.Name], all...)
	}
}

// policies adds the status of every BackendTLSPolicy. The conditions have the types of a route's.
// The policy's ancestors are the Gateways whose routes lead to its target.
func (w *writer) policies() {
	users := w.users(func(p *plan.Plan) []objects.Name { return p.Policies })
	for i := range w.Network.Policies {
		s := w.add(objects.BackendTLSPolicyKind, &w.Network.Policies[i])
		v := w.Plans.Policies[s.Object.Name]
		s.messageOf(users[s.Object.Name], judged(v.Refused, v.Refs)...)
	}
}

// users returns, for each object, the Gateways whose plans use the object. The argument returns the
// objects that a plan uses.
func (w *writer) users(used func(*plan.Plan) []objects.Name) map[objects.Name][]objects.Name {
	all := make(map[objects.Name][]objects.Name)
	for _, p := range w.Plans.Gateways {
		for _, name := range used(p) {
			all[name] = append(all[name], p.Gateway)
		}
	}
	return all
}

// judged returns the conditions Accepted and ResolvedRefs. They are true if the verdicts are zero.
func judged(refused, refs attach.Verdict) []metav1.Condition {
	accepted := is(gatewayv1.RouteConditionAccepted, gatewayv1.RouteReasonAccepted, "")
	if refused != (attach.Verdict{}) {
		accepted = not(gatewayv1.RouteConditionAccepted, refused.Reason, refused.Message)
	}
	resolved := is(gatewayv1.RouteConditionResolvedRefs, gatewayv1.RouteReasonResolvedRefs, "")
	if refs != (attach.Verdict{}) {
		resolved = not(gatewayv1.RouteConditionResolvedRefs, refs.Reason, refs.Message)
	}
	return []metav1.Condition{accepted, resolved}
}

// messageOf sets the same conditions of an object at each of some Gateways.
func (s *Status) messageOf(gateways []objects.Name, conditions ...metav1.Condition) {
	for _, gateway := range gateways {
		s.Parents = append(s.Parents, Parent{
			gatewayv1.ParentReference{
				Group: ptr.To[gatewayv1.Group](gatewayv1.GroupName), Kind: ptr.To[gatewayv1.Kind](objects.GatewayKind),
				Namespace: new(gatewayv1.Namespace(gateway.Namespace)), Name: gatewayv1.ObjectName(gateway.Name),
			},
			conditions,
		})
	}
}

// keyOf returns a key for a reference. References to the same object have equal keys, whether they
// contain defaults explicitly or not.
func keyOf(ref gatewayv1.ParentReference) string {
	port := ""
	if ref.Port != nil {
		port = strconv.Itoa(int(*ref.Port))
	}
	return strings.Join([]string{
		string(ptr.Deref(ref.Group, gatewayv1.GroupName)), string(ptr.Deref(ref.Kind, objects.GatewayKind)),
		string(ptr.Deref(ref.Namespace, "")), string(ref.Name), string(ptr.Deref(ref.SectionName, "")), port,
	}, "/")
}
