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

// poolCluster returns the cluster of a pool: that of envoy.yaml, with endpoints of its own.
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

// speakHTTP2 has Envoy speak HTTP/2 to a cluster, and leaves what else is said of how it speaks.
func speakHTTP2(c *clusterv3.Cluster, how *corev3.Http2ProtocolOptions) error {
	options := new(httpv3.HttpProtocolOptions)
	if said := c.GetTypedExtensionProtocolOptions()[httpOptions]; said != nil {
		if err := said.UnmarshalTo(options); err != nil {
			return err
		}
	}
	options.UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: how},
	}}
	config, err := anypb.New(options)
	if err != nil {
		return err
	}
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{httpOptions: config}
	return nil
}

// panicBelow is the percentage of endpoints that are not to be avoided below which Envoy takes any: where there is none. A pool of more than
// a hundred comes to that with its last one, too.
const panicBelow = 1

// failOpen has one of a pool's endpoints serve what nobody has picked for: in the place of the fallback that finds none.
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

// How soon a picker that is down or hangs is known to, and one that is back. The request that meets one first that is down may fail, for what
// was sent to a picker of its body cannot be sent elsewhere; one that hangs keeps those that it has.
const (
	pickerProbe  = time.Second      // between two questions, and for a connection
	pickerAnswer = 2 * time.Second  // to say anything at all
	pickerOut    = 10 * time.Second // if no probe finds it back before
	// pickerPing is more seldom than a gRPC server allows: by default that is every five minutes (gRPC's proposal A8). It hangs up on the
	// fourth ping that comes sooner while it has nothing to say, as while engines work on long answers, and each request whose answer has
	// not begun gets 503.
	pickerPing = 6 * time.Minute
)

// anyAnswer asks a picker for its health, as gRPC does, and takes whatever it answers: not all serve that, but all serve gRPC.
func anyAnswer(c *plan.Cluster) *corev3.HealthCheck_HttpHealthCheck_ {
	const nothing = "\x00\x00\x00\x00\x00" // a message without fields, as gRPC frames it
	header := func(name, value string) *corev3.HeaderValueOption {
		return &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: name, Value: value}}
	}
	return &corev3.HealthCheck_HttpHealthCheck_{HttpHealthCheck: &corev3.HealthCheck_HttpHealthCheck{
		Host: plan.PickerAuthority(c.Name), Method: corev3.RequestMethod_POST, Path: "/grpc.health.v1.Health/Check", CodecClientType: typev3.CodecClientType_HTTP2,
		RequestHeadersToAdd: []*corev3.HeaderValueOption{header("content-type", "application/grpc"), header("te", "trailers")},
		Send:                &corev3.HealthCheck_Payload{Payload: &corev3.HealthCheck_Payload_Binary{Binary: []byte(nothing)}},
		ExpectedStatuses:    []*typev3.Int64Range{{Start: 100, End: 600}},
	}}
}

// pickerCluster returns the cluster of an endpoint picker that others run: a Service, asked by HTTP/2 over TLS, whose certificate says
// nothing, since each makes its own. One whose endpoints are all down is asked no more: what it does not pick for is as if it had failed.
func (t *Template) pickerCluster(c *plan.Cluster, o Options) (*clusterv3.Cluster, error) {
	is := t.serviceCluster(c, o)
	is.ConnectTimeout = durationpb.New(pickerProbe)
	is.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: new(typev3.Percent)}
	is.IgnoreHealthOnHostRemoval = true // one that its Service has no more is asked no more
	is.HealthChecks = []*corev3.HealthCheck{{
		Timeout: durationpb.New(pickerAnswer), Interval: durationpb.New(pickerProbe), NoTrafficInterval: durationpb.New(pickerProbe),
		UnhealthyThreshold: wrapperspb.UInt32(1), HealthyThreshold: wrapperspb.UInt32(1),
		HealthChecker: anyAnswer(c),
	}}
	is.OutlierDetection = &clusterv3.OutlierDetection{
		SplitExternalLocalOriginErrors: true, ConsecutiveLocalOriginFailure: wrapperspb.UInt32(1), EnforcingConsecutiveLocalOriginFailure: wrapperspb.UInt32(100),
		EnforcingConsecutive_5Xx: wrapperspb.UInt32(0), EnforcingConsecutiveGatewayFailure: wrapperspb.UInt32(0),
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

// unnamed has a route whose cluster extproc names take the requests for which it has, and returns the route for those for which it has not,
// yet or because it is down: to a pool.
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

// attemptsToFindAnother is how often Envoy looks for an endpoint that was not tried, by chance and load: where two of four were, each look
// finds one of them with a chance of a half.
const attemptsToFindAnother = 100

// tryOthers has requests of a pool that fails open tried again at other endpoints than those that had them, where nobody says which.
func tryOthers(action *routev3.RouteAction) error {
	config, err := anypb.New(new(previousv3.PreviousHostsPredicate))
	if err != nil {
		return err
	}
	action.RetryPolicy = proto.CloneOf(action.GetRetryPolicy())
	action.RetryPolicy.HostSelectionRetryMaxAttempts = attemptsToFindAnother
	action.RetryPolicy.RetryHostPredicate = []*routev3.RetryPolicy_RetryHostPredicate{{
		Name: "envoy.retry_host_predicates.previous_hosts", ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: config},
	}}
	return nil
}

