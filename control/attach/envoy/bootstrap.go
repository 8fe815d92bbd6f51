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

// controlCluster is the name of control's cluster in Envoy.
const controlCluster = "control"

// Place is the part of a bootstrap configuration that differs between Envoys: names, addresses and
// paths.
type Place struct {
	// Gateway is the Gateway of the Envoy. Node is the Envoy's name among the Envoys of the
	// Gateway.
	Gateway objects.Name
	Node    string
	// Admin is the address of the Envoy's admin interface.
	Admin netip.AddrPort
	// Probe is the port of the liveness endpoint, 0 for none. It needs no authentication, and
	// answers until the Envoy is drained.
	Probe uint16
	// Extproc is the Unix socket of the extproc that runs beside the Envoy.
	Extproc string
	// Control is the Unix socket of control. If it is empty, the Envoy connects to ControlHost and
	// ControlPort with the files in the folder Identity: AuthorityFile, CertificateFile, KeyFile
	// and SecretFile.
	Control     string
	ControlHost string
	ControlPort uint16
	Identity    string
}

// Names of the files in the folder Place.Identity. Envoy reloads a replaced file.
const (
	AuthorityFile   = "ca.crt"
	CertificateFile = "tls.crt"
	KeyFile         = "tls.key"
	// SecretFile is the SDS file that names CertificateFile and KeyFile. [Identity] returns its
	// content.
	SecretFile = "identity.json"
)

// identitySecret is the SDS name of the certificate with which Envoy connects to control.
const identitySecret = "identity"

// Identity returns the content of SecretFile for the files in a folder.
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

// Bootstrap returns the bootstrap configuration of a Gateway's Envoy, as JSON. Limits, and how
// Envoy reaches extproc, are those of envoy.yaml. control sends the rest by xDS.
func (t *Template) Bootstrap(p Place) ([]byte, error) {
	b := proto.CloneOf(t.bootstrap)
	b.Node = &corev3.Node{Id: p.Node, Cluster: p.Gateway.String()}
	b.Admin.Address = socketAddress(p.Admin.Addr().String(), uint32(p.Admin.Port()))
	extproc := t.extproc()
	if extproc == nil {
		return nil, fmt.Errorf("envoy.yaml has no cluster %s", wire.ExtprocCluster)
	}
	control := proto.CloneOf(extproc) // control also speaks gRPC on a Unix socket
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
	b.LayeredRuntime.Layers = append(b.LayeredRuntime.Layers, &bootstrapv3.RuntimeLayer{ // appended, since the last layer with a key wins
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
	b.DynamicResources = &bootstrapv3.Bootstrap_DynamicResources{
		AdsConfig: t.source(controlCluster).GetApiConfigSource(),
		LdsConfig: patient(), CdsConfig: patient(),
	}
	return protojson.Marshal(b)
}

// patient is [fromStream] without a timeout: an Envoy without configuration must not become ready.
func patient() *corev3.ConfigSource {
	is := fromStream()
	is.InitialFetchTimeout = durationpb.New(0)
	return is
}

// probePath is the path of kubelets' probes.
const probePath = "/healthz"

// probe returns a listener that only reports that Envoy is alive.
func probe(port uint16) (*listenerv3.Listener, error) {
	router, err := anypb.New(new(routerv3.Router))
	if err != nil {
		return nil, err
	}
	manager, err := anypb.New(&hcmv3.HttpConnectionManager{
		StatPrefix: "probe",
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			VirtualHosts: []*routev3.VirtualHost{{Name: "probe", Domains: []string{"*"}, Routes: []*routev3.Route{{
				Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Path{Path: probePath}},
				Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 200}},
			}}}},
		}},
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

// backName is the name of the listener that receives requests from extproc's relay.
const backName = "back"

// back returns a listener on a Unix socket for requests from extproc's relay. extproc rejects
// requests there that it did not relay. The routes are those of envoy.yaml, but extproc names the
// pool.
func (t *Template) back(socket string) (*listenerv3.Listener, error) {
	m := proto.CloneOf(t.manager)
	m.StatPrefix = backName
	for _, f := range m.GetHttpFilters() {
		if f.GetName() != extProcFilter {
			continue
		}
		if err := findPools(f, nil, &corev3.HeaderValue{Key: wire.ListenerMetadata, Value: backName}); err != nil {
			return nil, err
		}
	}
	host := m.GetRouteConfig().GetVirtualHosts()[0]
	host.RequestHeadersToRemove = append(host.RequestHeadersToRemove, wire.PoolHeader) // engines do not need it
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

// reach sets the address of a cluster to that of control.
func reach(c *clusterv3.Cluster, p Place) error {
	if p.Control != "" {
		at(c, p.Control)
		return nil
	}
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
	c.ConnectTimeout = durationpb.New(controlTimeout)
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: c.GetName(), Endpoints: []*endpointv3.LocalityLbEndpoints{{
		LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
			Endpoint: &endpointv3.Endpoint{Address: socketAddress(p.ControlHost, uint32(p.ControlPort))},
		}}},
	}}}
	config, err := anypb.New(&tlsv3.UpstreamTlsContext{Sni: wire.ControlName, CommonTlsContext: &tlsv3.CommonTlsContext{
		AlpnProtocols: []string{"h2"},
		TlsParams: &tlsv3.TlsParameters{
			TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
			TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
		},
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: identitySecret, SdsConfig: &corev3.ConfigSource{
			ResourceApiVersion: corev3.ApiVersion_V3,
			ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{
				Path: path.Join(p.Identity, SecretFile), WatchedDirectory: &corev3.WatchedDirectory{Path: p.Identity},
			}},
		}}},
		ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path.Join(p.Identity, AuthorityFile)}},
			MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{{
				SanType: tlsv3.SubjectAltNameMatcher_DNS,
				Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: wire.ControlName}},
			}},
		}},
	}})
	c.TransportSocket = &corev3.TransportSocket{Name: tlsSocket, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: config}}
	return err
}

// controlTimeout is how long Envoy may take to connect to control.
const controlTimeout = 2 * time.Second

// extproc returns a copy of extproc's cluster in envoy.yaml, nil if there is none.
func (t *Template) extproc() *clusterv3.Cluster {
	for _, c := range t.bootstrap.GetStaticResources().GetClusters() {
		if c.GetName() == wire.ExtprocCluster {
			return proto.CloneOf(c)
		}
	}
	return nil
}

// at replaces the socket of a cluster.
func at(c *clusterv3.Cluster, socket string) {
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: c.GetName(), Endpoints: []*endpointv3.LocalityLbEndpoints{{
		LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: socket}}},
		}}}},
	}}}
}

// source returns the config source that envoy.yaml uses for endpoints, with another cluster as the
// server.
func (t *Template) source(cluster string) *corev3.ConfigSource {
	is := proto.CloneOf(t.pool.GetEdsClusterConfig().GetEdsConfig())
	for _, s := range is.GetApiConfigSource().GetGrpcServices() {
		s.GetEnvoyGrpc().ClusterName, s.GetEnvoyGrpc().Authority = cluster, cluster
	}
	return is
}

// FromControl returns the options of an Envoy that gets its routes, and the endpoints of Services,
// from control. bind is [Options.Bind].
func (t *Template) FromControl(bind func(port int32) (address string, at uint32)) Options {
	services := t.source(controlCluster)
	services.InitialFetchTimeout = durationpb.New(warming)
	return Options{Bind: bind, Config: fromStream(), Services: services}
}

// fromStream returns a config source for resources of the ADS stream.
func fromStream() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: new(corev3.AggregatedConfigSource)},
	}
}
