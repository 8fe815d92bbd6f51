package conditions

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/control/events"
	"github.com/headgate/headgate/internal/objects"
)

// False returns the conditions in statuses that are False, in order, with the parts of objects that
// they are about.
func False(all []*Status) (out []admin.Condition) {
	for _, s := range all {
		out = append(out, FalseOf(s.Object, "", s.Conditions)...)
		for _, l := range s.Listeners {
			out = append(out, FalseOf(s.Object, "listener "+string(l.Name), l.Conditions)...)
		}
		for _, p := range s.Parents {
			name := strings.TrimPrefix(string(ptr.Deref(p.Ref.Namespace, ""))+"/"+string(p.Ref.Name), "/")
			out = append(out, FalseOf(s.Object, string(ptr.Deref(p.Ref.Kind, objects.GatewayKind))+" "+name, p.Conditions)...)
		}
	}
	return out
}

// FalseOf returns the conditions of an object, or of a part of it, that are False.
func FalseOf(of objects.Object, part string, all []metav1.Condition) (out []admin.Condition) {
	for _, c := range all {
		if c.Status == metav1.ConditionFalse && !events.Negative(c.Type) {
			out = append(out, admin.Condition{
				Kind: of.Kind, Name: of.Name.String(), Of: part, Type: c.Type, Reason: c.Reason, Message: c.Message,
			})
		}
	}
	return out
}
