package envoy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/api/wire"
)

// settings are what the flags make of a configuration such as envoy.yaml.
type settings struct {
	listen  []string // HOST:PORT for clients
	extproc string   // unix:PATH or HOST:PORT
	tls     bool     // serve with the certificate in secretFile
	keys    bool     // ask for the API keys in keysFile
	dir     string   // folder of the files that Envoy reads
	admin   string   // path of the admin interface's socket
	back    string   // file name of the socket for extproc's relay, beside that of extproc
}

// Names of files in settings.dir, and of what Envoy finds in them.
const (
	secretFile, secretName = "secret.json", "server"
	keysFile, keysName     = "keys.json", "api_keys"
)

// bootstrap returns the configuration of an Envoy as JSON: a configuration such as envoy.yaml with
// the addresses of settings, with TLS and with API keys.
func bootstrap(text []byte, s settings) ([]byte, error) {
	var root map[string]any
	if err := yaml.Unmarshal(text, &root); err != nil {
		return nil, err
	}
	root["admin"] = node{"address": pipe(s.admin, 0o600)}
	resources := object(root["static_resources"])
	socket, err := s.reach(resources)
	if err != nil {
		return nil, err
	}
	listeners := list(resources, "listeners")
	if len(listeners) != 1 {
		return nil, fmt.Errorf("the configuration has %d listeners, want one", len(listeners))
	}
	m, err := manager(object(listeners[0]))
	if err != nil {
		return nil, err
	}
	name := s.back
	if !socket {
		name = "" // extproc's relay listens at a socket only
	}
	nameBack(m, name)
	from := listeners[0]
	front, err := s.front(from)
	if err != nil {
		return nil, err
	}
	listeners = []any{front}
	if socket {
		back, err := s.relay(from)
		if err != nil {
			return nil, err
		}
		listeners = append(listeners, back)
	}
	resources["listeners"] = listeners
	return json.Marshal(root)
}

// node is an object of a configuration.
type node = map[string]any

// reach sets the address of the cluster extproc, and reports whether it is a Unix socket.
func (s settings) reach(resources node) (socket bool, err error) {
	for _, c := range list(resources, "clusters") {
		cluster := object(c)
		if cluster["name"] != "extproc" {
			continue
		}
		path, socket := strings.CutPrefix(s.extproc, "unix:")
		address := pipe(path, 0)
		if !socket {
			host, _, err := net.SplitHostPort(s.extproc)
			if err != nil {
				return false, fmt.Errorf("--extproc %s: unix:PATH or HOST:PORT is needed: %w", s.extproc, err)
			}
			if _, err := netip.ParseAddr(host); err != nil {
				cluster["type"] = "STRICT_DNS"
			}
			if address, err = socketAddress("extproc", s.extproc); err != nil {
				return false, err
			}
		}
		cluster["load_assignment"] = node{
			"cluster_name": "extproc",
			"endpoints":    []any{node{"lb_endpoints": []any{node{"endpoint": node{"address": address}}}}},
		}
		return socket, nil
	}
	return false, errors.New("the configuration has no cluster extproc")
}

// front returns the listener for clients.
func (s settings) front(from any) (node, error) {
	l, err := clone(from)
	if err != nil {
		return nil, err
	}
	var addresses []any
	for _, a := range s.listen {
		address, err := socketAddress("listen", a)
		if err != nil {
			return nil, err
		}
		addresses = append(addresses, node{"address": address})
	}
	l["address"] = addresses[0].(node)["address"]
	delete(l, "additional_addresses")
	if len(addresses) > 1 {
		l["additional_addresses"] = addresses[1:]
	}
	l["enable_reuse_port"] = true      // an Envoy of another version listens at the same ports before this one ends
	l["traffic_direction"] = "INBOUND" // a drain closes only such listeners
	if s.tls {
		for _, c := range list(l, "filter_chains") {
			object(c)["transport_socket"] = s.transport()
		}
	}
	m, err := manager(l)
	if err != nil {
		return nil, err
	}
	if !s.keys {
		return l, nil
	}
	return l, s.askForKeys(m)
}

// relay returns the listener for extproc's relay. A request there has passed the listener for
// clients before, so it needs no key, and has the name of its client.
func (s settings) relay(from any) (node, error) {
	l, err := clone(from)
	if err != nil {
		return nil, err
	}
	path, _ := strings.CutPrefix(s.extproc, "unix:")
	l["name"], l["address"] = "back", pipe(filepath.Join(filepath.Dir(path), s.back), 0o600)
	delete(l, "additional_addresses")
	m, err := manager(l)
	if err != nil {
		return nil, err
	}
	for _, e := range list(m, "early_header_mutation_extensions") {
		config := object(object(e)["typed_config"])
		config["mutations"] = slices.DeleteFunc(list(config, "mutations"), func(m any) bool { return object(m)["remove"] == wire.ClientHeader })
	}
	logClient(m)
	return l, nil
}

// nameBack sets the name of the relay's socket in the metadata for extproc; empty removes it.
func nameBack(manager node, name string) {
	for _, f := range list(manager, "http_filters") {
		service := object(object(object(f)["typed_config"])["grpc_service"])
		if service["initial_metadata"] == nil {
			continue
		}
		var kept []any
		for _, entry := range list(service, "initial_metadata") {
			if object(entry)["key"] != wire.BackMetadata {
				kept = append(kept, entry)
			} else if name != "" {
				kept = append(kept, node{"key": wire.BackMetadata, "value": name})
			}
		}
		service["initial_metadata"] = kept
	}
}

