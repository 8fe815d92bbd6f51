package envoy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	mutatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	earlyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	leastv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/least_request/v3"
	overridev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/override_host/v3"
	previousv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/control/attach/plan"
)

// poolCluster returns the cluster of a pool. It is the endpoints cluster of envoy.yaml with the
// pool's name and settings.
func (t *Template) poolCluster(c *plan.Cluster) (*clusterv3.Cluster, error) {
	from := t.pool
	if c.Calls {
		from = t.calls
	}
	is := proto.CloneOf(from)
	is.Name, is.EdsClusterConfig.ServiceName = c.Name, c.Name
	is.EdsClusterConfig.EdsConfig.InitialFetchTimeout = durationpb.New(warming)
	if c.H2C {
		if err := speakHTTP2(is, new(corev3.Http2ProtocolOptions)); err != nil {
			return nil, err
		}
	}
	if c.TLS != (v1alpha1.EngineTLS{}) {
		config, err := anypb.New(engineTLS(c))
		if err != nil {
			return nil, err
		}
		is.TransportSocket = &corev3.TransportSocket{Name: tlsSocket, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: config}}
	}
	if c.Open {
		return is, failOpen(is)
	}
	return is, nil
}

// speakHTTP2 makes a cluster use HTTP/2, and keeps its other protocol options.
func speakHTTP2(c *clusterv3.Cluster, how *corev3.Http2ProtocolOptions) error {
	options := new(httpv3.HttpProtocolOptions)
	if said := c.GetTypedExtensionProtocolOptions()[httpOptions]; said != nil {
		if err := said.UnmarshalTo(options); err != nil {
			return err
		}
	}
	options.UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
		ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: how},
		},
	}
	config, err := anypb.New(options)
	if err != nil {
		return err
	}
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{httpOptions: config}
	return nil
}

// panicBelow is Envoy's panic threshold in percent. Envoy ignores health only if fewer endpoints
// are healthy, which means none in a pool of up to 100. In a larger pool Envoy also ignores health
// if only one is healthy.
const panicBelow = 1

// failOpen lets Envoy choose any endpoint of a pool for a request that has no pick. Otherwise the
// fallback policy of the cluster finds no endpoint.
func failOpen(c *clusterv3.Cluster) error {
	c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{Value: panicBelow}}
	for _, p := range c.GetLoadBalancingPolicy().GetPolicies() {
		is := new(overridev3.OverrideHost)
		if p.GetTypedExtensionConfig().GetTypedConfig().UnmarshalTo(is) != nil {
			continue
		}
		least, err := anypb.New(new(leastv3.LeastRequest))
		if err != nil {
			return err
		}
		is.FallbackPolicy = &clusterv3.LoadBalancingPolicy{Policies: []*clusterv3.LoadBalancingPolicy_Policy{{
			TypedExtensionConfig: &corev3.TypedExtensionConfig{Name: "envoy.load_balancing_policies.least_request", TypedConfig: least},
		}}}
		return p.GetTypedExtensionConfig().GetTypedConfig().MarshalFrom(is)
	}
	return fmt.Errorf("envoy.yaml: want a cluster %s with the policy override_host", wire.EndpointsCluster)
}

// Intervals and timeouts with which Envoy detects that a picker is down, hangs, or is back. The
// first request to a picker that is down may fail, since Envoy cannot resend the part of the body
// that it already sent. Requests to a picker that hangs are not moved to another.
const (
	pickerProbe  = time.Second      // interval of health checks; also the connect timeout
	pickerAnswer = 2 * time.Second  // timeout of a health check
	pickerOut    = 10 * time.Second // ejection time after a failed connection, unless a health check succeeds earlier
	// pickerPing is the interval of HTTP/2 pings. It is above the minimum that gRPC servers allow,
	// five minutes by default (gRPC proposal A8). A server that gets pings too often without data,
	// as during long responses, closes the connection at the fourth such ping. Every request
	// without a response then gets 503.
	pickerPing = 6 * time.Minute
)

