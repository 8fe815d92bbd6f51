package plan

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// Failed is the status of requests whose rule or backend is invalid: 500, or for a GRPCRoute 503,
// which gRPC clients report as UNAVAILABLE.
func Failed(route objects.Object) int32 {
	if route.Kind == objects.GRPCRouteKind {
		return 503
	}
	return 500
}

// failedWords describes the status [Failed] in messages.
func failedWords(route objects.Object) string {
	if route.Kind == objects.GRPCRouteKind {
		return "its calls get UNAVAILABLE"
	}
	return "its requests get 500"
}

// httpRules returns the rules of an HTTPRoute at a listener.
func (b *builder) httpRules(is *gatewayv1.HTTPRoute, of objects.Object, l *attach.Listener) []Rule {
	r := b.routing(of, l)
	var all []Rule
	for i := range is.Spec.Rules {
		all = append(all, rulesFor(r, httpForwarding(is, i), is.Spec.Rules[i].Matches, matchOf)...)
	}
	return r.done(all)
}

// httpForwarding returns a rule of an HTTPRoute without its matches.
func httpForwarding(is *gatewayv1.HTTPRoute, i int) forwarding {
	rule := &is.Spec.Rules[i]
	f := forwarding{index: i, name: rule.Name, filters: rule.Filters, timeouts: rule.Timeouts, retry: rule.Retry}
	for _, ref := range rule.BackendRefs {
		f.backends = append(f.backends, backendRef{ref.BackendRef, ref.Filters})
	}
	return f
}

// routing makes the rules of a route at a listener, and collects the route's errors.
type routing struct {
	*builder
	verdict
	of objects.Object
	at *attach.Listener
}

func (b *builder) routing(of objects.Object, l *attach.Listener) *routing {
	return &routing{builder: b, of: of, at: l}
}

// done records the errors of the route and returns its rules.
func (r *routing) done(all []Rule) []Rule {
	r.verdicts[r.of] = r.result()
	return all
}

// forwarding is a rule of an HTTPRoute or GRPCRoute without its matches.
type forwarding struct {
	index    int
	name     *gatewayv1.SectionName
	filters  []gatewayv1.HTTPRouteFilter
	backends []backendRef
	timeouts *gatewayv1.HTTPRouteTimeouts
	retry    *gatewayv1.HTTPRouteRetry
}

// String returns the name or index of a rule, for messages.
func (f *forwarding) String() string {
	if f.name != nil {
		return string(*f.name)
	}
	return strconv.Itoa(f.index)
}

// refs returns the references to a rule's backends, including mirrors.
func (f *forwarding) refs() (all []gatewayv1.BackendObjectReference) {
	filters := f.filters
	for _, b := range f.backends {
		all, filters = append(all, b.BackendObjectReference), slices.Concat(filters, b.filters)
	}
	for _, is := range filters {
		if is.RequestMirror != nil {
			all = append(all, is.RequestMirror.BackendRef)
		}
	}
	return all
}

type backendRef struct {
	gatewayv1.BackendRef
	filters []gatewayv1.HTTPRouteFilter
}

// rulesFor returns a rule for each match. If there is no match, it returns one rule that matches
// every request.
func rulesFor[M any](r *routing, f forwarding, matches []M, read func(M) (Match, error)) []Rule {
	if len(matches) == 0 {
		matches = make([]M, 1)
	}
	var all []Rule
	for _, m := range matches {
		match, err := read(m)
		if err != nil {
			r.drop("rule %s: %v", &f, err)
			continue
		}
		rule := r.forward(&f, match)
		rule.Of, rule.Index, rule.Name, rule.Match = r.of, f.index, string(ptr.Deref(f.name, "")), match
		all = append(all, rule)
		r.kept = true
	}
	return all
}

