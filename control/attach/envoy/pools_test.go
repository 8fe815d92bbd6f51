package envoy_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	mutatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	earlyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	overridev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/override_host/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/control/attach/plan"
)

// pickers contains one pool of each kind, and a route to each.
const pickers = `kind: Service
metadata: {namespace: ns, name: ours}
spec: {selector: {app.kubernetes.io/name: headgate}, ports: [{port: 9002}]}
---
kind: Service
metadata: {namespace: ns, name: epp}
spec: {selector: {app: epp}, ports: [{port: 9002}, {name: plain, port: 9003, appProtocol: kubernetes.io/h2c}]}
---
kind: InferencePool
metadata: {namespace: ns, name: open}
spec: {appProtocol: kubernetes.io/h2c, endpointPickerRef: {name: ours, port: {number: 9002}, failureMode: FailOpen}}
---
kind: InferencePool
metadata: {namespace: ns, name: theirs}
spec: {endpointPickerRef: {name: epp, port: {number: 9002}}}
---
kind: InferencePool
metadata: {namespace: ns, name: theirs-open}
spec: {endpointPickerRef: {name: epp, port: {number: 9003}, failureMode: FailOpen}}
---
kind: InferencePool
metadata: {namespace: ns, name: lost-open}
spec: {endpointPickerRef: {name: unknown, port: {number: 9002}, failureMode: FailOpen}}
---
kind: HTTPRoute
metadata: {namespace: ns, name: r}
spec:
  parentRefs: [{name: g}]
  rules:
  - backendRefs:
    - {name: llama, group: inference.networking.k8s.io, kind: InferencePool}
    - {name: open, group: inference.networking.k8s.io, kind: InferencePool}
    - {name: theirs, group: inference.networking.k8s.io, kind: InferencePool}
    - {name: theirs-open, group: inference.networking.k8s.io, kind: InferencePool}
    - {name: lost-open, group: inference.networking.k8s.io, kind: InferencePool}
  - {matches: [{path: {value: /theirs}}], backendRefs: [{name: theirs, group: inference.networking.k8s.io, kind: InferencePool}]}`

// routeTo returns the route with a path in the only virtual host.
func routeTo(t *testing.T, all []*routev3.RouteConfiguration, path string) *routev3.Route {
	t.Helper()
	for _, r := range all[0].GetVirtualHosts()[0].GetRoutes() {
		if m := r.GetMatch(); m.GetPath() == path || m.GetPathSeparatedPrefix() == path || m.GetPrefix() == path ||
			m.GetSafeRegex().GetRegex() == path {
			return r
		}
	}
	t.Fatalf("there is no route %s", path)
	return nil
}

// Each backend of a rule uses the picker of its own pool only.
func TestEachPoolUsesItsOwnPicker(t *testing.T) {
	r := planned(t, pickers)
	var got []string
	for _, c := range routeTo(t, r.Routes, "/").GetRoute().GetWeightedClusters().GetClusters() {
		words := []string{c.GetName()}
		for _, name := range slices.Sorted(maps.Keys(c.GetTypedPerFilterConfig())) {
			on := read(t, c.GetTypedPerFilterConfig()[name], new(routev3.FilterConfig))
			switch name {
			case "headgate.picker", "envoy.filters.http.ext_proc":
				o := read(t, on.GetConfig(), new(extprocv3.ExtProcPerRoute)).GetOverrides()
				words = append(words, strings.TrimSpace(fmt.Sprintf("%s %s %s", name, o.GetGrpcService().GetEnvoyGrpc().GetClusterName(),
					o.GetGrpcService().GetEnvoyGrpc().GetAuthority())))
			default:
				words = append(words, name)
			}
		}
		got = append(got, strings.Join(words, ", "))
	}
	const ours = "envoy.filters.http.ext_proc, envoy.filters.http.header_to_metadata, envoy.filters.http.json_to_metadata, envoy.filters.http.sse_to_metadata"
	if want := []string{
		"pool/ns/llama, " + ours,
		"pool/ns/open, " + ours + ", headgate.guard",
		"pool/ns/theirs, headgate.picker picker/ns/epp/9002 epp.ns.svc:9002",
		"pool/ns/theirs-open, headgate.picker picker/ns/epp/9003 epp.ns.svc:9003",
		"pool/ns/lost-open",
	}; !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// If only another project's picker handles a request, the request bypasses extproc. Its retries
	// use the next pick, as usual.
	theirs := routeTo(t, r.Routes, "/theirs")
	if theirs.GetMetadata() != nil || len(theirs.GetRequestHeadersToAdd()) > 0 || theirs.GetRoute().GetRetryPolicy() == nil ||
		!slices.Contains(theirs.GetResponseHeadersToRemove(), wire.ElsewhereHeader) {
		t.Errorf("the route to a pool with another picker is %v", theirs)
	}
}