// anyAnswer is a health check that calls a picker by gRPC and accepts any gRPC response, since not
// all pickers implement the gRPC health service.
func anyAnswer(c *plan.Cluster) *corev3.HealthCheck_HttpHealthCheck_ {
	const nothing = "\x00\x00\x00\x00\x00" // an empty message in gRPC framing
	header := func(name, value string) *corev3.HeaderValueOption {
		return &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: name, Value: value}}
	}
	return &corev3.HealthCheck_HttpHealthCheck_{HttpHealthCheck: &corev3.HealthCheck_HttpHealthCheck{
		Host: plan.PickerAuthority(c.Name), Method: corev3.RequestMethod_POST, Path: "/grpc.health.v1.Health/Check",
		CodecClientType:     typev3.CodecClientType_HTTP2,
		RequestHeadersToAdd: []*corev3.HeaderValueOption{header("content-type", "application/grpc"), header("te", "trailers")},
		Send:                &corev3.HealthCheck_Payload{Payload: &corev3.HealthCheck_Payload_Binary{Binary: []byte(nothing)}},
		ExpectedStatuses:    []*typev3.Int64Range{{Start: 100, End: 600}},
	}}
}

// pickerCluster returns the cluster of another project's endpoint picker, a Service that uses
// HTTP/2 and TLS. The picker's certificate is not verified, since each picker makes its own. If all
// endpoints of the picker are down, it gets no requests, and the failureMode of its pool applies.
func (t *Template) pickerCluster(c *plan.Cluster, o Options) (*clusterv3.Cluster, error) {
	is := t.serviceCluster(c, o)
	is.ConnectTimeout = durationpb.New(pickerProbe)
	is.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: new(typev3.Percent)}
	is.IgnoreHealthOnHostRemoval = true // drop an endpoint as soon as its Service no longer has it
	is.HealthChecks = []*corev3.HealthCheck{{
		Timeout: durationpb.New(pickerAnswer), Interval: durationpb.New(pickerProbe), NoTrafficInterval: durationpb.New(pickerProbe),
		UnhealthyThreshold: wrapperspb.UInt32(1), HealthyThreshold: wrapperspb.UInt32(1),
		HealthChecker: anyAnswer(c),
	}}
	is.OutlierDetection = &clusterv3.OutlierDetection{
		SplitExternalLocalOriginErrors: true, ConsecutiveLocalOriginFailure: wrapperspb.UInt32(1),
		EnforcingConsecutiveLocalOriginFailure: wrapperspb.UInt32(100),
		EnforcingConsecutive_5Xx:               wrapperspb.UInt32(0), EnforcingConsecutiveGatewayFailure: wrapperspb.UInt32(0),
		EnforcingSuccessRate: wrapperspb.UInt32(0), EnforcingLocalOriginSuccessRate: wrapperspb.UInt32(0),
		MaxEjectionPercent: wrapperspb.UInt32(100), BaseEjectionTime: durationpb.New(pickerOut), Interval: durationpb.New(pickerProbe),
	}
	ping := &corev3.KeepaliveSettings{Interval: durationpb.New(pickerPing), Timeout: durationpb.New(pickerProbe)}
	if err := speakHTTP2(is, &corev3.Http2ProtocolOptions{ConnectionKeepalive: ping}); err != nil || c.H2C {
		return is, err
	}
	config, err := anypb.New(&tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{AlpnProtocols: []string{"h2"}}})
	is.TransportSocket = &corev3.TransportSocket{Name: tlsSocket, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: config}}
	return is, err
}

// unnamed splits a route on which extproc names the pool of a request in a header. The given route
// then matches only requests with that header. The returned copy sends all others to one pool, for
// example while extproc is down.
func unnamed(named *routev3.Route, pool string) (*routev3.Route, error) {
	is := proto.CloneOf(named)
	is.GetRoute().ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: pool}
	if err := tryOthers(is.GetRoute()); err != nil {
		return nil, err
	}
	named.Match.Headers = append(named.Match.Headers, &routev3.HeaderMatcher{
		Name: wire.PoolHeader, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
	})
	return is, nil
}

// attemptsToFindAnother is how often Envoy picks a random endpoint for a retry until it finds one
// that was not tried. If two of four endpoints were tried, a pick succeeds with probability 1/2.
const attemptsToFindAnother = 100

