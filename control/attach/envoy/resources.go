package envoy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	celv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	inspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/control/attach/cache"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/objects"
)

// Resources are the xDS resources of an Envoy. Each field is in the order of the plan.
type Resources struct {
	Listeners []*listenerv3.Listener
	Routes    []*routev3.RouteConfiguration
	Clusters  []*clusterv3.Cluster
	Secrets   []*tlsv3.Secret
}

// Options are settings of Envoys that are not in a plan.
type Options struct {
	// Bind returns the address and the port at which Envoy listens for a port of the plan.
	Bind func(port int32) (address string, at uint32)
	// Config is the xDS source of routes and certificates. Services is the xDS source of the
	// endpoints of Services.
	Config, Services *corev3.ConfigSource
}

// Maker makes the resources of one Gateway's Envoys for successive plans, like [Template.Of] but
// faster. It reuses the messages of Hosts and clusters that the last plan also contained. Hosts are
// the same if their slices are identical, clusters if they are equal. Callers set only Template.
// Only one goroutine may use a Maker.
type Maker struct {
	*Template
	hosts    cache.Cache[hostsKey, []*routev3.VirtualHost]
	clusters cache.Cache[plan.Cluster, *clusterv3.Cluster]
	managers cache.Cache[managerKey, *anypb.Any]
	others   cache.Cache[string, *routev3.VirtualHost]
	routes   cache.Cache[*plan.Host, []objects.Object]
	made     map[string]*routev3.RouteConfiguration // last route configurations, by name
}

type hostsKey struct {
	hosts *plan.Host // address of the first host, since no two listeners share Hosts
	wants wants
}

type managerKey struct {
	routes string // name of the route configuration
	wants  wants
}

// Of returns the resources of a plan. Callers pass the same options each time.
func (m *Maker) Of(p *plan.Plan, o Options) (*Resources, error) {
	w := wantsOf(p)
	t := m.as(w)
	defer m.hosts.NextRound()
	defer m.clusters.NextRound()
	defer m.managers.NextRound()
	defer m.others.NextRound()
	r, err := t.of(p, o, parts{
		hosts: func(l *plan.Listener) ([]*routev3.VirtualHost, error) {
			return m.hosts.Get(hostsKey{&l.Hosts[0], w}, func() ([]*routev3.VirtualHost, error) { return t.hostsOf(l) })
		},
		cluster: func(c *plan.Cluster) (*clusterv3.Cluster, error) {
			return m.clusters.Get(*c, func() (*clusterv3.Cluster, error) { return t.clusterOf(c, o) })
		},
		manager: func(routes string) (*anypb.Any, error) {
			return m.managers.Get(managerKey{routes, w}, func() (*anypb.Any, error) { return t.managerOf(routes, o) })
		},
		misdirected: func(domain string) *routev3.VirtualHost {
			is, _ := m.others.Get(domain, func() (*routev3.VirtualHost, error) { return misdirected(domain), nil })
			return is
		},
	})
	if err != nil {
		return nil, err
	}
	made := make(map[string]*routev3.RouteConfiguration, len(r.Routes))
	for i, is := range r.Routes {
		if was := m.made[is.GetName()]; slices.Equal(was.GetVirtualHosts(), is.GetVirtualHosts()) && was != nil {
			r.Routes[i] = was
		}
		made[is.GetName()] = r.Routes[i]
	}
	m.made = made
	return r, nil
}

// Of returns the resources of a plan.
func (t *Template) Of(p *plan.Plan, o Options) (*Resources, error) {
	t = t.as(wantsOf(p))
	return t.of(p, o, t.parts(o))
}

// parts are functions that make the messages of resources. The messages are immutable.
type parts struct {
	hosts   func(*plan.Listener) ([]*routev3.VirtualHost, error)
	cluster func(*plan.Cluster) (*clusterv3.Cluster, error)
	manager func(routes string) (*anypb.Any, error)
	// misdirected returns a host that rejects requests for a domain of another listener.
	misdirected func(domain string) *routev3.VirtualHost
}

func (t *Template) parts(o Options) parts {
	return parts{
		t.hostsOf,
		func(c *plan.Cluster) (*clusterv3.Cluster, error) { return t.clusterOf(c, o) },
		func(routes string) (*anypb.Any, error) { return t.managerOf(routes, o) },
		misdirected,
	}
}

