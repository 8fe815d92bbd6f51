package envoy_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	celv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/test/network"
)

// planned returns the resources for an Envoy of Gateway ns/g.
func planned(t *testing.T, text string) *envoy.Resources {
	t.Helper()
	n := network.Read(t, network.Standard(text))
	o := template(t).FromControl(func(port int32) (string, uint32) { return "127.0.0.1", uint32(port) })
	r, err := template(t).Of(plan.Of(attach.Of(n), n, plan.Known{Certificates: certificates(n)}).Gateways[0], o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// read decodes an Any into a message, and returns the message.
func read[M proto.Message](t *testing.T, held *anypb.Any, m M) M {
	t.Helper()
	if err := held.UnmarshalTo(m); err != nil {
		t.Fatal(err)
	}
	return m
}

// filters lists the filters that a route or a backend configures, and the metadata that extproc
// gets.
func filters(t *testing.T, all map[string]*anypb.Any) string {
	t.Helper()
	var words []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		word := strings.TrimPrefix(name, "envoy.filters.http.")
		switch m, err := all[name].UnmarshalNew(); m := m.(type) {
		case *corsv3.CorsPolicy:
		case *routev3.FilterConfig:
			if m.GetDisabled() {
				word += " off"
			}
			if word == "ext_proc" {
				told := read(t, m.GetConfig(), new(extprocv3.ExtProcPerRoute)).GetOverrides().GetGrpcInitialMetadata()
				word += fmt.Sprintf(" %s=%s", told[0].GetKey(), told[0].GetValue())
			}
		default:
			t.Errorf("%s has the configuration %T (%v)", name, m, err)
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

// Requests to pools and models pass extproc with the filters, limits and retries of envoy.yaml.
// Other requests do not.
func TestPoolsAndModelsMatchEnvoyYAML(t *testing.T) {
	r := planned(t, `kind: LLMRoute
metadata: {namespace: ns, name: llm}
spec: {parentRefs: [{name: g}], backendRefs: [{name: llama}]}
---
kind: HTTPRoute
metadata: {namespace: ns, name: r}
spec:
  parentRefs: [{name: g}]
  rules:
  - matches: [{path: {value: /pool}}]
    filters:
    - {type: CORS, cors: {allowOrigins: ['*']}}
    - {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-own, value: '1'}]}}
    - {type: ResponseHeaderModifier, responseHeaderModifier: {remove: [x-inner]}}
    backendRefs: [{name: a, port: 80}, {name: llama, group: inference.networking.k8s.io, kind: InferencePool, weight: 2}]
  - {matches: [{path: {type: Exact, value: /v1/embeddings}, method: PUT}], backendRefs: [{name: llama, group: inference.networking.k8s.io, kind: InferencePool}]}
  - {matches: [{path: {value: /service}}], timeouts: {request: 0s, backendRequest: 2s}, backendRefs: [{name: a, port: 80}]}
  - {matches: [{path: {value: /redirect}}], filters: [{type: RequestRedirect, requestRedirect: {hostname: a.test}}]}`)
	const on = "header_to_metadata, json_to_metadata, sse_to_metadata"
	const forModels = "ext_proc x-gateway-listener=Gateway ns/g http, " + on
	const forPool = "ext_proc x-gateway-pool=ns/llama, " + on
	host := bootstrapHost(t)
	pool := host.GetRoutes()[len(host.GetRoutes())-1].GetRoute()
	for _, test := range []struct {
		match, filters string
		shares         []string // weight, name and filters of each cluster
		inference      bool
		timeout        float64
	}{
		{match: "/v1/chat/completions", filters: forModels, inference: true},
		{match: "/v1/models", filters: forModels, inference: true},
		{match: "/v1/embeddings", filters: strings.Replace(forModels, "json_to_metadata, ", "", 1), inference: true},
		{match: "/pool", filters: "cors", inference: true, shares: []string{"1 service/ns/a/80 ", "2 pool/ns/llama " + forPool}},
		{
			match: "PUT /v1/embeddings", inference: true,
			shares: []string{"1 pool/ns/llama " + strings.Replace(forPool, "json_to_metadata, ", "", 1)},
		},
		{match: "/service", shares: []string{"1 service/ns/a/80 "}, timeout: 2},
		{match: "/redirect"},
	} {
		i := slices.IndexFunc(r.Routes[0].GetVirtualHosts()[0].GetRoutes(), func(r *routev3.Route) bool {
			m, words := r.GetMatch(), []string(nil)
			for _, h := range m.GetHeaders() {
				words = append(words, h.GetStringMatch().GetExact())
			}
			words = append(words, m.GetPath()+m.GetPathSeparatedPrefix()+m.GetPrefix())
			return strings.Join(words, " ") == test.match
		})
		if i < 0 {
			t.Errorf("there is no route %s", test.match)
			continue
		}
		is := r.Routes[0].GetVirtualHosts()[0].GetRoutes()[i]
		if got := filters(t, is.GetTypedPerFilterConfig()); got != test.filters {
			t.Errorf("%s configures the filters %s, want %s", test.match, got, test.filters)
		}
		var shares []string
		for _, c := range is.GetRoute().GetWeightedClusters().GetClusters() {
			shares = append(shares, fmt.Sprintf("%d %s %s", c.GetWeight().GetValue(), c.GetName(), filters(t, c.GetTypedPerFilterConfig())))
		}
		if !slices.Equal(shares, test.shares) {
			t.Errorf("%s has the shares %q, want %q", test.match, shares, test.shares)
		}
		if header := is.GetRoute().GetClusterHeader(); (header == "x-gateway-pool-cluster") != (test.filters == forModels ||
			test.match == "/v1/embeddings") {
			t.Errorf("%s takes its cluster from %q", test.match, header)
		}
		if got := is.GetRoute().GetTimeout().AsDuration().Seconds(); got != test.timeout {
			t.Errorf("%s has a timeout of %v s, want %v", test.match, got, test.timeout)
		}
		_, marked := is.GetMetadata().GetFilterMetadata()["gateway.inference"]
		limit, tries := is.GetRequestBodyBufferLimit().GetValue(), is.GetRoute().GetRetryPolicy()
		asks := slices.ContainsFunc(is.GetRequestHeadersToAdd(), func(h *corev3.HeaderValueOption) bool {
			return h.GetHeader().GetKey() == "endpoint-load-metrics-format"
		})
		hides := slices.Contains(is.GetResponseHeadersToRemove(), "x-gateway-elsewhere")
		if limited := limit == host.GetRequestBodyBufferLimit().GetValue(); marked != test.inference || limited != test.inference ||
			asks != test.inference || hides != test.inference ||
			proto.Equal(tries, pool.GetRetryPolicy()) != test.inference {
			t.Errorf("%s: settings for extproc: metadata %v, limit %d, report requested %v, header hidden %v, retries %v, want %v",
				test.match, marked, limit, asks, hides, tries, test.inference)
		}
		if added := is.GetRequestHeadersToAdd(); test.match == "/pool" &&
			(len(added) != 2 || added[0].GetHeader().GetKey() != "x-own" || !slices.Contains(is.GetResponseHeadersToRemove(), "x-inner")) {
			t.Errorf("%s adds %v and removes %v", test.match, added, is.GetResponseHeadersToRemove())
		}
		if is.GetRoute() != nil && !proto.Equal(is.GetRoute().GetIdleTimeout(), pool.GetIdleTimeout()) {
			t.Errorf("%s has the idle timeout %v", test.match, is.GetRoute().GetIdleTimeout())
		}
		if upgrades := is.GetRoute().GetUpgradeConfigs(); len(test.shares) > 0 &&
			(len(upgrades) != 1 || upgrades[0].GetUpgradeType() != "websocket") {
			t.Errorf("%s upgrades to %v", test.match, upgrades)
		}
	}
}

// bootstrapHost returns the virtual host of envoy.yaml.
func bootstrapHost(t *testing.T) *routev3.VirtualHost {
	t.Helper()
	m := new(hcmv3.HttpConnectionManager)
	read(t, bootstrap(t).GetStaticResources().GetListeners()[0].GetFilterChains()[0].GetFilters()[0].GetTypedConfig(), m)
	return m.GetRouteConfig().GetVirtualHosts()[0]
}

// The share of requests to mirror is rounded to millionths, Envoy's finest unit.
func TestShareOfCopies(t *testing.T) {
	r := planned(t, `kind: HTTPRoute
metadata: {namespace: ns, name: r}
spec:
  parentRefs: [{name: g}]
  rules:
  - filters:
    - {type: RequestMirror, requestMirror: {backendRef: {name: a, port: 80}}}
    - {type: RequestMirror, requestMirror: {backendRef: {name: a, port: 81}, percent: 5}}
    - {type: RequestMirror, requestMirror: {backendRef: {name: a, port: 80}, fraction: {numerator: 1, denominator: 3}}}
    - {type: RequestMirror, requestMirror: {backendRef: {name: a, port: 80}, fraction: {numerator: 2000000, denominator: 2147483647}}}
    backendRefs: [{name: b, port: 80}]`)
	var got []string
	for _, m := range r.Routes[0].GetVirtualHosts()[0].GetRoutes()[0].GetRoute().GetRequestMirrorPolicies() {
		got = append(got, fmt.Sprintf("%s %d %s", m.GetCluster(), m.GetRuntimeFraction().GetDefaultValue().GetNumerator(),
			m.GetRuntimeFraction().GetDefaultValue().GetDenominator()))
	}
	if want := []string{
		"service/ns/a/80 1000000 MILLION", "service/ns/a/81/h2c 50000 MILLION", "service/ns/a/80 333333 MILLION",
		"service/ns/a/80 931 MILLION",
	}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// All filters for inference in envoy.yaml are disabled until a route enables them.
func TestListenerWithoutInference(t *testing.T) {
	r := planned(t, "kind: GatewayClass\nmetadata: {name: other}\nspec: {controllerName: example.com/other}")
	m := new(hcmv3.HttpConnectionManager)
	read(t, r.Listeners[0].GetFilterChains()[0].GetFilters()[0].GetTypedConfig(), m)
	for _, f := range m.GetHttpFilters() {
		want := !slices.Contains([]string{
			"envoy.filters.http.rbac", "envoy.filters.http.cors", "envoy.filters.http.router",
			"headgate.strip",
		}, f.GetName())
		if f.GetDisabled() != want {
			t.Errorf("%s disabled: %v, want %v", f.GetName(), f.GetDisabled(), want)
		}
	}
	cel := func(f *accesslogv3.AccessLogFilter) string {
		if f.GetExtensionFilter() == nil { // no filter, or one that is not an extension
			return ""
		}
		return read(t, f.GetExtensionFilter().GetTypedConfig(), new(celv3.ExpressionFilter)).GetExpression()
	}
	for _, log := range m.GetAccessLog() {
		want := ""
		if log.GetName() == "envoy.access_loggers.http_grpc" {
			want = `"gateway.inference" in xds.route_metadata.filter_metadata`
		}
		if got := cel(log.GetFilter()); got != want {
			t.Errorf("%s has the filter %q, want %q", log.GetName(), got, want)
		}
	}
	if got := m.GetRequestTimeout().AsDuration(); got != 0 {
		t.Errorf("the request timeout is %v", got)
	}
	if got := m.GetRds().GetRouteConfigName(); got != r.Listeners[0].GetName() || got != r.Routes[0].GetName() {
		t.Errorf("the listener %s names the routes %s, but the routes are %s", r.Listeners[0].GetName(), got, r.Routes[0].GetName())
	}
}

// A pool's endpoints come from extproc, and a Service's from control. Waiting for either delays
// other clusters by at most two seconds.
func TestSourcesOfEndpoints(t *testing.T) {
	r := planned(t, `kind: HTTPRoute
metadata: {namespace: ns, name: r}
spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: a, port: 80}, {name: a, port: 81}, {name: llama, group: inference.networking.k8s.io, kind: InferencePool}]}]}`)
	var got []string
	for _, c := range r.Clusters {
		eds := c.GetEdsClusterConfig()
		from := eds.GetEdsConfig().GetApiConfigSource().GetGrpcServices()[0].GetEnvoyGrpc()
		words := fmt.Sprintf("%s: %s of %s as %s within %v", c.GetName(), eds.GetServiceName(), from.GetClusterName(), from.GetAuthority(),
			eds.GetEdsConfig().GetInitialFetchTimeout().AsDuration())
		if options := c.GetTypedExtensionProtocolOptions()["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]; options != nil {
			if read(t, options, new(httpv3.HttpProtocolOptions)).GetExplicitHttpConfig().GetHttp2ProtocolOptions() != nil {
				words += " by HTTP/2"
			}
		}
		got = append(got, words)
	}
	if want := []string{
		"pool/ns/llama: pool/ns/llama of extproc as extproc within 2s",
		"service/ns/a/80: service/ns/a/80 of control as control within 2s",
		"service/ns/a/81/h2c: service/ns/a/81/h2c of control as control within 2s by HTTP/2",
	}; !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
