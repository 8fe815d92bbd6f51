package envoy

import (
	"cmp"
	"maps"
	"regexp"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/control/attach/plan"
)

// routeOf returns Envoy's route for a rule at a listener.
func (t *Template) routeOf(r *plan.Rule, listener string) (*routev3.Route, error) {
	is := &routev3.Route{
		Match:               matchOf(&r.Match),
		RequestHeadersToAdd: headersToAdd(r.Request), RequestHeadersToRemove: r.Request.Remove,
		ResponseHeadersToAdd: headersToAdd(r.Response), ResponseHeadersToRemove: r.Response.Remove,
	}
	if r.CORS != nil {
		policy, err := anypb.New(corsOf(r.CORS))
		if err != nil {
			return nil, err
		}
		is.TypedPerFilterConfig = map[string]*anypb.Any{corsFilter: policy}
	}
	switch {
	case r.Redirect != nil:
		is.Action = &routev3.Route_Redirect{Redirect: redirectOf(r.Redirect, &r.Match)}
		if r.Redirect.DefaultPort != 0 {
			on, err := anypb.New(&routev3.FilterConfig{Config: new(anypb.Any)})
			if err != nil {
				return nil, err
			}
			if is.TypedPerFilterConfig == nil {
				is.TypedPerFilterConfig = make(map[string]*anypb.Any)
			}
			is.TypedPerFilterConfig[locationFilter] = on
		}
	case r.Forward == nil:
		is.Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: uint32(r.Status)}}
	case r.Forward.Models:
		return is, t.byModel(is, r, listener)
	default:
		return is, t.forwardTo(is, r)
	}
	return is, nil
}

// byModel makes extproc choose the pool of a route's requests by their model.
func (t *Template) byModel(is *routev3.Route, r *plan.Rule, listener string) error {
	to := t.forward
	if r.Forward.Calls {
		to = t.answer
	}
	action := proto.CloneOf(to)
	action.ClusterSpecifier = &routev3.RouteAction_ClusterHeader{ClusterHeader: wire.PoolHeader}
	is.Action = &routev3.Route_Route{Route: action}
	t.infer(is)
	is.Metadata.FilterMetadata[inference].Fields = map[string]*structpb.Value{byModels: structpb.NewBoolValue(true)}
	t.toPool(is)
	is.RequestHeadersToRemove = append(is.RequestHeadersToRemove, wire.PoolHeader) // engines do not need it
	filters, err := t.enabled(wire.ListenerMetadata, listener, r, r.Forward.Calls)
	if err != nil {
		return err
	}
	is.TypedPerFilterConfig = filters
	return nil
}

// infer marks a route whose requests extproc handles. toPool sets what every route to a pool needs,
// whatever its picker.
func (t *Template) infer(is *routev3.Route) {
	is.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{inference: {}}}
	is.RequestHeadersToAdd = append(is.RequestHeadersToAdd, t.host.GetRequestHeadersToAdd()...)
	is.ResponseHeadersToAdd = append(is.ResponseHeadersToAdd, t.host.GetResponseHeadersToAdd()...)
}

func (t *Template) toPool(is *routev3.Route) {
	is.RequestBodyBufferLimit = t.host.GetRequestBodyBufferLimit()
	is.ResponseHeadersToRemove = append(is.ResponseHeadersToRemove, t.host.GetResponseHeadersToRemove()...)
}

// enabled returns the configuration that enables the inference filters for a rule. A filter that
// envoy.yaml disables for the rule's path stays disabled.
func (t *Template) enabled(key, value string, rule *plan.Rule, calls bool) (map[string]*anypb.Any, error) {
	all := make(map[string]*anypb.Any)
	on, err := anypb.New(&routev3.FilterConfig{Config: new(anypb.Any)})
	if err != nil {
		return nil, err
	}
	for _, f := range t.manager.GetHttpFilters() {
		if enabledByRoutes(f.GetName()) && f.GetName() != extProcFilter {
			all[f.GetName()] = on
		}
	}
	for _, r := range t.host.GetRoutes() {
		if path := rule.Match.Path; path != "" && (r.GetMatch().GetPath() == path || r.GetMatch().GetPathSeparatedPrefix() == path) {
			for name := range r.GetTypedPerFilterConfig() {
				delete(all, name)
			}
		}
	}
	told := []*corev3.HeaderValue{{Key: key, Value: value}}
	if c := rule.Forward.Path; c != nil {
		how := wire.Rewrite{Prefix: rule.Match.Path, With: c.With}
		if c.Whole {
			how.Prefix = ""
		}
		told = append(told, &corev3.HeaderValue{Key: wire.RewriteMetadata, Value: how.String()})
	}
	overrides := &extprocv3.ExtProcOverrides{GrpcInitialMetadata: told}
	if calls {
		overrides.ProcessingMode = t.unread.GetProcessingMode()
	}
	tell, err := anypb.New(&extprocv3.ExtProcPerRoute{Override: &extprocv3.ExtProcPerRoute_Overrides{Overrides: overrides}})
	if err != nil {
		return nil, err
	}
	if all[extProcFilter], err = anypb.New(&routev3.FilterConfig{Config: tell}); err != nil {
		return nil, err
	}
	return all, nil
}

