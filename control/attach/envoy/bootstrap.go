package envoy

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/objects"
)

// controlCluster is how an Envoy names the control that it calls.
const controlCluster = "control"

// Place is where an Envoy of a Gateway runs.
type Place struct {
	// Gateway is whose configuration it is to have; Node tells it from the Gateway's other Envoys.
	Gateway objects.Name
	Node    string
	// Admin is where its admin interface is.
	Admin netip.AddrPort
	// Probe is the port at which it says that it lives, to whoever can reach it; 0 for none. It listens there from its start, and until
	// it is drained.
	Probe uint16
	// Extproc is the Unix socket of the extproc beside it.
	Extproc string
	// Control is the Unix socket of control; empty where it is reached at a host and a port, with what is in the folder Identity:
	// AuthorityFile, CertificateFile, KeyFile and SecretFile.
	Control     string
	ControlHost string
	ControlPort uint16
	Identity    string
}

// Files in the folder of an Envoy's identity. Envoy takes up each that is replaced.
const (
	AuthorityFile   = "ca.crt"
	CertificateFile = "tls.crt"
	KeyFile         = "tls.key"
	// SecretFile names the two before for Envoy: it is what [Identity] returns.
	SecretFile = "identity.json"
)

// identitySecret is Envoy's name of its own certificate.
const identitySecret = "identity"

// Identity is the SecretFile of a folder.
func Identity(folder string) ([]byte, error) {
	file := func(name string) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path.Join(folder, name)}}
	}
	secret, err := anypb.New(&tlsv3.Secret{Name: identitySecret, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: file(CertificateFile), PrivateKey: file(KeyFile), WatchedDirectory: &corev3.WatchedDirectory{Path: folder},
	}}})
	if err != nil {
		return nil, err
	}
	return protojson.Marshal(&discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{secret}})
}

// Bootstrap returns the configuration with which an Envoy of a Gateway starts, as JSON: limits and how extproc is reached are those of
// envoy.yaml, and all else comes from control.
func (t *Template) Bootstrap(p Place) ([]byte, error) {
	b := proto.CloneOf(t.bootstrap)
	b.Node = &corev3.Node{Id: p.Node, Cluster: p.Gateway.String()}
	b.Admin.Address = socketAddress(p.Admin.Addr().String(), uint32(p.Admin.Port()))
	extproc := t.extproc()
	if extproc == nil {
		return nil, fmt.Errorf("envoy.yaml has no cluster %s", wire.ExtprocCluster)
	}
	control := proto.CloneOf(extproc) // it speaks gRPC on a socket, too
	control.Name = controlCluster
	at(extproc, p.Extproc)
	if err := reach(control, p); err != nil {
		return nil, err
	}
	expressions, err := structpb.NewStruct(map[string]any{"re2.max_program_size.error_level": 2 * plan.MaxProgram})
	if err != nil {
		return nil, err
	}
	if b.LayeredRuntime == nil {
		b.LayeredRuntime = new(bootstrapv3.LayeredRuntime)
	}
	b.LayeredRuntime.Layers = append(b.LayeredRuntime.Layers, &bootstrapv3.RuntimeLayer{ // the last layer that has a key counts
		Name: "routes", LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: expressions},
	})
	b.StaticResources = &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{extproc, control}}
	back, err := t.back(path.Join(path.Dir(p.Extproc), wire.BackSocket))
	if err != nil {
		return nil, err
	}
	b.StaticResources.Listeners = []*listenerv3.Listener{back}
	if p.Probe != 0 {
		l, err := probe(p.Probe)
		if err != nil {
			return nil, err
		}
		b.StaticResources.Listeners = append(b.StaticResources.Listeners, l)
	}
	b.DynamicResources = &bootstrapv3.Bootstrap_DynamicResources{AdsConfig: t.source(controlCluster).GetApiConfigSource(), LdsConfig: patient(), CdsConfig: patient()}
	return protojson.Marshal(b)
}

// patient is [fromStream] without a bound: an Envoy that control has not told yet what to do does not serve, and says so.
func patient() *corev3.ConfigSource {
	is := fromStream()
	is.InitialFetchTimeout = durationpb.New(0)
	return is
}

// probePath is what kubelets ask for.
const probePath = "/healthz"

// probe is a listener that says that Envoy lives, and nothing else.
func probe(port uint16) (*listenerv3.Listener, error) {
	router, err := anypb.New(new(routerv3.Router))
	if err != nil {
		return nil, err
	}
	manager, err := anypb.New(&hcmv3.HttpConnectionManager{
		StatPrefix: "probe",
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{{
			Name: "probe", Domains: []string{"*"}, Routes: []*routev3.Route{{
				Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Path{Path: probePath}},
				Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 200}},
			}},
		}}}},
		HttpFilters: []*hcmv3.HttpFilter{{Name: routerFilter, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: router}}},
	})
	if err != nil {
		return nil, err
	}
	return &listenerv3.Listener{
		Name: "probe", Address: socketAddress("0.0.0.0", uint32(port)),
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name: "envoy.filters.network.http_connection_manager", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: manager},
		}}}},
	}, nil
}

