package main

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/control/attach/conditions"
	"github.com/headgate/headgate/control/attach/controller"
	"github.com/headgate/headgate/control/attach/pki"
)

// serveEnvoys serves the Envoys of Gateways until ctx ends, whether this control leads or not.
func (o *office) serveEnvoys(ctx context.Context) error {
	s := controller.Service{
		Address: o.envoys, Worlds: o.worlds.Get, Meter: o.meter, Log: o.log, Pods: o.envoyImage != "",
		Planned: func(p controller.Plans) {
			o.gateways.Set(&conditions.Input{Attachments: p.Attachments, Plans: p.Plans, Network: p.Network, Facts: p.Facts()})
		},
		Authority: func(ctx context.Context) (*pki.Authority, error) {
			pod, _, err := o.inNamespace()
			if err != nil {
				return nil, err
			}
			return pod.Authority(ctx)
		},
	}
	group, ctx := errgroup.WithContext(ctx)
	if o.kube.On {
		s.ByName = o.byName
	}
	if portOf(o.envoys) != 0 { // others serve Envoys, too
		pod, _, err := o.inNamespace()
		if err != nil {
			return err
		}
		peers := pod.Peers(objectName(o.pod).Name)
		s.Peers = peers
		group.Go(func() error { return peers.Run(ctx) })
	}
	group.Go(func() error {
		if err := s.Run(ctx); ctx.Err() == nil {
			return err
		}
		return nil
	})
	return group.Wait()
}
