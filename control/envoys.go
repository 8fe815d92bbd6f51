package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/headgate/headgate"
	"github.com/headgate/headgate/control/attach/ads"
	"github.com/headgate/headgate/control/attach/drive"
	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/internal/listen"
	"github.com/headgate/headgate/internal/objects"
)

// serveEnvoys serves the Envoys of Gateways until ctx ends, whether this control leads or not.
func (o *office) serveEnvoys(ctx context.Context) error {
	template, err := envoy.Read(headgate.EnvoyYAML)
	if err != nil {
		return fmt.Errorf("envoy.yaml: %w", err)
	}
	l, err := listen.Private("envoys", o.envoys)
	if err != nil {
		return err
	}
	envoys := ads.New(ads.Config{Who: gatewayOf, Log: o.log})
	server := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, envoys)
	driver := drive.New(drive.Config{Template: template, Envoys: envoys, Log: o.log})
	o.log.Info("serving the Envoys of Gateways", "address", o.envoys)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return driver.Run(ctx, o.worlds.get) })
	group.Go(func() error {
		if err := server.Serve(l); !errors.Is(err, grpc.ErrServerStopped) { // that says that ctx ended before this began
			return err
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		envoys.Close()
		server.GracefulStop()
		return nil
	})
	return group.Wait()
}

// gatewayOf believes an Envoy that reaches a socket: it runs as a user that may.
func gatewayOf(_ context.Context, node *corev3.Node) (objects.Name, error) {
	name := objectName(node.GetCluster())
	if name == (objects.Name{}) {
		return name, fmt.Errorf("the node's cluster is %q: want the Gateway, as NAMESPACE/NAME; control bootstrap writes it", node.GetCluster())
	}
	return name, nil
}