func (t *Template) of(p *plan.Plan, o Options, from parts) (*Resources, error) {
	r := new(Resources)
	for i := range p.Ports {
		port := &p.Ports[i]
		l, err := t.listenerOf(port, o, from.manager)
		if err != nil {
			return nil, fmt.Errorf("port %d: %w", port.Number, err)
		}
		routes, err := routesOf(port, from)
		if err != nil {
			return nil, fmt.Errorf("port %d: %w", port.Number, err)
		}
		r.Listeners, r.Routes = append(r.Listeners, l), append(r.Routes, routes...)
		if c := port.Listeners[0].Clients; c != nil {
			r.Secrets = append(r.Secrets, clientsOf(port.Number, c))
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(p.Certificates), objects.Name.Compare) {
		r.Secrets = append(r.Secrets, secretOf(name, p.Certificates[name]))
	}
	for i := range p.Clusters {
		c, err := from.cluster(&p.Clusters[i])
		if err != nil {
			return nil, fmt.Errorf("cluster %s: %w", p.Clusters[i].Name, err)
		}
		r.Clusters = append(r.Clusters, c)
	}
	return r, nil
}

// listenerOf returns the Envoy listener of a port. Settings that change often are in its routes,
// since a changed listener drains. With TLS, each listener of the Gateway is a filter chain, so
// adding or removing one does not drain the others.
func (t *Template) listenerOf(port *plan.Port, o Options, manager func(routes string) (*anypb.Any, error)) (*listenerv3.Listener, error) {
	l := proto.CloneOf(t.listener)
	address, at := o.Bind(port.Number)
	l.Name = portName(port)
	l.Address = socketAddress(address, at)
	l.FilterChains = nil
	if !overTLS(port) {
		chain, err := t.chain(l.GetName(), manager)
		l.FilterChains = []*listenerv3.FilterChain{chain}
		return l, err
	}
	inspector, err := anypb.New(new(inspectorv3.TlsInspector))
	if err != nil {
		return nil, err
	}
	l.ListenerFilters = []*listenerv3.ListenerFilter{{
		Name: "envoy.filters.listener.tls_inspector", ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: inspector},
	}}
	for i := range port.Listeners {
		of := &port.Listeners[i]
		chain, err := t.chain(routesName(port, of), manager)
		if err != nil {
			return nil, err
		}
		chain.Name = of.String()
		if of.Hostname != "" {
			chain.FilterChainMatch = &listenerv3.FilterChainMatch{ServerNames: []string{of.Hostname}}
		}
		if chain.TransportSocket, err = downstreamTLS(of, o); err != nil {
			return nil, err
		}
		l.FilterChains = append(l.FilterChains, chain)
	}
	return l, nil
}

func socketAddress(address string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

// portName is the name of a port's listener. Without TLS it is also the name of its routes.
func portName(port *plan.Port) string { return fmt.Sprintf("port-%d", port.Number) }

// routesName is the name of the route configuration of a Gateway's listener.
func routesName(port *plan.Port, l *plan.Listener) string {
	if !overTLS(port) {
		return portName(port)
	}
	return portName(port) + " " + l.String()
}

func overTLS(port *plan.Port) bool { return port.Listeners[0].Protocol == gatewayv1.HTTPSProtocolType }

// chain returns a filter chain that uses the route configuration of a name.
func (t *Template) chain(routes string, manager func(routes string) (*anypb.Any, error)) (*listenerv3.FilterChain, error) {
	is := proto.CloneOf(t.listener.GetFilterChains()[0])
	config, err := manager(routes)
	is.GetFilters()[0].ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: config}
	return is, err
}

// managerOf returns an HTTP connection manager that uses the route configuration of a name.
func (t *Template) managerOf(routes string, o Options) (*anypb.Any, error) {
	m := proto.CloneOf(t.manager)
	m.RouteSpecifier = &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: o.Config, RouteConfigName: routes}}
	for _, f := range m.GetHttpFilters() {
		if enabledByRoutes(f.GetName()) {
			f.Disabled = true
		}
		if f.GetName() == extProcFilter {
			if err := findPools(f, t.headers); err != nil {
				return nil, err
			}
		}
	}
	if err := t.gatewayFilters(m); err != nil {
		return nil, err
	}
	kept, err := untouched()
	if err != nil {
		return nil, err
	}
	mappers := m.GetLocalReplyConfig().GetMappers()
	m.LocalReplyConfig.Mappers = slices.Insert(mappers, afterPickerErrors(mappers), kept...)
	for _, log := range m.GetAccessLog() {
		if log.GetName() == outcomeLog {
			if log.Filter, err = celFilter(fmt.Sprintf("%q in xds.route_metadata.filter_metadata", inference)); err != nil {
				return nil, err
			}
		}
	}
	return anypb.New(m)
}

