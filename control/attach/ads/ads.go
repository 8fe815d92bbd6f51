// Package ads serves xDS to the Envoys of Gateways: the endpoints of Services by delta EDS, and all
// other resources by delta ADS. Package order decides what to send to each Envoy, and when.
package ads

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	edsv3 "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/headgate/headgate/control/attach/cache"
	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/control/attach/pki"
	"github.com/headgate/headgate/internal/objects"
)

// Config configures a Server.
type Config struct {
	// Identify returns the Gateway of a calling Envoy, or an error if the Envoy is not served.
	Identify func(ctx context.Context, node *corev3.Node) (objects.Name, error)
	// Answered is called for each ACK and NACK of an Envoy, and Disconnected when its stream ends.
	// Both may be nil, and must be safe for concurrent use. Answered should log NACKs, except those
	// of endpoints, which the Server logs.
	Answered     func(from Envoy, a order.Answer)
	Disconnected func(who Envoy)
	// Settled is called when an Envoy has acknowledged or rejected every resource up to a change,
	// except endpoints. [Server.Set] returned the number of the change. Settled may be nil, and
	// must be safe for concurrent use.
	Settled func(who Envoy, change uint64)
	Meter   Meter // may be nil
	Log     *slog.Logger
}

// Meter counts connected Envoys, sent resources and NACKs. It must be safe for concurrent use.
type Meter interface {
	// EnvoyCame is called when an Envoy of a Gateway connects, and EnvoyLeft when it disconnects.
	EnvoyCame(gateway string)
	EnvoyLeft(gateway string)
	// EnvoySent counts resources that were sent to an Envoy or removed from it. Kind is clusters,
	// listeners, routes, secrets or endpoints.
	EnvoySent(kind string, resources int)
	// EnvoyRefused counts a NACK for resources of a kind.
	EnvoyRefused(kind string)
	// EnvoyTook reports how long an Envoy took to answer all resources of a change.
	EnvoyTook(after time.Duration)
}

// unmetered is a Meter that counts nothing.
type unmetered struct{}

func (unmetered) EnvoyCame(string)        {}
func (unmetered) EnvoyLeft(string)        {}
func (unmetered) EnvoySent(string, int)   {}
func (unmetered) EnvoyRefused(string)     {}
func (unmetered) EnvoyTook(time.Duration) {}

// kinds maps the type URLs of resources to their names in metrics and logs.
var kinds = map[string]string{
	order.Clusters: "clusters", order.Listeners: "listeners", order.Routes: "routes", order.Secrets: "secrets",
	order.Endpoints: "endpoints",
}

// Envoy identifies one stream of an Envoy.
type Envoy struct {
	Gateway objects.Name
	// Node is the name of the Envoy, which need not be unique. Stream is unique in the process.
	Node   string
	Stream uint64
}

// Server serves each Envoy the resources of its own Gateway only. It is safe for concurrent use.
// Make one with [New].
type Server struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	edsv3.UnimplementedEndpointDiscoveryServiceServer
	Config
	closed context.Context
	close  context.CancelFunc
	lists  lists
	served atomic.Uint64 // number of streams accepted so far

	mu      sync.Mutex // guards the fields below
	all     map[objects.Name]order.Snapshot
	latest  change
	changed chan struct{} // closed and replaced at each change
}

// change is a change of the resources. Its number is 0 if endpoints changed.
type change struct {
	at     time.Time
	number uint64
}

// New returns a Server. It serves nothing before the first [Server.Set], and no endpoints before
// the first [Server.SetEndpoints].
func New(c Config) *Server {
	if c.Meter == nil {
		c.Meter = unmetered{}
	}
	s := &Server{Config: c, changed: make(chan struct{}), lists: lists{followers: make(map[cluster]map[*follower]bool)}}
	s.closed, s.close = context.WithCancel(context.Background())
	return s
}

// Set sets all resources of each Gateway's Envoys except endpoints, and returns the number of this
// change. Call it only when all objects are known. If a Gateway is missing, its Envoys keep their
// configuration. The caller must not change the snapshots afterwards.
func (s *Server) Set(all map[objects.Name]order.Snapshot) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all, s.latest = all, change{time.Now(), s.latest.number + 1}
	close(s.changed)
	s.changed = make(chan struct{})
	return s.latest.number
}

// Close ends every stream. Envoys keep their configuration and connect to another control.
func (s *Server) Close() { s.close() }

// DeltaAggregatedResources implements AggregatedDiscoveryServiceServer.
func (s *Server) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return s.serve(stream, func(gateway objects.Name, node string) feed {
		s.Log.Info("an Envoy is connected", "gateway", gateway.String(), "envoy", node)
		s.Meter.EnvoyCame(gateway.String())
		return aggregated{s, gateway, node}
	})
}

