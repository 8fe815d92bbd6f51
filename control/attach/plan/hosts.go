package plan

import (
	"cmp"
	"maps"
	"slices"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// routed contains the rules of a route at a listener, and the route's hostnames. A route without
// hostnames gets the listener's.
type routed struct {
	hostnames []string
	rules     []Rule
}

// ownOr returns a route's own hostnames. If it has none, ownOr returns the listener's hostname.
func ownOr(l *attach.Listener, own []gatewayv1.Hostname) []string {
	if len(own) == 0 {
		return []string{l.Hostname}
	}
	all := make([]string, len(own))
	for i, h := range own {
		all[i] = string(h)
	}
	return all
}

// hosts returns the hosts of a listener. They always include a host for the listener's own
// hostname, so that a less specific listener of the port does not get its requests.
func (b *builder) hosts(port *Port, l *attach.Listener) []Host {
	domains := map[string]bool{l.Hostname: true}
	oldest, open := b.oldestModels(l)
	routes := make([]routed, len(l.Routes))
	for age, at := range l.Routes {
		r := &routes[age]
		switch {
		case at.Route.Kind == objects.HTTPRouteKind:
			route := b.http[at.Route.Name]
			r.rules, r.hostnames = b.httpRules(route, at.Route, l), ownOr(l, route.Spec.Hostnames)
		case at.Route.Kind == objects.GRPCRouteKind:
			route := b.grpc[at.Route.Name]
			r.rules, r.hostnames = b.grpcRules(route, at.Route, l), ownOr(l, route.Spec.Hostnames)
		case age == oldest:
			r.rules, r.hostnames = llmRules(open), ownOr(l, nil)
		}
		for _, domain := range at.Hostnames {
			if owner(port, domain) == l { // otherwise another listener gets the domain's requests
				domains[domain] = true
			}
		}
	}
	if oldest < 0 && len(l.Pools) > 0 {
		routes = append(routes, routed{ownOr(l, nil), llmRules(open)})
	}
	all := make([]Host, 0, len(domains))
	for _, domain := range slices.Sorted(maps.Keys(domains)) {
		all = append(all, Host{domain, rulesOf(domain, routes)})
	}
	return all
}

// owner returns the most specific listener of a port whose hostname includes a domain.
func owner(port *Port, domain string) *attach.Listener {
	var best *attach.Listener
	for _, l := range port.Listeners {
		both, ok := attach.Intersect(l.Hostname, domain)
		if ok && both == domain && (best == nil || attach.MoreSpecific(l.Hostname, best.Hostname)) {
			best = l.Listener
		}
	}
	return best
}

// ranked is a rule, and the hostname of its route that matches a domain.
type ranked struct {
	Rule
	pattern string
	age     int // rank of its route by age: 0 is the oldest
}

// rulesOf returns the rules of a domain in Gateway API's order of precedence (HTTPRoute,
// spec.hostnames and spec.rules.matches). It compares first how specific the routes' hostnames are,
// then how specific the matches are, then the ages of the routes, and last the positions of the
// rules. The given routes are in order of age.
func rulesOf(domain string, routes []routed) []Rule {
	var all []ranked
	for age, r := range routes {
		pattern, fits := "", false
		for _, d := range r.hostnames {
			if both, ok := attach.Intersect(d, domain); ok && both == domain && (!fits || attach.MoreSpecific(d, pattern)) {
				pattern, fits = d, true
			}
		}
		if !fits {
			continue
		}
		for _, rule := range r.rules {
			all = append(all, ranked{rule, pattern, age})
		}
	}
	slices.SortStableFunc(all, func(x, y ranked) int {
		switch {
		case attach.MoreSpecific(x.pattern, y.pattern):
			return -1
		case attach.MoreSpecific(y.pattern, x.pattern):
			return 1
		}
		return cmp.Or(-x.Match.compare(y.Match), cmp.Compare(x.age, y.age))
	})
	rules := make([]Rule, len(all))
	for i, r := range all {
		rules[i] = r.Rule
	}
	return rules
}
