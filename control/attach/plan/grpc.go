package plan

import (
	"fmt"
	"regexp"
	"strings"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// grpcRules returns the rules of a GRPCRoute at a listener. A gRPC method is an HTTP/2 path.
func (b *builder) grpcRules(is *gatewayv1.GRPCRoute, of objects.Object, l *attach.Listener) []Rule {
	r := b.routing(of, l)
	var all []Rule
	for i := range is.Spec.Rules {
		all = append(all, rulesFor(r, grpcForwarding(is, i), is.Spec.Rules[i].Matches, grpcMatchOf)...)
	}
	return r.done(all)
}

// grpcForwarding returns a rule of a GRPCRoute without its matches.
func grpcForwarding(is *gatewayv1.GRPCRoute, i int) forwarding {
	rule := &is.Spec.Rules[i]
	f := forwarding{index: i, name: rule.Name, filters: httpFilters(rule.Filters)}
	for _, ref := range rule.BackendRefs {
		f.backends = append(f.backends, backendRef{ref.BackendRef, httpFilters(ref.Filters)})
	}
	return f
}

// httpFilters converts filters of a GRPCRoute to those of an HTTPRoute.
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

// grpcMatchOf converts a match of a GRPCRoute. The error is why the match is invalid.
func grpcMatchOf(m gatewayv1.GRPCRouteMatch) (Match, error) {
	is := Match{Kind: Prefix, Path: "/"}
	if m.Method != nil {
		service, method := ptr.Deref(m.Method.Service, ""), ptr.Deref(m.Method.Method, "")
		switch {
		case ptr.Deref(m.Method.Type, gatewayv1.GRPCMethodMatchExact) == gatewayv1.GRPCMethodMatchRegularExpression:
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
	wanted := make([]Value, len(m.Headers))
	for i, h := range m.Headers {
		wanted[i] = Value{
			strings.ToLower(string(h.Name)), h.Value,
			ptr.Deref(h.Type, gatewayv1.GRPCHeaderMatchExact) == gatewayv1.GRPCHeaderMatchRegularExpression,
		}
	}
	var err error
	is.Headers, err = values("header", wanted)
	return is, err
}

func orAny(expression string) string {
	if expression == "" {
		return "[^/]+"
	}
	return "(?:" + expression + ")"
}