// Filters that no Envoy but that of a Gateway has. Listeners always have them, so that none drains where a route comes to need one.
const (
	pickerFilter = "headgate.picker"
	guardFilter  = "headgate.guard"
	stripFilter  = "headgate.strip"

	locationFilter = "headgate.location"
)

// gatewayFilters adds them to the filters of envoy.yaml, before the router. Headers by which clients speak to pickers are taken away only
// after a picker has seen them, but for those that would choose for it.
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
		{guardFilter, true, &luav3.Lua{DefaultSourceCode: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: guard}}}},
		{locationFilter, true, &luav3.Lua{DefaultSourceCode: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: withoutPort}}}},
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

// controlHeaders parts the headers that envoy.yaml takes from requests into those that would choose for a picker or for Envoy, and those
// that tell a picker something.
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

// picker is the filter by which an endpoint picker of others is asked, which the route names. Nothing of an answer's body goes through it,
// so that a crash cuts no answer; the exchange stays open until the answer ends, by which the picker knows.
func (t *Template) picker() *extprocv3.ExternalProcessor {
	const metadata = wire.DestinationNamespace
	return &extprocv3.ExternalProcessor{
		StatPrefix:  "picker",
		GrpcService: grpcService(wire.ExtprocCluster, wire.ExtprocCluster), // until a route says another
		// A picker that fails costs the pick, and what the cluster does without one is what the pool's failureMode says.
		FailureModeAllow: true,
		StatusOnError:    &typev3.HttpStatus{Code: typev3.StatusCode_ServiceUnavailable},
		MessageTimeout:   t.patience,
		ProcessingMode: &extprocv3.ProcessingMode{
			RequestHeaderMode: extprocv3.ProcessingMode_SEND, RequestBodyMode: extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED, RequestTrailerMode: extprocv3.ProcessingMode_SEND,
			ResponseHeaderMode: extprocv3.ProcessingMode_SEND, ResponseBodyMode: extprocv3.ProcessingMode_NONE, ResponseTrailerMode: extprocv3.ProcessingMode_SKIP,
		},
		RouteCacheAction: extprocv3.ExternalProcessor_RETAIN,
		MutationRules:    &mutationv3.HeaderMutationRules{DisallowSystem: wrapperspb.Bool(true)}, // a route decides which path is asked for
		MetadataOptions: &extprocv3.MetadataOptions{
			ForwardingNamespaces: &extprocv3.MetadataOptions_MetadataNamespaces{Untyped: []string{metadata}},
			ReceivingNamespaces:  &extprocv3.MetadataOptions_MetadataNamespaces{Untyped: []string{metadata}},
		},
	}
}

func grpcService(cluster, authority string) *corev3.GrpcService {
	return &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: cluster, Authority: authority}}}
}

// asked has the picker of a pool asked.
func asked(picker string) (map[string]*anypb.Any, error) {
	config, err := anypb.New(&extprocv3.ExtProcPerRoute{Override: &extprocv3.ExtProcPerRoute_Overrides{Overrides: &extprocv3.ExtProcOverrides{
		GrpcService: grpcService(picker, plan.PickerAuthority(picker)),
	}}})
	if err != nil {
		return nil, err
	}
	return turnedOn(pickerFilter, config)
}

// turnedOn turns a filter on for a route, with what the route says to it.
func turnedOn(name string, config *anypb.Any) (map[string]*anypb.Any, error) {
	on, err := anypb.New(&routev3.FilterConfig{Config: config})
	return map[string]*anypb.Any{name: on}, err
}

// guard lets no request through to a pool that fails open, for which extproc has not picked, but inference: extproc is who knows which
// paths of engines are closed.
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

// withoutPort takes the port from where a redirect leads. Envoy takes the client's port from the host only if it may name another.
const withoutPort = `
function envoy_on_response(response)
  local headers = response:headers()
  local location = headers:get("location")
  if location == nil then return end
  location = string.gsub(location, "^(%a+://[^/]*):%d+", "%1", 1)
  headers:replace("location", location)
end
`

// guarded has the guard let the paths through that engines get as inference, as a rule's requests have them.
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

// before returns the path that a rule's requests have whose engines get another, false where there is none, or more than one.
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