// pingOf returns the HTTP/2 ping settings of a cluster, nil for none.
func pingOf(t *testing.T, c *clusterv3.Cluster) *corev3.KeepaliveSettings {
	t.Helper()
	options := c.GetTypedExtensionProtocolOptions()["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]
	if options == nil {
		return nil
	}
	return read(t, options, new(httpv3.HttpProtocolOptions)).GetExplicitHttpConfig().GetHttp2ProtocolOptions().GetConnectionKeepalive()
}

// Only a pool that fails open has a fallback policy that finds an endpoint. A picker's certificate
// is not verified, and a picker that is down gets no requests.
func TestClustersOfPoolsAndPickers(t *testing.T) {
	var got []string
	for _, c := range planned(t, pickers).Clusters {
		words := []string{c.GetName()}
		if options := c.GetTypedExtensionProtocolOptions()["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]; options != nil {
			o := read(t, options, new(httpv3.HttpProtocolOptions))
			if o.GetExplicitHttpConfig().GetHttp2ProtocolOptions() != nil {
				words = append(words, "HTTP/2")
			}
			if strings.HasPrefix(c.GetName(), "pool/") != (len(o.GetHttpFilters()) > 0 &&
				o.GetCommonHttpProtocolOptions().GetIdleTimeout() != nil) {
				t.Errorf("%s has upstream filters: %v", c.GetName(), o)
			}
		}
		for _, p := range c.GetLoadBalancingPolicy().GetPolicies() {
			is := read(t, p.GetTypedExtensionConfig().GetTypedConfig(), new(overridev3.OverrideHost))
			words = append(words, is.GetFallbackPolicy().GetPolicies()[0].GetTypedExtensionConfig().GetName())
			if len(is.GetOverrideHostSources()) != 1 || is.GetOverrideHostSources()[0].GetHeader() != "" || is.GetSelectedHostKey() == nil {
				t.Errorf("%s takes its endpoints from %v", c.GetName(), is)
			}
		}
		if s := c.GetTransportSocket(); s != nil {
			tls := read(t, s.GetTypedConfig(), new(tlsv3.UpstreamTlsContext)).GetCommonTlsContext()
			words = append(words, fmt.Sprintf("TLS %v verified %v", tls.GetAlpnProtocols(), tls.GetValidationContextType() != nil))
		}
		if c.GetIgnoreHealthOnHostRemoval() != (len(c.GetHealthChecks()) > 0) {
			t.Errorf("%s handles endpoints that left in the wrong way", c.GetName())
		}
		if ping := pingOf(t, c); ping != nil && ping.GetInterval().AsDuration() <= 5*time.Minute {
			t.Errorf("%s is pinged every %v, and gRPC servers close such connections", c.GetName(), ping.GetInterval().AsDuration())
		}
		for _, check := range c.GetHealthChecks() {
			is := check.GetHttpHealthCheck()
			if is.GetMethod() != corev3.RequestMethod_POST || is.GetCodecClientType() != typev3.CodecClientType_HTTP2 ||
				is.GetHost() != plan.PickerAuthority(c.GetName()) ||
				len(is.GetExpectedStatuses()) != 1 || is.GetExpectedStatuses()[0].GetStart() != 100 ||
				is.GetExpectedStatuses()[0].GetEnd() != 600 {
				t.Errorf("the health check of %s is %v", c.GetName(), is)
			}
		}
		if c.GetOutlierDetection() != nil || len(c.GetHealthChecks()) > 0 {
			words = append(words, fmt.Sprintf("looked at, panic below %v%%", c.GetCommonLbConfig().GetHealthyPanicThreshold().GetValue()))
		}
		if below := c.GetCommonLbConfig().GetHealthyPanicThreshold(); below != nil && len(c.GetHealthChecks()) == 0 {
			words = append(words, fmt.Sprintf("panic below %v%%", below.GetValue()))
		}
		from := c.GetEdsClusterConfig().GetEdsConfig().GetApiConfigSource().GetGrpcServices()[0].GetEnvoyGrpc().GetClusterName()
		got = append(got, strings.Join(append(words, "endpoints of "+from), ", "))
	}
	const closed, open = ", envoy.load_balancing_policies.subset, endpoints of extproc",
		", envoy.load_balancing_policies.least_request, panic below 1%, endpoints of extproc"
	if want := []string{
		"picker/ns/epp/9002, HTTP/2, TLS [h2] verified false, looked at, panic below 0%, endpoints of control",
		"picker/ns/epp/9003, HTTP/2, looked at, panic below 0%, endpoints of control",
		"pool/ns/llama" + closed,
		"pool/ns/lost-open" + open,
		"pool/ns/open, HTTP/2" + open,
		"pool/ns/theirs" + closed,
		"pool/ns/theirs-open" + open,
	}; !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Without extproc, the guard admits exactly the requests that reach engines as inference.
func TestGuardUsesThePathsOfClients(t *testing.T) {
	rule := func(kind, path, filters string) string {
		return fmt.Sprintf("  - {matches: [{path: {type: %s, value: '%s'}}], filters: [%s], backendRefs: [{name: open, group: inference.networking.k8s.io, kind: InferencePool}]}\n",
			kind, path,
			filters)
	}
	rewrite := func(how string) string { return "{type: URLRewrite, urlRewrite: {path: {" + how + "}}}" }
	open := strings.Split(pickers, "---\n")
	r := planned(t, open[0]+"---\n"+open[2]+
		"---\nkind: HTTPRoute\nmetadata: {namespace: ns, name: r}\nspec:\n  parentRefs: [{name: g}]\n  rules:\n"+
		rule("PathPrefix", "/", "")+
		rule("PathPrefix", "/a", rewrite("type: ReplacePrefixMatch, replacePrefixMatch: /"))+
		rule("PathPrefix", "/b", rewrite("type: ReplacePrefixMatch, replacePrefixMatch: /v1"))+
		rule("PathPrefix", "/c", rewrite("type: ReplacePrefixMatch, replacePrefixMatch: /other"))+
		rule("Exact", "/d", rewrite("type: ReplaceFullPath, replaceFullPath: /v1/completions"))+
		rule("PathPrefix", "/e", rewrite("type: ReplaceFullPath, replaceFullPath: /v1/completions"))+
		rule("Exact", "/f", rewrite("type: ReplaceFullPath, replaceFullPath: /metrics"))+
		rule("RegularExpression", "/v[12]/.*", ""))
	for path, want := range map[string]struct {
		count int
		has   string
	}{
		"/": {len(wire.InferencePaths), "/v1/completions"}, "/v[12]/.*": {len(wire.InferencePaths), "/v2/rerank"},
		"/a": {len(wire.InferencePaths), "/a/v1/completions"}, "/b": {11, "/b/chat/completions"}, "/c": {0, ""},
		"/d": {1, "/d"}, "/e": {0, ""}, "/f": {0, ""},
	} {
		share := routeTo(t, r.Routes, path).GetRoute().GetWeightedClusters().GetClusters()[0]
		on := read(t, share.GetTypedPerFilterConfig()["headgate.guard"], new(routev3.FilterConfig))
		all := read(t, on.GetConfig(), new(luav3.LuaPerRoute)).GetFilterContext().GetFields()
		if len(all) != want.count || want.has != "" && !all[want.has].GetBoolValue() {
			t.Errorf("for %s the guard allows %v", path, slices.Sorted(maps.Keys(all)))
		}
	}
}

// A request goes to the pool that extproc names. If extproc names none, inference goes to the only
// pool if that fails open.
func TestModelsOfOnePoolThatFailsOpen(t *testing.T) {
	open := strings.Split(pickers, "---\n")
	r := planned(t, open[0]+"---\n"+open[2]+
		"---\nkind: LLMRoute\nmetadata: {namespace: ns, name: m}\nspec: {parentRefs: [{name: g}], backendRefs: [{name: open}]}")
	all := r.Routes[0].GetVirtualHosts()[0].GetRoutes()
	for i, is := range all {
		path := is.GetMatch().GetPath()
		if c := is.GetRoute().GetCluster(); c != "" {
			named := all[i-1]
			if c != "pool/ns/open" || !slices.Contains(wire.InferencePaths, path) || len(is.GetMatch().GetHeaders()) > 0 ||
				is.GetTypedPerFilterConfig()["envoy.filters.http.ext_proc"] == nil {
				t.Errorf("%s goes to %s", path, c)
			}
			if h := named.GetMatch().GetHeaders(); len(h) != 1 || h[0].GetName() != wire.PoolHeader || !h[0].GetPresentMatch() ||
				named.GetMatch().GetPath() != path || named.GetRoute().GetClusterHeader() != wire.PoolHeader {
				t.Errorf("the route before it is %v", named)
			}
		} else if slices.Contains(wire.InferencePaths, path) && (i+1 == len(all) || all[i+1].GetRoute().GetCluster() == "") {
			t.Errorf("%s is not served without extproc", path)
		}
	}
}

// Clients cannot choose an endpoint. Headers for that are removed before routing. Headers that
// inform a picker are removed before the request is forwarded.
func TestControlHeadersAreRemoved(t *testing.T) {
	m := new(hcmv3.HttpConnectionManager)
	read(t, planned(t, pickers).Listeners[0].GetFilterChains()[0].GetFilters()[0].GetTypedConfig(), m)
	early := read(t, m.GetEarlyHeaderMutationExtensions()[0].GetTypedConfig(), new(earlyv3.HeaderMutation)).GetMutations()
	if len(early) != 1 || early[0].GetRemoveOnMatch().GetKeyMatcher().GetPrefix() != "x-gateway-" {
		t.Errorf("the early mutations are %v", early)
	}
	var names []string
	for _, f := range m.GetHttpFilters() {
		names = append(names, f.GetName())
		if f.GetName() != "headgate.strip" {
			continue
		}
		late := read(t, f.GetTypedConfig(), new(mutatev3.HeaderMutation)).GetMutations().GetRequestMutations()
		if len(late) != 3 || late[0].GetRemoveOnMatch().GetKeyMatcher().GetPrefix() != wire.ControlPrefix ||
			late[1].GetRemove() != wire.ClientHeader {
			t.Errorf("the late mutations are %v", late)
		}
	}
	if want := []string{
		"envoy.filters.http.ext_proc", "headgate.picker", "headgate.guard", "headgate.location", "headgate.strip",
		"envoy.filters.http.router",
	}; !slices.Equal(names[len(names)-6:], want) {
		t.Errorf("the filters are %v", names)
	}
}

// The certificate of a pool's engine is verified by name and authority, or not at all. gRPC calls
// use HTTP/2.
func TestVerificationOfEngines(t *testing.T) {
	const pools = `kind: PoolSettings
metadata: {namespace: ns, name: known}
spec: {poolRef: {name: llama}, engineTLS: {hostname: engines.test, caCertificates: PEM}}
---
kind: InferencePool
metadata: {namespace: ns, name: system}
spec: {appProtocol: kubernetes.io/h2c}
---
kind: PoolSettings
metadata: {namespace: ns, name: system}
spec: {poolRef: {name: system}, engineTLS: {hostname: engines.test}}
---
kind: InferencePool
metadata: {namespace: ns, name: trusting}
---
kind: PoolSettings
metadata: {namespace: ns, name: trusting}
spec: {poolRef: {name: trusting}, engineTLS: {insecureSkipVerify: true}}
---
kind: LLMRoute
metadata: {namespace: ns, name: m}
spec: {parentRefs: [{name: g}], backendRefs: [{name: llama}, {name: system}, {name: trusting}]}`
	var got []string
	for _, c := range planned(t, pools).Clusters {
		tls := read(t, c.GetTransportSocket().GetTypedConfig(), new(tlsv3.UpstreamTlsContext))
		trust := tls.GetCommonTlsContext().GetValidationContext()
		words := fmt.Sprintf("%s: %v to %q", c.GetName(), tls.GetCommonTlsContext().GetAlpnProtocols(), tls.GetSni())
		if names := trust.GetMatchTypedSubjectAltNames(); len(names) == 1 {
			words += fmt.Sprintf(", is %s %s", names[0].GetSanType(), names[0].GetMatcher().GetExact())
		}
		if trust != nil {
			words += fmt.Sprintf(", as %q says, or %q", trust.GetTrustedCa().GetInlineString(), trust.GetTrustedCa().GetFilename())
		}
		got = append(got, words)
	}
	if want := []string{
		`calls/ns/llama: [h2] to "engines.test", is DNS engines.test, as "PEM" says, or ""`,
		`calls/ns/system: [h2] to "engines.test", is DNS engines.test, as "" says, or "/etc/ssl/certs/ca-certificates.crt"`,
		`calls/ns/trusting: [h2] to ""`,
		`pool/ns/llama: [http/1.1] to "engines.test", is DNS engines.test, as "PEM" says, or ""`,
		`pool/ns/system: [h2] to "engines.test", is DNS engines.test, as "" says, or "/etc/ssl/certs/ca-certificates.crt"`,
		`pool/ns/trusting: [http/1.1] to ""`,
	}; !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