// backName is the name of the listener for the inner server of extproc.
const backName = "back"

// back is a listener at a socket for what the inner server of extproc sends: extproc knows of each request where it came in first, and of none that
// another sends. Its routes are those of envoy.yaml, to pools that extproc names.
func (t *Template) back(socket string) (*listenerv3.Listener, error) {
	m := proto.CloneOf(t.manager)
	m.StatPrefix = backName
	for _, f := range m.GetHttpFilters() {
		if f.GetName() != extProcFilter {
			continue
		}
		if err := findPools(f, &corev3.HeaderValue{Key: wire.ListenerMetadata, Value: backName}); err != nil {
			return nil, err
		}
	}
	host := m.GetRouteConfig().GetVirtualHosts()[0]
	host.RequestHeadersToRemove = append(host.RequestHeadersToRemove, wire.PoolHeader) // engines need not know it
	host.Routes = slices.DeleteFunc(host.GetRoutes(), func(r *routev3.Route) bool { return r.GetRoute() == nil })
	for _, r := range host.GetRoutes() {
		r.GetRoute().ClusterSpecifier = &routev3.RouteAction_ClusterHeader{ClusterHeader: wire.PoolHeader}
	}
	config, err := anypb.New(m)
	if err != nil {
		return nil, err
	}
	l := proto.CloneOf(t.listener)
	l.Name = backName
	l.Address = &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: socket, Mode: 0o600}}}
	l.GetFilterChains()[0].GetFilters()[0].ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: config}
	return l, nil
}

// reach has a cluster call control.
func reach(c *clusterv3.Cluster, p Place) error {
	if p.Control != "" {
		at(c, p.Control)
		return nil
	}
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
	c.ConnectTimeout = durationpb.New(controlTimeout)
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: c.GetName(), Endpoints: []*endpointv3.LocalityLbEndpoints{{
		LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: socketAddress(p.ControlHost, uint32(p.ControlPort))}}}},
	}}}
	config, err := anypb.New(&tlsv3.UpstreamTlsContext{Sni: wire.ControlName, CommonTlsContext: &tlsv3.CommonTlsContext{
		AlpnProtocols: []string{"h2"},
		TlsParams:     &tlsv3.TlsParameters{TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_3, TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3},
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: identitySecret, SdsConfig: &corev3.ConfigSource{
			ResourceApiVersion: corev3.ApiVersion_V3,
			ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{
				Path: path.Join(p.Identity, SecretFile), WatchedDirectory: &corev3.WatchedDirectory{Path: p.Identity},
			}},
		}}},
		ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path.Join(p.Identity, AuthorityFile)}},
			MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{{
				SanType: tlsv3.SubjectAltNameMatcher_DNS, Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: wire.ControlName}},
			}},
		}},
	}})
	c.TransportSocket = &corev3.TransportSocket{Name: tlsSocket, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: config}}
	return err
}

// controlTimeout is how long a connection to control may take.
const controlTimeout = 2 * time.Second

// extproc returns a copy of the cluster by which envoy.yaml reaches extproc, nil if there is none.
func (t *Template) extproc() *clusterv3.Cluster {
	for _, c := range t.bootstrap.GetStaticResources().GetClusters() {
		if c.GetName() == wire.ExtprocCluster {
			return proto.CloneOf(c)
		}
	}
	return nil
}

// at has a cluster of one socket call another.
func at(c *clusterv3.Cluster, socket string) {
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: c.GetName(), Endpoints: []*endpointv3.LocalityLbEndpoints{{
		LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: socket}}},
		}}}},
	}}}
}

// source returns that of the endpoints in envoy.yaml, of another cluster.
func (t *Template) source(cluster string) *corev3.ConfigSource {
	is := proto.CloneOf(t.pool.GetEdsClusterConfig().GetEdsConfig())
	for _, s := range is.GetApiConfigSource().GetGrpcServices() {
		s.GetEnvoyGrpc().ClusterName, s.GetEnvoyGrpc().Authority = cluster, cluster
	}
	return is
}

// FromControl are the options of an Envoy that has its routes and the endpoints of Services from control.
func (t *Template) FromControl(bind func(port int32) (address string, at uint32)) Options {
	services := t.source(controlCluster)
	services.InitialFetchTimeout = durationpb.New(warming)
	return Options{Bind: bind, Config: fromStream(), Services: services}
}

// fromStream says that resources come by the one stream to control.
func fromStream() *corev3.ConfigSource {
	return &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3, ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: new(corev3.AggregatedConfigSource)}}
}
