package conditions

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// gateway adds the status of a Gateway and its ListenerSets.
func (w *writer) gateway(g *attach.Gateway) {
	s := w.add(objects.GatewayKind, g.Gateway)
	known := w.Gateways[g.Name]
	own := listenersOf(g, s.Object)
	for _, l := range own {
		s.Listeners = append(s.Listeners, w.listener(g, l))
	}
	s.Addresses = known.Addresses
	accepted := w.accepted(g, own)
	s.Conditions = []metav1.Condition{accepted, w.programmed(g, own, accepted)}
	if g.Shows() != nil {
		resolved := is(gatewayv1.GatewayConditionResolvedRefs, gatewayv1.GatewayReasonResolvedRefs, "")
		if v := w.Plans.Presenting[g.Name]; v != (attach.Verdict{}) {
			resolved = not(gatewayv1.GatewayConditionResolvedRefs, v.Reason, v.Message)
		}
		s.Conditions = append(s.Conditions, resolved)
	}
	if words := anybody(g); words != "" {
		s.Conditions = append(s.Conditions, is(gatewayv1.GatewayConditionInsecureFrontendValidationMode,
			gatewayv1.GatewayReasonConfigurationChanged, words))
	}
	for _, set := range g.Sets {
		if w.set(g, set, accepted) {
			s.Sets++
		}
	}
}

// anybody returns a message with the ports that accept clients without a valid certificate; empty
// if there is none.
func anybody(g *attach.Gateway) string {
	var ports []int32
	for _, l := range g.Listeners {
		if v := g.Clients(l.Port); v != nil && !refused(l) && l.Protocol == gatewayv1.HTTPSProtocolType &&
			v.Mode == gatewayv1.AllowInsecureFallback {
			ports = append(ports, l.Port)
		}
	}
	if len(ports) == 0 {
		return ""
	}
	slices.Sort(ports)
	var all []string
	for _, port := range slices.Compact(ports) {
		all = append(all, strconv.Itoa(int(port)))
	}
	return "clients without a valid certificate are also accepted, at port " + strings.Join(all, ", ")
}

// listenersOf returns the listeners that an object declares.
func listenersOf(g *attach.Gateway, of objects.Object) []*attach.Listener {
	return slices.DeleteFunc(slices.Clone(g.Listeners), func(l *attach.Listener) bool { return l.Of != of })
}

// refused reports whether a listener is not accepted.
func refused(l *attach.Listener) bool { return l.Refused != (attach.Verdict{}) }

