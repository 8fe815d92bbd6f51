package plan

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

// failed is the status for requests whose rule cannot be followed.
const failed = 500

// httpRules returns the rules of an HTTPRoute at a listener, and notes what is wrong with them.
func (b *builder) httpRules(r *gatewayv1.HTTPRoute, of objects.Object, l *attach.Listener) []Rule {
	var all []Rule
	v := new(verdict)
	for i := range r.Spec.Rules {
		rule := &r.Spec.Rules[i]
		route := forwarding{where: nameOf(i, rule.Name), filters: rule.Filters, timeouts: rule.Timeouts, retry: rule.Retry}
		for _, ref := range rule.BackendRefs {
			route.backends = append(route.backends, backendRef{ref.BackendRef, ref.Filters})
		}
		matches := rule.Matches
		if len(matches) == 0 {
			matches = []gatewayv1.HTTPRouteMatch{{}}
		}
		for _, m := range matches {
			match, err := matchOf(m)
			if err != nil {
				v.drop("rule %s: %v", route.where, err)
				continue
			}
			done := b.forward(route, match, l, objects.HTTPRouteKind, of.Name.Namespace, v)
			done.Of, done.Index, done.Name, done.Match = of, i, string(or(rule.Name, "")), match
			all = append(all, done)
			v.kept = true
		}
	}
	b.verdicts[of] = v.result()
	return all
}

// forwarding is what HTTPRoutes and GRPCRoutes say alike of a rule.
type forwarding struct {
	where    string // the rule, for people
	filters  []gatewayv1.HTTPRouteFilter
	backends []backendRef
	timeouts *gatewayv1.HTTPRouteTimeouts
	retry    *gatewayv1.HTTPRouteRetry
}

type backendRef struct {
	gatewayv1.BackendRef
	filters []gatewayv1.HTTPRouteFilter
}

// forward returns what happens to the requests that fit one match of a rule.
func (b *builder) forward(rule forwarding, match Match, l *attach.Listener, kind, namespace string, v *verdict) Rule {
	f, err := b.filters(rule.filters, match, l, kind, namespace, v)
	if err != nil {
		v.drop("rule %s: %v: its requests get 500", rule.where, err)
		return Rule{Status: failed}
	}
	done := Rule{Request: f.request, Response: f.response, CORS: f.cors, Redirect: f.redirect}
	if done.Redirect != nil {
		return done
	}
	forward := &Forward{Host: f.host, Path: f.path, Mirrors: f.mirrors, Retry: rule.retry}
	if t := rule.timeouts; t != nil {
		forward.Timeout, forward.TryTimeout = duration(t.Request), duration(t.BackendRequest)
	}
	for _, ref := range rule.backends {
		backend, err := b.backend(ref, match, l, kind, namespace, v)
		if err != nil {
			v.drop("rule %s: backendRef %s: %v: its requests get 500", rule.where, ref.Name, err)
			backend.Cluster = ""
		}
		if backend.Weight > 0 {
			forward.Backends = append(forward.Backends, backend)
		}
	}
	if !slices.ContainsFunc(forward.Backends, func(b Backend) bool { return b.Cluster != "" }) {
		done.Status = failed
		return done
	}
	done.Forward = forward
	return done
}

// backend returns a rule's backend, or why its filters cannot be followed.
func (b *builder) backend(ref backendRef, match Match, l *attach.Listener, kind, namespace string, v *verdict) (Backend, error) {
	is := Backend{Weight: or(ref.Weight, 1), Cluster: b.cluster(ref.BackendObjectReference, kind, namespace, v)}
	f, err := b.filters(ref.filters, match, l, kind, namespace, v)
	if err != nil {
		return is, err
	}
	if f.redirect != nil || f.host != "" || f.path != nil || len(f.mirrors) > 0 || f.cors != nil {
		return is, errors.New("for one backend alone Headgate changes headers, but not the host, and nothing else")
	}
	is.Request, is.Response = f.request, f.response
	return is, nil
}

// filtered is what filters do.
type filtered struct {
	request, response Headers
	redirect          *Redirect
	host              string
	path              *PathChange
	mirrors           []Mirror
	cors              *gatewayv1.HTTPCORSFilter
}

// filters returns what filters do, or why they cannot be followed.
func (b *builder) filters(all []gatewayv1.HTTPRouteFilter, match Match, l *attach.Listener, kind, namespace string, v *verdict) (filtered, error) {
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
			f.redirect = redirectOf(filter.RequestRedirect, l)
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
			cluster := b.cluster(m.BackendRef, kind, namespace, v)
			if cluster == "" {
				continue // who gets the answer loses nothing by it
			}
			mirror := Mirror{cluster, 100, 100}
			switch {
			case m.Fraction != nil:
				mirror.Share, mirror.Of = m.Fraction.Numerator, or(m.Fraction.Denominator, 100)
			case m.Percent != nil:
				mirror.Share = *m.Percent
			}
			f.mirrors = append(f.mirrors, mirror)
		case gatewayv1.HTTPRouteFilterCORS:
			f.cors = filter.CORS
		default:
			return filtered{}, fmt.Errorf("Headgate has no filter %s", filter.Type) //nolint:staticcheck // a name begins it
		}
	}
	return f, nil
}

// headersOf returns changes of headers, and what the host is to be: it is no header to Envoy. Empty leaves it.
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
		if !strings.EqualFold(name, "host") { // every request has one
			h.Remove = append(h.Remove, name)
		}
	}
	return h, host
}

// wellKnown are the ports of schemes.
var wellKnown = map[string]int32{"http": 80, "https": 443}

// redirectOf returns where a filter sends the clients of a listener. Without a port that is the scheme's, and without a scheme the
// listener's own; what the scheme tells is not said again (HTTPRequestRedirectFilter.port).
func redirectOf(f *gatewayv1.HTTPRequestRedirectFilter, l *attach.Listener) *Redirect {
	r := &Redirect{Code: int32(or(f.StatusCode, 302)), Scheme: or(f.Scheme, ""), Host: string(or(f.Hostname, "")), Path: pathOf(f.Path)}
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
	// Where clients name the listener's port in the host that they are sent to, they must be told of another one.
	if named := r.Host == "" && l.Port != wellKnown[strings.ToLower(string(l.Protocol))]; r.Port == wellKnown[scheme] && !named {
		r.Port = 0
	}
	return r
}

// checkPath says why a path cannot be changed so where requests fit a match.
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
		return &PathChange{true, or(m.ReplaceFullPath, "/")}
	}
	return &PathChange{false, or(m.ReplacePrefixMatch, "/")}
}

// duration is in Go's words; the CRD has checked it. 0 is no bound.
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

// nameOf names a rule for people.
func nameOf(index int, name *gatewayv1.SectionName) string {
	if name != nil {
		return string(*name)
	}
	return strconv.Itoa(index)
}
