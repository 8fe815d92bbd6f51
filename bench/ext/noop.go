package ext

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	edsv3 "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/types/known/anypb"
)

// maxMessage is the maximum size of a message from Envoy: the largest body that envoy.yaml accepts
// (32 MiB), and its envelope.
const maxMessage = 33 << 20

// noop returns a server of the kind that --noop states. It names these endpoints in turn. Its
// options are those of extproc's own server.
func noop(kind string, endpoints []string) (*grpc.Server, error) {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(1 << 20),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	}
	assignment, err := assignmentOf(endpoints)
	if err != nil {
		return nil, err
	}
	var server *grpc.Server
	switch kind {
	case "raw":
		n, err := newRaw(endpoints)
		if err != nil {
			return nil, err
		}
		server = grpc.NewServer(append(options, grpc.ForceServerCodecV2(newCodec()))...)
		n.register(server)
	case "std":
		server = grpc.NewServer(options...)
		newStd(endpoints).register(server)
	default:
		return nil, fmt.Errorf("--noop %q: use raw or std", kind)
	}
	edsv3.RegisterEndpointDiscoveryServiceServer(server, &discovery{assignment: assignment})
	healthv1.RegisterHealthServer(server, health{})
	return server, nil
}

// serve serves until ctx ends. Then it cuts all streams, since Envoy's do not end by themselves.
func serve(ctx context.Context, server *grpc.Server, l net.Listener) error {
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}

// discovery serves Envoy's endpoint discovery, from which envoy.yaml gets its endpoints. All
// resources have the same endpoints, which never change.
type discovery struct {
	edsv3.UnimplementedEndpointDiscoveryServiceServer
	assignment []*endpointv3.LbEndpoint
}

// DeltaEndpoints implements envoy.service.endpoint.v3.EndpointDiscoveryService.
func (d *discovery) DeltaEndpoints(stream edsv3.EndpointDiscoveryService_DeltaEndpointsServer) error {
	for nonce := 1; ; {
		in, err := stream.Recv()
		if err != nil {
			return unlessEnded(err)
		}
		if len(in.GetResourceNamesSubscribe()) == 0 {
			continue // Envoy has accepted a response, or needs a resource no longer
		}
		out := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: in.GetTypeUrl(), SystemVersionInfo: "1", Nonce: strconv.Itoa(nonce)}
		nonce++
		for _, name := range in.GetResourceNamesSubscribe() {
			is, err := anypb.New(&endpointv3.ClusterLoadAssignment{
				ClusterName: name,
				Endpoints:   []*endpointv3.LocalityLbEndpoints{{LbEndpoints: d.assignment}},
			})
			if err != nil {
				return err
			}
			out.Resources = append(out.Resources, &discoveryv3.Resource{Name: name, Version: "1", Resource: is})
		}
		if err := stream.Send(out); err != nil {
			return unlessEnded(err)
		}
	}
}

// assignmentOf returns endpoints (IP:PORT) in Envoy's form.
func assignmentOf(endpoints []string) (all []*endpointv3.LbEndpoint, err error) {
	for _, text := range endpoints {
		a, err := netip.ParseAddrPort(text)
		if err != nil {
			return nil, fmt.Errorf("--endpoint %q: want IP:PORT: %w", text, err)
		}
		all = append(all, &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: a.Addr().String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(a.Port())},
			}}},
		}}})
	}
	return all, nil
}

// health reports that every service is ready.
type health struct {
	healthv1.UnimplementedHealthServer
}

// Check implements grpc.health.v1.Health.
func (health) Check(context.Context, *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}, nil
}

// Watch implements grpc.health.v1.Health.
func (health) Watch(_ *healthv1.HealthCheckRequest, stream grpc.ServerStreamingServer[healthv1.HealthCheckResponse]) error {
	if err := stream.Send(&healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}
