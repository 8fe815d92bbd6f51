package conditions

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// llmRoutes adds the status of every LLMRoute.
func (w *writer) llmRoutes() {
	all := make(map[objects.Name]*Status)
	var others map[at]taken
	wants := make(map[objects.Name][]string)
	if w.Attachments != nil {
		for i := range w.Network.Routes {
			r := &w.Network.Routes[i]
			wants[objects.Name{Namespace: r.Namespace, Name: r.Name}] = objects.ModelNames(r)
		}
		others = w.taken(wants)
		for i := range w.Network.Routes {
			s := w.add(v1alpha1.LLMRouteKind, &w.Network.Routes[i])
			w.route(s, others)
			all[s.Object.Name] = s
		}
	}
	if w.World == nil {
		return
	}
	faults := make(map[objects.Name]map[string][]string) // messages by reason
	for _, f := range w.World.Faults {
		if f.Kind == v1alpha1.LLMRouteKind {
			if faults[f.Object] == nil {
				faults[f.Object] = make(map[string][]string)
			}
			faults[f.Object][f.Reason] = append(faults[f.Object][f.Reason], f.Words)
		}
	}
	direct := w.direct()
	for _, r := range w.World.Routes {
		if r.Kind != v1alpha1.LLMRouteKind {
			continue
		}
		s := all[r.Name]
		switch {
		case s == nil:
			s = w.own(v1alpha1.LLMRouteKind, r.Name, r.UID, r.Generation)
		case s.UID != r.UID:
			continue // the World and the Network have different objects of this name; the next World will not
		}
		s.Own, s.Generation = true, min(s.Generation, r.Generation)
		l := &llmRoute{writer: w, Route: r, wants: wants[r.Name], faults: faults[r.Name], others: others, direct: direct}
		accepted := l.accepted()
		resolved := is(v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonResolvedRefs, "")
		if words := l.faults[v1alpha1.ReasonBackendNotFound]; len(words) > 0 {
			resolved = not(v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonBackendNotFound, strings.Join(words, "; "))
		}
		s.Models, s.Pools = l.models(), nil
		s.Conditions = []metav1.Condition{accepted, resolved, l.ready(accepted, s.Models)}
		for _, b := range r.Backends {
			s.Pools = append(s.Pools, b.Pool.Name)
		}
	}
}

// llmRoute is an LLMRoute whose conditions are computed.
type llmRoute struct {
	*writer
	*objects.Route
	wants  []string // its model names
	faults map[string][]string
	others map[at]taken
	direct map[objects.Name]objects.Object
}

// parents returns the parents of ours to which the route attaches, and why it does not attach to
// others.
func (l *llmRoute) parents() (at []attach.Parent, refused []attach.Verdict) {
	if l.Attachments == nil {
		return nil, nil
	}
	of := objects.Object{Kind: v1alpha1.LLMRouteKind, Name: l.Name}
	for _, p := range l.Attachments.Parents[of] {
		v := p.Refused
		if v == (attach.Verdict{}) {
			v = l.Plans.Routes[of].Refused
		}
		if v == (attach.Verdict{}) {
			at = append(at, p)
		} else {
			refused = append(refused, v)
		}
	}
	return at, refused
}

// outside returns who serves the route besides its Gateways; empty if nobody does.
func (l *llmRoute) outside() string {
	for _, x := range l.Extprocs {
		if x.Standalone {
			return "the standalone data plane serves it"
		}
	}
	for _, b := range l.Backends {
		if route, ok := l.direct[b.Pool]; ok {
			return fmt.Sprintf("%s sends requests to its InferencePool %s", route, b.Pool.Name)
		}
	}
	for _, x := range l.Extprocs {
		if !x.Picker {
			continue
		}
		for _, b := range l.Backends {
			if p := l.World.Pools[b.Pool]; p != nil && (p.Picker.Service != "" || b.Pool == x.Pool) {
				return "the endpoint picker of another gateway serves its InferencePool " + b.Pool.Name
			}
		}
	}
	return ""
}