// tryOthers makes retries avoid the endpoints that were tried. It is for pools that fail open:
// without a pick, Envoy chooses endpoints at random.
func tryOthers(action *routev3.RouteAction) error {
	config, err := anypb.New(new(previousv3.PreviousHostsPredicate))
	if err != nil {
		return err
	}
	action.RetryPolicy = proto.CloneOf(action.GetRetryPolicy())
	action.RetryPolicy.HostSelectionRetryMaxAttempts = attemptsToFindAnother
	action.RetryPolicy.RetryHostPredicate = []*routev3.RetryPolicy_RetryHostPredicate{{
		Name:       "envoy.retry_host_predicates.previous_hosts",
		ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: config},
	}}
	return nil
}

// Names of filters that only Envoys of Gateways have. All listeners contain them from the start,
// since adding one later would drain the listener.
const (
	pickerFilter = "headgate.picker"
	guardFilter  = "headgate.guard"
	stripFilter  = "headgate.strip"

	locationFilter = "headgate.location"
)

// gatewayFilters inserts the filters of Gateways before the router. Clients' headers that would
// choose an endpoint are removed before all filters. Clients' headers that inform a picker are
// removed after the picker filter.
func (t *Template) gatewayFilters(m *hcmv3.HttpConnectionManager) error {
	early, late, err := controlHeaders(m)
	if err != nil {
		return err
	}
	filters := []struct {
		name   string
		off    bool
		config proto.Message
	}{
		{pickerFilter, true, t.picker()},
		{
			guardFilter, true,
			&luav3.Lua{DefaultSourceCode: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: guard}}},
		},
		{
			locationFilter, true,
			&luav3.Lua{DefaultSourceCode: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: withoutPort}}},
		},
		{stripFilter, false, &mutatev3.HeaderMutation{Mutations: &mutatev3.Mutations{RequestMutations: late}}},
	}
	at := slices.IndexFunc(m.GetHttpFilters(), func(f *hcmv3.HttpFilter) bool { return f.GetName() == routerFilter })
	for i, f := range filters {
		config, err := anypb.New(f.config)
		if err != nil {
			return err
		}
		m.HttpFilters = slices.Insert(m.GetHttpFilters(), at+i, &hcmv3.HttpFilter{
			Name: f.name, Disabled: f.off, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: config},
		})
	}
	return m.GetEarlyHeaderMutationExtensions()[0].GetTypedConfig().MarshalFrom(&earlyv3.HeaderMutation{Mutations: early})
}

// controlHeaders splits the headers that envoy.yaml removes from requests. early contains those
// that would choose an endpoint, late those that inform a picker.
func controlHeaders(m *hcmv3.HttpConnectionManager) (early, late []*mutationv3.HeaderMutation, err error) {
	all := new(earlyv3.HeaderMutation)
	if err := m.GetEarlyHeaderMutationExtensions()[0].GetTypedConfig().UnmarshalTo(all); err != nil {
		return nil, nil, err
	}
	for _, h := range all.GetMutations() {
		if h.GetRemoveOnMatch().GetKeyMatcher().GetPrefix() == wire.ChoicePrefix {
			early = append(early, h)
		} else {
			late = append(late, h)
		}
	}
	return early, late, nil
}