// aggregated is the feed of an ADS stream.
type aggregated struct {
	*Server
	gateway objects.Name
	node    string
}

func (a aggregated) receive(*discoveryv3.DeltaDiscoveryRequest) {}

func (a aggregated) now() (order.Snapshot, change, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all[a.gateway], a.latest, a.changed
}

func (a aggregated) end() {
	a.Meter.EnvoyLeft(a.gateway.String())
	a.Log.Info("an Envoy has disconnected", "gateway", a.gateway.String(), "envoy", a.node)
}

// feed provides the resources of one stream. Only one goroutine uses it.
type feed interface {
	// receive is called with each request. A feed of EDS sets the request's resource type, which
	// EDS requests may omit.
	receive(r *discoveryv3.DeltaDiscoveryRequest)
	// now returns the resources (nil before they are known), the latest change, and a channel that
	// is closed at the next change.
	now() (order.Snapshot, change, <-chan struct{})
	end()
}

// wire is a stream of ADS or EDS.
type wire interface {
	Context() context.Context
	Recv() (*discoveryv3.DeltaDiscoveryRequest, error)
	Send(*discoveryv3.DeltaDiscoveryResponse) error
}

// serve serves an Envoy on a stream. It calls open once the Envoy's Gateway is known.
func (s *Server) serve(stream wire, open func(gateway objects.Name, node string) feed) error {
	ctx := stream.Context()
	r, err := stream.Recv()
	if err != nil {
		return err
	}
	gateway, err := s.Identify(ctx, r.GetNode())
	if err != nil {
		return status.Error(codes.PermissionDenied, err.Error())
	}
	who := Envoy{gateway, r.GetNode().GetId(), s.served.Add(1)} // only the first request names the node
	from := open(gateway, who.Node)
	defer from.end()
	if s.Disconnected != nil {
		defer s.Disconnected(who)
	}
	requests := make(chan *discoveryv3.DeltaDiscoveryRequest)
	go func() {
		defer close(requests)
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	to := order.New()
	from.receive(r)
	to.Hear(r)           // the first request cannot be an ACK or NACK
	var behind time.Time // time of the first change that Envoy has not answered; zero if none
	var settled uint64   // number of the last change that Envoy has answered completely
	for {
		have, latest, changed := from.now()
		if have != nil {
			for _, response := range to.Next(have) {
				if err := stream.Send(response); err != nil {
					return err
				}
				s.Meter.EnvoySent(kinds[response.GetTypeUrl()], len(response.GetResources())+len(response.GetRemovedResources()))
				if behind.IsZero() {
					behind = latest.at
				}
			}
			if (!behind.IsZero() || latest.number != settled) && to.Settled(have) {
				if !behind.IsZero() {
					s.Meter.EnvoyTook(time.Since(behind))
				}
				behind, settled = time.Time{}, latest.number
				if s.Settled != nil && settled > 0 {
					s.Settled(who, settled)
				}
			}
		}
		select {
		case r, ok := <-requests:
			if !ok {
				return nil
			}
			from.receive(r)
			if a, ok := to.Hear(r); ok {
				s.received(who, a)
			}
		case <-changed:
		case <-s.closed.Done():
			return nil
		}
	}
}

// FromNode identifies an Envoy by the cluster of its node, without authentication. It is for Unix
// sockets, where file permissions decide who may connect.
func FromNode(_ context.Context, node *corev3.Node) (objects.Name, error) {
	name, ok := objects.ParseName(node.GetCluster())
	if !ok {
		return name, fmt.Errorf("the node's cluster is %q: want the Gateway, as NAMESPACE/NAME; control bootstrap writes it",
			node.GetCluster())
	}
	return name, nil
}

// Certified identifies an Envoy by its client certificate, for addresses that other programs can
// reach. It requires the TLS configuration of [pki.Authority.Control].
func Certified(ctx context.Context, _ *corev3.Node) (objects.Name, error) {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
			return pki.GatewayOf(info.State.VerifiedChains[0][0])
		}
	}
	return objects.Name{}, errors.New("the client certificate names no Gateway")
}

// keepaliveInterval is how often an Envoy may send keepalive pings. Its bootstrap sends one every
// 30 s.
const keepaliveInterval = 10 * time.Second

// Run serves Envoys on a listener until ctx ends, with TLS if secure is not nil. It closes the
// listener.
func (s *Server) Run(ctx context.Context, l net.Listener, secure *tls.Config) error {
	options := []grpc.ServerOption{grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
		MinTime:             keepaliveInterval,
		PermitWithoutStream: true,
	})}
	if secure != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(secure)))
	}
	server := grpc.NewServer(options...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, s)
	edsv3.RegisterEndpointDiscoveryServiceServer(server, s)
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		s.Close()
		server.GracefulStop()
	})
	defer stop()
	if err := server.Serve(l); ctx.Err() == nil {
		return err
	}
	<-ended
	return nil
}