// direct returns, for each InferencePool, an HTTPRoute of our Gateways that names it. Requests of
// such a route may name the models of every LLMRoute of the pool.
func (w *writer) direct() map[objects.Name]objects.Object {
	all := make(map[objects.Name]objects.Object)
	if w.Attachments == nil {
		return all
	}
	for i := range w.Network.HTTPRoutes {
		r := &w.Network.HTTPRoutes[i]
		of := objects.Object{Kind: objects.HTTPRouteKind, Name: objects.Name{Namespace: r.Namespace, Name: r.Name}}
		if w.Plans.Routes[of].Refused != (attach.Verdict{}) || !slices.ContainsFunc(w.Attachments.Parents[of], func(p attach.Parent) bool {
			return p.Refused == (attach.Verdict{})
		}) {
			continue
		}
		for _, rule := range r.Spec.Rules {
			for _, b := range rule.BackendRefs {
				if string(ptr.Deref(b.Kind, "")) == pool.Kind {
					name := objects.Name{Namespace: string(ptr.Deref(b.Namespace, gatewayv1.Namespace(r.Namespace))), Name: string(b.Name)}
					if _, known := all[name]; !known {
						all[name] = of
					}
				}
			}
		}
	}
	return all
}

// accepted is the condition Accepted: whether a data plane serves the route, with all of its model
// names.
func (l *llmRoute) accepted() metav1.Condition {
	const of = v1alpha1.ConditionAccepted
	at, refused := l.parents()
	outside := l.outside()
	alone := l.Attachments == nil && !l.Pending // other data planes serve all routes, or none
	switch reason, why := l.idle(); {
	case outside == "" && l.Pending:
		return metav1.Condition{Type: of, Status: metav1.ConditionUnknown, Reason: string(gatewayv1.RouteReasonPending), Message: unread}
	case outside != "", alone && reason != "":
		if words := l.faults[v1alpha1.ReasonModelNameTaken]; len(words) > 0 {
			return not(of, v1alpha1.ReasonModelNameTaken, strings.Join(words, "; "))
		}
		if outside == "" {
			if len(l.Parents) > 0 {
				why += "; control serves no Gateway for spec.parentRefs: its --xds-address is not set"
			}
			return metav1.Condition{Type: of, Status: metav1.ConditionUnknown, Reason: reason, Message: why}
		}
		if len(at) > 0 {
			outside = ""
		} else {
			outside = "it attaches to no Gateway, but " + outside
		}
		return is(of, v1alpha1.ReasonAccepted, outside)
	case len(at) == 0 && len(refused) > 0:
		return not(of, refused[0].Reason, refused[0].Message)
	case len(at) == 0:
		return not(of, gatewayv1.RouteReasonNoMatchingParent, l.unattached())
	}
	if words := l.takenAt(at); words != "" {
		return not(of, v1alpha1.ReasonModelNameTaken, words)
	}
	return is(of, v1alpha1.ReasonAccepted, "")
}

// models returns the model names that the route serves: those that no older route has, at one of
// its listeners or outside Gateways.
func (l *llmRoute) models() []string {
	parents, _ := l.parents()
	if len(parents) == 0 || l.outside() != "" {
		return l.Models
	}
	return slices.DeleteFunc(slices.Clone(l.wants), func(name string) bool {
		return !slices.ContainsFunc(parents, func(p attach.Parent) bool {
			return slices.ContainsFunc(p.Listeners, func(listener *attach.Listener) bool {
				return !slices.Contains(l.others[at{l.Name, listener}].names, name)
			})
		})
	})
}

// takenAt returns a message with the model names that older routes have at all listeners to which
// the route attaches; empty if some listener serves all of its names.
func (l *llmRoute) takenAt(parents []attach.Parent) string {
	var all []string
	for _, p := range parents {
		for _, listener := range p.Listeners {
			words := l.others[at{l.Name, listener}].words
			if words == "" {
				return ""
			}
			if !slices.Contains(all, words) {
				all = append(all, words)
			}
		}
	}
	return strings.Join(all, "; ")
}

// unread is the message about a route while the Gateways are unknown.
const unread = "control has not read the Gateways yet: are Gateway API's CRDs installed, and does the API server answer control?"

// unattached says why the route attaches to no Gateway of ours.
func (l *llmRoute) unattached() string {
	if len(l.Parents) == 0 && len(l.Extprocs) == 0 {
		return "it attaches to no Gateway: set spec.parentRefs. No other data plane serves it, since no extproc is connected to control"
	}
	if len(l.Parents) == 0 && l.Attachments == nil {
		return "no data plane serves it: the extprocs that are connected to control are endpoint pickers of other gateways, for other " +
			"InferencePools"
	}
	if len(l.Parents) == 0 {
		return "it attaches to no Gateway: set spec.parentRefs"
	}
	if l.Attachments == nil {
		return "it attaches to no Gateway: control serves none, set its --xds-address"
	}
	p := l.Parents[0]
	kind := ptr.Deref(p.Kind, objects.GatewayKind)
	name := objects.Name{Namespace: ptr.Deref(p.Namespace, l.Name.Namespace), Name: p.Name}
	there := false
	switch kind {
	case objects.GatewayKind:
		there = slices.ContainsFunc(l.Network.Gateways, func(g gatewayv1.Gateway) bool {
			return g.Namespace == name.Namespace && g.Name == name.Name
		})
	case objects.ListenerSetKind:
		there = slices.ContainsFunc(l.Network.Listeners, func(g gatewayv1.ListenerSet) bool {
			return g.Namespace == name.Namespace && g.Name == name.Name
		})
	}
	if !there {
		return fmt.Sprintf("it attaches to no Gateway: spec.parentRefs names %s %s, which does not exist", kind, name)
	}
	return fmt.Sprintf("it attaches to no Gateway of Headgate: %s %s of spec.parentRefs belongs to another controller", kind, name)
}

