package plan

import (
	"fmt"
	"regexp"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// grpcRules returns the rules of a GRPCRoute at a listener, and notes what is wrong with them. A method is a path of HTTP/2.
func (b *builder) grpcRules(r *gatewayv1.GRPCRoute, of objects.Object, l *attach.Listener) []Rule {
	var all []Rule
	v := new(verdict)
	for i := range r.Spec.Rules {
		rule := &r.Spec.Rules[i]
		where := nameOf(i, rule.Name)
		matches := rule.Matches
		if len(matches) == 0 {
			matches = []gatewayv1.GRPCRouteMatch{{}}
		}
		for _, m := range matches {
			match, err := grpcMatchOf(m)
			if err != nil {
				v.drop("rule %s: %v", where, err)
				continue
			}
			route := forwarding{where: where, filters: httpFilters(rule.Filters)}
			for _, ref := range rule.BackendRefs {
				route.backends = append(route.backends, backendRef{ref.BackendRef, httpFilters(ref.Filters)})
			}
			done := b.forward(route, match, l, objects.GRPCRouteKind, of.Name.Namespace, v)
			done.Of, done.Index, done.Name, done.Match = of, i, string(or(rule.Name, "")), match
			all = append(all, done)
			v.kept = true
		}
	}
	b.verdicts[of] = v.result()
	return all
}

// httpFilters says in HTTPRoute's words what filters of a GRPCRoute do.
func httpFilters(all []gatewayv1.GRPCRouteFilter) []gatewayv1.HTTPRouteFilter {
	is := make([]gatewayv1.HTTPRouteFilter, len(all))
	for i, f := range all {
		is[i] = gatewayv1.HTTPRouteFilter{
			Type: gatewayv1.HTTPRouteFilterType(f.Type), RequestHeaderModifier: f.RequestHeaderModifier,
			ResponseHeaderModifier: f.ResponseHeaderModifier, RequestMirror: f.RequestMirror,
		}
	}
	return is
}

// grpcMatchOf returns a match of a GRPCRoute, or why it cannot be.
func grpcMatchOf(m gatewayv1.GRPCRouteMatch) (Match, error) {
	is := Match{Kind: Prefix, Path: "/"}
	if m.Method != nil {
		service, method := or(m.Method.Service, ""), or(m.Method.Method, "")
		switch {
		case or(m.Method.Type, gatewayv1.GRPCMethodMatchExact) == gatewayv1.GRPCMethodMatchRegularExpression:
			is.Kind, is.Path = Regex, "/"+orAny(service)+"/"+orAny(method)
			if err := checkRegex(is.Path); err != nil {
				return is, fmt.Errorf("method %w", err)
			}
		case service != "" && method != "":
			is.Kind, is.Path = Exact, "/"+service+"/"+method
		case service != "":
			is.Path = "/" + service
		case method != "":
			is.Kind, is.Path, is.AnyService = Regex, "/[^/]+/"+regexp.QuoteMeta(method), true
		}
	}
	seen := make(map[string]bool)
	for _, h := range m.Headers {
		name := strings.ToLower(string(h.Name))
		if seen[name] {
			continue
		}
		seen[name] = true
		v, err := valueOf(name, h.Value, or(h.Type, gatewayv1.GRPCHeaderMatchExact) == gatewayv1.GRPCHeaderMatchRegularExpression)
		if err != nil {
			return is, fmt.Errorf("header %w", err)
		}
		is.Headers = append(is.Headers, v)
	}
	return is, nil
}

func orAny(expression string) string {
	if expression == "" {
		return "[^/]+"
	}
	return "(?:" + expression + ")"
}
