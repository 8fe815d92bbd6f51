package drive

import (
	"fmt"
	"slices"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// problems says in order what is wrong with the objects that plans are made of, in words for people, each with where it is written if
// somebody knows. What Envoys refuse of them is told apart. It is pure.
func problems(a *attach.Attachments, plans *plan.Plans, where func(kind string, name objects.Name) string) []string {
	var all []string
	note := func(of objects.Object, about string, v attach.Verdict) {
		if v != (attach.Verdict{}) {
			all = append(all, fmt.Sprintf("%s%s: %s: %s", where(of.Kind, of.Name), about, v.Reason, v.Words))
		}
	}
	for name, c := range a.Classes {
		note(objects.Object{Kind: objects.GatewayClassKind, Name: objects.Name{Name: name}}, "", c.Refused)
	}
	for _, g := range a.Gateways {
		note(objects.Object{Kind: objects.GatewayKind, Name: g.Name}, "", g.Refused)
		for _, s := range g.Sets {
			note(objects.Object{Kind: objects.ListenerSetKind, Name: s.Name}, "", s.Refused)
		}
		for _, l := range g.Listeners {
			note(l.Of, ", listener "+l.Section, l.Refused)
			note(l.Of, ", listener "+l.Section, plans.Listeners[l])
			note(l.Of, ", listener "+l.Section, plans.Refused[l])
		}
	}
	for route, parents := range a.Parents {
		for _, p := range parents {
			note(route, "", p.Refused)
		}
	}
	for route, v := range plans.Routes {
		note(route, "", v.Refused)
		note(route, "", v.Refs)
		if v.Partly != "" {
			all = append(all, fmt.Sprintf("%s: in part: %s", where(route.Kind, route.Name), v.Partly))
		}
	}
	for name, v := range plans.Pools {
		of := objects.Object{Kind: pool.Kind, Name: name}
		note(of, "", v.Refused)
		note(of, "", v.Refs)
	}
	for name, v := range plans.Policies {
		of := objects.Object{Kind: objects.BackendTLSPolicyKind, Name: name}
		note(of, "", v.Refused)
		note(of, "", v.Refs)
	}
	for _, p := range plans.Gateways {
		for name, c := range p.Certificates {
			if c.Warning != "" {
				all = append(all, where(objects.SecretKind, name)+": "+c.Warning)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// note logs the problems that were not there before.
func (d *Driver) note(all []string) {
	for _, p := range all {
		if _, known := slices.BinarySearch(d.problems, p); !known {
			d.Log.Warn("objects have a problem", "problem", p)
		}
	}
	d.problems = all
}
