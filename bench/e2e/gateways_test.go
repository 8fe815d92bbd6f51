package e2e

import (
	"testing"
)

// pickInHeader makes the endpoints' cluster read the picks from the header, as Envoy Gateway's
// endpointOverride does. Envoy does not remove what clients write into that header.
var pickInHeader = changes(
	setField([]any{map[string]any{"header": "x-gateway-destination-endpoint"}},
		"static_resources", "clusters", 0, "load_balancing_policy", "policies", 0, "typed_extension_config", "typed_config",
		"override_host_sources"),
	replaceEverywhere("prefix", "x-gateway-", "x-nothing-"),
)

// originalDstByHeader makes the cluster select the endpoint by a header, as Envoy AI Gateway does.
var originalDstByHeader = changes(
	setField(map[string]any{"use_http_header": true, "http_header_name": "x-gateway-destination-endpoint"}, "static_resources", "clusters",
		0, "original_dst_lb_config"),
	replaceEverywhere("prefix", "x-gateway-", "x-nothing-"),
)

// Some gateways read the destination from metadata and others from a header. A value that a client
// writes into the header has no effect.
func TestOtherGatewaysFollowThePick(t *testing.T) {
	runs(t)
	for _, c := range []struct {
		name     string
		settings []setting
		lists    bool // whether the gateway reads a list of picks, not only one
	}{
		{"as Istio: a list in metadata", nil, true},
		{"as Envoy Gateway: a list in the header", []setting{pickInHeader}, true},
		{"as Envoy AI Gateway: one address in the header", []setting{originalDst, originalDstByHeader}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, append([]setting{extprocFlags("--policy", "roundRobin", "--scrape-interval", "1h", "--stale-after", "2h")},
				append(c.settings, duplex.setting)...)...)
			forged := completion("a01", 2, false)
			forged.header = map[string]string{"x-gateway-destination-endpoint": s.endpoint(1)}
			for n := range 8 {
				want := s.endpoint(1 + (1+n)%4) // round robin starts at engine 1
				if a := s.must(forged); a.status != 200 || a.served != want {
					t.Errorf("request %d: %d from %s, want %s: %s", n, a.status, a.served, want, a.body)
				}
			}
			if !c.lists {
				return
			}
			s.Engines[s.endpoint(2)].Kill()
			if a := s.must(forged); a.status != 200 || a.served != s.endpoint(3) {
				t.Errorf("%d from %s, want the next pick, %s: %s", a.status, a.served, s.endpoint(3), a.body)
			}
		})
	}
}

// An ORIGINAL_DST cluster cannot parse a list as an address, so extproc names one endpoint.
func TestListIsNoAddressForAnOriginalDestination(t *testing.T) {
	runs(t, raced)
	s := start(t, originalDst, originalDstByHeader, duplex.setting, extprocFlags("--endpoints-per-request", "3"))
	if a := s.must(completion("a01", 2, false)); a.status != 503 {
		t.Errorf("%d %s", a.status, a.body)
	}
}
