// Package ads serves Envoys what they are to have, by the delta variant of the aggregated discovery service. It is the edge around
// package order, which decides what each Envoy is sent and when.
package ads

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/internal/objects"
)

// Config is what a Server needs.
type Config struct {
	// Who returns the Gateway whose Envoy calls, or why it is served nothing.
	Who func(ctx context.Context, node *corev3.Node) (objects.Name, error)
	// Heard is told what an Envoy of a Gateway says of what it was sent; nil means nobody. It must be safe for concurrent use.
	Heard func(gateway objects.Name, node string, a order.Answer)
	Log   *slog.Logger
}

// Server serves every Envoy the resources of its own Gateway and no other's. It is safe for concurrent use. Make one with [New].
type Server struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	Config
	closed context.Context
	close  context.CancelFunc

	mu      sync.Mutex // guards the following
	all     map[objects.Name]order.Snapshot
	changed chan struct{} // closed and made anew with each change
}

// New returns a Server that serves nobody before the first [Server.Set].
func New(c Config) *Server {
	s := &Server{Config: c, changed: make(chan struct{})}
	s.closed, s.close = context.WithCancel(context.Background())
	return s
}

// Set says what the Envoys of each Gateway are to have, once all objects are known and again when that changes. Those of a Gateway that
// is missing keep what they have. Snapshots are not changed afterwards.
func (s *Server) Set(all map[objects.Name]order.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = all
	close(s.changed)
	s.changed = make(chan struct{})
}

// Close ends every stream: Envoys keep what they have, and call another control.
func (s *Server) Close() { s.close() }

func (s *Server) of(gateway objects.Name) (order.Snapshot, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[gateway], s.changed
}

// DeltaAggregatedResources implements AggregatedDiscoveryServiceServer.
func (s *Server) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	ctx := stream.Context()
	r, err := stream.Recv()
	if err != nil {
		return err
	}
	gateway, err := s.Who(ctx, r.GetNode())
	if err != nil {
		return status.Error(codes.PermissionDenied, err.Error())
	}
	node := r.GetNode().GetId() // the first request alone names it
	s.Log.Info("an Envoy is connected", "gateway", gateway.String(), "envoy", node)
	defer s.Log.Info("an Envoy has left", "gateway", gateway.String(), "envoy", node)
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
	to.Hear(r) // it answers nothing yet
	for {
		have, changed := s.of(gateway)
		if have != nil {
			for _, response := range to.Next(have) {
				if err := stream.Send(response); err != nil {
					return err
				}
			}
		}
		select {
		case r, ok := <-requests:
			if !ok {
				return nil
			}
			if a, ok := to.Hear(r); ok {
				s.heard(gateway, node, a)
			}
		case <-changed:
		case <-s.closed.Done():
			return nil
		}
	}
}

// Said believes what an Envoy says of itself, its Gateway as its node's cluster: for sockets, which only users may call that may be it.
func Said(_ context.Context, node *corev3.Node) (objects.Name, error) {
	namespace, name, ok := strings.Cut(node.GetCluster(), "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return objects.Name{}, fmt.Errorf("the node's cluster is %q: want the Gateway, as NAMESPACE/NAME; control bootstrap writes it", node.GetCluster())
	}
	return objects.Name{Namespace: namespace, Name: name}, nil
}

// keepaliveInterval is how often an Envoy may ask whether control is there: every 30 s by its bootstrap.
const keepaliveInterval = 10 * time.Second

// Run serves Envoys on a listener, which it closes, until ctx ends.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	server := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveInterval, PermitWithoutStream: true}))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, s)
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

// heard passes on what an Envoy says.
func (s *Server) heard(gateway objects.Name, node string, a order.Answer) {
	if a.Refused != "" {
		s.Log.Error("an Envoy refuses what it was sent", "gateway", gateway.String(), "envoy", node, "type", a.Type, "resources", a.Names, "err", a.Refused)
	}
	if s.Heard != nil {
		s.Heard(gateway, node, a)
	}
}

// SnapshotOf makes a snapshot of resources. The version of a resource is that of its bytes, the same in every process, so that an Envoy
// that calls another control is sent nothing that it has.
func SnapshotOf(r *envoy.Resources) (order.Snapshot, error) {
	to := order.Snapshot{order.Clusters: {}, order.Secrets: {}, order.Listeners: {}, order.Routes: {}}
	for _, secret := range r.Secrets {
		if err := add(to, order.Secrets, secret.GetName(), secret); err != nil {
			return nil, err
		}
	}
	for _, c := range r.Clusters {
		if err := add(to, order.Clusters, c.GetName(), c); err != nil {
			return nil, err
		}
	}
	for _, l := range r.Listeners {
		if err := add(to, order.Listeners, l.GetName(), l); err != nil {
			return nil, err
		}
	}
	for _, c := range r.Routes {
		if err := add(to, order.Routes, c.GetName(), c); err != nil {
			return nil, err
		}
	}
	return to, nil
}

func add(to order.Snapshot, of, name string, m proto.Message) error {
	body := &anypb.Any{TypeUrl: of}
	var err error
	if body.Value, err = (proto.MarshalOptions{Deterministic: true}).Marshal(m); err != nil {
		return err
	}
	sum := sha256.Sum256(body.GetValue())
	to[of][name] = order.Resource{Version: hex.EncodeToString(sum[:8]), Body: body}
	return nil
}