// unserved returns a message with the listeners that Envoys do not serve; empty if there is none.
func (w *writer) unserved(all []*attach.Listener) string {
	var names []string
	for _, l := range all {
		if !w.served[l] {
			names = append(names, l.Section)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "listeners that Envoys do not serve (see their conditions): " + strings.Join(names, ", ")
}

// accepted is the condition Accepted of a Gateway: whether Envoys can serve it.
func (w *writer) accepted(g *attach.Gateway, own []*attach.Listener) metav1.Condition {
	const of = gatewayv1.GatewayConditionAccepted
	if v := g.Refused; v != (attach.Verdict{}) {
		return not(of, v.Reason, v.Message)
	}
	for _, a := range g.Spec.Addresses {
		if kind := ptr.Deref(a.Type, gatewayv1.IPAddressType); kind != gatewayv1.IPAddressType {
			return not(of, gatewayv1.GatewayReasonUnsupportedAddress,
				fmt.Sprintf("spec.addresses has the type %s: Headgate supports only %s", kind, gatewayv1.IPAddressType))
		}
	}
	words := w.unserved(own)
	switch {
	case words == "":
		return is(of, gatewayv1.GatewayReasonAccepted, "")
	case !slices.ContainsFunc(own, func(l *attach.Listener) bool { return !refused(l) && w.Plans.Refused[l] == (attach.Verdict{}) }):
		return not(of, gatewayv1.GatewayReasonListenersNotValid, words)
	}
	return is(of, gatewayv1.GatewayReasonListenersNotValid, words)
}

// programmed is the condition Programmed of a Gateway: whether Envoys have its plan at reachable
// addresses.
func (w *writer) programmed(g *attach.Gateway, own []*attach.Listener, accepted metav1.Condition) metav1.Condition {
	const of = gatewayv1.GatewayConditionProgrammed
	if !good(accepted) {
		return not(of, gatewayv1.GatewayReasonInvalid, w.unprogrammable(g, accepted))
	}
	if v := w.Gateways[g.Name].Fault; v != (attach.Verdict{}) {
		return not(of, v.Reason, v.Message)
	}
	if len(own) == 0 {
		own = g.Listeners
	}
	if done := w.done(g, own); !good(done) {
		return done
	}
	return w.reached(g)
}

// unprogrammable says what becomes of a Gateway that is not accepted.
func (w *writer) unprogrammable(g *attach.Gateway, accepted metav1.Condition) string {
	switch {
	case accepted.Reason != string(gatewayv1.GatewayReasonListenersNotValid):
		return "it is not accepted"
	case !g.Managed():
		return "it has no valid listener"
	case len(w.Gateways[g.Name].Addresses) > 0:
		return "it has no valid listener; its pods and its address stay until it is deleted"
	}
	return "it has no valid listener; control creates its pods when it has one"
}

// reached reports whether clients can reach a Gateway at the addresses that it requests.
func (w *writer) reached(g *attach.Gateway) metav1.Condition {
	const of = gatewayv1.GatewayConditionProgrammed
	has := w.Gateways[g.Name].Addresses
	if len(has) == 0 {
		return not(of, gatewayv1.GatewayReasonAddressNotAssigned, "its Service has no address yet")
	}
	for _, a := range g.Spec.Addresses {
		if a.Value != "" && !slices.ContainsFunc(has, func(is gatewayv1.GatewayStatusAddress) bool { return is.Value == a.Value }) {
			return not(of, gatewayv1.GatewayReasonAddressNotUsable,
				fmt.Sprintf("its Service does not have the address %s of spec.addresses", a.Value))
		}
	}
	return is(of, gatewayv1.GatewayReasonProgrammed, "")
}

// done is the condition Programmed for some listeners of a Gateway: whether Envoys serve them.
func (w *writer) done(g *attach.Gateway, listeners []*attach.Listener) metav1.Condition {
	const of = gatewayv1.GatewayConditionProgrammed
	some := false
	var waiting *attach.Listener
	for _, l := range listeners {
		if !w.served[l] {
			continue
		}
		some = true
		port, answered := w.Gateways[g.Name].Ports[l.Port]
		if port.Refused != "" {
			return not(of, gatewayv1.GatewayReasonInvalid, refusal(l, port))
		}
		if !answered && waiting == nil {
			waiting = l
		}
	}
	switch {
	case !some:
		return not(of, gatewayv1.GatewayReasonInvalid, "Envoys serve none of the listeners: see their conditions")
	case waiting != nil:
		return not(of, gatewayv1.GatewayReasonPending, pending(waiting))
	}
	return is(of, gatewayv1.GatewayReasonProgrammed, "")
}

func refusal(l *attach.Listener, port Port) string {
	return fmt.Sprintf("an Envoy rejected the configuration of port %d and keeps the previous one: %s", l.Port, port.Refused)
}

func pending(l *attach.Listener) string {
	return fmt.Sprintf("no Envoy has accepted the configuration of port %d yet", l.Port)
}

// set adds the status of a ListenerSet, and reports whether it attaches to the Gateway.
func (w *writer) set(g *attach.Gateway, set *attach.Set, gateway metav1.Condition) bool {
	s := w.add(objects.ListenerSetKind, set.ListenerSet)
	both := func(reason, words string) bool {
		s.Conditions = []metav1.Condition{
			not(gatewayv1.ListenerSetConditionAccepted, reason, words), not(gatewayv1.ListenerSetConditionProgrammed, reason, words),
		}
		return false
	}
	own := listenersOf(g, s.Object)
	for _, l := range own {
		s.Listeners = append(s.Listeners, w.listener(g, l))
	}
	words := w.unserved(own)
	accepted := is(gatewayv1.ListenerSetConditionAccepted, gatewayv1.ListenerSetReasonAccepted, "")
	switch {
	case set.Refused != (attach.Verdict{}):
		return both(set.Refused.Reason, set.Refused.Message)
	case !good(gateway):
		return both(string(gatewayv1.ListenerSetReasonParentNotAccepted), fmt.Sprintf("Gateway %s is not accepted", g.Name))
	case !slices.ContainsFunc(own, func(l *attach.Listener) bool { return w.served[l] }):
		return both(string(gatewayv1.ListenerSetReasonListenersNotValid), words)
	case words != "":
		accepted = is(gatewayv1.ListenerSetConditionAccepted, gatewayv1.ListenerSetReasonListenersNotValid, words)
	}
	programmed := w.done(g, own)
	if reached := w.reached(g); good(programmed) && !good(reached) {
		programmed = not(gatewayv1.ListenerSetConditionProgrammed, reasonParentNotProgrammed,
			fmt.Sprintf("Gateway %s: %s", g.Name, reached.Message))
	}
	s.Conditions = []metav1.Condition{accepted, programmed}
	return true
}

// reasonParentNotProgrammed is a reason that Gateway API describes at
// ListenerSetConditionProgrammed without defining a constant.
const reasonParentNotProgrammed = "ParentNotProgrammed"

// conflicts are the reasons of listeners that conflict with another listener.
var conflicts = []string{string(gatewayv1.ListenerReasonHostnameConflict), string(gatewayv1.ListenerReasonProtocolConflict)}

// listener returns the status of a Gateway's listener.
func (w *writer) listener(g *attach.Gateway, l *attach.Listener) Listener {
	s := Listener{Name: gatewayv1.SectionName(l.Section), Kinds: l.Kinds}
	for _, at := range l.Routes {
		if w.Plans.Routes[at.Route].Refused == (attach.Verdict{}) {
			s.Routes++
		}
	}
	conflicted := not(gatewayv1.ListenerConditionConflicted, gatewayv1.ListenerReasonNoConflicts, "")
	accepted := is(gatewayv1.ListenerConditionAccepted, gatewayv1.ListenerReasonAccepted, "")
	resolved := is(gatewayv1.ListenerConditionResolvedRefs, gatewayv1.ListenerReasonResolvedRefs, "")
	programmed := is(gatewayv1.ListenerConditionProgrammed, gatewayv1.ListenerReasonProgrammed, "")
	fault := w.Plans.Listeners[l]
	switch {
	case fault != (attach.Verdict{}):
		resolved = not(gatewayv1.ListenerConditionResolvedRefs, fault.Reason, fault.Message)
	case l.OtherKinds:
		resolved = not(gatewayv1.ListenerConditionResolvedRefs, gatewayv1.ListenerReasonInvalidRouteKinds,
			fmt.Sprintf("allowedRoutes.kinds has kinds that cannot attach to a listener of protocol %s", l.Protocol))
	}
	port, answered := w.Gateways[g.Name].Ports[l.Port]
	if v := w.Plans.Refused[l]; v != (attach.Verdict{}) {
		accepted = not(gatewayv1.ListenerConditionAccepted, v.Reason, v.Message)
	}
	switch v := l.Refused; {
	case slices.Contains(conflicts, v.Reason):
		conflicted = is(gatewayv1.ListenerConditionConflicted, v.Reason, v.Message)
		accepted = not(gatewayv1.ListenerConditionAccepted, v.Reason, v.Message)
		programmed = not(gatewayv1.ListenerConditionProgrammed, v.Reason, v.Message)
	case refused(l):
		accepted = not(gatewayv1.ListenerConditionAccepted, v.Reason, v.Message)
		programmed = not(gatewayv1.ListenerConditionProgrammed, gatewayv1.ListenerReasonInvalid, v.Message)
	case !w.served[l]:
		programmed = not(gatewayv1.ListenerConditionProgrammed, gatewayv1.ListenerReasonInvalid, fault.Message)
	case port.Refused != "":
		programmed = not(gatewayv1.ListenerConditionProgrammed, gatewayv1.ListenerReasonInvalid, refusal(l, port))
	case !answered:
		programmed = not(gatewayv1.ListenerConditionProgrammed, gatewayv1.ListenerReasonPending, pending(l))
	}
	s.Conditions = []metav1.Condition{accepted, programmed, resolved, conflicted}
	if words := overlaps(g, l); words != "" {
		s.Conditions = append(s.Conditions, is(gatewayv1.ListenerConditionOverlappingTLSConfig,
			gatewayv1.ListenerReasonOverlappingHostnames, words))
	}
	return s
}

// overlaps returns a message with the TLS listeners of the same port whose hostnames overlap with
// those of the given listener; empty if there is none. A client may use a connection to one
// listener for requests to another.
func overlaps(g *attach.Gateway, l *attach.Listener) string {
	if refused(l) || l.Protocol != gatewayv1.HTTPSProtocolType {
		return ""
	}
	var names []string
	for _, other := range g.Listeners {
		if other == l || refused(other) || other.Port != l.Port {
			continue
		}
		if _, both := attach.Intersect(l.Hostname, other.Hostname); both {
			names = append(names, other.String())
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "clients may share a connection between this listener and those with overlapping hostnames: " + strings.Join(names, ", ")
}