// forwardTo sends requests to the backends of a rule.
func (t *Template) forwardTo(is *routev3.Route, r *plan.Rule) error {
	f := r.Forward
	action := &routev3.RouteAction{
		Timeout: timeout(f), IdleTimeout: t.forward.GetIdleTimeout(),
		UpgradeConfigs: []*routev3.RouteAction_UpgradeConfig{{UpgradeType: "websocket"}},
	}
	if f.Host != "" {
		action.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: f.Host}
	}
	if f.Path != nil {
		prefix, regex := rewrite(f.Path, &r.Match)
		action.PrefixRewrite, action.RegexRewrite = prefix, regex
	}
	for _, m := range f.Mirrors {
		action.RequestMirrorPolicies = append(action.RequestMirrorPolicies, &routev3.RouteAction_RequestMirrorPolicy{
			Cluster: m.Cluster, RuntimeFraction: &corev3.RuntimeFractionalPercent{DefaultValue: &typev3.FractionalPercent{
				Numerator: uint32(int64(m.Share) * 1_000_000 / int64(m.Of)), Denominator: typev3.FractionalPercent_MILLION,
			}},
		})
	}
	weighted := new(routev3.WeightedCluster)
	for i := range f.Backends {
		if of, pool := wire.PoolOf(f.Backends[i].Cluster); pool && action.RetryPolicy == nil {
			action.RetryPolicy = t.forward.GetRetryPolicy()
			if f.Backends[i].Cluster == wire.CallsOf(of) {
				action.MaxStreamDuration = t.answer.GetMaxStreamDuration()
			}
			t.toPool(is)
		}
		if f.Backends[i].Open && len(action.GetRetryPolicy().GetRetryHostPredicate()) == 0 {
			if err := tryOthers(action); err != nil {
				return err
			}
		}
		if f.Backends[i].Picker == wire.ExtprocCluster && is.Metadata == nil {
			t.infer(is)
		}
		c, err := t.weight(&f.Backends[i], r)
		if err != nil {
			return err
		}
		weighted.Clusters = append(weighted.Clusters, c)
		if f.Backends[i].Cluster == "" { // requests to a missing backend get an error
			action.ClusterNotFoundResponseCode = notFound[plan.Failed(r.Of)]
		}
	}
	if f.Retry != nil && action.RetryPolicy == nil { // retries in a pool follow the order of picks instead
		action.Timeout, action.RetryPolicy = durationpb.New(f.Timeout), retryOf(f)
	}
	action.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: weighted}
	is.Action = &routev3.Route_Route{Route: action}
	return nil
}

// notFound maps a status to Envoy's code for requests to a missing cluster.
var notFound = map[int32]routev3.RouteAction_ClusterNotFoundResponseCode{
	500: routev3.RouteAction_INTERNAL_SERVER_ERROR, 503: routev3.RouteAction_SERVICE_UNAVAILABLE,
}

const (
	// retriedAlways lists the failures after which any rule with a retry policy retries: broken
	// connections and per-try timeouts (HTTPRouteRetry: "on connection errors").
	retriedAlways = "connect-failure,refused-stream,reset"
	retriedCodes  = ",retriable-status-codes"
)