// ready is the condition Ready: whether a request for one of the models would be served now.
func (l *llmRoute) ready(accepted metav1.Condition, models []string) metav1.Condition {
	const of = v1alpha1.ConditionReady
	at, _ := l.parents()
	outside := l.outside()
	if !good(accepted) && (len(models) == 0 || len(at) == 0 && outside == "") {
		if accepted.Reason != string(gatewayv1.RouteReasonPending) {
			accepted.Status = metav1.ConditionFalse
		}
		accepted.Type = of
		return accepted
	}
	if outside == "" {
		if waiting := l.unprogrammed(at); waiting != "" {
			return not(of, v1alpha1.ReasonNotProgrammed, waiting)
		}
	}
	if ready := l.backends(); !good(ready) || len(l.Extprocs) > 0 {
		return ready
	}
	return not(of, v1alpha1.ReasonNoPicker, noPicker)
}

// unprogrammed returns why no Envoy of the Gateways to which the route attaches serves it; empty if
// one does.
func (l *llmRoute) unprogrammed(at []attach.Parent) (words string) {
	for _, p := range at {
		done := l.done(p.Gateway, p.Listeners)
		if good(done) {
			return ""
		}
		words = fmt.Sprintf("Gateway %s: %s", p.Gateway.Name, done.Message)
	}
	return words
}

// backends returns the condition Ready of a route that data planes serve, from the state of its
// pools' endpoints.
func (l *llmRoute) backends() metav1.Condition {
	const of = v1alpha1.ConditionReady
	var failed, empty, unknown []string // pools that serve no request
	awaited := 0                        // number of the empty ones in which requests wait
	var total Tally
	for _, b := range l.Backends {
		if b.Weight == 0 {
			continue
		}
		if key := (objects.ModelKey{Pool: b.Pool, ID: l.Adapter}); l.Adapter != "" && l.Failures[key] != "" {
			failed = append(failed, fmt.Sprintf("InferencePool %s: %s cannot be loaded: %s", b.Pool.Name, l.Adapter, l.Failures[key]))
			continue
		}
		if l.World.Pools[b.Pool] == nil {
			empty = append(empty, fmt.Sprintf("InferencePool %s does not exist", b.Pool.Name))
			continue
		}
		t := l.tally(b.Pool)
		total.Answering, total.Failing, total.Total = total.Answering+t.Answering, total.Failing+t.Failing, total.Total+t.Total
		words := fmt.Sprintf("InferencePool %s: %s", b.Pool.Name, t.words())
		switch t.Answers() {
		case metav1.ConditionFalse:
			if empty = append(empty, words); t.awaited() {
				awaited++
			}
		case metav1.ConditionUnknown:
			unknown = append(unknown, words)
		case metav1.ConditionTrue:
		}
	}
	lack := slices.Concat(failed, empty, unknown)
	switch {
	case total.Answering > 0 && len(lack) > 0:
		return is(of, v1alpha1.ReasonEndpointsAnswer, "requests for some pools fail: "+strings.Join(lack, "; "))
	case total.Answering > 0:
		return is(of, v1alpha1.ReasonEndpointsAnswer, fmt.Sprintf("%d of %s", total.Answering,
			count(total.Total, "endpoint answers", "endpoints answer")))
	case len(unknown) > 0:
		return metav1.Condition{
			Type: of, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNotObserved, Message: Message(strings.Join(lack, "; ")),
		}
	case total.Failing > 0:
		return not(of, v1alpha1.ReasonEndpointsFailing, strings.Join(lack, "; "))
	case len(empty) == 0:
		return not(of, v1alpha1.ReasonCannotLoad, strings.Join(lack, "; "))
	case awaited == len(lack):
		return not(of, v1alpha1.ReasonEndpointsAwaited, strings.Join(lack, "; "))
	}
	return not(of, v1alpha1.ReasonNoEndpoints, strings.Join(lack, "; "))
}
