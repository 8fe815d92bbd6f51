package envoy_test

import (
	"slices"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/headgate/headgate/api/wire"
)

// extproc gets the headers that a Gateway's routes name, but not the one that clients of a Gateway
// can set although it is Headgate's. Responses get the headers of extproc's decision.
func TestExtprocGetsTheHeadersOfRoutes(t *testing.T) {
	r := planned(t, `kind: InferencePool
metadata: {namespace: ns, name: a}
---
kind: LLMRoute
metadata: {namespace: ns, name: m}
spec: {parentRefs: [{name: g}], backendRefs: [{name: a}], tenantHeader: x-team, programHeader: x-headgate-client}`)
	m := read(t, r.Listeners[0].GetFilterChains()[0].GetFilters()[0].GetTypedConfig(), new(hcmv3.HttpConnectionManager))
	var exact, prefixes []string
	for _, f := range m.GetHttpFilters() {
		if f.GetName() != "envoy.filters.http.ext_proc" {
			continue
		}
		config := read(t, f.GetTypedConfig(), new(extprocv3.ExternalProcessor))
		for _, p := range config.GetForwardRules().GetAllowedHeaders().GetPatterns() {
			exact, prefixes = append(exact, p.GetExact()), append(prefixes, p.GetPrefix())
		}
	}
	if !slices.Contains(exact, "x-team") || slices.Contains(exact, wire.ClientHeader) ||
		!slices.Contains(prefixes, wire.TenantPrefix) || !slices.Contains(prefixes, wire.ProgramPrefix) {
		t.Errorf("extproc gets %q and %q", exact, prefixes)
	}
	inference := 0
	for _, route := range r.Routes[0].GetVirtualHosts()[0].GetRoutes() {
		if route.GetMetadata() == nil {
			continue
		}
		inference++
		var names []string
		for _, h := range route.GetResponseHeadersToAdd() {
			names = append(names, h.GetHeader().GetKey())
		}
		if want := append([]string{wire.FallbackHeader}, wire.RateLimitHeaders...); !slices.Equal(names, want) {
			t.Errorf("%s: responses get %q, want %q", route.GetMatch(), names, want)
		}
	}
	if inference == 0 {
		t.Error("there is no route for inference")
	}
}