// forward returns the action of a rule for one match.
func (r *routing) forward(rule *forwarding, match Match) Rule {
	f, err := r.filters(rule.filters, match)
	if err != nil {
		r.drop("rule %s: %v: %s", rule, err, failedWords(r.of))
		return Rule{Status: Failed(r.of)}
	}
	done := Rule{Request: f.request, Response: f.response, CORS: f.cors, Redirect: f.redirect}
	if done.Redirect != nil {
		return done
	}
	forward := &Forward{Host: f.host, Path: f.path, Mirrors: f.mirrors, Retry: retryOf(rule.retry)}
	if t := rule.timeouts; t != nil {
		forward.Timeout, forward.TryTimeout = duration(t.Request), duration(t.BackendRequest)
	}
	for _, ref := range rule.backends {
		backend, err := r.backend(ref, match)
		if err != nil {
			r.drop("rule %s: backendRef %s: %v: %s", rule, ref.Name, err, failedWords(r.of))
			backend.Cluster = ""
		}
		if backend.Weight > 0 {
			forward.Backends = append(forward.Backends, backend)
		}
	}
	if !slices.ContainsFunc(forward.Backends, func(b Backend) bool { return b.Cluster != "" }) {
		done.Status = Failed(r.of)
		return done
	}
	done.Forward = forward
	return done
}

// backend returns a backend of a rule. The error is why its filters are invalid.
func (r *routing) backend(ref backendRef, match Match) (Backend, error) {
	is := r.target(ref.BackendObjectReference)
	is.Weight = ptr.Deref(ref.Weight, 1)
	f, err := r.filters(ref.filters, match)
	if err != nil {
		return is, err
	}
	if f.redirect != nil || f.host != "" || f.path != nil || len(f.mirrors) > 0 || f.cors != nil {
		return is, errors.New("filters of a backend can only change headers, except the host")
	}
	is.Request, is.Response = f.request, f.response
	return is, nil
}

// filtered is the combined effect of a rule's or backend's filters.
type filtered struct {
	request, response Headers
	redirect          *Redirect
	host              string
	path              *PathChange
	mirrors           []Mirror
	cors              *gatewayv1.HTTPCORSFilter
}

// filters returns the combined effect of filters. The error is why they are invalid.
func (r *routing) filters(all []gatewayv1.HTTPRouteFilter, match Match) (filtered, error) {
	var f filtered
	for _, filter := range all {
		switch filter.Type {
		case gatewayv1.HTTPRouteFilterRequestHeaderModifier:
			host := ""
			f.request, host = headersOf(filter.RequestHeaderModifier)
			if f.host == "" {
				f.host = host
			}
		case gatewayv1.HTTPRouteFilterResponseHeaderModifier:
			f.response, _ = headersOf(filter.ResponseHeaderModifier)
		case gatewayv1.HTTPRouteFilterRequestRedirect:
			f.redirect = redirectOf(filter.RequestRedirect, r.at)
			if err := checkPath(filter.RequestRedirect.Path, match); err != nil {
				return filtered{}, err
			}
		case gatewayv1.HTTPRouteFilterURLRewrite:
			if err := checkPath(filter.URLRewrite.Path, match); err != nil {
				return filtered{}, err
			}
			f.path = pathOf(filter.URLRewrite.Path)
			if h := filter.URLRewrite.Hostname; h != nil {
				f.host = string(*h)
			}
		case gatewayv1.HTTPRouteFilterRequestMirror:
			m := filter.RequestMirror
			to := r.mirror(m.BackendRef)
			if to == "" {
				continue // an invalid mirror does not affect the response
			}
			mirror := Mirror{to, 100, 100}
			switch {
			case m.Fraction != nil:
				mirror.Share, mirror.Of = m.Fraction.Numerator, ptr.Deref(m.Fraction.Denominator, 100)
			case m.Percent != nil:
				mirror.Share = *m.Percent
			}
			f.mirrors = append(f.mirrors, mirror)
		case gatewayv1.HTTPRouteFilterCORS:
			f.cors = filter.CORS
		default:
			return filtered{}, fmt.Errorf("Headgate does not support the filter %s", filter.Type) //nolint:staticcheck // a name begins it
		}
	}
	return f, nil
}