// received reports an ACK or NACK to the Meter and to Answered.
func (s *Server) received(from Envoy, a order.Answer) {
	if a.Refused != "" {
		s.Meter.EnvoyRefused(kinds[a.Type])
	}
	if a.Refused != "" && (s.Answered == nil || a.Type == order.Endpoints) {
		s.Log.Error("an Envoy rejected its configuration", "gateway", from.Gateway.String(), "envoy", from.Node, "type", a.Type,
			"resources", a.Names, "err", a.Refused)
	}
	if s.Answered != nil {
		s.Answered(from, a)
	}
}

// Encoder makes successive snapshots of one Gateway's resources. It reuses the encodings of
// messages that were in the previous snapshot, so callers must not change messages. The zero
// Encoder is ready to use. Only one goroutine may use it.
type Encoder struct {
	resources cache.Cache[proto.Message, order.Resource]
	hosts     cache.Cache[*routev3.VirtualHost, []byte]
}

// SnapshotOf makes a snapshot of resources. The version of a resource is a hash of its bytes. All
// controls compute the same version, so an Envoy that reconnects to another control is sent only
// the resources that differ.
func SnapshotOf(r *envoy.Resources) (order.Snapshot, error) { return new(Encoder).SnapshotOf(r) }

// SnapshotOf makes a snapshot of resources.
func (e *Encoder) SnapshotOf(r *envoy.Resources) (order.Snapshot, error) {
	defer e.resources.NextRound()
	defer e.hosts.NextRound()
	to := order.Snapshot{order.Clusters: {}, order.Secrets: {}, order.Listeners: {}, order.Routes: {}}
	for _, secret := range r.Secrets {
		if err := e.add(to, order.Secrets, secret.GetName(), secret); err != nil {
			return nil, err
		}
	}
	for _, c := range r.Clusters {
		if err := e.add(to, order.Clusters, c.GetName(), c); err != nil {
			return nil, err
		}
	}
	for _, l := range r.Listeners {
		if err := e.add(to, order.Listeners, l.GetName(), l); err != nil {
			return nil, err
		}
	}
	for _, c := range r.Routes {
		if err := e.add(to, order.Routes, c.GetName(), c); err != nil {
			return nil, err
		}
	}
	return to, nil
}

func (e *Encoder) add(to order.Snapshot, of, name string, m proto.Message) error {
	from := func() (order.Resource, error) { return resource(of, m) }
	if routes, ok := m.(*routev3.RouteConfiguration); ok {
		hosts, err := e.encoded(routes)
		if err != nil {
			return err
		}
		from = func() (order.Resource, error) { return routesOf(routes, hosts) }
	}
	r, err := e.resources.Get(m, from)
	to[of][name] = r
	return err
}

// encoded returns the bytes of each virtual host of a route configuration.
func (e *Encoder) encoded(c *routev3.RouteConfiguration) (hosts [][]byte, err error) {
	hosts = make([][]byte, len(c.GetVirtualHosts()))
	for i, host := range c.GetVirtualHosts() {
		if hosts[i], err = e.hosts.Get(host, func() ([]byte, error) { return encode(host) }); err != nil {
			return nil, err
		}
	}
	return hosts, nil
}

// hostsField is the protobuf field number of RouteConfiguration.virtual_hosts.
const hostsField = 2

// routesOf returns the resource of a route configuration from its encoded hosts. It appends them to
// the other encoded fields, since the order of protobuf fields does not matter.
func routesOf(c *routev3.RouteConfiguration, hosts [][]byte) (order.Resource, error) {
	beside := new(routev3.RouteConfiguration)
	c.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Number() != hostsField {
			beside.ProtoReflect().Set(f, v)
		}
		return true
	})
	value, err := encode(beside)
	if err != nil {
		return order.Resource{}, err
	}
	size := 0
	for _, is := range hosts {
		size += protowire.SizeTag(hostsField) + protowire.SizeBytes(len(is))
	}
	value = slices.Grow(value, size)
	for _, is := range hosts {
		value = protowire.AppendBytes(protowire.AppendTag(value, hostsField, protowire.BytesType), is)
	}
	return resourceOf(order.Routes, value), nil
}

// resource encodes a message as a resource of a type.
func resource(of string, m proto.Message) (order.Resource, error) {
	value, err := encode(m)
	return resourceOf(of, value), err
}

func encode(m proto.Message) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}

func resourceOf(of string, value []byte) order.Resource {
	sum := sha256.Sum256(value)
	return order.Resource{Version: hex.EncodeToString(sum[:8]), Body: &anypb.Any{TypeUrl: of, Value: value}}
}
