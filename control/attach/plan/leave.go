package plan

import (
	"fmt"
	"maps"
	"slices"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// LeftOut is why a route is left out of a plan.
type LeftOut struct {
	// Message is Envoy's error.
	Message string
	// Dropped is true if Envoy rejects even the route's matches, so the plan contains none of its
	// rules. Otherwise the route's requests get the status [Failed].
	Dropped bool
}

// Refused contains the resources that the Envoys of a Gateway reject.
type Refused struct {
	// Routes are the routes to leave out.
	Routes map[objects.Object]LeftOut
	// Others are messages about the other rejected resources, sorted.
	Others []string
}

// LeaveOut returns the plans without the rejected routes of each Gateway. The verdicts of these
// routes report the rejection.
func (p *Plans) LeaveOut(refused map[objects.Name]Refused) *Plans {
	is := &Plans{
		Attachments: p.Attachments, Gateways: make([]*Plan, len(p.Gateways)), Routes: p.Routes, Listeners: p.Listeners,
		Refused: p.Refused, Presenting: p.Presenting, Pools: p.Pools, Policies: p.Policies, made: p.made,
	}
	if slices.ContainsFunc(slices.Collect(maps.Values(refused)), func(r Refused) bool { return len(r.Routes) > 0 }) {
		is.Routes = maps.Clone(p.Routes)
	}
	for i, g := range p.Gateways {
		r := refused[g.Gateway]
		is.Gateways[i] = g.LeaveOut(r.Routes)
		if len(r.Others) > 0 {
			told := *is.Gateways[i]
			told.Refused = r.Others
			is.Gateways[i] = &told
		}
		for of, left := range r.Routes {
			v := is.Routes[of]
			if v.Envoys = maps.Clone(v.Envoys); v.Envoys == nil {
				v.Envoys = make(map[objects.Name]attach.Verdict)
			}
			v.Envoys[g.Gateway] = left.verdict(of, g.Gateway)
			is.Routes[of] = v
		}
	}
	return is
}

func (l LeftOut) verdict(of objects.Object, gateway objects.Name) attach.Verdict {
	then := failedWords(of)
	if l.Dropped {
		then = "its rules are left out"
	}
	return attach.Verdict{
		Reason:  string(gatewayv1.RouteReasonUnsupportedValue),
		Message: fmt.Sprintf("the Envoys of Gateway %s reject it: %q: until it changes, %s", gateway, l.Message, then),
	}
}

// LeaveOut returns the plan without some routes. The clusters of these routes stay. Listeners
// without rules of these routes keep the same Hosts slices.
func (p *Plan) LeaveOut(routes map[objects.Object]LeftOut) *Plan {
	if len(routes) == 0 {
		return p
	}
	is := *p
	is.Ports = make([]Port, len(p.Ports))
	for i, port := range p.Ports {
		is.Ports[i] = Port{Number: port.Number, Listeners: make([]Listener, len(port.Listeners))}
		for j, l := range port.Listeners {
			if l.has(routes) {
				hosts := make([]Host, len(l.Hosts))
				for k, h := range l.Hosts {
					hosts[k] = Host{Domain: h.Domain, Rules: leaveOut(h.Rules, routes)}
				}
				l.Hosts = hosts
			}
			is.Ports[i].Listeners[j] = l
		}
	}
	return &is
}

// has reports whether a listener contains a rule of any of the given routes.
func (l *Listener) has(routes map[objects.Object]LeftOut) bool {
	return slices.ContainsFunc(l.Hosts, func(h Host) bool {
		return slices.ContainsFunc(h.Rules, func(r Rule) bool { _, is := routes[r.Of]; return is })
	})
}

func leaveOut(rules []Rule, routes map[objects.Object]LeftOut) []Rule {
	all := make([]Rule, 0, len(rules))
	for _, r := range rules {
		left, out := routes[r.Of]
		switch {
		case !out:
			all = append(all, r)
		case !left.Dropped:
			all = append(all, Rule{Of: r.Of, Index: r.Index, Name: r.Name, Match: r.Match, Status: Failed(r.Of)})
		}
	}
	return all
}