// picker returns the ext_proc filter for another project's endpoint picker, which the route names.
// The filter sends it no response body, so a crash of the picker does not abort the response. The
// stream stays open until the response ends, so the picker sees its end.
func (t *Template) picker() *extprocv3.ExternalProcessor {
	const metadata = wire.DestinationNamespace
	return &extprocv3.ExternalProcessor{
		StatPrefix:  "picker",
		GrpcService: grpcService(wire.ExtprocCluster, wire.ExtprocCluster), // unused default: routes override it
		// If the picker fails, the request gets no pick, and the failureMode of the pool applies.
		FailureModeAllow: true,
		StatusOnError:    &typev3.HttpStatus{Code: typev3.StatusCode_ServiceUnavailable},
		MessageTimeout:   t.messageTimeout,
		ProcessingMode: &extprocv3.ProcessingMode{
			RequestHeaderMode: extprocv3.ProcessingMode_SEND, RequestBodyMode: extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED,
			RequestTrailerMode: extprocv3.ProcessingMode_SEND,
			ResponseHeaderMode: extprocv3.ProcessingMode_SEND, ResponseBodyMode: extprocv3.ProcessingMode_NONE,
			ResponseTrailerMode: extprocv3.ProcessingMode_SKIP,
		},
		RouteCacheAction: extprocv3.ExternalProcessor_RETAIN,
		MutationRules:    &mutationv3.HeaderMutationRules{DisallowSystem: wrapperspb.Bool(true)}, // only the route may change the path
		MetadataOptions: &extprocv3.MetadataOptions{
			ForwardingNamespaces: &extprocv3.MetadataOptions_MetadataNamespaces{Untyped: []string{metadata}},
			ReceivingNamespaces:  &extprocv3.MetadataOptions_MetadataNamespaces{Untyped: []string{metadata}},
		},
	}
}

func grpcService(cluster, authority string) *corev3.GrpcService {
	return &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
		EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: cluster, Authority: authority},
	}}
}

// asked returns the configuration that turns on the picker filter, with the cluster of a pool's
// picker.
func asked(picker string) (map[string]*anypb.Any, error) {
	config, err := anypb.New(&extprocv3.ExtProcPerRoute{Override: &extprocv3.ExtProcPerRoute_Overrides{
		Overrides: &extprocv3.ExtProcOverrides{GrpcService: grpcService(picker, plan.PickerAuthority(picker))},
	}})
	if err != nil {
		return nil, err
	}
	return turnedOn(pickerFilter, config)
}

// turnedOn returns a route's configuration that enables a filter.
func turnedOn(name string, config *anypb.Any) (map[string]*anypb.Any, error) {
	on, err := anypb.New(&routev3.FilterConfig{Config: config})
	return map[string]*anypb.Any{name: on}, err
}

// guard is the Lua code of a filter for pools that fail open. It rejects a request without a pick
// unless its path is an inference path: without extproc, Envoy does not know which other paths of
// engines are forbidden.
const guard = `
function envoy_on_request(request)
  local lb = request:streamInfo():dynamicMetadata():get("envoy.lb")
  if lb ~= nil and lb["x-gateway-destination-endpoint"] ~= nil then return end
  local headers = request:headers()
  local path = string.match(headers:get(":path"), "^[^?]*")
  if headers:get(":method") == "POST" and request:filterContext():get(path) then return end
  request:respond({[":status"] = "503"}, "")
end
`

// withoutPort is the Lua code of a filter that removes the port from a redirect's target. Envoy
// would keep the port of the request's host there.
const withoutPort = `
function envoy_on_response(response)
  local headers = response:headers()
  local location = headers:get("location")
  if location == nil then return end
  location = string.gsub(location, "^(%a+://[^/]*):%d+", "%1", 1)
  headers:replace("location", location)
end
`

// guarded returns the configuration of the guard filter for a rule. It contains the inference paths
// as clients send them, before the rule's rewrite.
func guarded(rule *plan.Rule) (map[string]*anypb.Any, error) {
	paths := make(map[string]any)
	for _, path := range wire.InferencePaths {
		if asked, ok := before(rule, path); ok {
			paths[asked] = true
		}
	}
	context, err := structpb.NewStruct(paths)
	if err != nil {
		return nil, err
	}
	config, err := anypb.New(&luav3.LuaPerRoute{FilterContext: context})
	if err != nil {
		return nil, err
	}
	return turnedOn(guardFilter, config)
}

// before returns the path that a rule rewrites to the given path; false if there is none, or
// several.
func before(rule *plan.Rule, path string) (string, bool) {
	c := rule.Forward.Path
	switch {
	case c == nil:
		return path, true
	case c.Whole:
		return rule.Match.Path, c.With == path && rule.Match.Kind == plan.Exact
	}
	rest, ok := strings.CutPrefix(path, strings.TrimRight(c.With, "/"))
	asked := strings.TrimRight(rule.Match.Path, "/") + rest
	return asked, ok && wire.Rewrite{Prefix: rule.Match.Path, With: c.With}.Path(asked) == path
}