// retryOf returns the retry policy of a rule for Services. Envoy increases the backoff at each
// retry and adds jitter.
func retryOf(f *plan.Forward) *routev3.RetryPolicy {
	is := &routev3.RetryPolicy{RetryOn: retriedAlways, NumRetries: wrapperspb.UInt32(uint32(f.Retry.Attempts))}
	if len(f.Retry.Codes) > 0 {
		is.RetryOn += retriedCodes
	}
	for _, code := range f.Retry.Codes {
		is.RetriableStatusCodes = append(is.RetriableStatusCodes, uint32(code))
	}
	if f.TryTimeout > 0 {
		is.PerTryTimeout = durationpb.New(f.TryTimeout)
	}
	if f.Retry.Backoff > 0 {
		is.RetryBackOff = &routev3.RetryPolicy_RetryBackOff{BaseInterval: durationpb.New(f.Retry.Backoff)}
	}
	return is
}

// nowhere is the name of a cluster that never exists.
const nowhere = "nowhere"

// weight returns the cluster of a backend with its share of the requests.
func (t *Template) weight(b *plan.Backend, r *plan.Rule) (*routev3.WeightedCluster_ClusterWeight, error) {
	is := &routev3.WeightedCluster_ClusterWeight{
		Name: b.Cluster, Weight: wrapperspb.UInt32(uint32(b.Weight)),
		RequestHeadersToAdd: headersToAdd(b.Request), RequestHeadersToRemove: b.Request.Remove,
		ResponseHeadersToAdd: headersToAdd(b.Response), ResponseHeadersToRemove: b.Response.Remove,
	}
	if b.Cluster == "" {
		is.Name = nowhere
	}
	filters, err := t.askedAbout(b, r)
	is.TypedPerFilterConfig = filters
	return is, err
}

// askedAbout returns the configuration that enables the picker of a backend; nil if it has none.
func (t *Template) askedAbout(b *plan.Backend, r *plan.Rule) (map[string]*anypb.Any, error) {
	pool, _ := wire.PoolOf(b.Cluster)
	switch b.Picker {
	case "":
		return nil, nil
	case wire.ExtprocCluster:
	default:
		return asked(b.Picker)
	}
	all, err := t.enabled(wire.PoolMetadata, pool, r, b.Cluster == wire.CallsOf(pool))
	if err != nil || !b.Open {
		return all, err
	}
	guard, err := guarded(r)
	maps.Copy(all, guard)
	return all, err
}

// redirectCodes maps statuses to Envoy's redirect codes.
var redirectCodes = map[int32]routev3.RedirectAction_RedirectResponseCode{
	301: routev3.RedirectAction_MOVED_PERMANENTLY, 302: routev3.RedirectAction_FOUND, 303: routev3.RedirectAction_SEE_OTHER,
	307: routev3.RedirectAction_TEMPORARY_REDIRECT, 308: routev3.RedirectAction_PERMANENT_REDIRECT,
}

func redirectOf(r *plan.Redirect, m *plan.Match) *routev3.RedirectAction {
	is := &routev3.RedirectAction{
		HostRedirect: r.Host, PortRedirect: uint32(cmp.Or(r.Port, r.DefaultPort)),
		ResponseCode: redirectCodes[r.Code],
	}
	if r.Scheme != "" {
		is.SchemeRewriteSpecifier = &routev3.RedirectAction_SchemeRedirect{SchemeRedirect: r.Scheme}
	}
	if r.Path == nil {
		return is
	}
	if r.Path.Whole {
		is.PathRewriteSpecifier = &routev3.RedirectAction_PathRedirect{PathRedirect: r.Path.With}
		return is
	}
	if prefix, regex := rewrite(r.Path, m); regex != nil {
		is.PathRewriteSpecifier = &routev3.RedirectAction_RegexRewrite{RegexRewrite: regex}
	} else {
		is.PathRewriteSpecifier = &routev3.RedirectAction_PrefixRewrite{PrefixRewrite: prefix}
	}
	return is
}

