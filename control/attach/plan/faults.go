package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// Fault is an error in an object that affects plans.
type Fault struct {
	Of objects.Object
	// Listener is the listener with the error; empty for the whole object.
	Listener string
	// Verdict is the reason and the message of a condition. The reason may be empty.
	Verdict attach.Verdict
}

// String formats the Fault. The argument returns the file and line of an object.
func (f Fault) String(where func(objects.Object) string) string {
	words := where(f.Of)
	if f.Listener != "" {
		words += ", listener " + f.Listener
	}
	if f.Verdict.Reason != "" {
		words += ": " + f.Verdict.Reason
	}
	return words + ": " + f.Verdict.Message
}

// Faults lists the errors of the plans' objects, and the objects that attach to nothing. They are
// sorted. Objects that Envoys reject are not included.
func (p *Plans) Faults() []Fault {
	var all []Fault
	note := func(of objects.Object, listener string, verdicts ...attach.Verdict) {
		for _, v := range verdicts {
			if v != (attach.Verdict{}) {
				all = append(all, Fault{of, listener, v})
			}
		}
	}
	for name, c := range p.Attachments.Classes {
		note(objects.Object{Kind: objects.GatewayClassKind, Name: objects.Name{Name: name}}, "", c.Refused)
	}
	for _, g := range p.Attachments.Gateways {
		note(objects.Object{Kind: objects.GatewayKind, Name: g.Name}, "", g.Refused, p.Presenting[g.Name])
		for _, s := range g.Sets {
			note(objects.Object{Kind: objects.ListenerSetKind, Name: s.Name}, "", s.Refused)
		}
		for _, l := range g.Listeners {
			note(l.Of, l.Section, l.Refused, p.Refused[l], p.Listeners[l])
		}
	}
	for route, parents := range p.Attachments.Parents {
		for _, parent := range parents {
			note(route, "", parent.Refused)
		}
	}
	for of, v := range p.Routes {
		note(of, "", v.Refused, v.Refs)
		if v.Partly != "" {
			note(of, "", attach.Verdict{Reason: "in part", Message: v.Partly})
		}
	}
	for name, v := range p.Pools {
		note(objects.Object{Kind: pool.Kind, Name: name}, "", v.Refused, v.Refs)
	}
	for name, v := range p.Policies {
		note(objects.Object{Kind: objects.BackendTLSPolicyKind, Name: name}, "", v.Refused, v.Refs)
	}
	for _, g := range p.Gateways {
		for name, c := range g.Certificates {
			if c.Warning != "" {
				note(objects.Object{Kind: objects.SecretKind, Name: name}, "", attach.Verdict{Message: c.Warning})
			}
		}
	}
	slices.SortFunc(all, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Of.String(), b.Of.String()), cmp.Compare(a.Listener, b.Listener),
			cmp.Compare(a.Verdict.Reason, b.Verdict.Reason), cmp.Compare(a.Verdict.Message, b.Verdict.Message))
	})
	return slices.Compact(all)
}

// envoys returns messages about the routes that Envoys reject, sorted.
func (p *Plans) envoys() []string {
	var all []string
	for of, v := range p.Routes {
		for _, is := range v.Envoys {
			all = append(all, fmt.Sprintf("%s: %s: %s", of, is.Reason, is.Message))
		}
	}
	slices.Sort(all)
	return all
}