// findPools configures an ext_proc filter so that extproc may set a request's cluster in a header,
// after which Envoy chooses the route again. The filter also forwards request headers of the names
// in forwarded, and sends the given headers with its calls.
func findPools(f *hcmv3.HttpFilter, forwarded []string, headers ...*corev3.HeaderValue) error {
	is := new(extprocv3.ExternalProcessor)
	if err := f.GetTypedConfig().UnmarshalTo(is); err != nil {
		return err
	}
	is.RouteCacheAction = extprocv3.ExternalProcessor_DEFAULT
	allowed := is.GetMutationRules().GetAllowExpression()
	if allowed == nil {
		return errors.New("envoy.yaml: want an allow_expression in the mutation_rules of ext_proc")
	}
	allowed.Regex += "|" + wire.PoolHeader
	// Clients of a Gateway can set this header, which the filter after ext_proc removes.
	patterns := is.GetForwardRules().GetAllowedHeaders()
	patterns.Patterns = slices.DeleteFunc(patterns.GetPatterns(), func(m *matcherv3.StringMatcher) bool {
		return m.GetExact() == wire.ClientHeader
	})
	for _, name := range forwarded {
		patterns.Patterns = append(patterns.Patterns, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: name}})
	}
	is.GrpcService.InitialMetadata = append(is.GetGrpcService().GetInitialMetadata(), headers...)
	config, err := anypb.New(is)
	f.ConfigType = &hcmv3.HttpFilter_TypedConfig{TypedConfig: config}
	return err
}

// warming is how long a new cluster may wait for its endpoints. During that time Envoy gets no
// other cluster, and no route that needs the new one. Usually endpoints arrive within milliseconds.
const warming = 2 * time.Second

const (
	outcomeLog = "envoy.access_loggers.http_grpc" // access log that sends outcomes to extproc
	// inference is the metadata key that marks routes whose requests go through extproc.
	inference = "gateway.inference"
	// byModels is a key under inference. It marks routes whose pool extproc names: without extproc
	// they have no cluster. The local replies of envoy.yaml read both keys.
	byModels = "models"

	corsFilter    = "envoy.filters.http.cors"
	extProcFilter = "envoy.filters.http.ext_proc"
	copiesFilter  = "payloads"
	routerFilter  = "envoy.filters.http.router"
	headersFilter = "envoy.filters.http.rbac"
	tlsSocket     = "envoy.transport_sockets.tls"
	httpOptions   = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
)

// enabledByRoutes reports whether a filter is enabled only for some routes. The CORS filter does
// nothing for routes without a policy, and the limit on headers applies to all routes.
func enabledByRoutes(name string) bool {
	return name != corsFilter && name != routerFilter && name != headersFilter
}

// calls is a CEL expression that matches Envoy's own replies to gRPC calls, except calls that it
// rejects for too many headers.
const calls = "request.headers['content-type'].startsWith('application/grpc') && !response.code_details.startsWith('rbac_access_denied')" +
	" && response.code_details != 'header_mutation_result_exceeds_limit'"

// untouched returns mappers that keep some local replies as they are: those to gRPC calls, which
// are a status in trailers, and those of other endpoint pickers. They must precede most mappers of
// envoy.yaml, since the first matching mapper wins.
func untouched() (all []*hcmv3.ResponseMapper, err error) {
	for _, expression := range []string{calls, "response.code_details == ''"} {
		f, err := celFilter(expression)
		if err != nil {
			return nil, err
		}
		all = append(all, &hcmv3.ResponseMapper{Filter: f})
	}
	return all, nil
}

// afterPickerErrors returns the index after the mappers of the replies for a picker that is away,
// which also apply to gRPC calls. Each of them adds a header for the access log.
func afterPickerErrors(mappers []*hcmv3.ResponseMapper) int {
	for i, m := range slices.Backward(mappers) {
		names := func(h *corev3.HeaderValueOption) bool { return h.GetHeader().GetKey() == wire.ErrorHeader }
		if slices.ContainsFunc(m.GetHeadersToAdd(), names) {
			return i + 1
		}
	}
	return 0
}