// rewrite returns how Envoy changes a path: it replaces the match's prefix, or what a regular
// expression matches.
func rewrite(c *plan.PathChange, m *plan.Match) (prefix string, regex *matcherv3.RegexMatchAndSubstitute) {
	replace := func(expression, with string) *matcherv3.RegexMatchAndSubstitute {
		return &matcherv3.RegexMatchAndSubstitute{
			Pattern: &matcherv3.RegexMatcher{Regex: expression}, Substitution: strings.ReplaceAll(with, `\`, `\\`),
		}
	}
	if c.Whole {
		return "", replace("^.*$", c.With)
	}
	with := strings.TrimRight(c.With, "/")
	switch {
	case m.Path == "/": // the rest of the path has no leading slash
		return with + "/", nil
	case with == "": // replacing the prefix /a of /a/b would leave //b
		return "", replace("^"+regexp.QuoteMeta(m.Path)+"/*", "/")
	}
	return with, nil
}

// maxAge is how many seconds browsers may cache a preflight response by default
// (HTTPCORSFilter.maxAge). An API server sets this default; objects in a folder may lack it.
const maxAge = 5

// corsOf returns Envoy's policy for a CORS filter.
func corsOf(c *gatewayv1.HTTPCORSFilter) *corsv3.CorsPolicy {
	is := &corsv3.CorsPolicy{
		MaxAge:                       strconv.Itoa(int(cmp.Or(c.MaxAge, maxAge))),
		AllowCredentials:             wrapperspb.Bool(c.AllowCredentials != nil && *c.AllowCredentials),
		ForwardNotMatchingPreflights: wrapperspb.Bool(false), // a backend that allows every origin must not answer preflights
	}
	for _, o := range c.AllowOrigins {
		is.AllowOriginStringMatch = append(is.AllowOriginStringMatch, originOf(string(o)))
	}
	is.AllowMethods, is.AllowHeaders, is.ExposeHeaders = join(c.AllowMethods), join(c.AllowHeaders), join(c.ExposeHeaders)
	return is
}

func originOf(origin string) *matcherv3.StringMatcher {
	if !strings.Contains(origin, "*") {
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: origin}}
	}
	expression := strings.ReplaceAll(regexp.QuoteMeta(origin), `\*`, ".*")
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: expression}}}
}

func join[T ~string](all []T) string {
	words := make([]string, len(all))
	for i, w := range all {
		words[i] = string(w)
	}
	return strings.Join(words, ",")
}

// matchOf returns Envoy's match of a rule.
func matchOf(m *plan.Match) *routev3.RouteMatch {
	is := new(routev3.RouteMatch)
	switch {
	case m.Kind == plan.Exact:
		is.PathSpecifier = &routev3.RouteMatch_Path{Path: m.Path}
	case m.Kind == plan.Regex:
		is.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: m.Path}}
	case m.Path == "/":
		is.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: "/"}
	default:
		is.PathSpecifier = &routev3.RouteMatch_PathSeparatedPrefix{PathSeparatedPrefix: m.Path}
	}
	if m.Method != "" {
		is.Headers = append(is.Headers, headerOf(plan.Value{Name: ":method", Value: m.Method}))
	}
	for _, v := range m.Headers {
		is.Headers = append(is.Headers, headerOf(v))
	}
	for _, v := range m.Query {
		is.QueryParameters = append(is.QueryParameters, &routev3.QueryParameterMatcher{
			Name: v.Name, QueryParameterMatchSpecifier: &routev3.QueryParameterMatcher_StringMatch{StringMatch: textOf(v)},
		})
	}
	return is
}

func headerOf(v plan.Value) *routev3.HeaderMatcher {
	return &routev3.HeaderMatcher{Name: v.Name, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: textOf(v)}}
}

func textOf(v plan.Value) *matcherv3.StringMatcher {
	if v.Regex {
		regex := &matcherv3.RegexMatcher{Regex: v.Value}
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: regex}}
	}
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: v.Value}}
}

// timeout returns the timeout of a request if the rule has no retries, 0 for none.
func timeout(f *plan.Forward) *durationpb.Duration {
	bound := f.Timeout
	if f.TryTimeout > 0 && (bound == 0 || f.TryTimeout < bound) {
		bound = f.TryTimeout
	}
	return durationpb.New(bound)
}

// escape escapes a header value, since Envoy substitutes text between two %.
func escape(value string) string { return strings.ReplaceAll(value, "%", "%%") }

func headersToAdd(h plan.Headers) []*corev3.HeaderValueOption {
	var all []*corev3.HeaderValueOption
	add := func(headers []gatewayv1.HTTPHeader, action corev3.HeaderValueOption_HeaderAppendAction) {
		for _, header := range headers {
			all = append(all, &corev3.HeaderValueOption{
				Header: &corev3.HeaderValue{Key: string(header.Name), Value: escape(header.Value)}, AppendAction: action,
				KeepEmptyValue: true,
			})
		}
	}
	add(h.Set, corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD)
	add(h.Add, corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD)
	return all
}