// transport returns the TLS settings of the listener. Envoy reads the certificate from a file and
// again whenever the file is replaced.
func (s settings) transport() node {
	return node{"name": "envoy.transport_sockets.tls", "typed_config": node{
		"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
		"common_tls_context": node{
			"alpn_protocols":                     []any{"h2", "http/1.1"},
			"tls_params":                         node{"tls_minimum_protocol_version": "TLSv1_2"},
			"tls_certificate_sds_secret_configs": []any{node{"name": secretName, "sds_config": s.watched(secretFile)}},
		},
	}}
}

// watched returns the source of a resource that Envoy reads from a file.
func (s settings) watched(file string) node {
	return node{
		"resource_api_version": "V3",
		"path_config_source":   node{"path": filepath.Join(s.dir, file), "watched_directory": node{"path": s.dir}},
	}
}

const keyFilterType = "type.googleapis.com/envoy.extensions.filters.http.api_key_auth.v3.ApiKeyAuth"

// corsFilter answers CORS preflight requests of browsers, which contain no API key.
const corsFilter = "envoy.filters.http.cors"

// askForKeys makes a connection manager reject requests without an API key, except for health
// checks. It adds the client's name to the access log.
func (s settings) askForKeys(m node) error {
	filters := list(m, "http_filters")
	at := slices.IndexFunc(filters, func(f any) bool { return object(f)["name"] == corsFilter })
	m["http_filters"] = slices.Insert(filters, at+1, any(node{
		"name": keysName, "config_discovery": node{"config_source": s.watched(keysFile), "type_urls": []any{keyFilterType}},
	}))
	open := 0
	for _, h := range list(object(m["route_config"]), "virtual_hosts") {
		for _, r := range list(object(h), "routes") {
			route := object(r)
			if route["direct_response"] == nil {
				continue
			}
			own := object(route["typed_per_filter_config"])
			own[keysName] = node{"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": true}
			route["typed_per_filter_config"] = own
			open++
		}
	}
	replies := object(m["local_reply_config"])
	mappers := list(replies, "mappers")
	if open == 0 || len(mappers) == 0 || at < 0 {
		return errors.New("--api-keys needs a configuration like envoy.yaml, with the filter cors, a route for health checks and local replies")
	}
	replies["mappers"] = slices.Insert(mappers, 1, unauthorized()...) // the first mapper leaves extproc's replies unchanged
	logClient(m)
	return nil
}

// unauthorized returns the replies to requests without a valid key, in the format of each API. A
// gRPC call gets the status UNAUTHENTICATED by itself.
func unauthorized() []any {
	const message = "Send a valid API key, as authorization: Bearer KEY, or in x-api-key."
	denied := node{"status_code_filter": node{"comparison": node{
		"op": "EQ", "value": node{"default_value": 401, "runtime_key": "local_reply.401"},
	}}}
	path := func(prefix string) node {
		return node{"header_filter": node{"header": node{"name": ":path", "string_match": node{"prefix": prefix}}}}
	}
	reply := func(filter node, body string) node {
		return node{
			"filter":               filter,
			"headers_to_add":       []any{node{"header": node{"key": "www-authenticate", "value": "Bearer"}}},
			"body_format_override": node{"content_type": "application/json", "text_format_source": node{"inline_string": body}},
		}
	}
	both := func(a, b node) node { return node{"and_filter": node{"filters": []any{a, b}}} }
	call := node{"header_filter": node{"header": node{"name": "content-type", "string_match": node{"prefix": "application/grpc"}}}}
	return []any{
		node{"filter": both(call, denied), "body_format_override": node{"text_format_source": node{"inline_string": message}}},
		reply(both(path("/v1/messages"), denied), `{"type":"error","error":{"type":"authentication_error","message":"`+message+`"}}`),
		reply(both(path("/v2/"), denied), `{"error":"`+message+`"}`),
		reply(denied, `{"error":{"message":"`+message+`","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}`),
	}
}

// logClient adds the name of the client to access logs in JSON.
func logClient(m node) {
	for _, a := range list(m, "access_log") {
		format := object(object(object(a)["typed_config"])["log_format"])
		if fields, ok := format["json_format"].(node); ok {
			fields["client"] = "%REQ(" + wire.ClientHeader + "):64%"
		}
	}
}

// manager returns the connection manager of a listener.
func manager(l node) (node, error) {
	for _, c := range list(l, "filter_chains") {
		for _, f := range list(object(c), "filters") {
			if config, ok := object(f)["typed_config"].(node); ok && object(f)["name"] == "envoy.filters.network.http_connection_manager" {
				return config, nil
			}
		}
	}
	return nil, errors.New("the configuration's listener has no http_connection_manager")
}

// object returns an object of a configuration; an empty one if it is something else.
func object(of any) node {
	if n, ok := of.(node); ok {
		return n
	}
	return node{}
}

func list(n node, key string) []any {
	l, _ := n[key].([]any)
	return l
}

// clone returns a deep copy.
func clone(from any) (node, error) {
	text, err := json.Marshal(from)
	if err != nil {
		return nil, err
	}
	var to node
	return to, json.Unmarshal(text, &to)
}

func pipe(path string, mode int) node {
	p := node{"path": path}
	if mode != 0 {
		p["mode"] = mode
	}
	return node{"pipe": p}
}

func socketAddress(flag, address string) (node, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("--%s %s: %w", flag, address, err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return nil, fmt.Errorf("--%s %s: the port must be a number from 1 to 65535", flag, address)
	}
	if host == "" {
		host = "0.0.0.0"
	}
	return node{"socket_address": node{"address": host, "port_value": n}}, nil
}
