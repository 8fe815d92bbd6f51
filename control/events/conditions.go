package events

import (
	"encoding/json"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/v1alpha1"
)

// Condition is a condition of an object, or of a part of it.
type Condition struct {
	// Place is the part of the object, such as "listener http" or "Gateway g"; empty: all of it.
	Place string
	metav1.Condition
}

func (c Condition) key() string { return c.Place + "/" + c.Type }

// level orders states by how good they are for requests.
type level int

const (
	absent  level = iota // no condition, or its status is unknown
	good                 // nothing is wrong
	waiting              // nothing is wrong, and nothing is done yet
	bad
)

// negative are the types of conditions that are True if something is wrong. Gateway API removes
// some of them otherwise.
var negative = []string{
	string(gatewayv1.ListenerConditionConflicted), string(gatewayv1.ListenerConditionOverlappingTLSConfig),
	string(gatewayv1.RouteConditionPartiallyInvalid), string(gatewayv1.GatewayConditionInsecureFrontendValidationMode),
}

// Negative reports whether a condition of a type is True if something is wrong, so that False is
// good.
func Negative(conditionType string) bool { return slices.Contains(negative, conditionType) }

// reasonResolved is the reason in place of that of a negative condition which was removed.
const reasonResolved = "Resolved"

// starts are the reasons of conditions that are false only because something has just begun. They
// are not worse than before.
var starts = []string{
	string(gatewayv1.GatewayReasonPending), string(gatewayv1.GatewayReasonAddressNotAssigned), "NotProgrammed",
	v1alpha1.ReasonLoading, v1alpha1.ReasonTransitioning, v1alpha1.ReasonEndpointsAwaited,
}

// Starting reports whether a condition with this reason is false only because something is still
// starting.
func Starting(reason string) bool { return slices.Contains(starts, reason) }

// state returns what Events report of a condition.
func (c Condition) state() state {
	if Negative(c.Type) {
		if c.Status == metav1.ConditionTrue {
			return state{bad, c.Reason}
		}
		return state{good, c.Reason}
	}
	switch {
	case c.Status == metav1.ConditionTrue:
		return state{level: good, reason: c.Reason}
	case c.Status != metav1.ConditionFalse:
		return state{}
	case Starting(c.Reason):
		return state{level: waiting, reason: c.Reason}
	}
	return state{bad, c.Reason}
}

// note returns the note of an Event, such as "Ready is False: no endpoint answers".
func (c Condition) note() string {
	words := c.Type + " is " + string(c.Status)
	if c.Reason == reasonResolved {
		words = c.Type + " is resolved"
	}
	if c.Place != "" {
		words += " at " + c.Place
	}
	if c.Message != "" {
		words += ": " + c.Message
	}
	if len(words) > maxNote {
		words = strings.ToValidUTF8(words[:maxNote-len("…")], "") + "…"
	}
	return words
}

// ConditionsOf returns the conditions in an object, or in its status: its own, and those of
// listeners, of a route's parents and of a policy's ancestors.
func ConditionsOf(o any) []Condition {
	text, err := json.Marshal(o)
	if err != nil {
		return nil
	}
	type part struct {
		Name        string
		ParentRef   *reference
		AncestorRef *reference
		Conditions  []metav1.Condition
	}
	type status struct {
		Conditions                    []metav1.Condition
		Parents, Ancestors, Listeners []part
	}
	var is struct {
		status
		Status status
	}
	if json.Unmarshal(text, &is) != nil {
		return nil
	}
	var all []Condition
	for _, s := range []status{is.status, is.Status} {
		for _, c := range s.Conditions {
			all = append(all, Condition{"", c})
		}
		for _, p := range s.Listeners {
			for _, c := range p.Conditions {
				all = append(all, Condition{"listener " + p.Name, c})
			}
		}
		for _, p := range slices.Concat(s.Parents, s.Ancestors) {
			for _, c := range p.Conditions {
				all = append(all, Condition{p.ParentRef.String() + p.AncestorRef.String(), c})
			}
		}
	}
	return all
}

// reference is a reference to a parent or ancestor.
type reference struct{ Kind, Namespace, Name, SectionName string }

// String returns the kind and the name, such as "Gateway ns/g (http)".
func (r *reference) String() string {
	if r == nil {
		return ""
	}
	words := r.Kind + " "
	if r.Namespace != "" {
		words += r.Namespace + "/"
	}
	words += r.Name
	if r.SectionName != "" {
		words += " (" + r.SectionName + ")"
	}
	return words
}