func celFilter(expression string) (*accesslogv3.AccessLogFilter, error) {
	config, err := anypb.New(&celv3.ExpressionFilter{Expression: expression})
	if err != nil {
		return nil, err
	}
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{
		ExtensionFilter: &accesslogv3.ExtensionFilter{
			Name:       "envoy.access_loggers.extension_filters.cel",
			ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{TypedConfig: config},
		},
	}}, nil
}

// clusterOf returns a cluster. The endpoints of a pool come from extproc, and those of a Service
// from control. Each cluster gets them on its own stream, since Envoy warms a changed cluster until
// its endpoints are sent again.
func (t *Template) clusterOf(c *plan.Cluster, o Options) (*clusterv3.Cluster, error) {
	switch {
	case c.Pool:
		return t.poolCluster(c)
	case c.Picker:
		return t.pickerCluster(c, o)
	}
	is := t.serviceCluster(c, o)
	if c.Secure != nil {
		config, err := anypb.New(serviceTLS(c))
		if err != nil {
			return nil, err
		}
		is.TransportSocket = &corev3.TransportSocket{Name: tlsSocket, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: config}}
	}
	if c.H2C {
		return is, speakHTTP2(is, new(corev3.Http2ProtocolOptions))
	}
	return is, nil
}

// serviceCluster returns the cluster of a Service port.
func (t *Template) serviceCluster(c *plan.Cluster, o Options) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name: c.Name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{ServiceName: c.Name, EdsConfig: o.Services},
		ConnectTimeout:   t.pool.GetConnectTimeout(), CircuitBreakers: t.pool.GetCircuitBreakers(),
		UpstreamConnectionOptions: t.pool.GetUpstreamConnectionOptions(), LbPolicy: clusterv3.Cluster_LEAST_REQUEST,
	}
}

// routesOf returns the route configurations of a port: one for each listener if the port uses TLS,
// otherwise a single one.
func routesOf(port *plan.Port, from parts) (all []*routev3.RouteConfiguration, err error) {
	for i := range port.Listeners {
		l := &port.Listeners[i]
		hosts, err := from.hosts(l)
		if err != nil {
			return nil, err
		}
		switch {
		case overTLS(port):
			hosts = slices.Concat(hosts, others(port, l, from))
		case i > 0:
			all[0].VirtualHosts = append(all[0].VirtualHosts, hosts...)
			continue
		}
		all = append(all, &routev3.RouteConfiguration{
			Name: routesName(port, l), IgnorePortInHostMatching: true,
			VirtualHosts: slices.Clip(hosts),
		})
	}
	return all, nil
}

// hostsOf returns the virtual hosts of a listener.
func (t *Template) hostsOf(l *plan.Listener) (all []*routev3.VirtualHost, err error) {
	for _, h := range l.Hosts {
		is := &routev3.VirtualHost{Name: l.String() + " " + domain(h.Domain), Domains: []string{domain(h.Domain)}}
		for i := range h.Rules {
			r, err := t.routeOf(&h.Rules[i], l.String())
			if err != nil {
				return nil, fmt.Errorf("%s: %w", h.Rules[i].Of, err)
			}
			is.Routes = append(is.Routes, r)
			if f := h.Rules[i].Forward; f != nil && f.Open != "" {
				other, err := unnamed(r, f.Open)
				if err != nil {
					return nil, err
				}
				is.Routes = append(is.Routes, other)
			}
		}
		all = append(all, is)
	}
	return all, nil
}

// others returns virtual hosts for the hostnames of a port's other listeners. If a request for
// another listener arrives on a connection to this listener, they reject it.
func others(port *plan.Port, l *plan.Listener, from parts) (all []*routev3.VirtualHost) {
	for i := range port.Listeners {
		other := &port.Listeners[i]
		if !slices.ContainsFunc(l.Hosts, func(h plan.Host) bool { return h.Domain == other.Hostname }) {
			all = append(all, from.misdirected(domain(other.Hostname)))
		}
	}
	return all
}

// misdirected returns a host that answers 421, for requests that belong to another listener.
// Browsers send them because they reuse a connection whose certificate covers both hosts (RFC 9110,
// section 15.5.20).
func misdirected(domain string) *routev3.VirtualHost {
	return &routev3.VirtualHost{
		Name: "another listener's " + domain, Domains: []string{domain},
		Routes: []*routev3.Route{{
			Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 421}},
		}},
	}
}

func domain(pattern string) string {
	if pattern == "" {
		return "*"
	}
	return pattern
}
