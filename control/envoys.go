package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate"
	"github.com/headgate/headgate/control/attach/ads"
	"github.com/headgate/headgate/control/attach/certificates"
	"github.com/headgate/headgate/control/attach/drive"
	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/control/attach/status"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/listen"
	"github.com/headgate/headgate/internal/objects"
)

// serveEnvoys serves the Envoys of Gateways until ctx ends, whether this control leads or not.
func (o *office) serveEnvoys(ctx context.Context) error {
	template, err := envoy.Read(headgate.EnvoyYAML)
	if err != nil {
		return fmt.Errorf("envoy.yaml: %w", err)
	}
	who, secure, open := ads.Said, (*tls.Config)(nil), listen.Private
	if !strings.HasPrefix(o.envoys, "unix:") {
		who, open = ads.Certified, listen.On
		pod, _, err := o.inNamespace()
		if err != nil {
			return err
		}
		authority, err := pod.Authority(ctx)
		if err != nil {
			return nil // ctx has ended
		}
		if secure, err = authority.Control(time.Now()); err != nil {
			return err
		}
	}
	l, err := open("envoys", o.envoys)
	if err != nil {
		return err
	}
	envoys := ads.New(ads.Config{Who: who, Log: o.log})
	c := drive.Config{
		Template: template, Envoys: envoys, Log: o.log,
		Planned: func(a *attach.Attachments, p *plan.Plans, n *objects.Network) {
			o.gateways.set(&status.Input{Attachments: a, Plans: p, Network: n})
		},
	}
	if o.kube.On {
		select {
		case secrets := <-o.secrets:
			c.Certificates = certificates.New(secrets, o.log)
		case <-ctx.Done():
			return l.Close()
		}
	}
	driver := drive.New(c)
	o.log.Info("serving the Envoys of Gateways", "address", o.envoys)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return driver.Run(ctx, o.worlds.get) })
	group.Go(func() error { return envoys.Run(ctx, l, secure) })
	return group.Wait()
}
