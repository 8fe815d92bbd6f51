package envoy

import (
	"fmt"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	celv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/headgate/headgate/control/attach/plan"
)

// Resources are what an Envoy is given, each kind in the order of the plan.
type Resources struct {
	Listeners []*listenerv3.Listener
	Routes    []*routev3.RouteConfiguration
	Clusters  []*clusterv3.Cluster
}

// Options are what a plan does not say.
type Options struct {
	// Bind returns where an Envoy listens for the requests of a port.
	Bind func(port int32) (address string, at uint32)
	// Config is where an Envoy gets its routes, Services where it gets the endpoints of Services.
	Config, Services *corev3.ConfigSource
}

// Of returns what the Envoys of a plan are given.
func (t *Template) Of(p *plan.Plan, o Options) (*Resources, error) {
	r := new(Resources)
	for i := range p.Ports {
		port := &p.Ports[i]
		name := fmt.Sprintf("port-%d", port.Number)
		l, err := t.listenerOf(port, name, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		routes, err := t.routesOf(port, name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		r.Listeners, r.Routes = append(r.Listeners, l), append(r.Routes, routes)
	}
	for i := range p.Clusters {
		c, err := t.clusterOf(&p.Clusters[i], o)
		if err != nil {
			return nil, fmt.Errorf("cluster %s: %w", p.Clusters[i].Name, err)
		}
		r.Clusters = append(r.Clusters, c)
	}
	return r, nil
}

// listenerOf returns the listener of a port. Whatever may change often is in its routes: a listener that changes drains.
func (t *Template) listenerOf(port *plan.Port, name string, o Options) (*listenerv3.Listener, error) {
	l := proto.CloneOf(t.listener)
	address, at := o.Bind(port.Number)
	l.Name = name
	l.Address = &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: at},
	}}}
	m := proto.CloneOf(t.manager)
	m.RouteSpecifier = &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: o.Config, RouteConfigName: name}}
	// A client's stream of gRPC may take any time, and its headers may have underscores. What is silent for long ends all the same.
	m.RequestTimeout = durationpb.New(0)
	m.CommonHttpProtocolOptions.HeadersWithUnderscoresAction = corev3.HttpProtocolOptions_ALLOW
	for _, f := range m.GetHttpFilters() {
		if enabledByRoutes(f.GetName()) {
			f.Disabled = true
		}
	}
	grpc, err := grpcMapper()
	if err != nil {
		return nil, err
	}
	m.LocalReplyConfig.Mappers = append([]*hcmv3.ResponseMapper{grpc}, m.GetLocalReplyConfig().GetMappers()...)
	for _, log := range m.GetAccessLog() {
		if log.GetName() == outcomeLog {
			if log.Filter, err = celFilter(fmt.Sprintf("%q in xds.route_metadata.filter_metadata", inference)); err != nil {
				return nil, err
			}
		}
	}
	config, err := anypb.New(m)
	if err != nil {
		return nil, err
	}
	l.GetFilterChains()[0].GetFilters()[0].ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: config}
	return l, nil
}

// warming is how long a new cluster may wait for its endpoints. Meanwhile no other change of clusters is in force, nor any route that
// waits for one. Endpoints are there within milliseconds, unless who tells them is away.
const warming = 2 * time.Second

const (
	outcomeLog = "envoy.access_loggers.http_grpc" // tells extproc of outcomes
	// inference is the metadata of the routes that extproc decides on.
	inference = "gateway.inference"

	corsFilter    = "envoy.filters.http.cors"
	extProcFilter = "envoy.filters.http.ext_proc"
	jsonFilter    = "envoy.filters.http.json_to_metadata"
	routerFilter  = "envoy.filters.http.router"
	httpOptions   = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
)

// enabledByRoutes says whether a filter is for some routes alone. That of CORS does nothing without a policy.
func enabledByRoutes(name string) bool { return name != corsFilter && name != routerFilter }

// grpcMapper leaves Envoy's replies to gRPC calls as they are: a status in trailers. The first mapper that matches counts.
func grpcMapper() (*hcmv3.ResponseMapper, error) {
	f, err := celFilter("request.headers['content-type'].startsWith('application/grpc')")
	if err != nil {
		return nil, err
	}
	return &hcmv3.ResponseMapper{Filter: f}, nil
}

func celFilter(expression string) (*accesslogv3.AccessLogFilter, error) {
	config, err := anypb.New(&celv3.ExpressionFilter{Expression: expression})
	if err != nil {
		return nil, err
	}
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{ExtensionFilter: &accesslogv3.ExtensionFilter{
		Name: "envoy.access_loggers.extension_filters.cel", ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{TypedConfig: config},
	}}}, nil
}

// clusterOf returns a cluster. Endpoints come from beside: a pool's from extproc, a Service's from control, each on a stream of its own,
// so that a cluster that changes waits for nobody (Envoy warms it until its endpoints are sent again).
func (t *Template) clusterOf(c *plan.Cluster, o Options) (*clusterv3.Cluster, error) {
	if c.Pool {
		is := proto.CloneOf(t.pool)
		is.Name, is.EdsClusterConfig.ServiceName = c.Name, c.Name
		is.EdsClusterConfig.EdsConfig.InitialFetchTimeout = durationpb.New(warming)
		return is, nil
	}
	is := &clusterv3.Cluster{
		Name: c.Name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{ServiceName: c.Name, EdsConfig: o.Services},
		ConnectTimeout:   t.pool.GetConnectTimeout(), CircuitBreakers: t.pool.GetCircuitBreakers(),
		UpstreamConnectionOptions: t.pool.GetUpstreamConnectionOptions(), LbPolicy: clusterv3.Cluster_LEAST_REQUEST,
	}
	if c.H2C {
		options, err := anypb.New(&httpv3.HttpProtocolOptions{UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: new(corev3.Http2ProtocolOptions)},
			},
		}})
		if err != nil {
			return nil, err
		}
		is.TypedExtensionProtocolOptions = map[string]*anypb.Any{httpOptions: options}
	}
	return is, nil
}

// routesOf returns the routes of a port.
func (t *Template) routesOf(port *plan.Port, name string) (*routev3.RouteConfiguration, error) {
	all := &routev3.RouteConfiguration{Name: name, IgnorePortInHostMatching: true}
	for _, l := range port.Listeners {
		for _, h := range l.Hosts {
			is := &routev3.VirtualHost{Name: l.String() + " " + domain(h.Domain), Domains: []string{domain(h.Domain)}}
			for i := range h.Rules {
				r, err := t.routeOf(&h.Rules[i], l.String())
				if err != nil {
					return nil, fmt.Errorf("%s: %w", h.Rules[i].Of, err)
				}
				is.Routes = append(is.Routes, r)
			}
			all.VirtualHosts = append(all.VirtualHosts, is)
		}
	}
	return all, nil
}

func domain(pattern string) string {
	if pattern == "" {
		return "*"
	}
	return pattern
}
