package cost

import (
	"fmt"
	"net/netip"
	"strings"

	"sigs.k8s.io/yaml"
)

// listenerYAML is a listener with one route and a list of HTTP filters.
const listenerYAML = `
static_resources:
  listeners:
    - name: http
      address: { socket_address: { address: %[1]s, port_value: %[2]d } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: ingress
                route_config:
                  virtual_hosts: [{ name: all, domains: ["*"], routes: [{ match: { prefix: / }, route: { cluster: engines, timeout: 0s } }] }]
                http_filters:%[3]s
                  - name: envoy.filters.http.router
                    typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
  clusters:%[4]s
`

// aloneYAML is a cluster of the engines.
const aloneYAML = `
    - name: engines
      type: STATIC
      load_assignment:
        cluster_name: engines
        endpoints: [{ lb_endpoints: [%s] }]
`

// extProcYAML is the filter in the mode of our envoy.yaml: it sends headers and the whole body.
const extProcYAML = `
                  - name: envoy.filters.http.ext_proc
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
                      grpc_service: { envoy_grpc: { cluster_name: extproc } }
                      message_timeout: 5s
                      processing_mode: { request_header_mode: SEND, request_body_mode: BUFFERED, response_header_mode: SKIP }
                      metadata_options: { receiving_namespaces: { untyped: [envoy.lb] } }
`

// floorYAML are clusters of the endpoints that the no-op names, and of the no-op.
const floorYAML = `
    - name: engines
      type: ORIGINAL_DST
      lb_policy: CLUSTER_PROVIDED
      original_dst_lb_config: { metadata_key: { key: envoy.lb, path: [{ key: x-gateway-destination-endpoint }] } }
    - name: extproc
      type: STATIC
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: { http2_protocol_options: {} }
      load_assignment:
        cluster_name: extproc
        endpoints: [{ lb_endpoints: [{ endpoint: { address: { pipe: { path: %s } } } }] }]
`

// envoyAlone returns the configuration of an Envoy that only forwards.
func envoyAlone(listen string, engines []string) ([]byte, error) {
	all := make([]string, len(engines))
	for i, e := range engines {
		a, err := netip.ParseAddrPort(e)
		if err != nil {
			return nil, err
		}
		all[i] = fmt.Sprintf("{ endpoint: { address: { socket_address: { address: %s, port_value: %d } } } }", a.Addr(), a.Port())
	}
	return envoyWith(listen, "", fmt.Sprintf(aloneYAML, strings.Join(all, ", ")))
}

// envoyFloor returns the configuration of an Envoy that asks a server at a socket for the endpoint
// of each request, and does nothing else.
func envoyFloor(listen, socket string) ([]byte, error) {
	return envoyWith(listen, extProcYAML, fmt.Sprintf(floorYAML, socket))
}

func envoyWith(listen, filters, clusters string) ([]byte, error) {
	a, err := netip.ParseAddrPort(listen)
	if err != nil {
		return nil, err
	}
	return yaml.YAMLToJSON(fmt.Appendf(nil, listenerYAML, a.Addr(), a.Port(), filters, clusters))
}