// headersOf returns the changes of headers, and the new host; an empty host keeps the request's.
// Envoy sets the host separately from headers.
func headersOf(f *gatewayv1.HTTPHeaderFilter) (h Headers, host string) {
	take := func(all []gatewayv1.HTTPHeader) (rest []gatewayv1.HTTPHeader) {
		for _, header := range all {
			if strings.EqualFold(string(header.Name), "host") {
				host = header.Value
				continue
			}
			rest = append(rest, header)
		}
		return rest
	}
	h.Set, h.Add = take(f.Set), take(f.Add)
	for _, name := range f.Remove {
		if !strings.EqualFold(name, "host") { // every request needs a host
			h.Remove = append(h.Remove, name)
		}
	}
	return h, host
}

// wellKnown contains the default port of each scheme.
var wellKnown = map[string]int32{"http": 80, "https": 443}

// redirectOf returns the target of a redirect at a listener. If the filter names no scheme, it is
// the listener's. If it names no port, it is the default port of the filter's scheme, or the
// listener's port. A port that is the scheme's default is omitted (HTTPRequestRedirectFilter.port).
func redirectOf(f *gatewayv1.HTTPRequestRedirectFilter, l *attach.Listener) *Redirect {
	r := &Redirect{
		Code: int32(ptr.Deref(f.StatusCode, 302)), Scheme: ptr.Deref(f.Scheme, ""), Host: string(ptr.Deref(f.Hostname, "")),
		Path: pathOf(f.Path),
	}
	scheme := r.Scheme
	if scheme == "" {
		scheme = "http"
		if l.Protocol == gatewayv1.HTTPSProtocolType {
			scheme = "https"
		}
	}
	switch port, known := wellKnown[scheme]; {
	case f.Port != nil:
		r.Port = *f.Port
	case r.Scheme != "" && known:
		r.Port = port
	default:
		r.Port = l.Port
	}
	if r.Port == wellKnown[scheme] {
		if r.Host == "" && l.Port != wellKnown[strings.ToLower(string(l.Protocol))] {
			r.DefaultPort = r.Port // the request's host contains the listener's port
		}
		r.Port = 0
	}
	return r
}

// checkPath returns an error if a filter cannot change the path of requests with this match.
func checkPath(m *gatewayv1.HTTPPathModifier, match Match) error {
	if m != nil && m.Type == gatewayv1.PrefixMatchHTTPPathModifier && match.Kind != Prefix {
		return fmt.Errorf("%s needs a match of type PathPrefix", m.Type)
	}
	return nil
}

func pathOf(m *gatewayv1.HTTPPathModifier) *PathChange {
	switch {
	case m == nil:
		return nil
	case m.Type == gatewayv1.FullPathHTTPPathModifier:
		return &PathChange{true, ptr.Deref(m.ReplaceFullPath, "/")}
	}
	return &PathChange{false, ptr.Deref(m.ReplacePrefixMatch, "/")}
}

// defaultRetries is the number of retries if a route does not set it. Gateway API does not define a
// default.
const defaultRetries = 1

func retryOf(r *gatewayv1.HTTPRouteRetry) *Retry {
	if r == nil {
		return nil
	}
	is := &Retry{Attempts: int32(ptr.Deref(r.Attempts, defaultRetries)), Backoff: duration(r.Backoff)}
	for _, code := range r.Codes {
		is.Codes = append(is.Codes, int32(code))
	}
	return is
}

// duration converts a duration of Gateway API, which the CRD has validated. 0 means no limit.
func duration(d *gatewayv1.Duration) time.Duration {
	if d == nil {
		return 0
	}
	is, err := time.ParseDuration(string(*d))
	if err != nil {
		return 0
	}
	return is
}
